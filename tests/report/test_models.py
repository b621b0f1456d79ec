from typing import Any

from raylab.arc.records import GroupMetrics, TrainingMetrics
from raylab.report.models import comparison_table, epoch_line, fine_tuning_table, group_table
from raylab.report.table import Table
from tests.arc.measured import epoch, held_out, training_metrics
from tests.report.pages import rows_of

RULES = {
    "copy_source": {"solve_rate": 0.0, "grid_accuracy": 0.02, "cell_accuracy": 0.6},
    "previous_cell": {"solve_rate": 0.2, "grid_accuracy": 0.01, "cell_accuracy": 1.0},
}


def test_ours_stand_beside_the_rules_with_the_skill_over_the_best():
    # (0.216 - 0.02) / (1 - 0.02) = 0.2; (0.1 - 0.2) / 0.8 = -0.125; a perfect rule leaves no skill.
    values = {"grid_accuracy": 0.216, "solve_rate": 0.1, "cell_accuracy": 0.9}
    result = training_metrics(epoch(4, values), rules=RULES)
    rows = rows_of(comparison_table({"champion": result}))
    assert ["metric", "champion", "rule: copy the source", "rule: previous cell"] in rows
    free = ["solve rate (free-running)", "10.00 % (-0.125)", "0.00 %", "20.00 %"]
    assert rows.index(free) < rows.index(["grid accuracy", "21.60 % (+0.200)", "2.00 %", "1.00 %"])
    assert ["cell accuracy", "90.00 %", "60.00 %", "100.00 %"] in rows
    assert ["parameters", "1,234,567", "-", "-"] in rows


def test_figures_by_the_published_definitions_are_a_marked_column():
    values = {"grid_accuracy": 0.25, "published_grid_accuracy": 0.125}
    table = comparison_table({"champion": training_metrics(epoch(4, values))})
    rows = rows_of(table)
    assert table.title.endswith("† by the published definitions")
    assert ["metric", "champion", "champion †"] in rows
    assert ["grid accuracy", "25.00 %", "12.50 %"] in rows
    assert ["shape accuracy, free-running", "-", "-"] in rows


def groups_of(**groups: Any) -> Table:
    return group_table({"champion": training_metrics(test=held_out({}, **groups))})


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
    row = ["C1", "champion", "7", *shapes, "90.00 %", "25.00 %", "65.00 %", "75.00 %", "50.00 %"]
    assert row in rows_of(groups_of(groups={"C1": metrics}))


def test_groups_show_the_skill_over_their_own_best_rule():
    group = GroupMetrics(grids=7, metrics={"cell_accuracy": 0.9})
    rules = {"C1": {"copy_source": {"cell_accuracy": 0.8}, "previous_cell": {"cell_accuracy": 0.5}}}
    shown = rows_of(groups_of(groups={"C1": group}, group_rules=rules))
    # (0.9 - 0.8) / (1 - 0.8)
    head = shown.index(["C1", "champion", "7", "-", "-", "90.00 % (+0.500)", *["-"] * 4])
    assert shown[head + 1][:6] == ["", "rule: copy the source", "7", "-", "-", "80.00 %"]


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
    table = fine_tuning_table("m", tuned())
    assert table is not None
    solved = "25.00 % → 50.00 %"
    assert rows_of(table) == [
        ["task", "pairs", "solved, free-running", "cell", "grid"],
        ["a", "2", "50.00 % → 100.00 %", "80.00 % → 90.00 %", "50.00 % → 100.00 %"],
        ["b", "4", "0.00 % → 0.00 %", "60.00 % → 50.00 %", "0.00 % → 0.00 %"],
        # Means over tasks: a task of four pairs counts as much as one of two.
        ["mean of the tasks", "6", solved, "70.00 % → 70.00 %", solved],
    ]
    assert "test pairs (of tasks that were trained on)" in table.title
    assert "the first model" not in table.title


def test_a_fine_tuning_says_which_pairs_are_not_new():
    for trained, text in ((5, "trained on 5 of these 6"), (None, "is not known")):
        table = fine_tuning_table("m", tuned(trained_pairs=trained))
        assert table is not None and text in table.title
    assert fine_tuning_table("m", training_metrics()) is None


METRICS = {
    "dense_grid_objective": 0.25,
    "cell_accuracy": 0.5,
    "grid_accuracy": 0.125,
    "solve_rate": 0.1,
}
SPEED = {"samples_per_second": 31.25, "train_seconds": 50.0, "validation_seconds": 10.0}


def test_epoch_line_counts_the_epochs_left():
    # 7 epochs of a minute each are left.
    assert epoch_line(epoch(3, METRICS, train_loss=0.51234, **SPEED), 10) == (
        "epoch  3/10  loss 0.5123  solved 10.00 %  grid 12.50 %  cell 50.00 %  objective 0.2500"
        "  31.2 samples/s  ETA 7 min"
    )
