"""Inspect AI eval logs: reading the accuracy of any log, and writing our own.

A JSON log holds `status`, `results` and `error` before its samples, and an `.eval` log is a zip
with everything but the samples in `header.json`. So samples are not read and cost nothing.
"""

import hashlib
import io
import json
import math
import struct
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any, BinaryIO, Self

import msgspec
import zstandard
from pydantic import model_validator

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
ZSTANDARD = 93
"""The zip method of new `.eval` logs, which Python's zipfile supports from 3.14 on."""
LOCAL_HEADER = struct.Struct("<26xHH")
"""The header of a zip member; only the lengths of name and extra field are used."""
SUFFIXES = (".json", ".eval")


class _Metric(msgspec.Struct):
    value: float | None = None


class _Metrics(msgspec.Struct):
    accuracy: _Metric | None = None


class _Score(msgspec.Struct):
    metrics: _Metrics = msgspec.field(default_factory=_Metrics)


class _Results(msgspec.Struct):
    scores: list[_Score] = []


class _Log(msgspec.Struct):
    status: str | None = None
    results: _Results | None = None
    error: Any = None


_DECODER = msgspec.json.Decoder(_Log)


def read_score(file: BinaryIO, name: str) -> float | str:
    """Reads the accuracy in [0, 1] of an eval log, or the reason why it has none.

    A log without a status, as other tools write, is valid if it has a score. A JSON log that is
    truncated within its samples is valid too, because nothing after the header is read.

    Args:
        file: The log, at its start.
        name: File name; its suffix determines the format.

    Raises:
        OSError: The file cannot be read.
    """
    return _score(_read_eval(file) if name.endswith(".eval") else _read_json(file))


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


def _score(log: _Log | str) -> float | str:
    if isinstance(log, str):
        return log
    if log.status not in (None, "success"):
        return f"status is {log.status}, not success"
    if log.error is not None:
        return "the log carries an error"
    if log.results is None or not log.results.scores:
        return "the log has no scores"
    accuracy = log.results.scores[0].metrics.accuracy
    if accuracy is None or accuracy.value is None:
        return "the first score has no accuracy"
    if not 0.0 <= accuracy.value <= 1.0:
        return f"accuracy is {_shown(accuracy.value)}, not in [0, 1]"
    return accuracy.value


def _shown(value: float) -> str:
    return "NaN" if math.isnan(value) else str(value)


def _read_json(file: BinaryIO) -> _Log | str:
    content, length = b"", PREFIX
    while length <= LONGEST_PREFIX:
        content += file.read(length - len(content))
        if len(content) < length:
            log = _decode(content)
            if isinstance(log, _Log):
                return _checked(log)
            break
        for header in islice(_headers(content), ATTEMPTS):
            log = _decode(header)
            if isinstance(log, _Log) and log.status is not None and log.results is not None:
                return log
        length *= GROWTH
    return _checked(_decode(content + file.read()))


def _checked(log: _Log | str) -> _Log | str:
    if isinstance(log, _Log) and log.status is None and log.results is None:
        return "not an Inspect eval log: it has neither status nor results"
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


def _decode(content: bytes) -> _Log | str:
    try:
        return _DECODER.decode(content)
    except msgspec.ValidationError as error:
        return f"not an Inspect eval log: {error}"
    except (msgspec.DecodeError, RecursionError):
        return _decode_leniently(content)


def _decode_leniently(content: bytes) -> _Log | str:
    """Decodes NaN and infinity too, which Inspect writes although JSON lacks them."""
    try:
        return msgspec.convert(json.loads(content), _Log)
    except msgspec.ValidationError as error:
        return f"not an Inspect eval log: {error}"
    except (ValueError, RecursionError) as error:
        return f"not JSON: {error}"


def _read_eval(file: BinaryIO) -> _Log | str:
    try:
        with zipfile.ZipFile(file) as archive:
            member = archive.getinfo(HEADER)
            if member.compress_type == ZSTANDARD:
                return _decode(_read_zstandard(file, member))
            return _decode(archive.read(member))
    except KeyError:
        return f"unfinished: the log has no {HEADER}"
    except (zipfile.BadZipFile, zlib.error, struct.error, zstandard.ZstdError) as error:
        return f"not an Inspect eval log: {error}"
    except (NotImplementedError, RuntimeError) as error:
        return f"{HEADER} cannot be read: {error}"


def _read_zstandard(file: BinaryIO, member: zipfile.ZipInfo) -> bytes:
    file.seek(member.header_offset)
    name, extra = LOCAL_HEADER.unpack(file.read(LOCAL_HEADER.size))
    file.seek(name + extra, io.SEEK_CUR)
    packed = io.BytesIO(file.read(member.compress_size))
    with zstandard.ZstdDecompressor().stream_reader(packed, read_across_frames=True) as stream:
        content = stream.read()
    if zlib.crc32(content) != member.CRC:
        raise zipfile.BadZipFile(f"{HEADER} fails its checksum")
    return content
