"""Inspect AI's eval logs: header and samples in one pass.

An `.eval` log is a zip. Its summaries hold all that is needed, except which samples were
invalidated and the ends of long texts; a crashed log has its samples and a journal but no header.
The samples of a `.json` log are read one at a time.
"""

import io
import math
import re
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import nullcontext
from typing import Any, BinaryIO, cast

import msgspec

from raylab.benchmark.logs.log import (
    CANCELLED,
    ERRORED,
    INVALIDATED,
    MAX_SAMPLES,
    UNSCORED,
    Choice,
    Files,
    Log,
    Samples,
    as_settings,
    pick,
    read_time,
)
from raylab.benchmark.logs.trees import Source
from raylab.core.bounded import decode, elements, open_zip, over, read_member
from raylab.core.errors import DataError
from raylab.core.runs.eval_logs import (
    A_LOG,
    HEADER,
    LOG_BYTES,
    Header,
    read_json_header,
    read_zip_header,
    score_of,
)

INSPECT = "Inspect"
"""The format for which directories may name models."""
MEMBER = re.compile(r"samples/.+_epoch_\d+(\.json|/sample\.json)", re.DOTALL)
SUMMARIES, JOURNAL = "summaries.json", "_journal/start.json"
TRUNCATED = "..."
"""In the texts of summaries that were cut."""
SAMPLE_BYTES = 1 << 28
"""Longest sample, with the whole transcript of an agent, and longest list of summaries."""
EVERY_RUN = {
    *("seed", "max_connections", "max_retries", "timeout", "attempt_timeout", "batch", "cache"),
    *("adaptive_connections", "api_key", "base_url", "num_choices", "extra_headers"),
}
"""Settings that do not make another model or task."""

Values = Mapping[str, Any]


class _Log(Header):
    eval: Any = None
    stats: Any = None
    samples: list[Any] | None = None

    @property
    def about(self) -> Values:
        return _as_mapping(self.eval)


class _Score(msgspec.Struct):
    value: Any = None
    answer: Any = None


class _Sample(msgspec.Struct):
    id: int | str
    epoch: int = 1
    input: Any = ""
    choices: Any = None
    target: Any = ""
    scores: dict[str, _Score] | None = None
    error: Any = None
    invalidation: Any = None
    metadata: Any = None
    output: dict[str, Any] | None = None


_SAMPLE, _LOG = msgspec.json.Decoder(_Sample), msgspec.json.Decoder(_Log)


def read_inspect(file: BinaryIO, source: Source, choice: Choice, files: Files) -> None:
    """Adds a log to `files`.

    Raises:
        DataError: It is not a log, broken, or lacks the chosen score.
        OSError: It cannot be read.
    """
    is_zip = source.place.name.endswith(".eval")
    with open_zip(file, f"not {A_LOG}") if is_zip else nullcontext() as archive:
        header, samples = _read_json(file) if archive is None else _read_zip(archive)
        if header.status is None and not header.scores and not header.about:
            raise DataError(f"not {A_LOG}: it has neither status nor results")
        log = _describe(header, source, choice)
        rows = Samples(choice)
        if samples is None and choice.units and isinstance(log.header, float):
            log.task = ""
            rows.add(source.name.removesuffix(".json"), log.header)
        elif samples is None:
            log.sampled = False
        elif choice.samples:
            _read_samples(header, log, samples, rows)
        files.add(log, rows)


def _describe(header: _Log, source: Source, choice: Choice) -> Log:
    """Returns what the header says."""
    about, stats = header.about, _as_mapping(header.stats)
    usage = list(_as_mapping(stats.get("model_usage")).values())
    began, ended = (read_time(stats.get(name)) for name in ("started_at", "completed_at"))
    sums = {
        "tokens": _sum(usage, "total_tokens"),
        "cost": _sum(usage, "total_cost"),
        "seconds": ended - began if began and ended else math.nan,
    }
    arguments = as_settings(about.get("task_args"))
    solver = {"solver": about.get("solver")}
    condition = as_settings(about.get("model_args"), about.get("model_generate_config"), solver)
    return Log(
        source,
        INSPECT,
        str(about.get("model") or ""),
        str(about.get("task") or ""),
        condition={key: value for key, value in condition.items() if key not in EVERY_RUN},
        arguments={key: value for key, value in arguments.items() if key not in EVERY_RUN},
        time=read_time(about.get("created")),
        status=header.status or "started",
        identity=(str(about.get("eval_id") or ""), str(about.get("task_id") or "")),
        header=score_of(header, choice.metric or "accuracy", choice.scorer),
        usage={name: value for name, value in sums.items() if value == value},
        **_heading(header, choice),
    )


def _heading(header: _Log, choice: Choice) -> dict[str, Any]:
    """Returns which of the log's scores is read, its published mean, and the others."""
    score = header.choose(choice.scorer)
    if score is None:
        return {"scorer": choice.scorer or ""}
    value = score.value(choice.metric or "accuracy")
    is_mean = score.reducer in (None, "mean") and isinstance(value, int | float)
    return {
        "scorer": score.label,
        "others": tuple(other.label for other in header.scores if other is not score),
        "accuracy": float(value) if is_mean else math.nan,
    }


def _read_samples(header: _Log, log: Log, samples: Iterable[Any], rows: Samples) -> None:
    """Adds the samples, and completes what the log says about its scores."""
    choice = rows.choice
    scored = bool(_as_mapping(header.about.get("config")).get("score_on_error"))
    chosen = header.choose(choice.scorer)
    names = dict[str, None]()
    read = list[tuple[_Sample, _Score | None]]()
    keys = dict[str, bool]()
    for each in samples:
        sample = msgspec.convert(each, _Sample)
        scores = sample.scores or {}
        names |= dict.fromkeys(scores)
        wanted = (chosen.name, chosen.scorer) if chosen else (choice.scorer,)
        score = next((scores[name] for name in wanted if name in scores), None)
        if score is None and not chosen and choice.scorer is None:
            score = next(iter(scores.values()), None)
        if score is not None and isinstance(score.value, dict):
            for key, value in cast("dict[str, Any]", score.value).items():
                keys[key] = keys.get(key, False) or isinstance(value, int | float | str)
        sample.output = {"completion": (sample.output or {}).get("completion")}
        read.append((sample, score))
        if len(read) > MAX_SAMPLES:
            raise over("the log", "samples", MAX_SAMPLES)
    if choice.scorer is not None and not chosen and read:
        pick(choice.scorer, names, "scorer")
    # Of a score with several values, that of the metric or the score's name, else the first.
    own = [choice.metric or "", chosen.name if chosen and chosen.name else ""]
    key = next((name for name in own if name in keys), next((n for n in keys if keys[n]), ""))
    name = log.scorer or choice.scorer or next(iter(names), "")
    same = {name, name.split("/")[0], *(s.name for s in header.scores)}
    log.others = (*log.others, *(n for n in names if n not in same))
    if chosen and chosen.reducer and chosen.reducer != "mean":
        means = f"{chosen.name or chosen.scorer}/mean"
        log.others = (log.scorer, *(other for other in log.others if other != means))
        name = means
    if keys:
        log.others = (*log.others, *(f"{name}.{n}" for n in keys if n != key))
        name = f"{name}.{key}"
        log.accuracy = math.nan if own[1] != key else log.accuracy
    log.scorer = name
    for sample, score in read:
        value = None if score is None else score.value
        if isinstance(value, dict):
            value = cast("dict[str, Any]", value).get(key)
        text = _input_text(sample.input)
        options = cast("list[Any]", sample.choices) if isinstance(sample.choices, list) else []
        rows.add(
            sample.id,
            value,
            epoch=sample.epoch,
            wrong=_why_not(sample, score, scored),
            text="\n".join([text, *map(str, options)]),
            target=sample.target,
            choices=len(options) or math.nan,
            answer=(score and score.answer) or (sample.output or {}).get("completion"),
            metadata=sample.metadata,
        )


def _why_not(sample: _Sample, score: _Score | None, scored: bool) -> str | None:
    """Returns the reason why a sample does not count; None if it counts."""
    if sample.invalidation is not None:
        return INVALIDATED
    if sample.error is not None and not (scored and score is not None):
        # A summary has the message itself.
        message = _as_mapping(sample.error).get("message", sample.error)
        return CANCELLED if "cancel" in str(message).lower() else ERRORED
    return UNSCORED if score is None else None


def _read_json(file: BinaryIO) -> tuple[_Log, Iterable[Any] | None]:
    """Returns the header of a log and its samples; None without samples."""
    log, place = read_json_header(file, _LOG)
    if not place:
        return log, log.samples
    file.seek(place)
    return log, elements(file, "the log", SAMPLE_BYTES)


def _read_zip(archive: zipfile.ZipFile) -> tuple[_Log, Iterable[Any] | None]:
    """Returns the header, and the samples or their summaries; None without samples."""
    names = dict.fromkeys(archive.namelist())
    members = [name for name in names if MEMBER.fullmatch(name)]
    if HEADER not in names and JOURNAL in names and members:
        start = read_member(archive, archive.getinfo(JOURNAL), JOURNAL, LOG_BYTES)
        return decode(_LOG, start, A_LOG), _read_members(archive, members)
    log = read_zip_header(archive, _LOG)
    if not members and SUMMARIES not in names:
        return log, None
    if SUMMARIES not in names or (members and log.invalidated):
        return log, _read_members(archive, members)
    return log, _read_summaries(archive, members)


def _read_members(archive: zipfile.ZipFile, members: list[str]) -> Iterator[_Sample]:
    for name in members:
        content = read_member(archive, archive.getinfo(name), name, SAMPLE_BYTES)
        yield decode(_SAMPLE, content, A_LOG, name)


def _read_summaries(archive: zipfile.ZipFile, members: list[str]) -> Iterator[Any]:
    """Yields the summaries, with texts from the samples where summaries lack their ends."""
    content = read_member(archive, archive.getinfo(SUMMARIES), SUMMARIES, SAMPLE_BYTES)
    file = io.BytesIO(content)
    file.seek(content.index(b"[") + 1)
    # Summaries of earlier versions lack the choices.
    first = next(_read_members(archive, members[:1]), None)
    lacks_choices = first is not None and bool(first.choices) and b'"choices"' not in content
    by_name: dict[Any, _Sample] = {}
    if lacks_choices:
        by_name = {(s.id, s.epoch): s for s in _read_members(archive, members)}
    there = set(members)
    for summary in elements(file, SUMMARIES, SAMPLE_BYTES):
        values = _as_mapping(summary)
        sample = by_name.get((values.get("id"), values.get("epoch", 1)))
        name = f"samples/{values.get('id')}_epoch_{values.get('epoch', 1)}.json"
        if sample is None and name in there and TRUNCATED in _input_text(values.get("input")):
            (sample,) = _read_members(archive, [name])
        texts = {} if sample is None else {"input": sample.input, "choices": sample.choices}
        yield {**values, **texts}


def _input_text(value: object) -> str:
    """Returns the text of a sample's input, which may be messages of several parts."""
    if not isinstance(value, list):
        return value if isinstance(value, str) else ""
    texts = list[str]()
    for message in cast("list[Any]", value):
        content = message.get("content") if isinstance(message, dict) else None
        parts = cast("list[Any]", content if isinstance(content, list) else [{"text": content}])
        # A summary has `(Image)` for an image, and the like for other media.
        texts += [
            str(content.get("text") or f"({str(content.get('type', '')).capitalize()})")
            for content in parts
            if isinstance(content, dict)
        ]
    return "\n".join(texts)


def _sum(entries: list[Any], name: str) -> float:
    """Returns the sum of a number over entries, NaN if none has it."""
    numbers = [_as_mapping(entry).get(name) for entry in entries]
    held = [number for number in numbers if isinstance(number, int | float)]
    return float(sum(held)) if held else math.nan


def _as_mapping(value: object) -> Values:
    return cast(Values, value) if isinstance(value, dict) else {}
