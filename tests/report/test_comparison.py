import re
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from raylab.config.jobs import BenchmarkConfig, QualityConfig, ReportConfig, TrainConfig
from raylab.errors import RunError
from raylab.report.comparison.page import (
    comparison_tables,
    figures_table,
    render_comparison,
    report_runs,
)
from raylab.report.comparison.records import (
    ComparedValue,
    Comparison,
    ComparisonReport,
    compare,
    find_runs,
    measures_of_kind,
)
from raylab.report.table import as_rich
from raylab.runs.run import Run
from raylab.runs.run_record import Checkout
from tests.arc.measured import epoch, held_out, training_metrics
from tests.report.pages import Page, rows_of
from tests.report.runs import CASES, annotate, benchmark, content, epochs, every_kind, left, train


def of(storage: Path, *names: str) -> Comparison:
    return compare(find_runs(names, str(storage)))


def page_of(comparison: Comparison) -> Page:
    page = Page(render_comparison("c", "/runs/c", comparison))
    assert page.open == []
    return page


def test_metrics_stand_side_by_side_with_the_best_marked(tmp_path: Path):
    train(tmp_path, "a", 0.25)
    train(tmp_path, "b", 0.5)
    comparison = of(tmp_path, "a", "b")
    page = page_of(comparison)
    assert ["", "a", "b"] in page.rows
    assert ["grid accuracy, validation", "25.00 %", "50.00 %"] in page.rows
    assert ["copy rate, validation", "25.00 %", "50.00 %"] in page.rows
    assert ["train loss", "0.75", "0.5"] in page.rows
    assert ["parameters", "1,234,567", "1,234,567"] in page.rows
    assert "solve rate (free-running)" not in page.text.partition("Learning curves")[0]
    html = render_comparison("c", "/runs/c", comparison)
    # Not the copy rate, which has no good end, nor what is equal.
    assert re.findall(r'class="best">([^<]*)<', html) == ["50.00 %", "0.5"]
    assert "Learning curves" in page.text
    assert comparison.report.figures["models"]["b"]["val_grid_accuracy"] == ComparedValue(value=0.5)


def test_only_keys_that_differ_are_shown(tmp_path: Path):
    train(tmp_path, "a", 0.25)
    train(tmp_path / "other", "b", 0.5, lr=0.5, epochs=3)
    comparison = of(tmp_path, "a", str(tmp_path / "other" / "b"))
    assert comparison.report.differences == {
        "train": {
            "training.epochs": {"a": 100, "b": 3},
            "training.lr": {"a": 0.00185, "b": 0.5},
        }
    }
    assert ["training.lr", "0.00185", "0.5"] in page_of(comparison).rows
    assert comparison.report.caveats == ()


def test_keys_that_one_run_alone_has_differ(tmp_path: Path):
    train(tmp_path, "a", 0.25)
    config = TrainConfig.model_validate(
        {"storage": str(tmp_path), "name": "b", "model": {"architecture": "decoder_only"}}
    )
    left(config)
    found = of(tmp_path, "a", "b").report.differences["train"]
    assert found["model.architecture"] == {"a": "champion", "b": "decoder_only"}
    assert found["model.layers"] == {"b": 4}
    assert "data.source" not in found


def test_runs_on_other_data_are_no_comparison(tmp_path: Path):
    train(tmp_path, "a", 0.25)
    config = TrainConfig.model_validate(
        {"storage": str(tmp_path), "name": "b", "data": {"every": 8}}
    )
    left(config, epochs(0.5))
    (caveat,) = of(tmp_path, "a", "b").report.caveats
    assert "The models are on different data (data.every)" in caveat


def test_every_kind_is_read(tmp_path: Path):
    names = every_kind(tmp_path, content())
    comparison = of(tmp_path, *names)
    figures = comparison.report.figures
    assert list(figures) == ["models", "scores-solve_rate", "benchmarks", "annotations"]
    grids = {label: row["val_grid_accuracy"].value for label, row in figures["models"].items()}
    assert grids == {"trained": 0.25, "swept/t1": 0.5, "piped/champion": 0.75}
    assert list(comparison.histories) == list(grids)
    assert {label: list(row) for label, row in figures["scores-solve_rate"].items()} == {
        "scored/trained": ["published"],
        "piped/champion": ["published", "seed-1"],
    }
    assert figures["benchmarks"]["measured"]["difficulty"].interval == (0.15, 0.35)
    shown = rows_of(figures_table(comparison.report, "benchmarks"))
    assert [row[0] for row in shown] == ["", "difficulty", "separability"]
    # Kinds of which there is one run have nothing to differ from.
    assert comparison.report.differences == {}
    page = page_of(comparison)
    assert ["published", "62.50 %", "50.00 %"] in page.rows
    assert ["difficulty", "0.25 0.150 to 0.350", "0.5 0.400 to 0.600"] in page.rows
    assert [run.problem for run in comparison.report.runs.values()] == [None] * 6


def test_rules_on_the_same_tasks_are_shown_once_and_give_the_skill(tmp_path: Path):
    rules = {"copy_source": {"solve_rate": 0.2, "grid_accuracy": 0.3}}
    for name, solved in (("a", 0.6), ("b", 0.2)):
        config = TrainConfig.model_validate({"storage": str(tmp_path), "name": name})
        left(config, training_metrics(epoch(1, {"solve_rate": solved}), rules=rules))
    models = of(tmp_path, "a", "b").report.figures["models"]
    assert list(models) == ["a", "b", "rule: copy the source"]
    # (0.6 - 0.2) / 0.8
    assert models["a"]["val_skill"].value == pytest.approx(0.5)
    assert models["b"]["val_skill"].value == 0.0
    assert models["rule: copy the source"]["val_solve_rate"].value == 0.2


def test_figures_on_test_tasks_stand_before_those_that_chose(tmp_path: Path):
    tests = {
        "a": held_out({"solve_rate": 0.3}, rules={"copy_source": {"solve_rate": 0.1}}),
        "b": None,
    }
    rules = {"copy_source": {"solve_rate": 0.2}}
    for name, test in tests.items():
        config = TrainConfig.model_validate({"storage": str(tmp_path), "name": name})
        metrics = training_metrics(epoch(1, {"solve_rate": 0.6}), rules=rules, test=test)
        left(config, metrics)
    models = of(tmp_path, "a", "b").report.figures["models"]
    keys = ["test_solve_rate", "test_skill", "val_solve_rate", "val_skill"]
    assert list(measures_of_kind("models", models))[:4] == keys
    a = models["a"]
    # (0.3 - 0.1) / 0.9 and (0.6 - 0.2) / 0.8
    assert [a[key].value for key in keys] == pytest.approx([0.3, 2 / 9, 0.6, 0.5])
    assert models["b"]["test_solve_rate"].value is None
    assert models["rule: copy the source (a)"]["test_solve_rate"].value == 0.1


def test_annotations_stand_side_by_side_with_their_intervals(tmp_path: Path):
    many = [c.model_copy(update={"case": f"{c.case}-{n}"}) for n in range(8) for c in CASES]
    report = content(many)
    annotate(tmp_path, "january", report)
    annotate(tmp_path, "march", report, cases={"take": 3})
    comparison = of(tmp_path, "january", "march")
    alpha = report.agreement.alpha
    assert alpha.interval is not None
    low, high = alpha.interval
    row = next(row for row in page_of(comparison).rows if row[0].startswith("Krippendorff"))
    assert row[1] == row[2] == f"{alpha.value:.4g} {low:.3f} to {high:.3f}"
    found = comparison.report.figures["annotations"]["march"]
    assert found["agreement.alpha"] == ComparedValue(value=alpha.value, interval=(low, high))
    assert found["usage.total.cost"].value == report.usage.total.cost
    assert "gold.reviewed.roots" not in found
    assert comparison.report.differences == {
        "annotate": {"cases.take": {"january": None, "march": 3}}
    }
    assert "on different cases (cases.take)" in comparison.report.caveats[0]


def test_what_is_unfinished_or_unknown_is_told(tmp_path: Path):
    place = {"storage": str(tmp_path)}
    left(TrainConfig(**place, name="begun"), finished=False)
    left(BenchmarkConfig(**place, name="timed"))
    train(tmp_path, "a", 0.5)
    page = page_of(of(tmp_path, "begun", "timed", "a"))
    assert ["begun", "train", "not finished: no epoch is finished yet"] in page.rows
    assert [
        "timed", "benchmark", "finished: a run of benchmark, of which nothing can be compared",
    ] in page.rows  # fmt: skip
    assert "Not finished: begun; shown is what they left so far." in page.text


def test_provenance_marks_what_differs(tmp_path: Path):
    runs = [train(tmp_path, name, 0.5) for name in "ab"]
    for run, commit in zip(runs, ("c1", "c2"), strict=True):
        git = Checkout(commit=commit, dirty=commit == "c2")
        run.write_record(run.record.model_copy(update={"git": git}))
    page = page_of(of(tmp_path, "a", "b"))
    assert ["commit *", "c1", "c2"] in page.rows
    assert ["uncommitted changes *", "false", "true"] in page.rows
    assert next(row for row in page.rows if row[0] == "ray")[1] == "2.60.0"


def test_runs_of_one_name_have_longer_labels(tmp_path: Path):
    for storage in ("x", "y"):
        train(tmp_path / storage, "a", 0.5)
    train(tmp_path / "x", "b", 0.5)
    given = [str(tmp_path / "x" / "a"), f"file://{tmp_path}/y/a", "b"]
    assert list(find_runs(given, str(tmp_path / "x"))) == ["x/a", "y/a", "b"]


@pytest.mark.parametrize("text", ["absent", "/absent/run", "file:///absent/run"])
def test_a_run_that_does_not_exist_is_refused_with_the_places_looked_at(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(RunError, match="give in runs= its name") as caught:
        find_runs([text], "/storage")
    places = [f"/storage/{text}", str(tmp_path / text)] if text == "absent" else [text]
    assert all(place in str(caught.value) for place in places)
    with pytest.raises(RunError):
        report_runs(ReportConfig(storage=str(tmp_path / "s"), runs=(text,)))
    assert list(tmp_path.iterdir()) == []


def test_a_run_that_is_given_twice_is_refused(tmp_path: Path):
    train(tmp_path, "a", 0.5)
    with pytest.raises(RunError, match="is given 2 times"):
        find_runs(["a", str(tmp_path / "a")], str(tmp_path))


@pytest.mark.parametrize(
    ("file", "content", "problem"),
    [
        ("metrics.json", "{", "metrics.json: not valid JSON"),
        ("metrics.json", '{"schema_version": 3}', "metrics.json cannot be used: parameters"),
        ("metrics.json", '{"schema_version": 99}', "it is of schema version 99, this"),
        ("record.json", "[]", "record.json: not valid JSON"),
        ("record.json", '{"schema_version": 99}', "it is of schema version 99, this"),
    ],
)
def test_a_run_with_a_file_that_cannot_be_used_is_listed_with_the_reason(
    tmp_path: Path, file: str, content: str, problem: str
):
    for name in "ab":
        train(tmp_path, name, 0.5)
    (tmp_path / "a" / file).write_text(content)
    comparison = of(tmp_path, "a", "b")
    assert list(comparison.report.figures["models"]) == ["b"]
    assert problem in (comparison.report.runs["a"].problem or "")
    assert any(row[0] == "a" and problem in row[2] for row in page_of(comparison).rows if row)
    assert ComparisonReport.of_content(comparison.report.content()) == comparison.report


def test_twenty_runs_stay_readable(tmp_path: Path):
    names = [f"run-{n:02}" for n in range(20)]
    for n, name in enumerate(names):
        train(tmp_path, name, n / 20, lr=0.001 * (n + 1))
    comparison = of(tmp_path, *names)
    rows = rows_of(figures_table(comparison.report, "models"))
    # The longer side goes down.
    assert [row[0] for row in rows] == ["", *names] and "grid accuracy, validation" in rows[0]
    page = page_of(comparison)
    assert ["run-19", "0.02"] in page.rows
    assert "Of 20 curves the best is in colour" in page.text
    out = StringIO()
    for table in comparison_tables(comparison.report):
        Console(file=out, width=120).print(as_rich(table))
    printed = out.getvalue()
    assert all(printed.count(f" {name} ") >= 3 for name in names)
    assert "95.00 %" in printed and "…" not in printed.partition("Provenance")[0]


def test_a_benchmark_that_lacks_a_figure_stands_beside_one_that_has_it(tmp_path: Path):
    whole = benchmark(0.25)
    lacking = whole.model_copy(update={"figures": {"difficulty": whole.figures["difficulty"]}})
    for name, quality in (("a", whole), ("b", lacking)):
        left(QualityConfig(storage=str(tmp_path), name=name), quality)
    page = page_of(of(tmp_path, "a", "b"))
    assert ["separability", "0.25", "-"] in page.rows


def test_a_comparison_is_a_run_that_can_be_made_anew(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    train(tmp_path, "a", 0.25)
    train(tmp_path, "b", 0.5)
    config = ReportConfig(storage=str(tmp_path), name="c", runs=("a", "b"))
    report_runs(config)
    printed = capsys.readouterr().out
    assert "grid accuracy" in printed
    assert f"report {tmp_path}/c/report.html and report.json" in printed
    run = Run.at(str(tmp_path / "c"))
    assert run.finished
    assert run.read_record(ComparisonReport) == of(tmp_path, "a", "b").report
    with pytest.raises(RunError, match="resume=true"):
        report_runs(config)
    (tmp_path / "a" / "metrics.json").unlink()
    report_runs(config.model_copy(update={"resume": True}))
    assert "no epoch is finished yet" in (tmp_path / "c" / "report.html").read_text()
