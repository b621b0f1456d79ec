"""Every Eval Ever 0.3.0: `{uuid}_samples.jsonl`, with `{uuid}.json` beside.

A line is the score of a sample under one result of the evaluation.
"""

from collections import Counter
from typing import Any, BinaryIO

import msgspec

from raylab.bounded import lines
from raylab.doctor.json_stream import decode
from raylab.doctor.rows import (
    ERRORED,
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

FORM = "Every Eval Ever"
ENDING = "_samples.jsonl"
EVALUATION_BYTES = 1 << 26


class _Metric(msgspec.Struct):
    metric_id: str | None = None
    metric_name: str | None = None
    lower_is_better: bool = False


class _Result(msgspec.Struct):
    evaluation_name: str = ""
    evaluation_result_id: str | None = None
    metric_config: _Metric = msgspec.field(default_factory=_Metric)


class _Evaluation(msgspec.Struct):
    evaluation_results: list[_Result] = []
    evaluation_timestamp: str | None = None
    retrieved_timestamp: str | None = None


class _Input(msgspec.Struct):
    raw: str = ""
    reference: list[str] = []


class _Attribution(msgspec.Struct):
    extracted_value: str = ""


class _Grade(msgspec.Struct):
    score: Any = None


class _Sample(msgspec.Struct):
    model_id: str
    evaluation_name: str
    sample_id: str
    evaluation: _Grade
    evaluation_result_id: str | None = None
    sample_hash: str | None = None
    input: _Input = msgspec.field(default_factory=_Input)
    answer_attribution: list[_Attribution] = []
    error: str | None = None
    metadata: dict[str, Any] | None = None


_SAMPLE, _EVALUATION = msgspec.json.Decoder(_Sample), msgspec.json.Decoder(_Evaluation)
_VALUES = msgspec.json.Decoder(dict[str, Any])


def read_every_eval_ever(file: BinaryIO, source: Source, choice: Choice, rows: Rows) -> None:
    """Adds the scores of a file of samples to `rows`: those of one result of each evaluation.

    Raises:
        DataError: The file, or the evaluation beside it, is broken.
        OSError: The file cannot be read.
    """
    beside = source.place.parent / f"{source.place.name.removesuffix(ENDING)}.json"
    evaluation = _read_evaluation(beside)
    time = read_time(evaluation.evaluation_timestamp or evaluation.retrieved_timestamp)
    origins, epochs = dict[tuple[str, str], int](), Counter[tuple[str, str]]()
    chosen = _chosen_results(evaluation, choice.metric)
    for number, line in lines(file, "the samples"):
        sample = decode(_SAMPLE, line, f"line {number}")
        task = sample.evaluation_name
        result = chosen.setdefault(task, _Result(task, sample.evaluation_result_id))
        if sample.evaluation_result_id not in (None, result.evaluation_result_id):
            continue
        key = (sample.model_id, task)
        if key not in origins:
            origins[key] = rows.add_origin(Origin(source, FORM, *key, time=time))
        epochs[task, sample.sample_id] += 1
        _add(sample, origins[key], epochs[task, sample.sample_id], result, rows)


def _read_evaluation(place: Place) -> _Evaluation:
    if not place.exists():
        return _Evaluation()
    return decode(_EVALUATION, place.read(EVALUATION_BYTES), place.name)


def _chosen_results(evaluation: _Evaluation, metric: str | None) -> dict[str, _Result]:
    """Returns the result of each evaluation that has the metric, or its first one."""
    chosen = dict[str, _Result]()
    for result in evaluation.evaluation_results:
        config = result.metric_config
        if metric in (None, config.metric_id, config.metric_name):
            chosen.setdefault(result.evaluation_name, result)
    if metric is not None and evaluation.evaluation_results and not chosen:
        raise DataError(f"no result has the metric {metric}: choose another")
    return chosen


def _add(sample: _Sample, origin: int, epoch: int, result: _Result, rows: Rows) -> None:
    where = f"{rows.origins[origin].source.place}: sample {sample.sample_id}"
    if sample.error:
        return rows.leave_out(ERRORED, where)
    if result.metric_config.lower_is_better:
        return rows.leave_out(LOWER, where)
    if not _has_metric(sample):
        return rows.leave_out(UNSCORED, where)
    name = rows.number(sample.sample_id)
    text = text_hash(sample.sample_hash) if sample.sample_hash else 0
    if rows.add(origin, name, sample.evaluation.score, epoch, text):
        kept = rows.describe(origin, name, text)
        if kept is not None and origin not in kept.answers:
            values = [answer.extracted_value for answer in sample.answer_attribution]
            kept.answers[origin] = shorten(values[-1] if values else "", LONGEST_ANSWER)
            kept.text = kept.text or shorten(sample.input.raw)
            kept.target = kept.target or shorten("; ".join(sample.input.reference), LONGEST_ANSWER)
    return None


def _has_metric(sample: _Sample) -> bool:
    """Returns False for a missing metric, which the converter from lm-eval writes as 0."""
    metrics = (sample.metadata or {}).get("lm_eval_metrics")
    if not isinstance(metrics, str):
        return True
    values = decode(_VALUES, metrics.encode(), "lm_eval_metrics").values()
    return any(isinstance(value, int | float) for value in values)
