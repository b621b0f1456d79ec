"""lm-evaluation-harness: `samples_<task>_<time>.jsonl`, with the model named in the results beside.

A line is a document under a filter, with the values of its metrics as keys.
"""

import re
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, BinaryIO, cast

import msgspec

from raylab.bounded import lines
from raylab.doctor.readers.json_stream import decode
from raylab.doctor.readers.rows import UNSCORED, Choice, Origin, Scored, Source, read_time
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


_SAMPLE = msgspec.json.Decoder(dict[str, msgspec.Raw])
_RESULTS, _ANY = msgspec.json.Decoder(_Results), msgspec.json.Decoder(Any)


def read_lm_eval(file: BinaryIO, source: Source, choice: Choice) -> Iterator[tuple[Origin, Scored]]:
    """Yields the scores of a file of samples: those of one filter and one metric.

    Raises:
        DataError: The file, or the results beside it, are broken, or nothing has the filter.
        OSError: The file cannot be read.
    """
    match = SAMPLES.fullmatch(source.place.name)
    task, time = (match["task"], match["time"]) if match else (source.place.stem, "")
    results, chosen, read = _read_results(source.place, time), choice.filter, False
    moment = read_time(re.sub(r"T(\d\d)-(\d\d)-", r"T\1:\2:", time))
    origin = Origin(FORM, results.model_name or source.place.parent.name, task, moment)
    for number, line in lines(file, "the samples"):
        sample = decode(_SAMPLE, line, f"line {number}")
        chosen = chosen or str(_value(sample, "filter"))
        if str(_value(sample, "filter")) == chosen:
            read = True
            yield origin, _scored(sample, choice.metric)
    if not read:
        raise DataError(f"no scores of the filter {chosen}: choose another or none")


def _read_results(samples: Place, time: str) -> _Results:
    """Reads the results of the run that wrote the samples, or the latest in their directory."""
    names = [name for name in samples.parent.names() if name.endswith(".json")]
    beside = [name for name in names if time and name.endswith(f"_{time}.json")]
    beside = beside or [name for name in names if name.startswith("results_")]
    if not beside:
        return _Results()
    return decode(_RESULTS, (samples.parent / beside[-1]).read(RESULTS_BYTES), beside[-1])


def _value(sample: Sample, key: str) -> Any:
    return decode(_ANY, bytes(sample[key]), key) if key in sample else None


def _scored(sample: Sample, metric: str | None) -> Scored:
    item = _value(sample, "doc_id")
    metric = metric or next(iter(_value(sample, "metrics") or ()), "")
    wrong = None if metric in sample else UNSCORED
    text, said = _value(sample, "doc_hash"), partial(_read_texts, sample)
    return Scored(item, _value(sample, metric), text=text, wrong=wrong, said=said)


def _read_texts(sample: Sample) -> tuple[object, object, object]:
    document = cast(dict[str, Any], _value(sample, "doc") or {})
    questions = [document[key] for key in QUESTIONS if isinstance(document.get(key), str)]
    text = questions[0] if questions else _argument(sample, 0, 0)
    return text, _value(sample, "target"), _answer(sample)


def _argument(sample: Sample, request: int, part: int) -> object:
    arguments = cast(dict[str, dict[str, Any]], _value(sample, "arguments") or {})
    return arguments.get(f"gen_args_{request}", {}).get(f"arg_{part}")


def _answer(sample: Sample) -> object:
    """Returns the reply, or of choices, which have likelihoods, the likeliest."""
    replies = cast(list[Any], _value(sample, "filtered_resps") or [""])
    try:
        likelihoods = [float(likelihood) for likelihood, _ in replies]
    except (TypeError, ValueError):
        return replies[0]
    return _argument(sample, likelihoods.index(max(likelihoods)), 1)
