"""Inspect AI eval logs: reading the accuracy of any log, and writing our own.

A JSON log holds `status`, `results` and `error` before its samples, and an `.eval` log is a zip
with everything but the samples in `header.json`. So samples are not read and cost nothing.
"""

import contextlib
import hashlib
import json
import re
from collections.abc import Mapping
from itertools import islice
from typing import Any, BinaryIO, Self, cast

import msgspec
from pydantic import FiniteFloat, model_validator

from raylab.bounded import opened_zip, read_all, read_member
from raylab.errors import DataError
from raylab.printable import printable
from raylab.runs.records import Record

PREFIX = 1 << 16
"""Bytes of a JSON log to read first; where its samples do not begin in them, all are read."""
SAMPLES = re.compile(rb'"samples"\s*:\s*\[')
ATTEMPTS = 8
"""Most keys of a prefix that are taken for that of the samples."""
LOG_BYTES = 1 << 26
"""Longest JSON log whose results do not come before its samples, and longest header of a zip."""
HEADER = "header.json"
LEAST_SCORED = 30
"""Units below which a share has no standard error."""
LEAST_OF_EACH = 5
"""Right and wrong units' worth that a share needs for one."""
LONGEST_REASON = 200
SUFFIXES = (".json", ".eval")


class _Score(msgspec.Struct):
    name: str | None = None
    scorer: str | None = None
    metrics: dict[str, Any] = {}


class _Results(msgspec.Struct):
    scores: list[_Score] = []


class _Log(msgspec.Struct):
    status: str | None = None
    results: _Results | None = None
    error: object = None
    invalidated: bool = False


_LOG = msgspec.json.Decoder(_Log)


def read_score(
    file: BinaryIO, name: str, metric: str = "accuracy", scorer: str | None = None
) -> float | str:
    """Reads the accuracy in [0, 1] of an eval log, or the reason why it has none.

    A log without a status, as other tools write, is valid if it has a score. A JSON log that is
    truncated within its samples is valid too, because nothing after the header is read.

    Args:
        file: The log, at its start.
        name: File name; its suffix determines the format.
        metric: Name of the metric to read.
        scorer: Name of the score to read, or of its scorer; None reads the first score.

    Raises:
        OSError: The file cannot be read.
    """
    try:
        log = _read_eval(file) if name.endswith(".eval") else _read_json(file)
        outcome = _value(log, metric, scorer)
    except DataError as error:
        outcome = str(error)
    return _shorten(outcome) if isinstance(outcome, str) else outcome


def _shorten(reason: str) -> str:
    reason = printable(reason[: LONGEST_REASON + 1], breaks=False)
    return reason if len(reason) <= LONGEST_REASON else f"{reason[: LONGEST_REASON - 3]}..."


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
    metrics: Mapping[str, FiniteFloat]
    created: str
    run_id: str | None = None
    metadata: Mapping[str, Any] = {}

    @model_validator(mode="after")
    def _check_accuracy(self) -> Self:
        if not 0.0 <= self.metrics.get("accuracy", -1.0) <= 1.0:
            raise ValueError(
                f"{self.model} on {self.task} needs an accuracy in [0, 1]: {dict(self.metrics)}"
            )
        return self

    def content(self) -> dict[str, Any]:
        """Returns the log in Inspect's format, with `accuracy` first of the metrics."""
        return {
            "version": 2,
            "status": "success",
            "eval": self._eval(),
            "plan": {"name": "plan", "steps": [], "config": {}},
            "results": {
                "total_samples": self.samples,
                "completed_samples": self.samples,
                "scores": [self._score()],
            },
            "stats": {
                "started_at": self.created,
                "completed_at": self.created,
                "model_usage": {},
            },
        }

    def _eval(self) -> dict[str, Any]:
        return {
            "eval_id": _identifier("eval", self.model, self.task, self.dataset, self.created),
            "run_id": self.run_id or _identifier("run", self.model, self.created),
            "created": self.created,
            "task": self.task,
            "task_id": _identifier("task", self.task, self.dataset),
            "dataset": {"name": self.dataset, "samples": self.samples},
            "model": self.model,
            "config": {},
            "metadata": dict(self.metadata),
        }

    def _score(self) -> dict[str, Any]:
        metrics = {"accuracy": self.metrics["accuracy"], **self.metrics}
        values = {
            name: {"name": name, "value": value, "params": {}} for name, value in metrics.items()
        }
        return {"name": "raylab", "scorer": "raylab", "params": {}, "metrics": values}


def _identifier(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:22]


def _value(log: _Log, name: str, scorer: str | None) -> float | str:
    """Returns the value of a metric, or the reason why there is none."""
    if log.status not in (None, "success"):
        return f"status is {log.status}, not success"
    if log.error is not None:
        return "the log carries an error"
    if log.invalidated:
        return "invalidated: its samples are to be run again, as Inspect's eval sets do"
    scores = [] if log.results is None else log.results.scores
    if not scores:
        return "the log has no scores"
    chosen = [s for s in scores if scorer is None or scorer in (s.name, s.scorer)]
    if not chosen:
        there = ", ".join(score.name or score.scorer or "" for score in scores)
        return f"the log has no score of {scorer}: it has {there}"
    return _metric_value(chosen[0].metrics, name, scorer)


def _metric_value(metrics: Mapping[str, Any], name: str, scorer: str | None) -> float | str:
    metric = metrics.get(name)
    value = cast("dict[str, Any]", metric).get("value") if isinstance(metric, dict) else metric
    if value is None:
        there = ", ".join(other for other in metrics if other != name) or "none"
        which = "the first score" if scorer is None else f"the score of {scorer}"
        return f"{which} has no {name}: it has {there}"
    if type(value) not in (int, float) or not 0 <= value <= 1:
        return f"{name} is {value!r}, not a number in [0, 1]"
    return float(value)


def _read_json(file: BinaryIO) -> _Log:
    content = file.read(PREFIX)
    if len(content) == PREFIX:
        for key in islice(SAMPLES.finditer(content), ATTEMPTS):
            # Valid JSON only before a top-level key: elsewhere a bracket or quote stays open.
            header = content[: key.start()].rstrip().removesuffix(b",") + b"}"
            with contextlib.suppress(DataError):
                log = _decode(header)
                if log.status is not None and log.results is not None:
                    return log
        content += read_all(file, "the log", LOG_BYTES)
    log = _decode(content)
    if log.status is None and log.results is None:
        raise DataError("not an Inspect eval log: it has neither status nor results")
    return log


def _decode(content: bytes) -> _Log:
    try:
        try:
            return _LOG.decode(content)
        except msgspec.ValidationError:
            raise
        except msgspec.DecodeError:
            # Inspect writes NaN and infinity, which JSON lacks.
            return msgspec.convert(json.loads(content), _Log)
    except msgspec.ValidationError as error:
        raise DataError(f"not an Inspect eval log: {error}") from error
    except (ValueError, RecursionError) as error:
        raise DataError(f"not JSON: {error}") from error


def _read_eval(file: BinaryIO) -> _Log:
    with opened_zip(file, "not an Inspect eval log") as archive:
        try:
            member = archive.getinfo(HEADER)
        except KeyError:
            raise DataError(f"unfinished: the log has no {HEADER}") from None
        return _decode(read_member(archive, member, HEADER, LOG_BYTES))
