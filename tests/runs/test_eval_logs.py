import io
import json
import zipfile
from pathlib import Path
from typing import Any

import pytest

from raylab.bounded import ZSTANDARD
from raylab.runs.eval_logs import PREFIX, EvalLog, ScoreChoice, is_estimated, read_score
from tests.memory import MIB, memory
from tests.zips import PACK, member_zip

CREATED = "2026-01-02T03:04:05+00:00"


def log(**changes: Any) -> dict[str, Any]:
    built = EvalLog(
        model="raylab/champion",
        task="cell_accuracy",
        dataset="0a1b2c",
        samples=3,
        metrics={"stderr": 0.25, "accuracy": 0.75, "grid_accuracy": 0.5},
        created=CREATED,
        metadata={"seed": 1},
    )
    return built.content() | changes


def scored(value: Any) -> dict[str, Any]:
    return {"scores": [{"metrics": {"accuracy": {"value": value}}}]}


def read(content: dict[str, Any] | str | bytes, name: str = "x.json") -> float | str:
    text = json.dumps(content) if isinstance(content, dict) else content
    return read_score(io.BytesIO(text.encode() if isinstance(text, str) else text), name)


def zipped(content: dict[str, Any], name: str = "header.json") -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(name, json.dumps(content))
    return buffer.getvalue()


class Counted(io.BytesIO):
    """Counts the bytes that are read."""

    taken = 0

    def read(self, size: int | None = -1, /) -> bytes:
        content = super().read(size)
        self.taken += len(content)
        return content


def test_our_logs_are_opened_by_inspect(tmp_path: Path):
    inspect_log = pytest.importorskip("inspect_ai.log")
    path = tmp_path / "0a1b2c.json"
    path.write_text(json.dumps(log()))
    for header_only in (False, True):
        opened = inspect_log.read_eval_log(str(path), header_only=header_only)
        assert (opened.version, opened.status) == (2, "success")
        assert (opened.eval.model, opened.eval.task) == ("raylab/champion", "cell_accuracy")
        assert (opened.eval.dataset.name, opened.eval.dataset.samples) == ("0a1b2c", 3)
        assert opened.eval.metadata == {"seed": 1}
        metrics = opened.results.scores[0].metrics
        assert {name: metric.value for name, metric in metrics.items()} == {
            "accuracy": 0.75,
            "stderr": 0.25,
            "grid_accuracy": 0.5,
        }


@pytest.mark.parametrize("suffix", ["json", "eval"])
def test_logs_that_inspect_wrote_are_read(tmp_path: Path, suffix: str):
    inspect_log = pytest.importorskip("inspect_ai.log")
    samples = [
        {"id": i, "epoch": 1, "input": '{"samples": [1]}', "target": "samples"} for i in range(50)
    ]
    full = inspect_log.EvalLog.model_validate(log(samples=samples))
    path = tmp_path / f"log.{suffix}"
    for invalidated in (False, True):
        full.invalidated = invalidated
        inspect_log.write_eval_log(full, str(path))
        with path.open("rb") as file:
            outcome = read_score(file, path.name)
        assert str(outcome).startswith("invalidated") if invalidated else outcome == 0.75


def test_our_logs_are_read_and_the_same_again():
    assert read(log()) == 0.75
    assert read(zipped(log()), "x.eval") == 0.75
    assert log() == log()


@pytest.mark.parametrize(
    "metrics",
    [{}, {"loss": 0.5}, {"accuracy": 1.01}, {"accuracy": 0.5, "loss": float("nan")}],
)
def test_a_log_needs_finite_metrics_and_an_accuracy(metrics: dict[str, float]):
    with pytest.raises(ValueError, match=r"m on t|of m"):
        EvalLog(model="m", task="t", dataset="d", samples=1, metrics=metrics, created=CREATED)


def test_a_log_names_the_run_that_made_it():
    def run_id(task: str, id_: str | None) -> str:
        metrics = {"accuracy": 1.0}
        made = EvalLog(
            model="m", task=task, dataset="d", samples=1, metrics=metrics, created=CREATED,
            run_id=id_,
        )  # fmt: skip
        return made.content()["eval"]["run_id"]

    assert run_id("t", "0a1b") == "0a1b"
    # One for all tasks, and as long as the id of a run.
    assert run_id("t", None) == run_id("u", None) and len(run_id("t", None)) == 22


def test_reading_does_not_grow_with_the_samples():
    samples = [{"id": i, "input": "word " * 100} for i in range(2000)]
    for indent in (None, 2):
        file = Counted(json.dumps(log(samples=samples), indent=indent).encode())
        assert read_score(file, "x.json") == 0.75
        assert file.taken == PREFIX
    late = log(eval={"dataset": {"sample_ids": list(range(5000))}}, samples=samples)
    file = Counted(json.dumps(late).encode())
    assert read_score(file, "x.json") == 0.75
    assert file.taken == 8 * PREFIX


def test_keys_of_samples_elsewhere_do_not_mislead():
    long = [{"text": "x" * 100}] * 500
    eval_spec = {
        "note": 'ends in "samples": [',
        "metadata": {"samples": [1, 2], "deep": [{"samples": [3]}]},
        "dataset": {"samples": 500},
    }
    header = log()
    text = json.dumps({"version": 2, "eval": eval_spec, **header, "samples": long})
    assert read(text) == 0.75
    # The samples come first: everything must be read.
    assert read({"samples": long, "status": "success", "results": scored(0.5)}) == 0.5
    assert "status is" in str(read({"samples": long, "status": "error", "results": scored(0.5)}))
    many = {"metadata": {str(i): {"samples": [i]} for i in range(3000)}}
    assert read({**many, **log(samples=long)}) == 0.75


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (log(status="error"), "status is error"),
        (log(status="cancelled"), "status is cancelled"),
        (log(error={"message": "boom"}), "carries an error"),
        (log(results=None), "no scores"),
        (log(results={"scores": []}), "no scores"),
        (log(results={"scores": [{"metrics": {}}]}), "no accuracy: it has none"),
        (log(results={"scores": [{"metrics": {"f1": {}, "mean": 2}}]}), "it has f1, mean"),
        (log(results=scored(None)), "no accuracy"),
        (log(results=scored(float("nan"))), "accuracy is NaN"),
        (log(results=scored(float("inf"))), "accuracy is Infinity"),
        (log(results=scored(1.2)), "accuracy is 1.2"),
        (log(results=scored(-0.1)), "accuracy is -0.1"),
        (log(results=scored("high")), "not an Inspect eval log: Invalid enum value 'high' - at"),
        (log(results=scored(True)), "Expected `float | str | null`, got `bool` - at `$.value`"),
        (log(invalidated=True), "invalidated"),
        (json.dumps(log())[:-20], "not JSON"),
        ("", "not JSON"),
        (b"\xff\xfe", "not JSON"),
        ('{"status": ' + "[" * 100_000, "not "),
        ("[1, 2]", "not an Inspect eval log"),
        ({"loss": 1}, "neither status nor results"),
    ],
)
def test_unusable_logs_give_a_reason(content: dict[str, Any] | str | bytes, reason: str):
    outcome = read(content)
    assert isinstance(outcome, str) and reason in outcome


def test_a_log_without_status_but_with_a_score_counts():
    assert read({"results": scored(1)}) == 1.0
    samples = [{"text": "x" * 100}] * 500
    assert read({"results": scored(0.5), "samples": samples}) == 0.5


def test_nan_beside_the_accuracy_does_not_matter():
    results = {
        "scores": [{"metrics": {"accuracy": {"value": 0.5}, "stderr": {"value": float("nan")}}}]
    }
    assert read(log(results=results)) == 0.5
    assert read(log(results=results, samples=[{"text": "x" * 100}] * 500)) == 0.5


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (zipped({}, "_journal/start.json"), "unfinished"),
        (b"PK not a zip", "not an Inspect eval log"),
        (zipped(log())[:-30], "not an Inspect eval log"),
        (zipped(log(status="started")), "status is started"),
    ],
)
def test_unusable_archives_give_a_reason(content: bytes, reason: str):
    outcome = read(content, "x.eval")
    assert isinstance(outcome, str) and reason in outcome


def zeros(method: int) -> io.BytesIO:
    """A log whose header is 2 GiB of zeros, as it says."""
    parts = 2048 if method == ZSTANDARD else 1
    data = PACK[method](bytes(MIB)) * parts
    return member_zip(method, data, b"header.json", size=2048 * MIB)


@pytest.mark.parametrize("method", [zipfile.ZIP_DEFLATED, ZSTANDARD])
def test_a_header_that_expands_is_refused_within_little_memory(method: int):
    file = zeros(method)
    with memory(64 * MIB):
        outcome = read_score(file, "x.eval")
    assert isinstance(outcome, str) and "header.json: more than" in outcome


def test_results_that_grow_as_objects_are_refused_within_little_memory():
    # 7 million empty scores would be 600 MB of objects.
    text = b'{"status":"success","results":{"scores":[' + b"{}," * 7_000_000 + b"{}]}}"
    with memory(128 * MIB):
        outcome = read_score(io.BytesIO(text), "x.json")
    assert outcome == "results: more than 4,194,304 bytes"


def test_an_error_that_grows_as_objects_is_never_built():
    text = b'{"status":"success","error":[' + b"[]," * 7_000_000 + b"[]]}"
    with memory(128 * MIB):
        assert read_score(io.BytesIO(text), "x.json") == "the log carries an error"


def test_a_sparse_file_is_read_up_to_its_limit(tmp_path: Path):
    path = tmp_path / "x.json"
    with path.open("wb") as file:
        file.truncate(1 << 40)
    with path.open("rb") as file, memory(1024 * MIB):
        assert "more than" in str(read_score(file, "x.json"))


@pytest.mark.parametrize(
    ("choice", "outcome"),
    [
        (ScoreChoice(), 0.25),
        (ScoreChoice("f1"), 0.5),
        (ScoreChoice(scorer="judge"), 0.75),
        (ScoreChoice(scorer="model_graded"), 0.75),
        (ScoreChoice("f1", "judge"), "the score of judge has no f1: it has accuracy"),
        (ScoreChoice(scorer="other"), "the log has no score of other: it has match, judge"),
        (ScoreChoice("tokens"), "tokens is 120.0, not in [0, 1]"),
    ],
)
def test_metric_and_scorer_can_be_chosen(choice: ScoreChoice, outcome: float | str):
    first = {"accuracy": {"value": 0.25}, "f1": {"value": 0.5}, "tokens": {"value": 120}}
    judged = {"accuracy": {"value": 0.75}}
    scores = [
        {"name": "match", "scorer": "match", "metrics": first},
        {"name": "judge", "scorer": "model_graded", "metrics": judged},
    ]
    text = json.dumps({"status": "success", "results": {"scores": scores}}).encode()
    assert read_score(io.BytesIO(text), "x.json", choice) == outcome


def test_a_standard_error_needs_right_and_wrong_units():
    assert is_estimated(0.5, 30) and is_estimated(0.05, 100) and is_estimated(0.95, 100)
    assert not is_estimated(0.5, 29)
    assert not is_estimated(0.04, 100) and not is_estimated(1.0, 10_000)
