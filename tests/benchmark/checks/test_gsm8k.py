"""Suspects on real data that played no part in their making: GSM8K, with people's verdicts."""

from pathlib import Path

import pandas as pd
import pytest

from raylab.benchmark.checks.diagnosis import Diagnosed, diagnose
from raylab.benchmark.responses import make_responses

TABLE = Path(__file__).with_name("gsm8k.csv")


@pytest.fixture(scope="module")
def items() -> pd.DataFrame:
    """Keys, people's labels, and the answers of the models, as texts, by item."""
    return pd.read_csv(TABLE, comment="#", dtype=str, keep_default_na=False, index_col="item")


@pytest.fixture(scope="module")
def diagnosed(items: pd.DataFrame) -> Diagnosed:
    """The diagnosis, without the labels."""
    answers = items.drop(columns=["key", "label"]).stack()
    rows = answers.rename_axis(["item", "model"]).rename("answer").reset_index()
    right = rows["answer"].to_numpy() == items["key"].reindex(rows["item"]).to_numpy()
    rows["score"] = right.astype(float)
    about = items[["key"]].rename(columns={"key": "target"}).assign(text="")
    return diagnose(make_responses(rows, about))


def test_most_first_suspects_were_revised_or_removed(
    items: pd.DataFrame, diagnosed: Diagnosed
) -> None:
    """People found a fault in 131 items, a tenth."""
    faulty = items["label"] != "ok"
    assert faulty.sum() == 131
    named = [suspect.item for suspect in diagnosed.diagnosis.suspects.listed]
    assert len(named) >= 10 and faulty[named].mean() >= 0.6
    first = diagnosed.items.sort_values("evidence", ascending=False).index[:20]
    assert faulty[list(first)].mean() >= 0.7
