"""Samples of lm-evaluation-harness, Every Eval Ever 0.3.0 and HELM.

lm-evaluation-harness writes `samples_<task>_<time>.jsonl`, and names the model in the results file
beside it; a line is a document under a filter, with its metrics as keys. Every Eval Ever writes
`{uuid}_samples.jsonl` beside `{uuid}.json`; a line is a sample's score for one result of the
evaluation. HELM writes `per_instance_stats.json` beside `run_spec.json` and `scenario_state.json`.
"""

import math
import re
from collections import Counter
from collections.abc import Iterator
from typing import Any, BinaryIO, cast

import msgspec

from raylab.benchmark.logs.log import (
    ERRORED,
    UNSCORED,
    Choice,
    Files,
    Log,
    Samples,
    as_settings,
    pick,
    read_time,
)
from raylab.benchmark.logs.trees import EVER_ENDING, HARNESS_NAME, Source
from raylab.core.bounded import decode, lines, read_all
from raylab.core.files import Place

HARNESS, EVER, HELM = "lm-evaluation-harness", "Every Eval Ever", "HELM"
RESULTS_BYTES = 1 << 28
"""Longest file of results, or of HELM's samples."""
NO_TEXT = frozenset({"answer", "answers", "target", "label", "gold", "answerkey", "solution", "id"})
"""Keys of a document that do not belong to the item's text."""
NO_METRIC = frozenset(
    {"doc_id", "doc", "target", "arguments", "resps", "filtered_resps", "filter", "metrics"}
)
HELM_METRICS = (
    *("exact_match", "quasi_exact_match", "prefix_exact_match", "quasi_prefix_exact_match"),
    *("math_equiv_chain_of_thought", "pass@1", "f1_score", "rouge_l", "bleu_4"),
)
"""HELM's metrics of quality, by priority."""
Values = dict[str, Any]
OBJECT = msgspec.json.Decoder(Values)
ENTRIES = msgspec.json.Decoder(list[Values])


def read_harness(file: BinaryIO, source: Source, choice: Choice, files: Files) -> None:
    """Adds the samples of lm-evaluation-harness, for one filter and metric.

    Raises:
        DataError: The file or the results beside it are broken, or no sample has the filter.
        OSError: The file cannot be read.
    """
    match = HARNESS_NAME.fullmatch(source.place.name)
    task, time = (match["task"], match["time"]) if match else (source.place.stem, "")
    results = _read_object(_find_results(source.place, time))
    filters, metrics, rows = dict[str, None](), dict[str, None](), Samples(choice)
    wanted = choice.scorer
    for number, line in lines(file, "the samples"):
        sample = decode(OBJECT, line, "a sample", f"line {number}")
        name = str(sample.get("filter", "none"))
        filters[name] = None
        wanted = wanted or name
        if name != wanted:
            continue
        own = _list(sample.get("metrics")) or [key for key in sample if key not in NO_METRIC]
        metrics |= dict.fromkeys(map(str, own))
        metric = choice.metric or next(iter(metrics), "")
        target, answer, choices = _read_answer(sample)
        rows.add(
            sample.get("doc_id"),
            sample.get(metric),
            text=_read_text(sample),
            key=str(sample.get("doc_hash") or ""),
            target=target,
            choices=choices,
            answer=answer,
            metadata=sample.get("doc"),
        )
    wanted = pick(wanted, filters, "filter")
    metric = pick(choice.metric, metrics, "metric")
    label = metric if wanted == "none" else f"{metric} of {wanted}"
    others = [f"{metric} of {name}" for name in filters if name != wanted]
    published = _dict(_dict(results.get("results")).get(task)).get(f"{metric},{wanted}")
    config = _dict(results.get("config"))
    files.add(
        Log(
            source,
            HARNESS,
            str(results.get("model_name") or source.place.parent.name),
            task,
            condition=as_settings({k: config.get(k) for k in ("model_args", "gen_kwargs")}),
            arguments=as_settings({"num_fewshot": _dict(results.get("n-shot")).get(task)}),
            scorer=label,
            others=(*(name for name in metrics if name != metric), *others),
            time=read_time(re.sub(r"T(\d\d)-(\d\d)-", r"T\1:\2:", time)),
            accuracy=published if isinstance(published, int | float) else math.nan,
        ),
        rows,
    )


def _find_results(samples: Place, time: str) -> Place | None:
    """Returns the results of the run that wrote the samples, or the latest beside them."""
    names = [name for name in samples.parent.names() if name.endswith(".json")]
    beside = [name for name in names if time and name.endswith(f"_{time}.json")]
    beside = beside or [name for name in names if name.startswith("results_")]
    return samples.parent / beside[-1] if beside else None


def _read_text(sample: Values) -> str:
    """Returns the texts of a document, or the prompt where it has none."""
    document = sample.get("doc")
    if isinstance(document, str):
        return document
    texts = [
        text
        for key, value in _dict(document).items()
        if key.casefold() not in NO_TEXT
        for text in _texts(value)
    ]
    requests = _requests(sample)
    prompt = str(requests[0][0]) if requests and requests[0] else ""
    return "\n".join(texts) or prompt


def _texts(value: object) -> Iterator[str]:
    """Yields the texts in a value of a document."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for each in cast("list[Any]", value):
            yield from _texts(each)
    elif isinstance(value, dict):
        for each in cast(Values, value).values():
            yield from _texts(each)


def _requests(sample: Values) -> list[list[Any]]:
    """Returns the arguments of a sample's requests, which are lists or objects."""
    arguments = sample.get("arguments")
    requests = [*_dict(arguments).values()] or _list(arguments)
    return [[*_dict(each).values()] or _list(each) for each in requests]


def _read_answer(sample: Values) -> tuple[object, object, float]:
    """Returns the target, the reply or the likeliest choice, and the number of choices."""
    target, replies = sample.get("target"), _list(sample.get("filtered_resps"))
    options = [each[1] for each in _requests(sample) if len(each) > 1 and isinstance(each[1], str)]
    try:
        likelihoods = [float(likelihood) for likelihood, *_ in replies if len(replies) > 1]
        answer = options[likelihoods.index(max(likelihoods))]
    except (TypeError, ValueError, IndexError):
        return target, (replies or [""])[0], math.nan
    if isinstance(target, int) and 0 <= target < len(options):
        target = options[target]
    return target, answer, len(options)


def read_ever(file: BinaryIO, source: Source, choice: Choice, files: Files) -> None:
    """Adds the samples of Every Eval Ever, for one result of each evaluation.

    Raises:
        DataError: The file or the evaluation beside it is broken, or no result has the metric.
        OSError: The file cannot be read.
    """
    name = source.place.name.removesuffix(EVER_ENDING)
    run = _read_object(source.place.parent / f"{name}.json")
    results = [_dict(each) for each in _list(run.get("evaluation_results"))]
    names = {str(each.get("evaluation_result_id")): _metric_of(each) for each in results}
    published = {
        (str(each.get("evaluation_name")), _metric_of(each)): each.get("score_details")
        for each in results
    }
    settings = [_dict(_dict(r.get("generation_config")).get("generation_args")) for r in results]
    logs = dict[tuple[str, str], tuple[Samples, dict[str, None]]]()
    epochs = Counter[tuple[str, str, str]]()
    for number, line in lines(file, "the samples"):
        sample = decode(OBJECT, line, "a sample", f"line {number}")
        key = str(sample.get("model_id") or ""), str(sample.get("evaluation_name") or "")
        rows, metrics = logs.setdefault(key, (Samples(choice), {}))
        own, metadata = str(sample.get("evaluation_result_id")), _dict(sample.get("metadata"))
        metric = names.get(own, str(metadata.get("metric") or ""))
        if not metric and metrics:
            metric = next(iter(metrics))
        metrics[metric] = None
        if metric != (choice.metric or next(iter(metrics))):
            continue
        item = str(sample.get("sample_id"))
        epochs[*key, item] += 1
        question, evaluation = _dict(sample.get("input")), _dict(sample.get("evaluation"))
        answers = [_dict(each) for each in _list(sample.get("answer_attribution"))]
        outputs = _list(_dict(sample.get("output")).get("raw"))
        options = _list(question.get("choices"))
        rows.add(
            sample.get("sample_id"),
            evaluation.get("score"),
            epoch=epochs[*key, item],
            wrong=ERRORED if sample.get("error") else _why_missing(metadata),
            text="\n".join(map(str, (question.get("raw") or "", *options))),
            key=str(sample.get("sample_hash") or ""),
            target=question.get("reference"),
            choices=len(options) or math.nan,
            answer=(answers[-1] if answers else {}).get("extracted_value") or (outputs or [""])[-1],
            metadata=metadata,
        )
    for (model, task), (rows, metrics) in logs.items():
        metric = pick(choice.metric, metrics, "metric")
        score = _dict(published.get((task, metric))).get("score")
        log = Log(
            source,
            EVER,
            model,
            task,
            condition=as_settings(settings[0] if settings else {}),
            scorer=metric,
            others=tuple(name for name in metrics if name != metric),
            time=read_time(run.get("evaluation_timestamp") or run.get("retrieved_timestamp")),
            accuracy=score if isinstance(score, int | float) else math.nan,
        )
        files.add(log, rows)


def _metric_of(result: Values) -> str:
    config = _dict(result.get("metric_config"))
    return str(config.get("metric_id") or config.get("metric_name") or "")


def _why_missing(metadata: Values) -> str | None:
    """Returns the reason for a missing metric, which the converter from lm-eval writes as 0."""
    metrics = metadata.get("lm_eval_metrics")
    if not isinstance(metrics, str):
        return None
    values = decode(OBJECT, metrics.encode(), "metrics").values()
    return None if any(isinstance(value, int | float) for value in values) else UNSCORED


def read_helm(file: BinaryIO, source: Source, choice: Choice, files: Files) -> None:
    """Adds the samples of a run of HELM, for one metric.

    Raises:
        DataError: The file or those beside it are broken, or no sample has the metric.
        OSError: The file cannot be read.
    """
    entries = decode(ENTRIES, read_all(file, "the samples", RESULTS_BYTES), "HELM's samples")
    spec = _read_object(source.place.parent / "run_spec.json")
    state = _read_object(source.place.parent / "scenario_state.json")
    asked = {
        str(_dict(each.get("instance")).get("id")): each
        for each in map(_dict, _list(state.get("request_states")))
        if not _dict(each.get("instance")).get("perturbation")
    }
    metrics, measured = dict[str, None](), list[tuple[Values, dict[str, Any]]]()
    for entry in entries:
        if not entry.get("perturbation"):
            stats = {
                str(_dict(stat.get("name")).get("name")): stat.get("mean", stat.get("sum"))
                for stat in map(_dict, _list(entry.get("stats")))
            }
            metrics |= dict.fromkeys(stats)
            measured.append((entry, stats))
    first = next((name for name in HELM_METRICS if name in metrics), None)
    metric = pick(choice.metric or first, metrics, "metric")
    rows = Samples(choice)
    for entry, stats in measured:
        request = _dict(asked.get(str(entry.get("instance_id"))))
        instance, output = _dict(request.get("instance")), _dict(request.get("result"))
        references = [_dict(each) for each in _list(instance.get("references"))]
        options = [str(_dict(each.get("output")).get("text")) for each in references]
        right = [
            text
            for text, each in zip(options, references, strict=True)
            if "correct" in _list(each.get("tags"))
        ]
        completions = [_dict(each) for each in _list(output.get("completions"))]
        answer = str((completions or [{}])[0].get("text") or "").strip()
        mapping = _dict(request.get("output_mapping"))
        trial = entry.get("train_trial_index")
        rows.add(
            entry.get("instance_id"),
            stats.get(metric),
            epoch=trial + 1 if isinstance(trial, int) else 1,
            wrong=None if metric in stats else UNSCORED,
            text="\n".join([str(_dict(instance.get("input")).get("text") or ""), *options]),
            target=right,
            choices=len(options) if mapping else math.nan,
            answer=mapping.get(answer, answer),
            metadata=instance,
        )
    adapter, whole = _dict(spec.get("adapter_spec")), str(spec.get("name") or "")
    name, _, arguments = whole.partition(":")
    parts = [part for part in arguments.split(",") if part and not part.startswith("model=")]
    log = Log(
        source,
        HELM,
        str(adapter.get("model") or adapter.get("model_deployment") or source.place.parent.name),
        ":".join([name, ",".join(parts)] if parts else [name]),
        scorer=metric,
        others=tuple(name for name in HELM_METRICS if name in metrics and name != metric),
    )
    files.add(log, rows)


def _read_object(place: Place | None) -> Values:
    if place is None or not place.exists():
        return {}
    return decode(OBJECT, place.read(RESULTS_BYTES), "results", place.name)


def _dict(value: object) -> Values:
    return cast(Values, value) if isinstance(value, dict) else {}


def _list(value: object) -> list[Any]:
    return cast("list[Any]", value) if isinstance(value, list) else []
