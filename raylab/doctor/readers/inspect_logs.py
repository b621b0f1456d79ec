"""Inspect AI's eval logs: a score for each sample and epoch, or one for a log without samples.

An `.eval` log is a zip: its summaries have all that is needed, except for samples that were
invalidated, which only the samples themselves tell. The samples of a `.json` log are read one at a
time.
"""

import io
import re
import zipfile
from collections.abc import Iterator, Mapping
from functools import partial
from itertools import chain
from typing import Any, BinaryIO, cast

import msgspec

from raylab.bounded import opened_zip, read_member
from raylab.doctor.readers.json_stream import PIECE_BYTES, decode, pieces
from raylab.doctor.readers.rows import (
    CANCELLED,
    ERRORED,
    INVALIDATED,
    UNSCORED,
    Choice,
    Origin,
    Scored,
    Source,
    read_time,
)
from raylab.errors import DataError
from raylab.runs.eval_logs import HEADER, LOG_BYTES, read_score

FORM = "Inspect"
LOG = "the log"
SAMPLE = re.compile(r"samples/.+_epoch_\d+(\.json|/sample\.json)", re.DOTALL)
SUMMARIES = "summaries.json"
REDUCTIONS = "reductions.json"
HASHED = 1000
"""Characters of an input that tell it from others; summaries keep more."""


class _Name(msgspec.Struct):
    name: str = ""
    scorer: str = ""


class _Eval(msgspec.Struct):
    model: str = ""
    task: str = ""
    created: str = ""


class _Results(msgspec.Struct):
    scores: list[_Name] = []


class _Header(msgspec.Struct):
    eval: _Eval = msgspec.field(default_factory=_Eval)
    results: _Results | None = None
    invalidated: bool = False


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


class _Reduced(_Score):
    sample_id: int | str | None = None


class _Reduction(msgspec.Struct):
    scorer: str
    samples: list[_Reduced]
    reducer: str | None = None


_HEADER, _SAMPLE = msgspec.json.Decoder(_Header), msgspec.json.Decoder(_Sample)
_REDUCTIONS = msgspec.json.Decoder(list[_Reduction])

Pieces = Iterator[tuple[str, bytes]]


def read_inspect(file: BinaryIO, source: Source, choice: Choice) -> Iterator[tuple[Origin, Scored]]:
    """Yields the scores of a log.

    Raises:
        DataError: It is no log, unfinished, broken, or without the score that is chosen.
        OSError: It cannot be read.
    """
    if not source.place.name.endswith(".eval"):
        header, samples = _read_json(file)
        yield from _scores(file, source, choice, header, samples)
        return
    with opened_zip(file, "not an Inspect eval log") as archive:
        names = dict.fromkeys(archive.namelist())
        if HEADER not in names:
            raise DataError(f"unfinished: the log has no {HEADER}")
        header = decode(_HEADER, _member(archive, HEADER, LOG_BYTES), HEADER)
        samples = _eval_samples(archive, names, _choose(header, choice), header.invalidated)
        yield from _scores(file, source, choice, header, samples)


def _read_json(file: BinaryIO) -> tuple[_Header, Pieces | None]:
    """Returns the header of a `.json` log, and the pieces after it; None without samples."""
    stream, header = pieces(file, LOG, "samples"), dict[str, msgspec.Raw]()
    for key, value in stream:
        if key in ("samples", "reductions"):
            return _convert(header), chain([(key, value)], stream)
        if key in ("eval", "results", "status"):
            header[key] = msgspec.Raw(value)
    if not header:
        raise DataError("not an Inspect eval log: it has neither status nor results")
    return _convert(header), None


def _convert(header: Mapping[str, msgspec.Raw]) -> _Header:
    return decode(_HEADER, msgspec.json.encode(header), LOG)


def _eval_samples(
    archive: zipfile.ZipFile, names: Mapping[str, None], wanted: _Name, invalidated: bool
) -> Pieces | None:
    """Returns the samples of an `.eval` log, or their summaries; None if it has none."""
    samples = [name for name in names if SAMPLE.fullmatch(name)]
    read = partial(_member, archive, most=PIECE_BYTES)
    reductions = (("reductions", read(name)) for name in names if name == REDUCTIONS)
    if SUMMARIES in names:
        content = read(SUMMARIES)
        if not samples or not (invalidated or _lack(content, wanted)):
            return chain(_summaries(content), reductions)
    return chain((("samples", read(name)) for name in samples), reductions) if samples else None


def _member(archive: zipfile.ZipFile, name: str, most: int) -> bytes:
    return read_member(archive, archive.getinfo(name), name, most)


def _summaries(content: bytes) -> Pieces:
    return pieces(io.BytesIO(content), SUMMARIES, "samples")


def _lack(summaries: bytes, wanted: _Name) -> bool:
    """Returns True if the first summary with scores lacks the wanted one."""
    samples = (decode(_SAMPLE, piece, SUMMARIES).scores for _, piece in _summaries(summaries))
    scores = next(filter(None, samples), {})
    return bool(wanted.name) and wanted.name not in scores and wanted.scorer not in scores


def _choose(header: _Header, choice: Choice) -> _Name:
    """Returns the score to read, by its name and its scorer's; empty names are the first."""
    wanted = choice.scorer
    for score in header.results.scores if header.results else ():
        if wanted in (None, score.name, score.scorer):
            return score
    return _Name(wanted or "", wanted or "")


def _scores(
    file: BinaryIO, source: Source, choice: Choice, header: _Header, samples: Pieces | None
) -> Iterator[tuple[Origin, Scored]]:
    about, wanted = header.eval, _choose(header, choice)
    origin = Origin(FORM, about.model, about.task, read_time(about.created))
    if samples is None:
        file.seek(0)
        score = read_score(file, source.place.name, choice.metric or "accuracy", choice.scorer)
        if isinstance(score, str):
            raise DataError(score)
        yield origin._replace(sampled=False), Scored("", score)
        return
    reduced = choice.reducer is None
    for key, piece in samples:
        if key == "samples" and choice.reducer is None:
            yield origin, _scored(decode(_SAMPLE, piece, LOG), wanted, choice.metric)
        if key == "reductions" and choice.reducer is not None:
            for reduction in decode(_REDUCTIONS, piece, LOG):
                if _is_chosen(reduction, wanted, choice.reducer):
                    reduced = True
                    for score in reduction.samples:
                        value = _value(score, wanted, choice.metric)
                        yield origin, Scored(score.sample_id, value)
    if not reduced:
        raise DataError(f"no scores of the reducer {choice.reducer}: choose another or none")


def _is_chosen(reduction: _Reduction, wanted: _Name, reducer: str) -> bool:
    # Where a task names no reducer the log does not either: it is the mean.
    named = reduction.scorer in (wanted.name, wanted.scorer) or not wanted.name
    return named and (reduction.reducer or "mean") == reducer


def _scored(sample: _Sample, wanted: _Name, metric: str | None) -> Scored:
    scores = sample.scores or {}
    score = scores.get(wanted.name) or scores.get(wanted.scorer)
    if score is None and not wanted.name:
        score = next(iter(scores.values()), None)
    if wrong := _why_not(sample, score):
        return Scored(sample.id, None, wrong=wrong)
    text, score = _input_text(sample.input), score or _Score()

    def said() -> tuple[object, object, object]:
        answer = score.answer or (sample.output or {}).get("completion")
        return text, sample.target, answer

    value = _value(score, wanted, metric)
    return Scored(sample.id, value, sample.epoch, text[:HASHED] or None, said=said)


def _why_not(sample: _Sample, score: _Score | None) -> str | None:
    """Returns the reason why a sample does not count, if there is one."""
    if sample.invalidation is not None:
        return INVALIDATED
    if sample.error is not None:
        # Of a summary it is the message itself.
        message = sample.error.get("message") if isinstance(sample.error, dict) else sample.error
        return CANCELLED if "cancel" in str(cast(object, message)).lower() else ERRORED
    return UNSCORED if score is None else None


def _value(score: _Score, wanted: _Name, metric: str | None) -> object:
    """Returns the value of a score, of several that of the metric, of the name, or the first."""
    if not isinstance(score.value, dict):
        return score.value
    values = cast(dict[str, object], score.value)
    if metric is None and wanted.name not in values:
        return next(iter(values.values()), None)
    return values.get(metric or wanted.name)


def _input_text(value: object) -> str:
    """Returns the text of a sample's input, which may be messages of several parts."""
    if not isinstance(value, list):
        return value if isinstance(value, str) else ""
    texts = list[str]()
    for message in cast(list[Any], value):
        content = message.get("content") if isinstance(message, dict) else None
        parts = cast(list[Any], content if isinstance(content, list) else [{"text": content}])
        # A summary has `(Image)` for an image, and likewise for other media.
        texts += [
            str(part.get("text") or f"({str(part.get('type', '')).capitalize()})")
            for part in parts
            if isinstance(part, dict)
        ]
    return "\n".join(texts)
