"""The scores of trees, summed by model and generation."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from scipy.sparse import csc_array

from raylab.benchmark.figures.intervals import draw_weights
from raylab.core.stats import Array

CHUNK = 1024
"""Items whose weights are added at once."""
COLUMNS = ("model", "generation", "item", "score", "weight")


@dataclass(frozen=True)
class Sums:
    """Sums of scores by unit, a model in a generation.

    Attributes:
        units: Models and generations, sorted.
        counts: (units,) numbers of items.
        means: (units,) weighted mean scores, each item counting once.
        weighted: (replicates, units) sums of bootstrap weight times item's weight times score.
        weights: (replicates, units) sums of bootstrap weight times item's weight.
    """

    units: pd.MultiIndex
    counts: Array
    means: Array
    weighted: Array
    weights: Array


def add_up(table: Any, replicates: int) -> Sums:
    """Sums scores by model and generation, and resamples the items.

    An item has the same bootstrap weights in all models and generations, drawn from its name.
    Several scores of an item in a unit, such as those of epochs, are averaged.

    Args:
        table: Scores, with the `COLUMNS`.
        replicates: Bootstrap replicates.
    """
    cells = table.groupby(["model", "generation", "item"], observed=True)["score"].mean()
    codes, names = pd.factorize(cells.index.get_level_values("item"))
    unit_codes, units = pd.factorize(cells.index.droplevel("item"))
    weight = table.drop_duplicates("item").set_index("item")["weight"].reindex(names)
    shares, size = weight.to_numpy(float)[codes], len(units)
    both = shares * cells.to_numpy(float), shares
    matrices = [csc_array((each, (unit_codes, codes)), (size, len(names))) for each in both]
    sums, weights = (np.bincount(unit_codes, each, size) for each in both)
    drawn = np.zeros((2, size, replicates))
    for start in range(0, len(names) if replicates else 0, CHUNK):
        chunk = slice(start, start + CHUNK)
        own = draw_weights([f"0/{name}" for name in names[chunk]], replicates)
        for total, matrix in zip(drawn, matrices, strict=True):
            total += matrix[:, chunk] @ own
    return Sums(
        units=pd.MultiIndex.from_tuples(units, names=["model", "generation"]),
        counts=np.bincount(unit_codes, minlength=size).astype(float),
        means=sums / weights,
        weighted=drawn[0].T,
        weights=drawn[1].T,
    )
