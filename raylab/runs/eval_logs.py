"""Inspect AI eval logs: reading the accuracy of any log, and writing our own.

A JSON log holds `status`, `results` and `error` before its samples, and an `.eval` log is a zip
with everything but the samples in `header.json`. So samples are not read and cost nothing.

A log comes from anywhere. Its size is limited, also when it is compressed, and only the results are
built as objects.
"""

import contextlib
import hashlib
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any, BinaryIO, Literal, Self, TypeVar

import msgspec
from pydantic import model_validator

from raylab.bounded import opened_zip, over, read_all, read_member
from raylab.errors import DataError
from raylab.runs.records import Record

PREFIX = 1 << 13
"""Bytes of a JSON log to read first; while that is too little, 8 times as many."""
GROWTH = 8
LONGEST_PREFIX = PREFIX * GROWTH**3
SAMPLES = b'"samples"'
LONGEST_GAP = 16
"""Bytes between the key of the samples and their list; beyond that the whole file is read."""
ATTEMPTS = 8
"""Most keys of a prefix to try before more of the file is read."""
HEADER = "header.json"
LOG_BYTES = 1 << 27
"""Longest JSON log whose results do not come before its samples."""
HEADER_BYTES = 1 << 26
RESULTS_BYTES = 1 << 22
LENIENT_BYTES = 1 << 23
"""Longest log that is searched for NaN and infinity."""
LEAST_SCORED = 30
"""Units below which a share has no standard error."""
LEAST_OF_EACH = 5
"""Right and wrong units' worth that a share needs for one."""
LONGEST_REASON = 200
SHOWN_NAMES = 10
SUFFIXES = (".json", ".eval")

T = TypeVar("T")


_NULL = msgspec.Raw(b"null")
_CONSTANTS = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?|-?\b(?:NaN|Infinity)\b', re.DOTALL)
"""Texts, and the constants that JSON lacks between them."""


class _Metric(msgspec.Struct):
    value: float | Literal["NaN", "Infinity", "-Infinity"] | None = None


class _Score(msgspec.Struct):
    name: str | None = None
    scorer: str | None = None
    metrics: dict[str, msgspec.Raw] = {}


class _Results(msgspec.Struct):
    scores: list[_Score] = []


class _Log(msgspec.Struct):
    status: str | None = None
    results: msgspec.Raw = _NULL
    error: msgspec.Raw = _NULL
    invalidated: bool = False


_LOG = msgspec.json.Decoder(_Log)
_RESULTS = msgspec.json.Decoder(_Results | None)
_METRIC = msgspec.json.Decoder(_Metric | float | None)


@dataclass(frozen=True)
class ScoreChoice:
    """The metric and the score that are read of a log.

    Attributes:
        metric: Name of the metric.
        scorer: Name of the score or its scorer; None takes the first score.
    """

    metric: str = "accuracy"
    scorer: str | None = None


def read_score(file: BinaryIO, name: str, choice: ScoreChoice | None = None) -> float | str:
    """Reads the accuracy in [0, 1] of an eval log, or the reason why it has none.

    A log without a status, as other tools write, is valid if it has a score. A JSON log that is
    truncated within its samples is valid too, because nothing after the header is read.

    Args:
        file: The log, at its start.
        name: File name; its suffix determines the format.
        choice: The metric to read instead of the accuracy of the first score.

    Raises:
        OSError: The file cannot be read.
    """
    try:
        log = _read_eval(file) if name.endswith(".eval") else _read_json(file)
        outcome = _value(log, choice or ScoreChoice())
    except DataError as error:
        outcome = str(error)
    return _shown(outcome, LONGEST_REASON) if isinstance(outcome, str) else outcome


def is_estimated(share: float, count: int) -> bool:
    """Returns True if `share` +- 1.96 standard errors over `count` units is a 95 % interval.

    It is too short for few units, and near 0 or 1, where the standard error itself is hardly known.
    """
    return count >= LEAST_SCORED and count * min(share, 1.0 - share) >= LEAST_OF_EACH


class EvalLog(Record):
    """A log that is written as an Inspect AI eval log (version 2) without samples.

    Equal logs have equal contents: all other identifiers are hashes of the fields.

    Attributes:
        model: Model name.
        task: Task name.
        dataset: Name of what was scored.
        samples: Number of samples.
        metrics: `accuracy` in [0, 1] and any others, `stderr` among them, each finite.
        created: Time in ISO 8601 with its zone.
        run_id: Id of the run that made it; None derives one from model and time.
        metadata: Further data, as JSON values.

    Raises:
        ValueError: A metric is not finite, or accuracy is missing or outside [0, 1].
    """

    model: str
    task: str
    dataset: str
    samples: int
    metrics: Mapping[str, float]
    created: str
    run_id: str | None = None
    metadata: Mapping[str, Any] = {}

    @model_validator(mode="after")
    def _check_metrics(self) -> Self:
        for name, value in self.metrics.items():
            if not math.isfinite(value):
                raise ValueError(f"metric {name} of {self.model} on {self.task} is {value}")
        if not 0.0 <= self.metrics.get("accuracy", -1.0) <= 1.0:
            raise ValueError(
                f"{self.model} on {self.task} needs an accuracy in [0, 1]: {dict(self.metrics)}"
            )
        return self

    def content(self) -> dict[str, Any]:
        """Returns the log in Inspect's format, with `accuracy` first of the metrics."""
        task_id = _identifier("task", self.task, self.dataset)
        return {
            "version": 2,
            "status": "success",
            "eval": {
                "eval_id": _identifier("eval", self.model, self.task, self.dataset, self.created),
                "run_id": self.run_id or _identifier("run", self.model, self.created),
                "created": self.created,
                "task": self.task,
                "task_id": task_id,
                "dataset": {"name": self.dataset, "samples": self.samples},
                "model": self.model,
                "config": {},
                "metadata": dict(self.metadata),
            },
            "plan": {"name": "plan", "steps": [], "config": {}},
            "results": {
                "total_samples": self.samples,
                "completed_samples": self.samples,
                "scores": [
                    {
                        "name": "raylab",
                        "scorer": "raylab",
                        "params": {},
                        "metrics": {
                            name: {"name": name, "value": value, "params": {}}
                            for name, value in self._ordered_metrics().items()
                        },
                    }
                ],
            },
            "stats": {
                "started_at": self.created,
                "completed_at": self.created,
                "model_usage": {},
            },
        }

    def _ordered_metrics(self) -> dict[str, float]:
        return {"accuracy": self.metrics["accuracy"], **self.metrics}


def _identifier(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:22]


def _value(log: _Log, choice: ScoreChoice) -> float | str:
    if log.status not in (None, "success"):
        return f"status is {_shown(log.status)}, not success"
    if bytes(log.error) != b"null":
        return "the log carries an error"
    if log.invalidated:
        return "invalidated: its samples are to be run again, as Inspect's eval sets do"
    results = _decoded(_RESULTS, log.results, "results")
    if results is None or not results.scores:
        return "the log has no scores"
    scores = results.scores
    if choice.scorer is not None:
        scores = [score for score in scores if choice.scorer in (score.name, score.scorer)]
        if not scores:
            there = (score.name or score.scorer or "" for score in results.scores)
            return f"the log has no score of {choice.scorer}: it has {_listed(there)}"
    which = "the first score" if choice.scorer is None else f"the score of {choice.scorer}"
    metric = _decoded(_METRIC, scores[0].metrics.get(choice.metric, _NULL), choice.metric)
    value = metric.value if isinstance(metric, _Metric) else metric
    if value is None:
        there = (name for name in scores[0].metrics if name != choice.metric)
        return f"{which} has no {choice.metric}: it has {_listed(there)}"
    if isinstance(value, str) or not 0.0 <= value <= 1.0:
        return f"{choice.metric} is {value}, not in [0, 1]"
    return value


def _listed(names: Iterable[str]) -> str:
    return ", ".join(map(_shown, islice(names, SHOWN_NAMES))) or "none"


def _shown(text: str, most: int = 40) -> str:
    shown = text if text.isprintable() else ascii(text)
    return shown if len(shown) <= most else f"{shown[: most - 3]}..."


def _read_json(file: BinaryIO) -> _Log:
    content, length = b"", PREFIX
    while length <= LONGEST_PREFIX:
        content += file.read(length - len(content))
        if len(content) < length:
            return _checked(_decode(content))
        for header in islice(_headers(content), ATTEMPTS):
            with contextlib.suppress(DataError):
                log = _decode(header)
                if log.status is not None and bytes(log.results) != b"null":
                    return log
        length *= GROWTH
    return _checked(_decode(content + read_all(file, "the log", LOG_BYTES)))


def _checked(log: _Log) -> _Log:
    if log.status is None and bytes(log.results) == b"null":
        raise DataError("not an Inspect eval log: it has neither status nor results")
    return log


def _headers(content: bytes) -> Iterator[bytes]:
    """Yields the bytes before each key that may start the samples, closed to one object.

    The result is valid JSON only for a top-level key: elsewhere a bracket or quote stays open.
    """
    end = content.find(SAMPLES)
    while end >= 0:
        value = content[end + len(SAMPLES) : end + len(SAMPLES) + LONGEST_GAP].translate(
            None, b" \t\r\n"
        )
        if value.startswith(b":["):
            yield content[:end].rstrip().removesuffix(b",") + b"}"
        end = content.find(SAMPLES, end + 1)


def _decode(content: bytes) -> _Log:
    """Decodes a log; NaN and infinity, which Inspect writes although JSON lacks them, as texts."""
    try:
        log = _LOG.decode(content)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        if not isinstance(error, msgspec.ValidationError) and len(content) <= LENIENT_BYTES:
            quoted = _CONSTANTS.sub(_quoted, content)
            if quoted != content:
                return _decode(quoted)
        raise _fault(error) from error
    if len(log.results) > RESULTS_BYTES:
        raise over("results", "bytes", RESULTS_BYTES)
    return log


def _quoted(match: "re.Match[bytes]") -> bytes:
    text = match[0]
    return text if text.startswith(b'"') else b'"' + text + b'"'


def _decoded(decoder: "msgspec.json.Decoder[T]", raw: msgspec.Raw, name: str) -> T:
    try:
        return decoder.decode(raw)
    except (msgspec.DecodeError, RecursionError) as error:
        raise _fault(error, f" of {name}") from error


def _fault(error: Exception, where: str = "") -> DataError:
    kind = "an Inspect eval log" if isinstance(error, msgspec.ValidationError) else "JSON"
    return DataError(f"not {kind}: {error}{where}")


def _read_eval(file: BinaryIO) -> _Log:
    with opened_zip(file, "not an Inspect eval log") as archive:
        try:
            member = archive.getinfo(HEADER)
        except KeyError:
            raise DataError(f"unfinished: the log has no {HEADER}") from None
        return _decode(read_member(archive, member, HEADER, HEADER_BYTES))
