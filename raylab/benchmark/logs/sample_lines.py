"""Samples of lm-evaluation-harness, Every Eval Ever 0.3.0 and HELM.

lm-evaluation-harness writes `samples_<task>_<time>.jsonl`, and names the model in the results file
beside it; a line is a document under a filter, with its metrics as keys. Every Eval Ever writes
`{uuid}_samples.jsonl` beside `{uuid}.json`; a line is a sample's score for one result of the
evaluation. HELM writes `per_instance_stats.json` beside `run_spec.json` and `scenario_state.json`.
"""

import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Any, BinaryIO

import msgspec

from raylab.benchmark.logs.log import (
    ERRORED,
    MAX_SAMPLES,
    UNSCORED,
    Files,
    Log,
    Sample,
    as_settings,
    dig,
    entries,
    pick,
    read_time,
    total,
)
from raylab.benchmark.logs.trees import EVER_ENDING, HARNESS_NAME, Source
from raylab.core.bounded import decode, lines, over, read_all
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
HELM_TOKENS = ("num_prompt_tokens", "num_output_tokens")
OBJECT = msgspec.json.Decoder(Values)
ENTRIES = msgspec.json.Decoder(list[Values])


def read_harness(file: BinaryIO, source: Source, files: Files) -> None:
    """Adds the samples of lm-evaluation-harness, for one filter and metric.

    Raises:
        DataError: The file or the results beside it are broken, or no sample has the filter.
        OSError: The file cannot be read.
    """
    choice, place = files.choice, source.place
    match = HARNESS_NAME.fullmatch(place.name)
    task, time = (match["task"], match["time"]) if match else (place.stem, "")
    names = [name for name in place.parent.names() if name.endswith(".json")]
    own = [name for name in names if time and name.endswith(f"_{time}.json")]
    own = own or [name for name in names if name.startswith("results_")]
    results = _read_beside(place, own[-1]) if own else {}
    filters, metrics, samples = dict[str, None](), dict[str, None](), list[Sample]()
    wanted = choice.scorer
    for line in records(file, "the samples"):
        name = str(line.get("filter", "none"))
        filters[name] = None
        wanted = wanted or name
        if name != wanted:
            continue
        own = entries(line, "metrics") or [key for key in line if key not in NO_METRIC]
        metrics |= dict.fromkeys(map(str, own))
        document = line.get("doc")
        if isinstance(document, dict):
            document = {k: each for k, each in document.items() if k.casefold() not in NO_TEXT}
        requests = [entries(each) for each in entries(line, "arguments")]
        target, answer, choices = _read_answer(line, requests)
        samples.append(
            Sample(
                line.get("doc_id"),
                line.get(choice.metric or next(iter(metrics), "")),
                text="\n".join(_texts(document)) or str(dig(requests, 0, 0) or ""),
                key=str(line.get("doc_hash") or ""),
                target=target,
                choices=choices,
                answer=answer,
                metadata=line.get("doc"),
            )
        )
    wanted = pick(wanted, filters, "filter")
    metric = pick(choice.metric, metrics, "metric")
    others = [f"{metric} of {name}" for name in filters if name != wanted]
    # A run's time is that of all its tasks.
    sizes = total(dig(size, "effective") for size in entries(results, "n-samples"))
    share = total([dig(results, "n-samples", task, "effective")]) / (sizes or math.nan)
    log = Log(
        source,
        HARNESS,
        str(results.get("model_name") or place.parent.name),
        task,
        condition=as_settings(
            {key: dig(results, "config", key) for key in ("model_args", "gen_kwargs")}
        ),
        arguments=as_settings({"num_fewshot": dig(results, "n-shot", task)}),
        scorer=metric if wanted == "none" else f"{metric} of {wanted}",
        others=(*(name for name in metrics if name != metric), *others),
        time=read_time(re.sub(r"T(\d\d)-(\d\d)-", r"T\1:\2:", time)),
        accuracy=total([dig(results, "results", task, f"{metric},{wanted}")]),
        seconds=share * total([results.get("total_evaluation_time_seconds")]),
    )
    files.add(log, samples)


def _texts(value: object) -> list[str]:
    """Returns the texts in a value of JSON."""
    if isinstance(value, str):
        return [value]
    return [text for each in entries(value) for text in _texts(each)]


def _read_answer(line: Values, requests: list[list[Any]]) -> tuple[object, object, float]:
    """Returns the target, the reply or the likeliest choice, and the number of choices."""
    target, replies = line.get("target"), entries(line, "filtered_resps")
    options = [each[1] for each in requests if len(each) > 1 and isinstance(each[1], str)]
    try:
        likelihoods = [float(likelihood) for likelihood, *_ in replies if len(replies) > 1]
        answer = options[likelihoods.index(max(likelihoods))]
    except (TypeError, ValueError, IndexError):
        return target, (replies or [""])[0], math.nan
    if isinstance(target, int) and 0 <= target < len(options):
        target = options[target]
    return target, answer, len(options)


def read_ever(file: BinaryIO, source: Source, files: Files) -> None:
    """Adds the samples of Every Eval Ever, for one result of each evaluation.

    Raises:
        DataError: The file or the evaluation beside it is broken, or no result has the metric.
        OSError: The file cannot be read.
    """
    run = _read_beside(source.place, f"{source.place.name.removesuffix(EVER_ENDING)}.json")
    metric_of, published = dict[str, str](), dict[tuple[str, str], object]()
    for result in entries(run, "evaluation_results"):
        config = dig(result, "metric_config")
        metric = str(dig(config, "metric_id") or dig(config, "metric_name") or "")
        metric_of[str(dig(result, "evaluation_result_id"))] = metric
        published[str(dig(result, "evaluation_name")), metric] = dig(
            result, "score_details", "score"
        )
    metrics = defaultdict[tuple[str, str], dict[str, None]](dict)
    samples = defaultdict[tuple[str, str], list[Sample]](list)
    used = defaultdict[tuple[str, str], list[tuple[object, object]]](list)
    epochs = Counter[tuple[str, str, str]]()
    for line in records(file, "the samples"):
        key = str(line.get("model_id") or ""), str(line.get("evaluation_name") or "")
        own = str(line.get("evaluation_result_id"))
        metric = metric_of.get(own) or str(dig(line, "metadata", "metric") or "")
        metric = metric or next(iter(metrics[key]), "")
        metrics[key][metric] = None
        if metric != (files.choice.metric or next(iter(metrics[key]))):
            continue
        options, item = entries(line, "input", "choices"), str(line.get("sample_id"))
        epochs[*key, item] += 1
        samples[key].append(
            Sample(
                line.get("sample_id"),
                dig(line, "evaluation", "score"),
                wrong=ERRORED if line.get("error") else _why_missing(line),
                epoch=epochs[*key, item],
                text="\n".join(map(str, (dig(line, "input", "raw") or "", *options))),
                key=str(line.get("sample_hash") or ""),
                target=dig(line, "input", "reference"),
                choices=len(options) or math.nan,
                answer=dig(line, "answer_attribution", -1, "extracted_value")
                or dig(line, "output", "raw", -1),
                metadata=line.get("metadata"),
            )
        )
        latency = dig(line, "performance", "latency_ms")
        used[key].append((dig(line, "token_usage", "total_tokens"), latency))
    settings = as_settings(
        dig(run, "evaluation_results", 0, "generation_config", "generation_args")
    )
    for (model, task), there in metrics.items():
        metric = pick(files.choice.metric, there, "metric")
        log = Log(
            source,
            EVER,
            model,
            task,
            condition=settings,
            scorer=metric,
            others=tuple(name for name in there if name != metric),
            time=read_time(run.get("evaluation_timestamp") or run.get("retrieved_timestamp")),
            accuracy=total([published.get((task, metric))]),
            tokens=total(tokens for tokens, _ in used[model, task]),
            seconds=total(latency for _, latency in used[model, task]) / 1000,
        )
        files.add(log, samples[model, task])


def _why_missing(line: Values) -> str | None:
    """Returns the reason for a missing metric, which the converter from lm-eval writes as 0."""
    metrics = dig(line, "metadata", "lm_eval_metrics")
    if not isinstance(metrics, str):
        return None
    values = decode(OBJECT, metrics.encode(), "metrics").values()
    return None if any(isinstance(value, int | float) for value in values) else UNSCORED


def read_helm(file: BinaryIO, source: Source, files: Files) -> None:
    """Adds the samples of a run of HELM, for one metric.

    Raises:
        DataError: The file or those beside it are broken, or no sample has the metric.
        OSError: The file cannot be read.
    """
    rows = decode(ENTRIES, read_all(file, "the samples", RESULTS_BYTES), "HELM's samples")
    spec, state = (
        _read_beside(source.place, name) for name in ("run_spec.json", "scenario_state.json")
    )
    asked = {
        str(dig(request, "instance", "id")): request
        for request in entries(state, "request_states")
        if not dig(request, "instance", "perturbation")
    }
    rows = [row for row in rows if not row.get("perturbation")]
    measured = [
        {
            str(dig(stat, "name", "name")): stat.get("mean", stat.get("sum"))
            for stat in entries(row, "stats")
        }
        for row in rows
    ]
    metrics = dict.fromkeys(name for stats in measured for name in stats)
    first = next((name for name in HELM_METRICS if name in metrics), None)
    metric = pick(files.choice.metric or first, metrics, "metric")
    samples = list[Sample]()
    for row, stats in zip(rows, measured, strict=True):
        request = asked.get(str(row.get("instance_id")))
        references = entries(request, "instance", "references")
        options = [str(dig(each, "output", "text")) for each in references]
        mapping = dig(request, "output_mapping")
        answer = str(dig(request, "result", "completions", 0, "text") or "").strip()
        trial = row.get("train_trial_index")
        samples.append(
            Sample(
                row.get("instance_id"),
                stats.get(metric),
                epoch=trial + 1 if isinstance(trial, int) else 1,
                text="\n".join([str(dig(request, "instance", "input", "text") or ""), *options]),
                target=[
                    option
                    for option, each in zip(options, references, strict=True)
                    if "correct" in entries(each, "tags")
                ],
                choices=len(options) if mapping else math.nan,
                answer=dig(mapping, answer) or answer,
                metadata=dig(request, "instance"),
            )
        )
    name, _, arguments = str(spec.get("name") or "").partition(":")
    settings = [each for each in arguments.split(",") if each and not each.startswith("model=")]
    model = dig(spec, "adapter_spec", "model") or dig(spec, "adapter_spec", "model_deployment")
    log = Log(
        source,
        HELM,
        str(model or source.place.parent.name),
        f"{name}:{','.join(settings)}" if settings else name,
        scorer=metric,
        others=tuple(name for name in HELM_METRICS if name in metrics and name != metric),
        tokens=total(stats.get(name) for stats in measured for name in HELM_TOKENS),
        seconds=total(stats.get("inference_runtime") for stats in measured),
    )
    files.add(log, samples)


def records(file: BinaryIO, what: str, most: int = MAX_SAMPLES) -> Iterator[Values]:
    """Yields the objects in JSON lines.

    Raises:
        DataError: A line is no object, or there are more than `most`.
        OSError: The file cannot be read.
    """
    for count, (number, line) in enumerate(lines(file, what)):
        if count == most:
            raise over(what, "lines", most)
        yield decode(OBJECT, line, "an object", f"line {number}")


def _read_beside(place: Place, name: str) -> Values:
    """Returns the object in a file beside another one, an empty one if there is none."""
    beside = place.parent / name
    return decode(OBJECT, beside.read(RESULTS_BYTES), "results", name) if beside.exists() else {}
