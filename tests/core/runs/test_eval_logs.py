"""Logs of Inspect: ours, those that Inspect wrote, and what is no usable log."""

import io
import json
import random
import zipfile
import zlib
from pathlib import Path
from typing import Any

import msgspec
import pytest

from raylab.core.bounded import ZSTANDARD
from raylab.core.errors import DataError
from raylab.core.runs.eval_logs import PREFIX, EvalLog, Header, read_score, score_of
from tests.fuzzing import altered_values, try_all, try_altered
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
        # An id of its own is as long as that of a run.
        assert len(opened.eval.run_id) == 22
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


@pytest.mark.parametrize("indent", [None, 2])
def test_reading_does_not_grow_with_the_samples(indent: int | None):
    samples = [{"id": i, "input": "word " * 100} for i in range(2000)]
    file = io.BytesIO(json.dumps(log(samples=samples), indent=indent).encode())
    assert read_score(file, "x.json") == 0.75
    assert file.tell() == PREFIX


LONG = [{"text": "x" * 100}] * 1000
"""Samples that are longer than what is read first."""
SPEC = {
    "note": 'ends in "samples": [',
    "metadata": {"samples": [1, 2], "deep": [{"samples": [3]}]},
    "dataset": {"samples": 500},
}
MANY = {str(i): {"samples": [i]} for i in range(9000)}
BESIDE = {"scores": [{"metrics": {"accuracy": {"value": 0.5}, "f1": {"value": float("nan")}}}]}


@pytest.mark.parametrize(
    ("content", "accuracy"),
    [
        (log(), 0.75),
        (log(eval=SPEC, samples=LONG), 0.75),
        # All is read where the samples come first or the header is longer than the first part.
        ({"samples": LONG, "status": "success", "results": scored(0.5)}, 0.5),
        ({"metadata": MANY, **log(samples=LONG)}, 0.75),
        # Without a status, as other tools write.
        ({"results": scored(1)}, 1.0),
        # With a NaN elsewhere.
        (log(results=BESIDE, samples=LONG), 0.5),
    ],
)
def test_logs_of_any_order_are_read(content: dict[str, Any], accuracy: float):
    assert read(content) == accuracy
    assert read(zipped(content), "x.eval") == accuracy


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (log(status="cancelled"), "status is cancelled"),
        (log(status="\x1b[2J"), r"status is \x1b[2J, not success"),
        (log(error={"message": "boom"}), "carries an error"),
        (log(results={"scores": []}), "no scores"),
        (log(results={"scores": [{"metrics": {"f1": {}, "mean": 2}}]}), "it has f1, mean"),
        (log(results=scored(None)), "no accuracy: it has none"),
        (log(results=scored(float("nan"))), "accuracy is nan, not a number in [0, 1]"),
        (json.dumps(log())[:-20], "not JSON"),
        ('{"status": ' + "[" * 100_000, "not "),
        ("[1, 2]", "not an Inspect eval log"),
        ({"loss": 1}, "neither status nor results"),
        (zipped({}, "_journal/start.json"), "unfinished"),
        (zipped(log())[:-30], "not an Inspect eval log"),
    ],
)
def test_unusable_logs_give_a_reason(content: dict[str, Any] | str | bytes, reason: str):
    is_zip = isinstance(content, bytes) and content.startswith(b"PK")
    outcome = read(content, "x.eval" if is_zip else "x.json")
    assert isinstance(outcome, str) and reason in outcome and len(outcome) <= 200


def test_a_log_beyond_the_limit_is_refused_within_little_memory(tmp_path: Path):
    # A zip whose header is 2 GiB of zeros, as it says, and a sparse file of a TiB.
    zeros = PACK[ZSTANDARD](bytes(MIB)) * 2048
    header = member_zip(ZSTANDARD, zeros, b"header.json", size=2048 * MIB)
    path = tmp_path / "x.json"
    with path.open("wb") as file:
        file.truncate(1 << 40)
    with path.open("rb") as file, memory(300 * MIB):
        assert "header.json: more than" in str(read_score(header, "x.eval"))
        assert "the log: more than" in str(read_score(file, "x.json"))


@pytest.mark.parametrize(
    ("metric", "scorer", "outcome"),
    [
        ("f1", None, 0.5),
        ("accuracy", "model_graded", 0.75),
        ("f1", "judge", "the score of judge has no f1: it has accuracy"),
        ("accuracy", "other", "the log has no score of other: it has match, judge"),
        ("tokens", None, "tokens is 120, not a number in [0, 1]"),
    ],
)
def test_metric_and_scorer_can_be_chosen(metric: str, scorer: str | None, outcome: float | str):
    first = {"accuracy": {"value": 0.25}, "f1": {"value": 0.5}, "tokens": {"value": 120}}
    judged = {"accuracy": {"value": 0.75}}
    scores = [
        {"name": "match", "scorer": "match", "metrics": first},
        {"name": "judge", "scorer": "model_graded", "metrics": judged},
    ]
    header = msgspec.convert(log(results={"scores": scores}), Header)
    assert score_of(header, metric, scorer) == outcome


def check(content: bytes, name: str) -> None:
    outcome = read_score(io.BytesIO(content), name)
    if isinstance(outcome, str):
        assert 0 < len(outcome) < 300 and outcome.isprintable()
    else:
        assert 0.0 <= outcome <= 1.0


LOGS = [json.dumps(log(samples=samples)).encode() for samples in ([], [{"text": "x" * 99}] * 900)]


def test_altered_json_logs_have_a_score_or_a_reason() -> None:
    def make(draw: random.Random) -> bytes:
        return json.dumps(altered_values(log(), draw)).encode()

    try_altered(LOGS, lambda content: check(content, "x.json"), DataError)
    try_all(make, lambda content: check(content, "x.json"), DataError)


def test_altered_eval_logs_have_a_score_or_a_reason() -> None:
    def packed(text: bytes, method: int, size: int) -> bytes:
        # With their own checksum: what is altered reaches the decoder.
        data, crc = PACK[method](text), zlib.crc32(text)
        return member_zip(method, data, b"header.json", size, crc).getvalue()

    def make(draw: random.Random) -> bytes:
        text = json.dumps(altered_values(log(), draw)).encode()
        return packed(text, draw.choice(list(PACK)), draw.choice((len(text), 0, 1, 1 << 31)))

    whole = [packed(LOGS[0], method, len(LOGS[0])) for method in PACK]
    try_altered(whole, lambda content: check(content, "x.eval"), DataError)
    try_all(make, lambda content: check(content, "x.eval"), DataError)
