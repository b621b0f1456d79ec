import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from raylab.arc.records import Example, GroupMetrics, PredictedGrid, TrainingMetrics
from raylab.config.jobs import PipelineConfig, TrainConfig
from raylab.quality.record import FileCounts
from raylab.report.pipeline import (
    SHOWN_MODELS,
    PipelineReport,
    caveats,
    render_pipeline,
    summary,
)
from tests.arc.measured import epoch, held_out, training_metrics
from tests.quality.qualities import figure, quality
from tests.report.pages import Page
from tests.runs.records import run_record

Rows = list[list[int]]
GROUP = GroupMetrics(
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
RULES = {
    "copy_source": {"solve_rate": 0.0, "grid_accuracy": 0.02, "cell_accuracy": 0.6},
    "previous_cell": {"solve_rate": 0.0, "grid_accuracy": 0.01, "cell_accuracy": 0.5},
}
FULL = PipelineConfig.model_validate({"data": {"source": "re_arc", "path": "re_arc.zip"}})
"""The published recipe."""
SHORT = PipelineConfig.model_validate({"data": {"source": "arc_agi_1"}, "training": {"epochs": 2}})


def metrics(
    grid: float = 0.031, cell: float = 0.85, solved: float | None = 0.0123
) -> TrainingMetrics:
    values = {"grid_accuracy": grid, "cell_accuracy": cell}
    if solved is not None:
        values["solve_rate"] = solved
    first, last = epoch(1, values, train_loss=0.9), epoch(2, values)
    return training_metrics(first, last, groups={"C1": GROUP, "A2": GROUP}, rules=RULES)


def example(
    task: str, grid: Rows, target: Rows, predictions: Mapping[str, PredictedGrid]
) -> Example:
    return Example.model_validate(
        {"task": task, "input": grid, "target": target, "predictions": predictions}
    )


def answer(grid: Rows, solved: bool) -> PredictedGrid:
    return PredictedGrid.model_validate({"grid": grid, "solved": solved})


def report(**more: Any) -> PipelineReport:
    shown = example(
        "007bbfb7",
        [[1, 2], [3, 4]],
        [[1, 2], [3, 5]],
        {
            "champion": answer([[1, 2], [3, 5]], True),
            "small": answer([[1, 2, 0]], False),
        },
    )
    base = PipelineReport(
        uri="/runs/p",
        record=run_record(
            job="pipeline",
            config=SHORT.model_dump(mode="json"),
            argv=("jobs/pipeline.py", "models=[champion, small]"),
        ),
        config=SHORT,
        models={"champion": metrics(), "small": metrics(0.02)},
        quality={"this run": quality()},
        examples=[shown],
    )
    return replace(base, **more)


def page_of(content: PipelineReport) -> Page:
    page = Page(render_pipeline(content))
    assert page.open == []
    return page


@pytest.fixture(scope="module")
def usual() -> Page:
    return page_of(report())


def test_metrics_stand_beside_the_rules_free_running_ones_first(usual: Page):
    rows = usual.rows
    rules = ["rule: copy the source", "rule: previous cell"]
    head = rows.index(["metric", "champion", "small", *rules])
    solved = ["1.23 % (+0.012)"] * 2
    assert rows[head + 1] == ["solve rate (free-running)", *solved, "0.00 %", "0.00 %"]
    # (0.031 - 0.02) / 0.98 = 0.0112; the other is as good as the best rule.
    grids = ["3.10 % (+0.011)", "2.00 % (+0.000)"]
    assert ["grid accuracy", *grids, "2.00 %", "1.00 %"] in rows
    assert ["best epoch", "2", "2", "-", "-"] in rows
    assert ["parameters", "1,234,567", "1,234,567", "-", "-"] in rows


def test_ours_by_the_published_definitions_are_marked():
    values = {"grid_accuracy": 0.25, "published_grid_accuracy": 0.125}
    rules = {"copy_source": {"grid_accuracy": 0.0, "published_grid_accuracy": 0.0625}}
    models = {"champion": training_metrics(epoch(1, values), rules=rules)}
    page = page_of(report(models=models))
    assert ["metric", "champion", "champion †", "rule: copy the source"] in page.rows
    assert ["grid accuracy", "25.00 % (+0.250)", "12.50 %", "0.00 %"] in page.rows
    assert "the first output cell is left out" in page.text


def test_rules_stand_beside_the_accuracies_of_a_score_tree():
    rules = {"this run": {"copy_source": 0.375}}
    row = ["rule: copy the source", "37.50 %", "-", "-"]
    assert [*row, "-"] in page_of(report(rules=rules)).rows
    rules["/runs/earlier"] = {"copy_source": 0.25}
    assert [*row, "25.00 %"] in page_of(report(rules=rules)).rows


def test_only_the_better_model_is_marked():
    html = render_pipeline(report())
    assert re.findall(r'class="best">([^<]*)<', html) == ["3.10 % (+0.011)"]


def test_groups_have_a_row_for_each_model_with_the_gap(usual: Page):
    rows = usual.rows
    numbers = ["7", "12.50 %", "100.00 %", "90.00 %", "25.00 %", "65.00 %", "75.00 %", "50.00 %"]
    for group in ("C1", "A2"):
        start = rows.index([group, "champion", *numbers])
        assert rows[start + 1] == ["", "small", *numbers]


def test_groups_have_a_row_for_each_rule():
    test = held_out(
        {}, groups={"C1": GROUP}, group_rules={"C1": {"copy_source": RULES["copy_source"]}}
    )
    trained = training_metrics(epoch(1, {}), test=test)
    rows = page_of(report(models={"champion": trained})).rows
    (row,) = (row for row in rows if row[1:3] == ["rule: copy the source", "7"])
    assert rows[rows.index(row) - 1][:2] == ["C1", "champion"]


def test_quality_figures_come_with_interval_meaning_and_formula(usual: Page):
    rows = {row[0]: row[1:] for row in usual.rows}
    difficulty = rows["difficulty"]
    assert difficulty[:4] == ["0.1415", "-", "0.1111 to 0.1818", ""]
    assert len(difficulty[4]) > 20 and difficulty[5] == "1 - the highest accuracy of a model"
    assert rows["consistency"][:3] == ["0.9911", "0.9987", "0.9900 to 1.0000"]
    assert rows["separability"][2:4] == ["-", "bootstrap=0"]
    assert rows["novelty"][:4] == ["not computed", "-", "-", "no prior benchmark was given"]
    assert "Accuracy is solve rate (free-running)." in usual.text
    assert "1,270 files read, 1 skipped" in usual.text
    assert "only two models" in usual.text


def test_accuracies_stand_beside_those_on_the_priors(usual: Page):
    rows = usual.rows
    assert ["model", "accuracy", "published", "1", "prior: /runs/earlier"] in rows
    assert ["champion", "85.85 %", "86.00 %", "85.70 %", "43.21 %"] in rows
    assert ["small", "81.59 %", "-", "81.59 %", "40.00 %"] in rows


def test_skipped_files_are_listed_with_the_reason(usual: Page):
    assert ["scores/champion/1/ab.json", "status is error"] in usual.rows


def test_a_tree_without_generations_says_so():
    flat = quality(generations={}, figures={"consistency": figure(None, reason="it is flat")})
    text = page_of(report(quality={"ours": flat})).text
    assert "no generations" in text
    assert "not computed - - it is flat" in text


def test_predictions_stand_beside_the_target(usual: Page):
    labels = [
        words.partition(",")[0]
        for words in usual.words
        if re.match(r"(prediction|input|target) of", words)
    ]
    assert labels == [
        "input of task 007bbfb7",
        "target of task 007bbfb7",
        "prediction of champion for task 007bbfb7",
        "prediction of small for task 007bbfb7",
    ]
    assert "champion solved 4 of 4 cells right" in usual.text
    assert "small not solved 1 by 3 instead of 2 by 2" in usual.text


def test_provenance_names_configuration_commit_versions_and_command(usual: Page):
    text = usual.text
    assert "a1b2c3d4e5" in text
    assert "d8b3196 with uncommitted changes" in text
    assert "ray 2.60.0, torch absent" in text
    assert "jobs/pipeline.py 'models=[champion, small]'" in text
    assert "source: arc_agi_1" in text


def test_the_summary_keeps_teacher_forcing_and_solving_apart():
    first, alone, forced, of_quality = summary(report())
    assert first == "2 models trained for 2 epochs: champion and small."
    assert "teacher-forced" in forced
    assert "3.10 %" in forced
    assert "solve" not in forced
    assert alone == (
        "On its own (free-running), champion solves 1.23 % of the validation grids; the best rule "
        "(copy the source) reaches 0.00 %."
    )
    assert "difficulty 0.141, separability 0.021 and consistency 0.991" in of_quality


def test_without_a_solve_rate_the_page_claims_no_solving():
    unsolved = report(models={"champion": metrics(solved=None)})
    assert any("nothing here says what the models solve" in text for text in summary(unsolved))


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, []),
        ({"training": {"epochs": 4}}, ["short training: 4 of the 100"]),
        ({"data": {"source": "re_arc", "path": "re_arc.zip", "every": 10}}, ["data.every"]),
        ({"data": {"source": "arc_agi_1"}}, ["not a comparison"]),
    ],
)
def test_caveats_are_those_that_hold(changes: Mapping[str, Any], expected: list[str]):
    config = PipelineConfig.model_validate({**FULL.model_dump(mode="json"), **changes})
    tested = metrics()
    tested = tested.model_copy(
        update={"test": held_out(tested.best.validation, rules=tested.rules)}
    )
    found = list(caveats(report(config=config, quality={}, models={"champion": tested})))
    assert len(found) == len(expected)
    assert all(part in text for part, text in zip(expected, found, strict=True))


def test_the_page_reports_the_test_tasks():
    test = held_out({**metrics().best.validation, "solve_rate": 0.0456})
    models = {"champion": metrics().model_copy(update={"test": test})}
    page = Page(render_pipeline(report(models=models)))
    assert "champion solves 4.56 % of the test grids" in page.text
    assert "the figures are on the test tasks." in page.text
    assert "too good for others" not in page.text
    both = test.model_copy(update={"chosen_on": True})
    models = {"champion": metrics().model_copy(update={"test": both})}
    page = Page(render_pipeline(report(models=models)))
    assert "Figures are on the test tasks, which also chose the epoch" in page.text
    old = Page(render_pipeline(report(models={"champion": metrics()})))
    assert "Figures are on the validation tasks, which also chose the epoch" in old.text


def test_a_fine_tuning_shows_each_task_before_and_after():
    figures = {"pairs": 2, "solve_rate": 0.0, "cell_accuracy": 0.5, "grid_accuracy": 0.25}
    validation = metrics().best.validation
    before = held_out(validation, by="pair", by_task={"007bbfb7": figures}, trained_pairs=1)
    after = held_out(validation, by="pair", by_task={"007bbfb7": figures | {"solve_rate": 1.0}})
    tuned = metrics().model_copy(update={"before": before, "test": after})
    page = Page(render_pipeline(report(models={"champion": tuned})))
    cells = ["0.00 % → 100.00 %", "50.00 % → 50.00 %", "25.00 % → 25.00 %"]
    assert ["007bbfb7", "2", *cells] in page.rows
    assert ["mean of the tasks", "2", *cells] in page.rows
    assert "the first model was trained on 1 of these 6 pairs" in page.text
    assert "tuning" in page.ids


@pytest.mark.parametrize(("skipped", "text"), [(1, "1 file of"), (5000, "5,000 files of")])
def test_files_left_out_are_a_caveat(skipped: int, text: str):
    # The list of skipped files ends early; their count does not.
    tree = quality(files=FileCounts(read=9, skipped=skipped))
    found = list(caveats(report(quality={"ours": tree})))
    assert f"{text} ours could not be used; the list is below." in found


def test_fifty_models_fit_in_three_megabytes():
    size = 30
    noise = [[(7 * x + 3 * y * y) % 10 for x in range(size)] for y in range(size)]
    models = {f"model-{i:02}": metrics(i / 100, solved=i / 100) for i in range(50)}
    examples = [
        example(f"{i:08}", noise, noise, {name: answer(noise, True) for name in models})
        for i in range(4)
    ]
    scores = {name: {str(g): 0.5 + g / 10 for g in range(3)} for name in models}
    tree = quality(models={name: 0.5 for name in models}, generations=scores)
    html = render_pipeline(report(models=models, examples=examples, quality={"ours": tree}))
    assert len(html.encode()) < 3_000_000
    pictured = re.findall(r"<title>prediction of (model-\d+) for task 00000000<", html)
    assert pictured == [f"model-{i}" for i in range(50 - SHOWN_MODELS, 50)]


def test_a_run_of_nothing_still_makes_a_page():
    page = page_of(PipelineReport("/runs/e", run_record(git=None), FULL))
    assert "No model was trained and no score tree was read." in page.text
    assert "not known" in page.text


def test_a_training_run_has_the_same_page_without_scores():
    config = TrainConfig(data=FULL.data)
    page = page_of(PipelineReport("/runs/t", run_record(name="t"), config, {"champion": metrics()}))
    assert page.text.startswith("raylab train t Skip to content raylab train · /runs/t")
    assert "1 model trained for 2 epochs: champion." in page.text
    assert ["grid accuracy", "3.10 % (+0.011)", "2.00 %", "1.00 %"] in page.rows
    assert ["C1", "champion", "7", "12.50 %", "100.00 %", "90.00 %", "25.00 %", "65.00 %",
            "75.00 %", "50.00 %"] in page.rows  # fmt: skip
    assert page.sections == ["metrics", "curves", "groups", "provenance"]
