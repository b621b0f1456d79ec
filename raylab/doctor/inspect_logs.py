"""Inspect AI's eval logs: a score for each sample and epoch, or one for a log without samples.

An `.eval` log is a zip: its summaries have all that is needed, except for samples that were
invalidated, which only the samples themselves tell. A `.json` log is one document; its samples are
read one at a time.
"""

import re
import zipfile
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any, BinaryIO, cast

import msgspec

from raylab.bounded import opened_member, opened_zip, read_member
from raylab.doctor.json_stream import PIECE_BYTES, decode, pieces
from raylab.doctor.rows import (
    CANCELLED,
    ERRORED,
    INVALIDATED,
    LONGEST_ANSWER,
    UNSCORED,
    Choice,
    Origin,
    Rows,
    Source,
    read_time,
    shorten,
    text_hash,
)
from raylab.errors import DataError
from raylab.runs.eval_logs import HEADER, LOG_BYTES, read_score

FORM = "Inspect"
SAMPLE = re.compile(r"samples/.+_epoch_\d+(\.json|/sample\.json)", re.DOTALL)
SUMMARIES = "summaries.json"
REDUCTIONS = "reductions.json"
MEMBER_BYTES = 1 << 34
"""Longest list of summaries, which is never held whole."""
HASHED = 1000
"""Characters of an input that tell it from others; summaries keep more."""
OTHER_FORMATS = {
    "evaluation_results": "Every Eval Ever without {uuid}_samples.jsonl",
    "versions": "results of lm-evaluation-harness without samples: run it with --log_samples",
}
"""What JSON with such a key is, in place of a log."""


class _Named(msgspec.Struct):
    name: str = ""
    scorer: str = ""


class _Eval(msgspec.Struct):
    model: str = ""
    task: str = ""
    created: str = ""
    scorers: list[_Named] | None = None


class _Results(msgspec.Struct):
    scores: list[_Named] | None = None


class _Header(msgspec.Struct):
    eval: _Eval | None = None
    results: _Results | None = None
    invalidated: bool = False


class _Score(msgspec.Struct):
    value: Any = None
    answer: Any = None


class _Output(msgspec.Struct):
    completion: Any = None


class _Sample(msgspec.Struct):
    id: int | str
    epoch: int = 1
    input: Any = ""
    target: Any = ""
    scores: dict[str, _Score] | None = None
    error: Any = None
    invalidation: Any = None
    output: _Output | None = None


class _Reduced(_Score):
    sample_id: int | str | None = None


class _Reduction(msgspec.Struct):
    scorer: str
    samples: list[_Reduced]
    reducer: str | None = None


_EVAL, _RESULTS = msgspec.json.Decoder(_Eval), msgspec.json.Decoder(_Results)
_FLAG, _HEADER = msgspec.json.Decoder(bool), msgspec.json.Decoder(_Header)
_SAMPLE, _REDUCTIONS = msgspec.json.Decoder(_Sample), msgspec.json.Decoder(list[_Reduction])


def read_inspect(file: BinaryIO, source: Source, choice: Choice, rows: Rows) -> None:
    """Adds the scores of a log to `rows`.

    Raises:
        DataError: It is no log, unfinished or broken.
        OSError: It cannot be read.
    """
    read = _read_eval if source.place.name.endswith(".eval") else _read_json
    if not read(file, source, choice, rows):
        file.seek(0)
        score = read_score(file, source.place.name, choice.metric or "accuracy", choice.scorer)
        if isinstance(score, str):
            raise DataError(score)
        rows.add(len(rows.origins) - 1, rows.number(""), score)


class _Log:
    """A log whose samples are added to `rows`."""

    def __init__(self, source: Source, choice: Choice, rows: Rows) -> None:
        self.header = _Header()
        self.source, self.choice, self.rows = source, choice, rows
        self.scored = False
        """True once a sample has the chosen scorer."""

    def start(self, sampled: bool) -> None:
        """Takes what the header says for what follows."""
        about = self.header.eval or _Eval()
        time = read_time(about.created)
        self.origin = self.rows.add_origin(
            Origin(self.source, FORM, about.model, about.task, time=time, sampled=sampled)
        )
        scores = (self.header.results or _Results()).scores or about.scorers or []
        wanted = self.choice.scorer
        chosen = [s for s in scores if wanted is None or wanted in (s.name, s.scorer)]
        names = chosen[0] if chosen else _Named(wanted or "", wanted or "")
        self.names, self.key = (names.name, names.scorer), self.choice.metric or ""

    def add(self, sample: _Sample) -> None:
        """Adds the score of a sample, or leaves it out with the reason."""
        score, key = self._score(sample.scores or {})
        self.scored |= score is not None
        if reason := _why_not(sample, score):
            return self.rows.leave_out(reason, f"{self.source.place}: sample {sample.id}")
        score = score or _Score()
        name, text = self.rows.number(sample.id), _input_text(sample.input)
        hashed = text_hash(text[:HASHED]) if text else 0
        if self.rows.add(self.origin, name, score.value, sample.epoch, hashed, key):
            kept = self.rows.describe(self.origin, name, hashed)
            if kept is not None and self.origin not in kept.answers:
                answer = score.answer or (sample.output and sample.output.completion)
                kept.answers[self.origin] = shorten(answer, LONGEST_ANSWER)
                kept.text = kept.text or shorten(text)
                kept.target = kept.target or shorten(_plain(sample.target), LONGEST_ANSWER)
        return None

    def _score(self, scores: dict[str, _Score]) -> tuple[_Score | None, str]:
        """Returns the chosen score of a sample, and the key of its number if it has several."""
        name, scorer = self.names
        if name in scores or not (name or scorer):
            return scores.get(name) or next(iter(scores.values()), None), self.key
        return scores.get(scorer), self.key or name

    def add_reductions(self, reductions: Iterable[_Reduction]) -> None:
        """Adds the scores over epochs that the chosen reducer gave."""
        name, scorer = self.names
        for reduction in reductions:
            # Where a task names no reducer the log does not either: it is the mean.
            if (reduction.reducer or "mean") != self.choice.reducer:
                continue
            if (name or scorer) and reduction.scorer not in (name, scorer):
                continue
            key = self.key or (name if name != reduction.scorer else "")
            for score in reduction.samples:
                self.rows.add(self.origin, self.rows.number(score.sample_id), score.value, key=key)
            return
        raise DataError(f"no scores of the reducer {self.choice.reducer}: choose another or none")


def _why_not(sample: _Sample, score: _Score | None) -> str | None:
    """Returns the reason why a sample does not count, if there is one."""
    if sample.invalidation is not None:
        return INVALIDATED
    if sample.error is not None:
        # A summary has the message alone.
        error = cast(Any, sample.error)
        message = error.get("message") if isinstance(error, dict) else error
        return CANCELLED if "cancel" in str(message).lower() else ERRORED
    return UNSCORED if score is None else None


def _plain(value: object) -> str:
    """Returns a target, of which there may be several, as text."""
    return "; ".join(map(str, cast(list[object], value))) if isinstance(value, list) else str(value)


def _input_text(value: object) -> str:
    """Returns the text of a sample's input, which may be messages of several parts."""
    if not isinstance(value, list):
        return value if isinstance(value, str) else ""
    texts = list[str]()
    for message in cast(list[Any], value):
        content = message.get("content") if isinstance(message, dict) else None
        parts = cast(list[Any], content if isinstance(content, list) else [])
        texts += [str(part.get("text", "")) for part in parts if isinstance(part, dict)]
        texts += [content] if isinstance(content, str) else []
    return "\n".join(texts)


def _read_json(file: BinaryIO, source: Source, choice: Choice, rows: Rows) -> bool:
    """Adds the samples of a `.json` log; returns False if it has none."""
    log, where, started, is_log = _Log(source, choice, rows), "the log", False, False
    for key, value in pieces(file, where, "samples"):
        is_log |= key in ("eval", "results", "samples")
        if key in OTHER_FORMATS and not is_log:
            raise DataError(OTHER_FORMATS[key])
        if key in ("samples", "reductions") and not started:
            started = True
            log.start(True)
        if key == "eval":
            log.header.eval = decode(_EVAL, value, where)
        elif key == "results":
            log.header.results = None if value == b"null" else decode(_RESULTS, value, where)
        elif key == "samples" and choice.reducer is None:
            log.add(decode(_SAMPLE, value, where))
        elif key == "reductions" and choice.reducer is not None:
            log.add_reductions(decode(_REDUCTIONS, value, where))
    if not is_log:
        raise DataError("not an Inspect eval log: it has neither eval nor results")
    if not started:
        log.start(False)
    return started


def _read_eval(file: BinaryIO, source: Source, choice: Choice, rows: Rows) -> bool:
    """Adds the samples of an `.eval` log; returns False if it has none."""
    with opened_zip(file, "not an Inspect eval log") as archive:
        names = dict.fromkeys(archive.namelist())
        if HEADER not in names:
            raise DataError(f"unfinished: the log has no {HEADER}")
        log, read = _Log(source, choice, rows), partial(_read, archive)
        log.header = decode(_HEADER, read(HEADER, LOG_BYTES), HEADER)
        samples = [name for name in names if SAMPLE.fullmatch(name)]
        log.start(bool(samples) or SUMMARIES in names)
        if choice.reducer is not None and REDUCTIONS in names:
            log.add_reductions(decode(_REDUCTIONS, read(REDUCTIONS, PIECE_BYTES), REDUCTIONS))
            return True
        if SUMMARIES in names and not log.header.invalidated:
            mark = rows.mark()
            for sample in _summaries(archive):
                log.add(sample)
            if log.scored or not samples:
                return True
            rows.undo(mark)
        for name in samples:
            log.add(decode(_SAMPLE, read(name, PIECE_BYTES), name))
        return bool(samples)


def _read(archive: zipfile.ZipFile, name: str, most: int) -> bytes:
    return read_member(archive, archive.getinfo(name), name, most)


def _summaries(archive: zipfile.ZipFile) -> Iterator[_Sample]:
    member = archive.getinfo(SUMMARIES)
    with opened_member(archive, member, SUMMARIES, MEMBER_BYTES) as file:
        for _, piece in pieces(file, SUMMARIES):
            yield decode(_SAMPLE, piece, SUMMARIES)
