"""Evaluation logs of all formats, written for the tests."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

inspect_log = pytest.importorskip("inspect_ai.log")


def sample(name: str | int, scores: Mapping[str, Any], **fields: Any) -> Any:
    """A sample of Inspect; each score is its value, or a whole score."""
    from inspect_ai.scorer import Score

    whole = {
        k: v if isinstance(v, Score) else Score(value=v, answer="B") for k, v in scores.items()
    }
    values = {"epoch": 1, "input": f"What is {name}?", "target": "A"} | fields
    return inspect_log.EvalSample(id=name, scores=whole, **values)


def inspect_file(
    path: Path,
    model: str,
    samples: Sequence[Any] | None,
    task: str = "quiz",
    scorers: Sequence[tuple[str, str]] = (("match", "match"),),
    created: str = "2026-01-01T00:00:00+00:00",
    **fields: Any,
) -> Path:
    """A log that Inspect itself writes; the suffix is its format."""
    log = inspect_log
    path.parent.mkdir(parents=True, exist_ok=True)
    about = log.EvalSpec(
        created=created,
        task=task,
        dataset=log.EvalDataset(),
        model=model,
        config=log.EvalConfig(),
        model_base_url=None,
    )
    accuracy = {"accuracy": log.EvalMetric(name="accuracy", value=0.25)}
    scores = [log.EvalScore(name=n, scorer=s, metrics=accuracy) for n, s in scorers]
    values = {"status": "success", "results": log.EvalResults(scores=scores)} | fields
    log.write_eval_log(log.EvalLog(eval=about, samples=samples, **values), str(path))
    return path


def lines_file(path: Path, rows: Sequence[Any]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path


def lm_eval_files(
    directory: Path,
    model: str,
    scores: Mapping[int, Any],
    task: str = "arc",
    time: str = "2026-01-02T03-04-05.678901",
    hashes: Mapping[int, str] | None = None,
) -> Path:
    """The results of lm-evaluation-harness with the samples of a task under two filters."""
    rows = [
        {
            "doc_id": number,
            "doc": {"question": f"What is {number}?", "answer": "4"},
            "target": "4",
            "arguments": {"gen_args_0": {"arg_0": "Q: ...", "arg_1": {"until": []}}},
            "resps": [["4 or so"]],
            "filtered_resps": ["4"],
            "filter": name,
            "metrics": ["exact_match", "f1"],
            "doc_hash": (hashes or {}).get(number, f"{number:064x}"),
            "exact_match": score if name == "strict-match" else 1.0,
            "f1": 0.75,
        }
        for name in ("strict-match", "flexible-extract")
        for number, score in scores.items()
    ]
    results = {
        "results": {task: {"alias": task, "exact_match,strict-match": 0.5}},
        "model_name": model,
    }
    home = directory / model.replace("/", "__")
    home.mkdir(parents=True, exist_ok=True)
    (home / f"results_{time}.json").write_text(json.dumps(results, indent=2))
    return lines_file(home / f"samples_{task}_{time}.jsonl", rows)


def every_eval_ever_files(
    directory: Path, model: str, rows: Sequence[Mapping[str, Any]], results: Sequence[Any] = ()
) -> Path:
    """The two files of Every Eval Ever 0.3.0; each row adds to that of a sample."""
    name = "3f1c1f8e-55a8-4c5d-9a0d-5f2f9c1d8a11"
    home = directory / "data" / "quiz" / model
    home.mkdir(parents=True, exist_ok=True)
    evaluation = {
        "schema_version": "0.3.0",
        "evaluation_id": f"quiz/{model}/1767225600",
        "retrieved_timestamp": "1767225600",
        "model_info": {"name": model, "id": model, "additional_details": {}},
        "evaluation_results": results,
    }
    (home / f"{name}.json").write_text(json.dumps(evaluation))
    base = {
        "schema_version": "0.3.0",
        "evaluation_id": evaluation["evaluation_id"],
        "model_id": model,
        "evaluation_name": "quiz",
        "sample_hash": "h",
        "interaction_type": "single_turn",
        "input": {"raw": "What?", "reference": ["A", "a"]},
        "output": {"raw": ["A"]},
        "answer_attribution": [{"turn_idx": 0, "extracted_value": "A", "is_terminal": True}],
    }
    return lines_file(home / f"{name}_samples.jsonl", [{**base, **row} for row in rows])
