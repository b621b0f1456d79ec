"""Suspects among free answers: GSM8K, with people's verdicts.

The shares of free answers are from these data, and the bounds of suspects were chosen with them in
view, so the test shows that they hold, not how they do elsewhere.
"""

from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from raylab.benchmark.checks.diagnosis import Diagnosed, diagnose
from raylab.benchmark.responses import make_responses

TABLE = Path(__file__).with_name("gsm8k.csv")
ZEROEVAL = "zeroeval_"


@pytest.fixture(scope="module")
def items() -> Any:
    """Keys, people's labels, and the answers of the models, as texts, by item."""
    return pd.read_csv(TABLE, comment="#", dtype=str, keep_default_na=False, index_col="item")


def diagnose_models(items: Any, models: list[str]) -> tuple[Diagnosed, Any]:
    """Returns the diagnosis without the labels, and which items people found faulty."""
    rows = items[models].stack().rename_axis(["item", "model"]).rename("answer").reset_index()
    right = rows["answer"].to_numpy() == items["key"].reindex(rows["item"]).to_numpy()
    about = items[["key"]].rename(columns={"key": "target"}).assign(text="")
    faulty = items["label"] != "ok"
    assert faulty.sum() == 120
    return diagnose(make_responses(rows.assign(score=right.astype(float)), about)), faulty


def test_most_suspects_by_strong_models_were_revised_or_removed(items: Any) -> None:
    models = [name for name in items if name.startswith(ZEROEVAL)]
    diagnosed, faulty = diagnose_models(items, models)
    named = [suspect.item for suspect in diagnosed.diagnosis.suspects.listed]
    assert len(named) >= 15 and faulty[named].mean() >= 0.8
    # The shares stated for the bands of items.
    bands: Any = (
        diagnosed.items.assign(faulty=faulty).groupby("share")["faulty"].agg(["mean", "size"])
    )
    assert bands["size"].to_dict() == {0.05: 1262, 0.15: 25, 0.6: 21, 0.9: 11}
    assert (bands["mean"].loc[[0.6, 0.9]] >= [0.6, 0.9]).all() and bands["mean"][0.05] < 0.07


def test_weak_models_name_none_but_rank_them(items: Any) -> None:
    """A tenth of all items has a fault; of the first twenty, half."""
    models = [name for name in items.columns[2:] if not name.startswith(ZEROEVAL)]
    diagnosed, faulty = diagnose_models(items, models)
    assert diagnosed.diagnosis.suspects.items == 0
    assert faulty[list(diagnosed.diagnosis.suspects.lowest)].mean() >= 0.5
    first = diagnosed.items.sort_values("evidence", ascending=False).index[:20]
    assert faulty[list(first)].mean() >= 0.5
