from io import StringIO
from typing import Any

from rich.console import Console

from raylab.arc.records import EvaluationMetrics, GroupMetrics, TrainingMetrics
from raylab.arc.sweep import SweepMetrics, Trial
from raylab.config.arc import ScoringConfig
from raylab.report.tables import (
    accuracy_table,
    changes,
    comparison_table,
    fine_tuning_table,
    group_table,
    sweep_table,
)
from tests.arc.measured import epoch, held_out, trained, training_metrics


def text_of(table: object) -> list[list[str]]:
    out = StringIO()
    Console(file=out, width=200).print(table)
    return [
        [cell.strip() for cell in line.strip("│┃").replace("┃", "│").split("│")]
        for line in out.getvalue().splitlines()
    ]


RULES = {
    "copy_source": {"solve_rate": 0.0, "grid_accuracy": 0.02, "cell_accuracy": 0.6},
    "previous_cell": {"solve_rate": 0.2, "grid_accuracy": 0.01, "cell_accuracy": 1.0},
}


def test_ours_stand_beside_the_rules_with_the_skill_over_the_best():
    # (0.216 - 0.02) / (1 - 0.02) = 0.2; (0.1 - 0.2) / 0.8 = -0.125; a perfect rule leaves no skill.
    values = {"grid_accuracy": 0.216, "solve_rate": 0.1, "cell_accuracy": 0.9}
    result = training_metrics(epoch(4, values), rules=RULES)
    rows = text_of(comparison_table({"champion": result}))
    assert ["metric", "champion", "rule: copy the source", "rule: previous cell"] in rows
    free = ["solve rate (free-running)", "10.00 % (-0.125)", "0.00 %", "20.00 %"]
    assert rows.index(free) < rows.index(["grid accuracy", "21.60 % (+0.200)", "2.00 %", "1.00 %"])
    assert ["cell accuracy", "90.00 %", "60.00 %", "100.00 %"] in rows
    assert ["parameters", "1,234,567", "-", "-"] in rows


def test_a_training_from_before_the_rules_stands_alone():
    rows = text_of(comparison_table({"old": training_metrics(epoch(4, {"grid_accuracy": 0.25}))}))
    assert ["grid accuracy", "25.00 %"] in rows


def test_figures_by_the_published_definitions_are_a_marked_column():
    values = {"grid_accuracy": 0.25, "published_grid_accuracy": 0.125}
    table = comparison_table({"champion": training_metrics(epoch(4, values))})
    rows = text_of(table)
    assert str(table.title).endswith("† by the published definitions")
    assert ["metric", "champion", "champion †"] in rows
    assert ["grid accuracy", "25.00 %", "12.50 %"] in rows
    assert ["shape accuracy", "-", "-"] in rows


def test_trials_stand_beside_the_best_rule():
    best = trained(score=0.55, solve_rate=0.25)
    sweep = SweepMetrics(
        trials=(
            Trial(trial="t1", drawn={"architecture": "champion"}, trained=best, failure=None),
            Trial(trial="t2", drawn=None, trained=None, failure="loss is nan"),
        ),
        rules={"copy_source": {"grid_accuracy": 0.1, "solve_rate": 0.0}},
    )
    rows = text_of(sweep_table(sweep, "val_grid_accuracy"))
    assert ["1", "25.00 %", "0.5500", "+0.500", "2", "3", "1,234,567", "t1", "champion"] in rows
    assert ["-", "-", "failed", "-", "-", "-", "-", "t2", "-: loss is nan"] in rows
    assert ["-", "0.00 %", "0.1000", *["-"] * 5, "best rule: copy the source"] in rows


def test_groups_show_their_compositional_gap():
    metrics = GroupMetrics(
        grids=7,
        metrics={
            "cell_accuracy": 0.9,
            "grid_accuracy": 0.25,
            "compositional_gap": 0.65,
            "compositional_gap_rate": 0.75,
            "change_recall": 0.5,
            "solve_rate": 0.125,
            "shape_accuracy": 1.0,
        },
    )
    shapes = ["12.50 %", "100.00 %"]
    row = ["C1", "7", *shapes, "90.00 %", "25.00 %", "65.00 %", "75.00 %", "50.00 %"]
    assert row in text_of(group_table(held_out({}, groups={"C1": metrics})))


def test_groups_show_the_skill_over_their_own_best_rule():
    group = GroupMetrics(grids=7, metrics={"cell_accuracy": 0.9})
    rules = {"C1": {"copy_source": {"cell_accuracy": 0.8}, "previous_cell": {"cell_accuracy": 0.5}}}
    shown = text_of(group_table(held_out({}, groups={"C1": group}, group_rules=rules)))
    # (0.9 - 0.8) / (1 - 0.8)
    assert ["C1", "7", "-", "-", "90.00 % (+0.500)", "-", "-", "-", "-"] in shown


def tuned(**changes: Any) -> TrainingMetrics:
    """A fine-tuning on two tasks of two and four test pairs."""
    figures = [
        {"a": (2, 0.5, 0.8, 0.5), "b": (4, 0.0, 0.6, 0.0)},
        {"a": (2, 1.0, 0.9, 1.0), "b": (4, 0.0, 0.5, 0.0)},
    ]
    before, after = (
        held_out(
            {},
            by="pair",
            by_task={
                task: {
                    "pairs": pairs,
                    "solve_rate": solved,
                    "cell_accuracy": cells,
                    "grid_accuracy": grids,
                }
                for task, (pairs, solved, cells, grids) in of.items()
            },
            **({"trained_pairs": 0} | changes),
        )
        for of in figures
    )
    return training_metrics(test=after).model_copy(update={"before": before})


def test_tasks_stand_before_and_after_fine_tuning():
    table = fine_tuning_table(tuned())
    rows = text_of(table)
    solved = "25.00 % -> 50.00 %"
    expected = [
        ["task", "pairs", "solved, free-running", "cell", "grid"],
        ["a", "2", "50.00 % -> 100.00 %", "80.00 % -> 90.00 %", "50.00 % -> 100.00 %"],
        ["b", "4", "0.00 % -> 0.00 %", "60.00 % -> 50.00 %", "0.00 % -> 0.00 %"],
        # Means over tasks: a task of four pairs counts as much as one of two.
        ["mean of the tasks", "6", solved, "70.00 % -> 70.00 %", solved],
    ]
    assert [row for row in rows if row in expected] == expected
    assert "test pairs (of tasks that were trained on)" in str(table.title)
    assert "the first model" not in str(table.title)
    assert "trained on 5 of these 6" in str(fine_tuning_table(tuned(trained_pairs=5)).title)
    assert "is not known" in str(fine_tuning_table(tuned(trained_pairs=None)).title)


def test_without_a_fine_tuning_there_is_no_change():
    assert changes(training_metrics()) == []


def test_accuracies_stand_by_model_and_generation():
    accuracies = {
        "base": {"published": 0.5, "seed-1": 0.25},
        "big": {"published": 1.0, "seed-1": 0.0},
    }
    rules = {"copy_source": {"published": 0.125, "seed-1": 0.25}}
    metrics = EvaluationMetrics(metric="solve_rate", models=accuracies, rules=rules)
    table = accuracy_table(metrics, ScoringConfig(unit="group"))
    rows = text_of(table)
    assert table.title == "Mean solve_rate of a group"
    assert ["model", "published", "seed-1"] in rows
    assert ["base", "50.00 %", "25.00 %"] in rows
    assert ["big", "100.00 %", "0.00 %"] in rows
    assert ["rule: copy the source", "12.50 %", "25.00 %"] in rows
