"""Every Eval Ever 0.3.0: `{uuid}_samples.jsonl`, with `{uuid}.json` beside.

A line is the score of a sample under one result of the evaluation.
"""

from collections import Counter
from collections.abc import Iterator
from typing import Any, BinaryIO

import msgspec

from raylab.bounded import lines
from raylab.doctor.readers.json_stream import decode
from raylab.doctor.readers.rows import ERRORED, UNSCORED, Choice, Origin, Scored, Source, read_time
from raylab.errors import DataError

FORM = "Every Eval Ever"
ENDING = "_samples.jsonl"
EVALUATION_BYTES = 1 << 26


class _Result(msgspec.Struct):
    evaluation_name: str = ""
    evaluation_result_id: str | None = None
    metric_config: dict[str, Any] = {}


class _Evaluation(msgspec.Struct):
    evaluation_results: list[_Result] = []
    evaluation_timestamp: str | None = None
    retrieved_timestamp: str | None = None


class _Sample(msgspec.Struct):
    model_id: str
    evaluation_name: str
    sample_id: str
    evaluation: dict[str, Any]
    evaluation_result_id: str | None = None
    sample_hash: str | None = None
    input: dict[str, Any] = {}
    answer_attribution: list[dict[str, Any]] = []
    error: str | None = None
    metadata: dict[str, Any] | None = None


_SAMPLE, _EVALUATION = msgspec.json.Decoder(_Sample), msgspec.json.Decoder(_Evaluation)
_VALUES = msgspec.json.Decoder(dict[str, Any])


def read_every_eval_ever(
    file: BinaryIO, source: Source, choice: Choice
) -> Iterator[tuple[Origin, Scored]]:
    """Yields the scores of a file of samples: those of one result of each evaluation.

    Raises:
        DataError: The file, or the evaluation beside it, is broken, or no result has the metric.
        OSError: The file cannot be read.
    """
    beside = source.place.parent / f"{source.place.name.removesuffix(ENDING)}.json"
    content = beside.read(EVALUATION_BYTES) if beside.exists() else b"{}"
    evaluation = decode(_EVALUATION, content, beside.name)
    chosen = _choose(evaluation.evaluation_results, choice.metric)
    time = read_time(evaluation.evaluation_timestamp or evaluation.retrieved_timestamp)
    epochs = Counter[tuple[str, str, str]]()
    for number, line in lines(file, "the samples"):
        sample = decode(_SAMPLE, line, f"line {number}")
        model, task, item = sample.model_id, sample.evaluation_name, sample.sample_id
        result = chosen.setdefault(task, sample.evaluation_result_id)
        if sample.evaluation_result_id in (None, result):
            epochs[model, task, item] += 1
            yield Origin(FORM, model, task, time), _scored(sample, epochs[model, task, item])


def _choose(results: list[_Result], metric: str | None) -> dict[str, str | None]:
    """Returns the id of each evaluation's result that has the metric, or of its first one."""
    chosen = dict[str, str | None]()
    for result in results:
        names = result.metric_config.get("metric_id"), result.metric_config.get("metric_name")
        if metric is None or metric in names:
            chosen.setdefault(result.evaluation_name, result.evaluation_result_id)
    if metric is not None and results and not chosen:
        raise DataError(f"no result has the metric {metric}: choose another")
    return chosen


def _scored(sample: _Sample, epoch: int) -> Scored:
    def said() -> tuple[object, object, object]:
        answers = [answer.get("extracted_value") for answer in sample.answer_attribution]
        return sample.input.get("raw"), sample.input.get("reference"), (answers or [""])[-1]

    wrong = ERRORED if sample.error else None if _has_metric(sample) else UNSCORED
    score = sample.evaluation.get("score")
    return Scored(sample.sample_id, score, epoch, sample.sample_hash, wrong, said=said)


def _has_metric(sample: _Sample) -> bool:
    """Returns False for a missing metric, which the converter from lm-eval writes as 0."""
    metrics = (sample.metadata or {}).get("lm_eval_metrics")
    if not isinstance(metrics, str):
        return True
    values = decode(_VALUES, metrics.encode(), "lm_eval_metrics").values()
    return any(isinstance(value, int | float) for value in values)
