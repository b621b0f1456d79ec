from io import StringIO

from rich.console import Console

from raylab.arc.records import GroupMetrics
from raylab.config.arc import ScoringConfig
from raylab.report.tables import accuracy_table, comparison_table, group_table
from tests.arc.measured import epoch, training_metrics


def text_of(table: object) -> list[list[str]]:
    out = StringIO()
    Console(file=out, width=200).print(table)
    return [
        [cell.strip() for cell in line.strip("│┃").replace("┃", "│").split("│")]
        for line in out.getvalue().splitlines()
    ]


def test_ours_stand_beside_the_published_champion():
    result = training_metrics(epoch(4, {"grid_accuracy": 0.031}))
    rows = text_of(comparison_table({"champion": result}))
    assert ["grid accuracy", "3.10 %", "2.34 %"] in rows
    assert ["solve rate (free-running)", "-", "-"] in rows
    assert ["dense grid objective", "-", "68.76 %"] in rows
    assert ["parameters", "1,234,567", "-"] in rows


def test_groups_show_their_compositional_gap():
    metrics = GroupMetrics(
        grids=7,
        metrics={
            "cell_accuracy": 0.9,
            "grid_accuracy": 0.25,
            "compositional_gap": 0.65,
            "change_recall": 0.5,
            "solve_rate": 0.125,
            "shape_accuracy": 1.0,
        },
    )
    row = ["C1", "7", "90.00 %", "25.00 %", "65.00 %", "50.00 %", "12.50 %", "100.00 %"]
    assert row in text_of(group_table({"C1": metrics}))


def test_accuracies_stand_by_model_and_generation():
    accuracies = {"base": {"published": 0.5, "seed-1": 0.25}, "big": {"published": 1, "seed-1": 0}}
    table = accuracy_table(accuracies, ScoringConfig(unit="group"))
    rows = text_of(table)
    assert table.title == "Mean cell_accuracy of a group"
    assert ["model", "published", "seed-1"] in rows
    assert ["base", "50.00 %", "25.00 %"] in rows
    assert ["big", "100.00 %", "0.00 %"] in rows
