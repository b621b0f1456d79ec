"""Evaluation logs of all formats, written for the tests: Inspect's by Inspect, and by hand."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

inspect_log = pytest.importorskip("inspect_ai.log")

DAY = "2026-11-0{}T10:00:00+00:00"


class Whole(dict[str, Any]):
    """The fields of a sample, where a value alone would be that of its score."""


def score(value: Any) -> dict[str, Any]:
    return {"value": value, "answer": "A"}


def inspect(path: Path, model: str = "m", values: Sequence[Any] | None = (), **fields: Any) -> None:
    """A JSON log of Inspect by hand; one of no values has no samples."""
    name = fields.get("scorer", "choice")
    samples = [
        {"id": f"q{n}", "epoch": 1, "input": f"{fields.get('input', 'What is')} {n}?"}
        | {"choices": ["one", "two"], "target": "A"}
        | (value if isinstance(value, Whole) else {"scores": {name: score(value)}})
        for n, value in enumerate(values or ())
    ]
    head = {"name": name, "scorer": name, "metrics": fields.get("metrics", {})}
    about = {
        "model": model,
        "task": fields.get("task", "quiz"),
        "created": DAY.format(fields.get("day", 1)),
        "eval_id": "e",
        "task_id": fields.get("task_id", "t"),
        "task_args": fields.get("args", {}),
        "model_generate_config": fields.get("config", {}),
    }
    log = {"version": 2, "status": fields.get("status", "success"), "eval": about}
    log |= {"results": {"scores": fields.get("heads", [head])}, "stats": fields.get("stats", {})}
    write_json(path, log | ({} if values is None else {"samples": samples}))


def write_json(path: Path, content: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content))


def sample(name: str | int, scores: Mapping[str, Any], **fields: Any) -> Any:
    """A sample for Inspect; each score is its value."""
    from inspect_ai.scorer import Score

    whole = {key: Score(value=value, answer="B") for key, value in scores.items()}
    values = {"epoch": 1, "input": f"What is {name}?", "target": "A"} | fields
    return inspect_log.EvalSample(id=name, scores=whole, **values)


def inspect_file(
    path: Path,
    model: str,
    samples: Sequence[Any] | None,
    task: str = "quiz",
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
    scores = [log.EvalScore(name="match", scorer="match", metrics=accuracy)]
    values = {"status": "success", "results": log.EvalResults(scores=scores)} | fields
    log.write_eval_log(log.EvalLog(eval=about, samples=samples, **values), str(path))
    return path


def write_lines(path: Path, rows: Sequence[Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))


def harness(
    root: Path, model: str, rows: Sequence[Mapping[str, Any]], day: int = 1, **results: Any
) -> None:
    """Samples of lm-evaluation-harness; a row adds to that of a document."""
    stamp, task = f"2026-11-0{day}T10-00-00.000000", results.pop("task", "arc")
    base = {"filter": "none", "target": "A", "filtered_resps": ["A"], "metrics": ["acc"]}
    whole = [
        {**base, "doc_id": n, "doc": {"question": f"q {n}"}, "doc_hash": f"{n}", **row}
        for n, row in enumerate(rows)
    ]
    home = root / model.replace("/", "__")
    write_lines(home / f"samples_{task}_{stamp}.jsonl", whole)
    write_json(home / f"results_{stamp}.json", {"model_name": model, "results": {}, **results})


def ever(root: Path, model: str, rows: Sequence[Mapping[str, Any]], **run: Any) -> None:
    """The two files of Every Eval Ever 0.3.0; each row adds to that of a sample."""
    name, home = "3f1c1f8e-55a8-4c5d-9a0d-5f2f9c1d8a11", root / "data" / "quiz" / model
    about = {"schema_version": "0.3.0", "evaluation_id": f"quiz/{model}/1767225600"}
    model_info = {"name": model, "id": model, "additional_details": {}}
    write_json(home / f"{name}.json", {**about, "model_info": model_info, **run})
    base = {
        **about,
        "model_id": model,
        "evaluation_name": "quiz",
        "sample_hash": "h",
        "interaction_type": "single_turn",
        "input": {"raw": "What?", "reference": ["A", "a"]},
        "output": {"raw": ["A"]},
        "answer_attribution": [{"turn_idx": 0, "extracted_value": "A", "is_terminal": True}],
    }
    write_lines(home / f"{name}_samples.jsonl", [{**base, **row} for row in rows])


def helm(root: Path, model: str, scores: Sequence[Sequence[float]]) -> None:
    """A run of HELM, with the scores of each trial."""
    run = root / f"mmlu:subject=law,model={model.replace('/', '_')}"
    rows = [
        {
            "instance_id": f"id{n}",
            "train_trial_index": trial,
            "stats": [
                {"name": {"name": name, "split": "test"}, "count": 1, "mean": mean}
                for name, mean in (
                    *(("num_prompt_tokens", 9), ("num_output_tokens", 2)),
                    *(("inference_runtime", 0.5), ("exact_match", value)),
                )
            ],
        }
        for trial, values in enumerate(scores)
        for n, value in enumerate(values)
    ]
    rows.append({**rows[0], "perturbation": {"name": "typos"}})
    write_json(run / "per_instance_stats.json", rows)
    spec = {"name": "mmlu:subject=law,model=org_m", "adapter_spec": {"model": model}}
    write_json(run / "run_spec.json", spec)
    references = [
        {"output": {"text": text}, "tags": ["correct"] * (text == "yes")} for text in ("no", "yes")
    ]
    asked = [
        {
            "instance": {"id": f"id{n}", "input": {"text": f"Q{n}"}, "references": references},
            "output_mapping": {"A": "no", "B": "yes"},
            "result": {"completions": [{"text": " B"}]},
        }
        for n in range(len(scores[0]))
    ]
    write_json(run / "scenario_state.json", {"request_states": asked})


def table(path: Path, **columns: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    frame = pd.DataFrame(columns)
    if path.suffix == ".csv":
        frame.to_csv(path, index=False)
    elif path.suffix == ".parquet":
        frame.to_parquet(path, index=False)
    else:
        path.write_text(frame.to_json(orient="records", lines=True))
