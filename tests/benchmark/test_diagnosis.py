"""The diagnosis that jobs/quality.py writes."""

import json
import re
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from raylab.benchmark.checks.diagnosis import Diagnosis
from raylab.benchmark.config import QualityConfig
from raylab.benchmark.example import read_example
from raylab.benchmark.figures.record import Quality
from raylab.benchmark.pages.sentences import verdict
from raylab.core.errors import DataError
from raylab.core.runs.run import Run
from tests.benchmark.trees import SCORES, measure, write_scores


def diagnose(tmp_path: Path, name: str = "q", **keys: Any) -> Run:
    return measure(tmp_path, name, bootstrap=0, **keys)


def test_the_example_says_what_people_found_in_its_first_suspects(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    run = diagnose(tmp_path, example=True)
    diagnosis = run.read_record(Diagnosis)
    assert diagnosis is not None
    assert (diagnosis.models, diagnosis.items, diagnosis.responses) == (10, 600, 6000)
    labels: Any = read_example()["label"]
    first = [suspect.item for suspect in diagnosis.suspects.listed[:20]]
    confirmed = sum(labels[item] != "ok" for item in first)
    assert confirmed >= 10
    assert diagnosis.confirmed == (
        f"People had found an error in {confirmed} of the first 20 suspects, and in 53 of all 600 "
        "items (MMLU-Redux)."
    )
    printed = capsys.readouterr().out
    page = Path(run.path, "report.html").read_text()
    for sentence in verdict(diagnosis):
        assert sentence in printed and sentence.split(". ")[0] in page
    items = pd.read_parquet(Path(run.path, "items.parquet")).set_index("item")
    named = {suspect.item for suspect in diagnosis.suspects.listed}
    assert set(items[items["reasons"] != ""].index) == named
    # The labels are beside the logs, not in them.
    logs = Path(tmp_path, "example-scores").glob("*")
    assert not any("groundtruth" in log.read_text() for log in logs)


def test_pairs_are_tables_and_the_section_answers_each_recommendation(tmp_path: Path) -> None:
    """Expected values are those of the sample in Miller's formulas, by hand."""
    table = write_table(tmp_path / "table.csv", {"a_1": 10, "b": 2})
    run = diagnose(tmp_path, scores=str(table), baseline="b", detect=0.5)
    pairs = pd.read_csv(Path(run.path, "pairs.csv"))
    # McNemar's p of eight differing items in one direction is 2 / 2^8; Bonett and Price give
    # 8 / 12 +- 1.96 * sqrt((10 / 12 - (8 / 12)^2) / 12), cut at 1.
    assert (
        pairs[["first", "second", "difference", "p"]].to_numpy().tolist()
        == [["a_1", "b", 0.8, pytest.approx(2 / 2**8)]] * 2
    )
    latex = Path(run.path, "pairs.tex").read_text()
    assert r"a\_1 & b & $+80.0$ & +31.4 to +100.0 & 0.00781 & 0.00781 \\" in latex
    page = Path(run.path, "report.html").read_text()
    assert "Models compared with b" in page and "items detect a difference of 50.0 points" in page
    assert "All models are right on 2 items and wrong on 0" in page
    markdown = Path(run.path, "report.md").read_text()
    # The error of a mean of 0.2 over ten items is the root of 0.2 * 0.8 / 9.
    assert "| b | 20.0 % | 13.3 points |" in markdown
    assert "| Paired differences of models | 1 of 1 pair differ (Holm). |" in markdown
    for lacking in ("each model answered each item once", "do not say how many options"):
        assert f"| Not possible from these logs: {lacking}" in markdown.replace("they ", "")
    assert r"a\_1 & 100.0 \%" in Path(run.path, "report.tex").read_text()


def test_where_nothing_is_solved_one_sentence_says_so_and_no_item_is_accused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = write_table(tmp_path / "table.csv", {"a": 0, "b": 0})
    run = diagnose(tmp_path, scores=str(table))
    diagnosis = run.read_record(Diagnosis)
    assert diagnosis is not None and not diagnosis.suspects.lowest
    (sentence,) = verdict(diagnosis)
    assert sentence == (
        "No model solves any of the 10 items, so nothing tells models or items apart."
    )
    assert f"  {sentence}\n" in capsys.readouterr().out
    assert "to look at" not in Path(run.path, "report.html").read_text()


def test_a_model_alone_has_no_section_that_compares(tmp_path: Path) -> None:
    table = write_table(tmp_path / "table.csv", {"a": 7})
    page = Path(diagnose(tmp_path, scores=str(table)).path, "report.html").read_text()
    assert re.findall(r"<h2[^>]*>([^<]+)", page)[:3] == [
        "How good the models are",
        "Which items are suspect",
        "Responses",
    ]
    assert "There is one model" in page and "cannot be computed" not in page
    assert "All models are right" not in page


def write_table(path: Path, right: dict[str, int]) -> Path:
    """Writes a table of models that are right on this many of ten items, the first ones."""
    rows = [f"{model},{item},{int(item < n)}" for model, n in right.items() for item in range(10)]
    path.write_text("\n".join(["model,item,score", *rows]))
    return path


def test_two_forms_are_read_by_one_job_and_compared(tmp_path: Path) -> None:
    first = write_table(tmp_path / "first.csv", {"a": 10, "b": 4})
    second = write_table(tmp_path / "second.csv", {"a": 2, "b": 4, "c": 1})
    values = QualityConfig.resolve({"forms": [str(first), str(second)]})
    run = diagnose(tmp_path, **values)
    diagnosis, quality = run.read_record(Diagnosis), run.read_record(Quality)
    assert quality is not None and quality.models == {"a": 1.0, "b": 0.4}
    assert diagnosis is not None and diagnosis.forms is not None
    assert [(each.model, each.shift.value) for each in diagnosis.forms.shifts] == [
        ("a", pytest.approx(-0.8)),
        ("b", 0.0),
    ]
    # The mean of both models falls by 0.4, on half of eight items.
    said = "the models' mean shifts by -40.0 points"
    for name in ("report.html", "report.md", "report.tex"):
        assert said in Path(run.path, name).read_text().replace("&#39;", "'")


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"scores": "c"}, "forms: names the scores itself"),
        ({"diagnosis": False}, "forms: names the scores itself, and needs diagnosis=true"),
    ],
)
def test_forms_stand_in_place_of_scores(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        QualityConfig(**QualityConfig.resolve({"name": "x", "forms": ["a", "b"], **keys}))


def test_figures_are_kept_where_no_sample_has_a_usable_score(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    for number in range(2):
        (directory := tmp_path / "scores" / f"m{number}").mkdir(parents=True)
        metrics = {"accuracy": {"value": 0.5 + number / 4}}
        log = {
            "status": "success",
            "eval": {"model": f"m{number}", "task": "t"},
            "results": {"scores": [{"name": "grade", "metrics": metrics}]},
            "samples": [{"id": 1, "scores": {"grade": {"value": "excellent"}}}],
        }
        (directory / "log.json").write_text(json.dumps(log))
    scores = str(tmp_path / "scores")
    run = diagnose(tmp_path, scores=scores)
    quality = run.read_record(Quality)
    assert quality is not None and quality.models == {"m0": 0.5, "m1": 0.75}
    assert run.read_record(Diagnosis) is None and run.is_finished
    told = capsys.readouterr()
    assert "no diagnosis: no response of a model can be used (2 scores that are not numbers" in (
        told.out + told.err
    )
    with pytest.raises(DataError, match="scores that are not numbers"):
        diagnose(tmp_path, "strict", strict=True, scores=scores)


def test_logs_without_samples_enter_the_figures_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    scores = str(write_scores(tmp_path / "scores", SCORES))
    run = diagnose(tmp_path, scores=scores, strict=True)
    assert run.read_record(Diagnosis) is None and run.read_record(Quality) is not None
    assert "note: 8 logs without samples are in the four figures only" in capsys.readouterr().out
    bare = diagnose(tmp_path, "bare", diagnosis=False, scores=scores)
    assert not (bare / "report.html").exists()
