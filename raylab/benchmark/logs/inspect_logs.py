"""Inspect AI's eval logs: a score for each sample and epoch, or one for a log without samples.

An `.eval` log is a zip. Its summaries hold all that is needed, except which samples were
invalidated. The samples of a `.json` log are read one at a time.
"""

import io
import re
import zipfile
from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from typing import Any, BinaryIO, cast

import msgspec

from raylab.benchmark.logs.rows import (
    CANCELLED,
    ERRORED,
    INSPECT,
    INVALIDATED,
    UNSCORED,
    Choice,
    Origin,
    Row,
    read_time,
)
from raylab.benchmark.logs.trees import Source
from raylab.core.bounded import decode, elements, open_zip, read_member
from raylab.core.errors import DataError
from raylab.core.runs.eval_logs import A_LOG, Header, read_json_header, read_score, read_zip_header
from raylab.core.runs.eval_logs import Score as Heading

MEMBER = re.compile(r"samples/.+_epoch_\d+(\.json|/sample\.json)", re.DOTALL)
SUMMARIES = "summaries.json"
SAMPLE_BYTES = 1 << 28
"""Longest sample, with the whole transcript of an agent, and longest list of summaries."""
HASHED = 1000
"""Characters of an input that are compared; summaries keep more."""


class _Eval(msgspec.Struct):
    model: str = ""
    task: str = ""
    created: str = ""


class _Log(Header):
    eval: _Eval = msgspec.field(default_factory=_Eval)
    samples: list[Any] | None = None


class _Score(msgspec.Struct):
    value: Any = None
    answer: Any = None


class _Sample(msgspec.Struct):
    id: int | str
    epoch: int = 1
    input: Any = ""
    target: Any = ""
    scores: dict[str, _Score] | None = None
    error: Any = None
    invalidation: Any = None
    output: dict[str, Any] | None = None


_SAMPLE, _LOG = msgspec.json.Decoder(_Sample), msgspec.json.Decoder(_Log)


def read_inspect(file: BinaryIO, source: Source, choice: Choice) -> Iterator[Row]:
    """Yields the scores of a log.

    Raises:
        DataError: It is not a log, unfinished, broken, or lacks the chosen score.
        OSError: It cannot be read.
    """
    is_zip = source.place.name.endswith(".eval")
    with open_zip(file, f"not {A_LOG}") if is_zip else nullcontext() as archive:
        log, samples = _read_json(file) if archive is None else _read_zip(archive)
        about = log.eval
        if log.status is None and log.results is None and about == _Eval():
            raise DataError(f"not {A_LOG}: it has neither status nor results")
        origin = Origin(INSPECT, about.model, about.task, time=read_time(about.created))
        wanted = log.choose(choice.scorer) or Heading(choice.scorer, choice.scorer)
        if samples is None:
            yield _read_header(file, source, choice, origin)
            return
        for sample in samples:
            yield _read_sample(origin, msgspec.convert(sample, _Sample), wanted, choice.metric)


def _read_json(file: BinaryIO) -> tuple[_Log, Iterable[Any] | None]:
    """Returns the header of a log and its samples; None without samples."""
    log, place = read_json_header(file, _LOG)
    if not place:
        return log, log.samples
    file.seek(place)
    return log, elements(file, "the log", SAMPLE_BYTES)


def _read_zip(archive: zipfile.ZipFile) -> tuple[_Log, Iterable[Any] | None]:
    """Returns the header, and the samples or their summaries; None without samples."""
    log, names = read_zip_header(archive, _LOG), dict.fromkeys(archive.namelist())
    members = [name for name in names if MEMBER.fullmatch(name)]
    if not members and SUMMARIES not in names:
        return log, None
    if SUMMARIES in names and not (members and log.invalidated):
        return log, _read_list(archive, SUMMARIES)
    return log, (decode(_SAMPLE, _read(archive, name), A_LOG, name) for name in members)


def _read(archive: zipfile.ZipFile, name: str) -> bytes:
    return read_member(archive, archive.getinfo(name), name, SAMPLE_BYTES)


def _read_list(archive: zipfile.ZipFile, name: str) -> Iterator[Any]:
    file = io.BytesIO(_read(archive, name))
    file.seek(file.getvalue().index(b"[") + 1)
    return elements(file, name, SAMPLE_BYTES)


def _read_header(file: BinaryIO, source: Source, choice: Choice, origin: Origin) -> Row:
    """Returns the score of a log without samples."""
    file.seek(0)
    score = read_score(file, source.place.name, choice.metric or "accuracy", choice.scorer)
    if isinstance(score, str):
        raise DataError(score)
    return Row(origin._replace(sampled=False), "", score)


def _read_sample(origin: Origin, sample: _Sample, wanted: Heading, metric: str | None) -> Row:
    scores = sample.scores or {}
    score = scores.get(wanted.name or "") or scores.get(wanted.scorer or "")
    if score is None and not wanted.name:
        score = next(iter(scores.values()), None)
    if (wrong := _why_not(sample, score)) or score is None:
        return Row(origin, sample.id, None, wrong=wrong)
    text = _input_text(sample.input)
    answer = score.answer or (sample.output or {}).get("completion")
    value, said = _value(score, wanted, metric), (text, sample.target, answer)
    return Row(origin, sample.id, value, sample.epoch, text[:HASHED] or None, said=said)


def _why_not(sample: _Sample, score: _Score | None) -> str | None:
    """Returns the reason why a sample does not count; None if it counts."""
    if sample.invalidation is not None:
        return INVALIDATED
    if sample.error is not None:
        # A summary has the message itself.
        message = sample.error.get("message") if isinstance(sample.error, dict) else sample.error
        return CANCELLED if "cancel" in str(cast(object, message)).lower() else ERRORED
    return UNSCORED if score is None else None


def _value(score: _Score, wanted: Heading, metric: str | None) -> object:
    """Returns the value of a score; of several, that of the metric or name, else the first."""
    if not isinstance(score.value, dict):
        return score.value
    values = cast(dict[str, object], score.value)
    if metric is None and wanted.name not in values:
        return next(iter(values.values()), None)
    return values.get(metric or wanted.name or "")


def _input_text(value: object) -> str:
    """Returns the text of a sample's input, which may be messages of several parts."""
    if not isinstance(value, list):
        return value if isinstance(value, str) else ""
    texts = list[str]()
    for message in cast(list[Any], value):
        content = message.get("content") if isinstance(message, dict) else None
        parts = cast(list[Any], content if isinstance(content, list) else [{"text": content}])
        # A summary has `(Image)` for an image, and the like for other media.
        texts += [
            str(content.get("text") or f"({str(content.get('type', '')).capitalize()})")
            for content in parts
            if isinstance(content, dict)
        ]
    return "\n".join(texts)
