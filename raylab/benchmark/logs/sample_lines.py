"""Samples as lines of JSON, from lm-evaluation-harness and Every Eval Ever 0.3.0.

lm-evaluation-harness writes `samples_<task>_<time>.jsonl`, and names the model in the results file
beside it; a line is a document under a filter, with its metrics as keys. Every Eval Ever writes
`{uuid}_samples.jsonl` beside `{uuid}.json`; a line is a sample's score for one result of the
evaluation.
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, BinaryIO, cast

import msgspec

from raylab.benchmark.logs.rows import ERRORED, UNSCORED, Choice, Origin, Row, read_time
from raylab.benchmark.logs.trees import EVER_ENDING, HARNESS_NAME, Source
from raylab.core.bounded import decode, lines
from raylab.core.errors import DataError
from raylab.core.files import Place

HARNESS, EVER = "lm-evaluation-harness", "Every Eval Ever"
RESULTS_BYTES = 1 << 28
"""Longest file of results."""
QUESTIONS = ("question", "query", "problem", "prompt", "text", "input", "ctx", "sentence", "goal")
"""Keys of a document that may hold the question, by priority; without one the prompt is shown."""

Sample = Mapping[str, Any]
OBJECT = msgspec.json.Decoder(dict[str, Any])


class _Result(msgspec.Struct):
    evaluation_name: str = ""
    evaluation_result_id: str | None = None
    metric_config: dict[str, Any] = {}


class _Results(msgspec.Struct):
    """The results of either format."""

    model_name: str | None = None
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


_RESULTS, _SAMPLE = msgspec.json.Decoder(_Results), msgspec.json.Decoder(_Sample)


def _read_results(place: Place | None) -> _Results:
    if place is None or not place.exists():
        return _Results()
    return decode(_RESULTS, place.read(RESULTS_BYTES), "results", place.name)


def read_harness(file: BinaryIO, source: Source, choice: Choice) -> Iterator[Row]:
    """Yields the scores of samples of lm-evaluation-harness, for one filter and metric.

    Raises:
        DataError: The file or the results beside it are broken, or no sample has the filter.
        OSError: The file cannot be read.
    """
    match = HARNESS_NAME.fullmatch(source.place.name)
    task, time = (match["task"], match["time"]) if match else (source.place.stem, "")
    model = _read_results(_find_results(source.place, time)).model_name or source.place.parent.name
    moment = read_time(re.sub(r"T(\d\d)-(\d\d)-", r"T\1:\2:", time))
    origin, chosen, read = Origin(HARNESS, model, task, time=moment), choice.scorer, False
    for number, line in lines(file, "the samples"):
        sample = decode(OBJECT, line, "a sample", f"line {number}")
        chosen = chosen or str(sample.get("filter"))
        if str(sample.get("filter")) == chosen:
            read = True
            metric = choice.metric or next(iter(sample.get("metrics") or ()), "")
            yield Row(
                origin,
                sample.get("doc_id"),
                sample.get(metric),
                text=sample.get("doc_hash"),
                said=_read_texts(sample),
            )
    if not read:
        raise DataError(f"no scores of the filter {chosen}: choose another or none")


def _find_results(samples: Place, time: str) -> Place | None:
    """Returns the results of the run that wrote the samples, or the latest beside them."""
    names = [name for name in samples.parent.names() if name.endswith(".json")]
    beside = [name for name in names if time and name.endswith(f"_{time}.json")]
    beside = beside or [name for name in names if name.startswith("results_")]
    return samples.parent / beside[-1] if beside else None


def _read_texts(sample: Sample) -> tuple[object, object, object]:
    """Returns the question, the target, and the reply or the likeliest choice."""
    document, replies = sample.get("doc") or {}, sample.get("filtered_resps") or [""]
    requests = cast(dict[str, dict[str, Any]], sample.get("arguments") or {})
    questions = [document[key] for key in QUESTIONS if isinstance(document.get(key), str)]
    prompt, answer = requests.get("gen_args_0", {}).get("arg_0"), replies[0]
    try:
        likelihoods = [float(likelihood) for likelihood, _ in replies]
        best = likelihoods.index(max(likelihoods))
        answer = requests.get(f"gen_args_{best}", {}).get("arg_1")
    except (TypeError, ValueError):
        pass
    return questions[0] if questions else prompt, sample.get("target"), answer


def read_ever(file: BinaryIO, source: Source, choice: Choice) -> Iterator[Row]:
    """Yields the scores of samples of Every Eval Ever, for one result of each evaluation.

    Raises:
        DataError: The file or the evaluation beside it is broken, or no result has the metric.
        OSError: The file cannot be read.
    """
    name = source.place.name.removesuffix(EVER_ENDING)
    run = _read_results(source.place.parent / f"{name}.json")
    chosen = _choose(run.evaluation_results, choice.metric)
    time = read_time(run.evaluation_timestamp or run.retrieved_timestamp)
    epochs = Counter[tuple[str, str, str]]()
    for number, line in lines(file, "the samples"):
        sample = decode(_SAMPLE, line, "a sample", f"line {number}")
        model, task, item = sample.model_id, sample.evaluation_name, sample.sample_id
        result = chosen.setdefault(task, sample.evaluation_result_id)
        if sample.evaluation_result_id in (None, result):
            epochs[model, task, item] += 1
            yield _row(Origin(EVER, model, task, time=time), sample, epochs[model, task, item])


def _choose(results: list[_Result], metric: str | None) -> dict[str, str | None]:
    """Returns the id of each evaluation's first result with the metric, if that is given."""
    chosen = dict[str, str | None]()
    for result in results:
        names = result.metric_config.get("metric_id"), result.metric_config.get("metric_name")
        if metric is None or metric in names:
            chosen.setdefault(result.evaluation_name, result.evaluation_result_id)
    if metric is not None and results and not chosen:
        raise DataError(f"no result has the metric {metric}: choose another")
    return chosen


def _row(origin: Origin, sample: _Sample, epoch: int) -> Row:
    answers = [answer.get("extracted_value") for answer in sample.answer_attribution]
    texts = sample.input.get("raw"), sample.input.get("reference"), (answers or [""])[-1]
    wrong = ERRORED if sample.error else None if _has_metric(sample) else UNSCORED
    score, text = sample.evaluation.get("score"), sample.sample_hash
    return Row(origin, sample.sample_id, score, epoch, text, wrong, said=texts)


def _has_metric(sample: _Sample) -> bool:
    """Returns False for a missing metric, which the converter from lm-eval writes as 0."""
    metrics = (sample.metadata or {}).get("lm_eval_metrics")
    if not isinstance(metrics, str):
        return True
    values = decode(OBJECT, metrics.encode(), "metrics").values()
    return any(isinstance(value, int | float) for value in values)
