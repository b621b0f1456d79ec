"""The example: answers of ten models to 600 items of MMLU, in which people looked for errors.

`mmlu_redux.csv` names the source and the licence. It has no texts. Of the 2,792 items in every
other subject of MMLU-Redux, it has the 600 whose names have the smallest SHA-256, whatever their
labels. The shares that suspects state are from all 2,792 (`raylab.benchmark.checks.wrong_keys`).
"""

import json
from pathlib import Path

import pandas as pd

from raylab.benchmark.checks.suspects import Suspects

TABLE = Path(__file__).with_name("mmlu_redux.csv")
FIRST = 20
"""Suspects whose labels are counted."""


def read_example() -> pd.DataFrame:
    """Returns the items by name: `subject`, `key`, `label`, and the answer of each model."""
    return pd.read_csv(TABLE, comment="#", dtype=str, index_col="item")


def write_example(directory: str | Path) -> None:
    """Writes Inspect logs, `MODEL/SUBJECT.json`, without the labels.

    Raises:
        OSError: They cannot be written.
    """
    items = read_example()
    for model in items.columns[3:]:
        (place := Path(directory) / model).mkdir(parents=True, exist_ok=True)
        for subject, table in items.groupby("subject"):
            log = _log(str(subject), model, table["key"].to_dict(), table[model].to_dict())
            (place / f"{subject}.json").write_text(json.dumps(log), "utf-8")


def describe_confirmed(suspects: Suspects) -> str:
    """Says in how many of the first suspects people had found an error, and in how many of all."""
    faulty = read_example()["label"] != "ok"
    first = [suspect.item for suspect in suspects.listed[:FIRST]]
    return (
        f"People had found an error in {faulty[first].sum()} of the first {len(first)} suspects, "
        f"and in {faulty.sum()} of all {len(faulty)} items (MMLU-Redux)."
    )


def _log(task: str, model: str, keys: dict[str, str], answers: dict[str, str]) -> object:
    """Returns a log as Inspect writes it, reduced to what readers need."""
    right = sum(answers[item] == key for item, key in keys.items())
    accuracy = {"name": "accuracy", "value": right / len(keys)}
    score = {"name": "choice", "scorer": "choice", "metrics": {"accuracy": accuracy}}
    samples = [
        {
            "id": item.partition("/")[2],
            "epoch": 1,
            "input": "",
            "target": key,
            "scores": {
                "choice": {"value": "C" if answers[item] == key else "I", "answer": answers[item]}
            },
        }
        for item, key in keys.items()
    ]
    return {
        "version": 2,
        "status": "success",
        "eval": {"task": task, "model": model, "created": "2024-06-01T00:00:00+00:00"},
        "results": {"total_samples": len(keys), "scores": [score]},
        "samples": samples,
    }
