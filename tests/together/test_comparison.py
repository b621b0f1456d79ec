import re
from pathlib import Path

import pytest

from raylab.arc.config.jobs import TrainConfig
from raylab.core.errors import RunError
from raylab.core.page.page import render
from raylab.core.runs.run import Run
from raylab.core.runs.run_record import Checkout
from raylab.together.comparison import Comparison, compare, comparison_page, find_runs, report_runs
from raylab.together.config import BenchmarkConfig, ReportConfig
from tests.core.page.pages import Page
from tests.together.runs import CASES, LLM, annotate, content, every_kind, left, train


def compared(storage: Path, *names: str) -> Comparison:
    return compare(find_runs(names, str(storage)))


def html_of(comparison: Comparison) -> str:
    return render(comparison_page("c", "/runs/c", comparison))


def page_of(comparison: Comparison) -> Page:
    return Page(html_of(comparison))


def test_models_and_configurations_stand_side_by_side_with_the_best_marked(tmp_path: Path):
    train(tmp_path, "a", 0.25)
    train(tmp_path / "other", "b", 0.5, lr=0.5, epochs=3)
    comparison = compared(tmp_path, "a", str(tmp_path / "other" / "b"))
    page = page_of(comparison)
    assert page.text.count("a solves the most grids on its own (free-running): 50.00 %.") == 1
    assert ["model", "solved", "grid", "cell", "copied"] in page.rows
    assert ["a", "50.00 %", "25.00 %", "85.00 %", "25.00 %"] in page.rows
    assert ["b", "2", "-", "0.5000", "12.3", "1,234,567"] in page.rows
    # Not the copy rate, which has no good end, nor what is equal.
    assert re.findall(r'class="best">([^<]*)<', html_of(comparison)) == ["50.00&nbsp;%"]
    assert comparison.differences == {
        "train": {
            "training.epochs": {"a": 100, "b": 3},
            "training.lr": {"a": 0.00185, "b": 0.5},
        }
    }
    assert ["training.lr", "0.00185", "0.5"] in page.rows


def test_runs_of_every_kind_are_compared(tmp_path: Path):
    names = every_kind(tmp_path, content())
    comparison = compared(tmp_path, *names)
    models = comparison.models.items()
    grids = {label: model.result.metrics["grid_accuracy"] for label, model in models}
    assert grids == {"trained": 0.25, "swept (rank 1)": 0.5, "piped/champion": 0.75}
    assert list(comparison.scores) == ["scored/trained", "piped/champion", "piped/small"]
    # The only run of its kind has nothing to differ from.
    assert comparison.differences == {}
    page = page_of(comparison)
    assert ["", *(f"solve rate (free-running), {key}" for key in ("published", "1"))] in page.rows
    assert ["scored/trained", "62.50 %", "-"] in page.rows
    assert ["piped/champion", "86.00 %", "85.70 %"] in page.rows
    assert ["difficulty", *["0.141 0.111 to 0.182"] * 2] in page.rows
    assert comparison.problems == {}


def test_annotations_stand_side_by_side_with_their_intervals(tmp_path: Path):
    many = [c.model_copy(update={"case": f"{c.case}-{n}"}) for n in range(8) for c in CASES]
    report = content(many)
    annotate(tmp_path, "january", report)
    annotate(tmp_path, "march", report, cases={"take": 3})
    comparison = compared(tmp_path, "january", "march")
    page = page_of(comparison)
    rows = {row[0]: row[1:] for row in page.rows}
    alpha = f"{report.agreement.alpha.value:.4f}"
    assert f"(Krippendorff's alpha): january {alpha} and march {alpha}." in page.text
    assert rows["annotator A: pass rate"] == ["66.7 % 46.7 to 82.0"] * 2
    assert rows["models' final code against gold: right labels"] == ["100.0 % 80.6 to 100.0"] * 2
    assert rows["calls: cost"] == [f"{report.usage.total.cost:.4g}"] * 2
    assert not any(label.startswith("with people") for label in rows)
    assert comparison.differences == {"annotate": {"cases.take": {"january": None, "march": 3}}}
    assert "on different cases (cases.take)" in comparison.caveats["annotations"]


def test_models_that_differ_are_listed_by_their_place(tmp_path: Path):
    first, second = LLM["annotators"]
    annotate(tmp_path, "a", content())
    others = [first, {**second, "model": "judge"}]
    annotate(tmp_path, "b", content(), llm={**LLM, "annotators": others})
    comparison = compared(tmp_path, "a", "b")
    key, models = "llm.annotators.1.model", {"a": second["model"], "b": "judge"}
    assert comparison.differences == {"annotate": {key: models}}
    rows = page_of(comparison).rows
    assert ["", key] in rows and ["a", second["model"]] in rows and ["b", "judge"] in rows


def test_what_is_unfinished_unknown_or_unusable_is_listed_with_the_reason(tmp_path: Path):
    place = {"storage": str(tmp_path)}
    left(TrainConfig(**place, name="begun"), finished=False)
    left(BenchmarkConfig(**place, name="timed"))
    names = ["begun", "timed", "cut", "old", "whole"]
    for name in names[2:]:
        train(tmp_path, name, 0.5)
    (tmp_path / "cut" / "metrics.json").write_text("{")
    (tmp_path / "old" / "record.json").write_text('{"schema_version": 99}')
    comparison = compared(tmp_path, *names)
    page = page_of(comparison)
    assert "begun: no epoch is finished yet" in page.text
    assert "timed: a run of benchmark has nothing to compare" in page.text
    assert "Not finished: begun and old; the page shows their results so far." in page.text
    assert "metrics.json: not valid JSON" in comparison.problems["cut"]
    assert "it is of schema version 99" in comparison.problems["old"]
    assert list(comparison.models) == ["whole"]


def test_runs_are_told_apart_by_name_or_place_and_their_provenance_is_shown(tmp_path: Path):
    runs = [train(tmp_path / storage, "a", 0.5) for storage in ("x", "y")]
    runs.append(train(tmp_path / "x", "b", 0.5))
    for run, commit in zip(runs, ("c1", "c2", "c2"), strict=True):
        git = Checkout(commit=commit, dirty=False)
        run.write_record(run.record.model_copy(update={"git": git}))
    names = [str(tmp_path / "x" / "a"), f"file://{tmp_path}/y/a", "b"]
    labelled = find_runs(names, str(tmp_path / "x"))
    assert list(labelled) == [*names[:2], "b"]
    page = page_of(compare(labelled))
    assert ["commit", "c1", "c2", "c2"] in page.rows
    assert next(row for row in page.rows if row[0] == "ray")[1] == "2.60.0"
    with pytest.raises(RunError, match="is given 2 times"):
        find_runs(["b", str(tmp_path / "x" / "b")], str(tmp_path / "x"))


def test_a_comparison_is_a_run_that_can_be_made_anew(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    train(tmp_path, "a", 0.25)
    train(tmp_path, "b", 0.5)
    config = ReportConfig(storage=str(tmp_path), name="c", runs=("a", "b"))
    report_runs(config)
    printed = capsys.readouterr().out
    assert "Scores at the best epoch" in printed
    assert f"report {tmp_path}/c/report.html" in printed
    assert Run.at(str(tmp_path / "c")).is_finished
    with pytest.raises(RunError, match="resume=true"):
        report_runs(config)
    (tmp_path / "a" / "metrics.json").unlink()
    report_runs(config.model_copy(update={"resume": True}))
    assert "no epoch is finished yet" in (tmp_path / "c" / "report.html").read_text()
