"""The tables and the page of trainings and pipelines."""

import re
from collections.abc import Mapping
from io import StringIO
from typing import Any

import pytest
from rich.console import Console

from raylab.arc.config.jobs import TrainConfig
from raylab.arc.pages.models import (
    SUMMARY,
    epoch_line,
    score_table,
    summary_table,
    training_page,
    training_table,
)
from raylab.arc.records import Example, GroupMetrics, TrainingMetrics
from raylab.core.page import page as content_of
from raylab.core.page.page import render
from raylab.core.page.table import as_rich
from raylab.together.config import PipelineConfig
from raylab.together.pipeline import pipeline_page
from tests.arc.measured import epoch, held_out, training_metrics
from tests.benchmark.figures.qualities import quality
from tests.core.page.pages import Page
from tests.core.runs.records import run_record

Rows = list[list[int]]
GROUP = GroupMetrics(
    grids=7,
    metrics=dict(
        cell_accuracy=0.9, grid_accuracy=0.25, compositional_gap=0.65, compositional_gap_rate=0.75,
        change_recall=0.5, solve_rate=0.125, shape_accuracy=1.0,
    ),
)  # fmt: skip
BASELINES = {
    "copy_source": {"solve_rate": 0.0, "grid_accuracy": 0.02, "cell_accuracy": 0.6},
    "previous_cell": {"solve_rate": 0.0, "grid_accuracy": 0.01, "cell_accuracy": 0.5},
}
FULL = PipelineConfig.model_validate({"data": {"source": "re_arc", "path": "re_arc.zip"}})
"""The published recipe."""
SHORT = PipelineConfig.model_validate({"data": {"source": "arc_agi_1"}, "training": {"epochs": 2}})


def metrics(grid: float = 0.031, cell: float = 0.85, solved: float = 0.0123) -> TrainingMetrics:
    values = {"grid_accuracy": grid, "cell_accuracy": cell, "solve_rate": solved}
    first, last = epoch(1, values, train_loss=0.9), epoch(2, values)
    return training_metrics(first, last, groups={"C1": GROUP, "A2": GROUP}, baselines=BASELINES)


def example(task: str, target: Rows, answers: Mapping[str, Rows]) -> Example:
    """A task whose input is its target."""
    predictions = {name: {"grid": grid, "solved": grid == target} for name, grid in answers.items()}
    return Example.model_validate(
        {"task": task, "input": target, "target": target, "predictions": predictions}
    )


def content(**more: Any) -> content_of.Page:
    target = [[1, 2], [3, 5]]
    base: dict[str, Any] = {
        "record": run_record(
            job="pipeline",
            config=SHORT.model_dump(mode="json"),
            argv=("jobs/pipeline.py", "models=[champion, small]"),
        ),
        "config": SHORT,
        "models": {"champion": metrics(), "small": metrics(0.02)},
        "tuned": {},
        "tree": "this run",
        "quality": quality(),
        "baselines": {},
        "examples": [example("007bbfb7", target, {"champion": target, "small": [[1, 2, 0]]})],
    }
    return pipeline_page("/runs/p", **(base | more))


def page_of(**more: Any) -> Page:
    return Page(render(content(**more)))


@pytest.fixture(scope="module")
def usual() -> Page:
    return page_of()


def test_models_stand_above_the_rules_with_free_running_scores_first(usual: Page):
    head = usual.rows.index(["model", "solved", "grid", "cell"])
    # (0.031 - 0.02) / 0.98 = 0.0112; the other is as good as the best baseline. (.85 - .6) / .4.
    assert usual.rows[head + 1 : head + 5] == [
        ["champion", "1.23 % +0.012", "3.10 % +0.011", "85.00 % +0.625"],
        ["small", "1.23 % +0.012", "2.00 % +0.000", "85.00 % +0.625"],
        ["baseline: copy the source", "0.00 %", "2.00 %", "60.00 %"],
        ["baseline: previous cell", "0.00 %", "1.00 %", "50.00 %"],
    ]
    assert ["champion", "2", "-", "0.5000", "12.3", "1,234,567"] in usual.rows
    # Of the best, and not of what is equal.
    html = render(content())
    assert re.findall(r'class="best">([^<]*)<', html) == ["3.10&nbsp;%"]


def test_each_model_is_measured_by_the_rules_on_its_own_tasks():
    # (0.1 - 0.2) / 0.8 = -0.125; a perfect baseline leaves no skill.
    baselines = {"copy_source": {"solve_rate": 0.2, "cell_accuracy": 1.0}}
    values = {"solve_rate": 0.1, "cell_accuracy": 0.5}
    test = held_out(values, baselines=baselines)
    models = {"a": training_metrics(test=test), "b": metrics(solved=0.1)}
    table = score_table(models)
    (own, other), baselines = table.bodies
    assert [cell.small for cell in own] == ["", "-0.125", "", ""]
    assert [cell.small for cell in other] == ["", "+0.100", "+0.011", "+0.625"]
    # The best of both baselines on each metric.
    assert [[cell.text for cell in row] for row in baselines] == [
        ["best baseline (a)", "20.00 %", "-", "100.00 %"],
        ["best baseline (b)", "0.00 %", "2.00 %", "60.00 %"],
    ]
    (first, second) = training_table(models).bodies[0]
    assert first[1].text == "test tasks"
    assert second[1].text == "validation tasks, which also chose the epoch"


def test_groups_have_a_row_for_each_model_and_rule_with_gap_and_skill(usual: Page):
    numbers = ["7", "12.50 %", "100.00 %", "90.00 %", "25.00 %", "65.00 %", "75.00 %", "50.00 %"]
    for group in ("C1", "A2"):
        start = usual.rows.index([group, "champion", *numbers])
        assert usual.rows[start + 1] == ["", "small", *numbers]
    baselines = {
        "C1": {"copy_source": {"cell_accuracy": 0.8}, "previous_cell": {"cell_accuracy": 0.5}}
    }
    values = {"solve_rate": 0.0, "grid_accuracy": 0.0}
    test = held_out(values, groups={"C1": GROUP}, group_baselines=baselines)
    rows = page_of(models={"champion": training_metrics(test=test)}).rows
    # (0.9 - 0.8) / (1 - 0.8)
    (row,) = (row for row in rows if row[:2] == ["C1", "champion"])
    assert row[5] == "90.00 % +0.500"
    below = rows[rows.index(row) + 1]
    assert below[:6] == ["", "baseline: copy the source", "7", "-", "-", "80.00 %"]


def test_quality_figures_come_with_interval_meaning_and_formula(usual: Page):
    rows = {row[0]: row[1:] for row in usual.rows}
    difficulty = rows["difficulty"]
    assert difficulty[:3] == ["0.1415", "-", "0.1111 to 0.1818"]
    assert difficulty[3].endswith("1 - the highest accuracy of a model")
    assert rows["consistency"][:3] == ["0.9911", "0.9987", "0.9900 to 1.0000"]
    assert rows["separability"][2] == "none: bootstrap=0"
    assert rows["novelty"][:3] == ["not computed", "-", "no prior benchmark was given"]
    assert "Accuracy is solve rate (free-running)." in usual.text
    assert "1,270 files read, 1 skipped" in usual.text and "only two models" in usual.text


def test_accuracies_stand_beside_those_on_the_priors_and_of_baselines():
    baselines = {"this run": {"copy_source": 0.375}, "/runs/earlier": {"copy_source": 0.25}}
    rows = page_of(baselines=baselines).rows
    assert ["model", "accuracy", "published", "1", "prior: /runs/earlier"] in rows
    assert ["champion", "85.85 %", "86.00 %", "85.70 %", "43.21 %"] in rows
    assert ["small", "81.59 %", "-", "81.59 %", "40.00 %"] in rows
    assert ["baseline: copy the source", "37.50 %", "-", "-", "25.00 %"] in rows


def test_predictions_stand_beside_the_target_and_provenance_names_what_made_them(usual: Page):
    for text in (
        "input of task 007bbfb7, 2 by 2",
        "prediction of small for task 007bbfb7",
        "champion solved 4 of 4 cells right",
        "small not solved 1 by 3 instead of 2 by 2",
        "a1b2c3d4e5",
        "d8b3196 uncommitted changes yes",
        "jobs/pipeline.py 'models=[champion, small]'",
        "source: arc_agi_1",
    ):
        assert text in usual.text


def test_the_summary_keeps_teacher_forcing_and_solving_apart():
    alone, forced, trained, of_quality = content().lead
    assert trained == "2 models trained for 2 epochs: champion and small."
    assert "teacher-forced" in forced and "3.10 %" in forced and "solve" not in forced
    assert alone == (
        "On its own (free-running), champion solves 1.23 % of the validation grids; the best "
        "baseline (copy the source) reaches 0.00 %."
    )
    assert "difficulty 0.141, separability 0.021 and consistency 0.991" in of_quality


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, []),
        ({"training": {"epochs": 4}}, ["short training: 4 of the 100"]),
        (
            {"training": {"monitor": "val_solve_rate"}},
            [f"Epoch 2 of champion was chosen by about 0 of {2 * GROUP.grids} validation grids."],
        ),
        ({"data": {"source": "re_arc", "path": "re_arc.zip", "every": 10}}, ["data.every"]),
    ],
)
def test_caveats_are_those_that_hold(changes: Mapping[str, Any], expected: list[str]):
    config = PipelineConfig.model_validate({**FULL.model_dump(mode="json"), **changes})
    test = held_out(metrics().best.validation, baselines=BASELINES, chosen_on=True)
    models = {"champion": metrics().model_copy(update={"test": test})}
    chosen = "Figures are on the test tasks, which also chose the epoch"
    notes = content(config=config, models=models).notes
    assert all(part in note for part, note in zip([*expected, chosen], notes, strict=True))


def test_a_fine_tuning_leads_with_before_and_after_and_sorts_tasks_by_their_gain():
    def by_task(**tasks: tuple[int, float]) -> dict[str, dict[str, float]]:
        rest = {"cell_accuracy": 0.5, "grid_accuracy": 0.25}
        return {task: {"pairs": n, "solve_rate": rate, **rest} for task, (n, rate) in tasks.items()}

    validation = metrics().best.validation
    had, now = by_task(b=(4, 0.0), a=(2, 0.5)), by_task(b=(4, 0.0), a=(2, 1.0))
    before = held_out(validation, by="pair", by_task=had, trained_pairs=1)
    after = held_out(validation, by="pair", by_task=now)
    tuned = metrics().model_copy(update={"before": before, "test": after})
    page = page_of(tuned={"champion": tuned})
    same = ["50.00 % → 50.00 %", "25.00 % → 25.00 %"]
    # A mean over tasks: one of four pairs counts as much as one of two.
    start = page.rows.index(["mean of the tasks", "6", "25.00 % → 50.00 %", *same])
    assert page.rows[start + 1 : start + 3] == [
        ["a", "2", "50.00 % → 100.00 %", *same],
        ["b", "4", "0.00 % → 0.00 %", *same],
    ]
    new = "test pairs (of tasks that were trained on)"
    assert f"Fine-tuning took champion from 1.23 % to 1.23 % of the {new}" in page.text
    assert "The first model was trained on 1 of these 6 pairs." in page.text


def test_a_training_run_has_the_same_page_without_scores():
    config = TrainConfig(data=FULL.data)
    page = Page(
        render(training_page("/runs/t", run_record(name="t"), config, {"champion": metrics()}))
    )
    assert page.text.startswith("raylab train t Skip to content raylab train · /runs/t")
    assert "1 model trained for 2 epochs: champion." in page.text
    assert page.sections == ["metrics", "curves", "groups", "provenance"]


def test_epoch_line_counts_the_epochs_left():
    values = {"cell_accuracy": 0.5, "grid_accuracy": 0.125, "solve_rate": 0.1}
    speed = {"samples_per_second": 31.25, "train_seconds": 50.0, "validation_seconds": 10.0}
    measured = {"dense_grid_objective": 0.25, **values}
    # Of 94 steps, ten an epoch, 6.4 epochs of a minute each are left.
    ended = epoch(3, measured, train_loss=0.51234, planned_steps=94, **speed)
    assert epoch_line(ended.row()) == (
        "epoch  3/10  loss 0.5123  solved 10.00 %  grid 12.50 %  cell 50.00 %  objective 0.2500"
        "  31.2 samples/s  ETA 6 min"
    )


def test_a_terminal_of_80_columns_shows_six_figures_whole() -> None:
    baselines = {
        "copy_source": {"solve_rate": 0.25, "cell_accuracy": 0.75},
        "previous_cell": {"solve_rate": 0.0, "cell_accuracy": 0.8},
    }
    values = dict.fromkeys(SUMMARY, 1.0) | {"loss": 0.125}
    before = held_out({"solve_rate": 0.5})
    tuned = training_metrics(test=held_out(values, baselines=baselines)).model_copy(
        update={"before": before}
    )
    models = {"encoder_decoder-17-with-a-long-name": tuned}
    out = StringIO()
    Console(file=out, width=80).print(as_rich(summary_table(models)))
    lines = [re.findall(r"[^│┃\s][^│┃]*(?<! )", line) for line in out.getvalue().splitlines()]
    shares = ["100.00"] * 4
    assert ["encoder_…ong-name", *shares, "1.0000", "0.1250"] in lines
    assert ["before tuning", "50.00", *["-"] * 5] in lines
    # The best of each: one baseline solves more, the other has more cells right.
    assert ["best baseline", "25.00", "-", "80.00", *["-"] * 3] in lines
