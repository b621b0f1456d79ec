"""lm-evaluation-harness: `samples_<task>_<time>.jsonl`, with the model named in the results beside.

A line is a document under a filter, with the values of its metrics as keys.
"""

import re
from collections.abc import Mapping
from typing import Any, BinaryIO, cast

import msgspec

from raylab.bounded import lines
from raylab.doctor.json_stream import decode
from raylab.doctor.rows import (
    LONGEST_ANSWER,
    LOWER,
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
from raylab.files import Place

FORM = "lm-evaluation-harness"
SAMPLES = re.compile(r"samples_(?P<task>.+)_(?P<time>\d{4}-\d\d-\d\dT[\d.-]+)\.jsonl")
RESULTS_BYTES = 1 << 28
QUESTIONS = ("question", "query", "problem", "prompt", "text", "input", "ctx", "sentence", "goal")
"""Keys of a document that hold what is asked, first of all; without one the prompt is shown."""

Sample = Mapping[str, msgspec.Raw]


class _Results(msgspec.Struct):
    model_name: str | None = None
    higher_is_better: dict[str, dict[str, bool | None]] = {}


_SAMPLE, _RESULTS = (
    msgspec.json.Decoder(dict[str, msgspec.Raw]),
    msgspec.json.Decoder(_Results),
)


def read_lm_eval(file: BinaryIO, source: Source, choice: Choice, rows: Rows) -> None:
    """Adds the scores of a file of samples to `rows`: those of one filter and one metric.

    Raises:
        DataError: The file, or the results beside it, are broken.
        OSError: The file cannot be read.
    """
    match = SAMPLES.fullmatch(source.place.name)
    task, time = (match["task"], match["time"]) if match else (source.place.stem, "")
    results = _read_results(source.place, time)
    model = results.model_name or source.place.parent.name
    moment = read_time(re.sub(r"T(\d\d)-(\d\d)-", r"T\1:\2:", time))
    origin = rows.add_origin(Origin(source, FORM, model, task, time=moment))
    better, chosen = results.higher_is_better.get(task, {}), choice.filter
    for number, line in lines(file, "the samples"):
        sample = decode(_SAMPLE, line, f"line {number}")
        name = _value(sample, "filter") or "none"
        chosen = name if chosen is None else chosen
        if name == chosen:
            _add(sample, origin, choice.metric, better, rows)
    if origin not in rows.origin[-1:] and choice.filter is not None:
        rows.leave_out(f"files without scores of the filter {chosen}", str(source.place))


def _read_results(samples: Place, time: str) -> _Results:
    """Reads the results of the run that wrote the samples, or the latest in their directory."""
    names = [name for name in samples.parent.names() if name.endswith(".json")]
    beside = [name for name in names if time and name.endswith(f"_{time}.json")]
    beside = beside or [name for name in names if name.startswith("results_")]
    if not beside:
        return _Results()
    return decode(_RESULTS, (samples.parent / beside[-1]).read(RESULTS_BYTES), beside[-1])


def _value(sample: Sample, key: str) -> Any:
    return decode(msgspec.json.Decoder(Any), bytes(sample[key]), key) if key in sample else None


def _add(
    sample: Sample, origin: int, metric: str | None, better: Mapping[str, bool | None], rows: Rows
) -> None:
    where = str(rows.origins[origin].source.place)
    metric = metric or next(iter(_value(sample, "metrics") or ()), None)
    if metric is None or metric not in sample:
        return rows.leave_out(UNSCORED, where)
    if better.get(metric) is False:
        return rows.leave_out(LOWER, where)
    if "doc_id" not in sample:
        raise DataError("a sample without doc_id")
    name, hashed = rows.number(_value(sample, "doc_id")), _value(sample, "doc_hash")
    text = text_hash(str(hashed)) if hashed else 0
    if rows.add(origin, name, _value(sample, metric), text=text):
        kept = rows.describe(origin, name, text)
        if kept is not None and origin not in kept.answers:
            kept.answers[origin] = shorten(_answer(sample), LONGEST_ANSWER)
            kept.text = kept.text or shorten(_question(sample))
            kept.target = kept.target or shorten(_value(sample, "target"), LONGEST_ANSWER)
    return None


def _question(sample: Sample) -> str:
    document = _value(sample, "doc")
    if isinstance(document, dict):
        fields = cast(dict[str, Any], document)
        for key in QUESTIONS:
            if isinstance(fields.get(key), str):
                return fields[key]
    return _argument(sample, 0, 0)


def _argument(sample: Sample, request: int, part: int) -> str:
    arguments = _value(sample, "arguments")
    if not isinstance(arguments, dict):
        return ""
    parts = cast(dict[str, Any], arguments).get(f"gen_args_{request}")
    return (
        str(cast(dict[str, Any], parts).get(f"arg_{part}", "")) if isinstance(parts, dict) else ""
    )


def _answer(sample: Sample) -> str:
    """Returns the reply, or of choices the likeliest."""
    replies = cast(Any, _value(sample, "filtered_resps"))
    if not isinstance(replies, list) or not replies:
        return ""
    if not isinstance(replies[0], list):
        return str(cast(object, replies[0]))
    try:
        likelihoods = [float(cast(Any, reply)[0]) for reply in cast(list[Any], replies)]
    except (TypeError, ValueError, LookupError):
        return str(cast(object, replies[0]))
    return _argument(sample, likelihoods.index(max(likelihoods)), 1)
