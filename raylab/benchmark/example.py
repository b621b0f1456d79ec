"""The example: answers of ten models to 600 items of MMLU, in which people looked for errors.

`mmlu_redux.csv` names the source and the licence. It has no texts. Of the 2,792 items in every
other subject of MMLU-Redux, it has the 600 whose names have the smallest SHA-256, whatever their
labels. The shares that suspects state are from all 2,792 (`raylab.benchmark.checks.wrong_keys`).
"""

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
    """Writes the answers and their scores as a table, `scores.csv`, without the labels."""
    items = read_example().drop(columns="label").reset_index()
    items["item"] = items["item"].str.partition("/")[2]
    table = items.rename(columns={"subject": "task", "key": "target"}).melt(
        ["task", "item", "target"], var_name="model", value_name="answer"
    )
    table["score"] = (table["answer"] == table["target"]).astype(int)
    Path(directory).mkdir(parents=True, exist_ok=True)
    table.to_csv(Path(directory, "scores.csv"), index=False)


def describe_confirmed(suspects: Suspects) -> str:
    """Says in how many of the first suspects people had found an error, and in how many of all."""
    faulty = read_example()["label"] != "ok"
    first = [suspect.item for suspect in suspects.listed[:FIRST]]
    return (
        f"People had found an error in {faulty[first].sum()} of the first {len(first)} suspects, "
        f"and in {faulty.sum()} of all {len(faulty)} items (MMLU-Redux)."
    )
