"""Figures of items: how well the scores on each agree with those on all others.

Every item is compared with the rest score of the models: their mean over the other items that they
have, each minus the item's mean, so that a model without the easy items does not look weak.
Weights of items are ignored. (M, I) stands for models and items.
"""

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from raylab.benchmark.responses import Matrix
from raylab.core.stats import Array

FEWEST = 3
"""Fewest models for any figure of an item but its difficulty: any two correlate."""
DIGITS = 9
"""Decimals of rest scores; smaller differences are ties."""


def judge_items(matrix: Matrix) -> pd.DataFrame:
    """Returns the figures of each item, indexed by its name.

    - `models`: number of models with a score.
    - `difficulty`: 1 minus the mean score, in [0, 1].
    - `item_rest`: Pearson's correlation with the rest scores, in [-1, 1].

    The last is NaN for an item with fewer than three models, equal scores of all models, or equal
    rest scores of all models.
    """
    scores = matrix.scores
    rests, models = rest_scores(scores), (~np.isnan(scores)).sum(axis=0)
    unclear = (models < FEWEST) | constant(scores) | constant(rests)
    difficulty = 1 - np.nansum(scores, axis=0) / np.where(models > 0, models, np.nan)
    item_rest = np.where(unclear, np.nan, _correlate(scores, rests))
    index = pd.Index(matrix.items, name="item")
    figures = {"models": models, "difficulty": difficulty, "item_rest": item_rest}
    return pd.DataFrame(figures, index=index)


def rest_scores(scores: Array) -> Array:
    """Returns the (M, I) rest scores for each item; NaN where a model lacks it or all others.

    They are 0 for a model that matches the mean on the other items that it has.
    """
    present = ~np.isnan(scores)
    centered = center_items(scores)
    others = present.sum(axis=1, keepdims=True) - 1
    with np.errstate(invalid="ignore", divide="ignore"):
        rests = (centered.sum(axis=1, keepdims=True) - centered) / others
    return np.where(present & (others > 0), rests.round(DIGITS), np.nan)


def center_items(values: Array) -> Array:
    """Returns the values minus the mean of their column; 0 for missing ones."""
    present = ~np.isnan(values)
    counts = np.maximum(present.sum(axis=0), 1)
    return np.where(present, values - np.nansum(values, axis=0) / counts, 0.0)


def constant(values: Array) -> NDArray[np.bool_]:
    """Returns whether all values of each column are equal, or missing."""
    least = np.where(np.isnan(values), np.inf, values).min(axis=0)
    return least >= np.where(np.isnan(values), -np.inf, values).max(axis=0)


def _correlate(left: Array, right: Array) -> Array:
    """Returns Pearson's correlations of columns, over the rows that have both values."""
    missing = np.isnan(left) | np.isnan(right)
    left, right = (center_items(np.where(missing, np.nan, side)) for side in (left, right))
    with np.errstate(invalid="ignore", divide="ignore"):
        scale = np.sqrt((left**2).sum(axis=0) * (right**2).sum(axis=0))
        return (left * right).sum(axis=0) / scale
