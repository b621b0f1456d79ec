"""Figures of items: how well the scores on each agree with those on all others.

Every item is compared with the rest score of the models: their mean over the other items that they
have, each minus the item's mean, so that a model without the easy items does not look weak.
Weights of items are ignored. (M, I) stands for models and items.
"""

from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.optimize import isotonic_regression
from scipy.stats import rankdata

from raylab.benchmark.responses import Matrix
from raylab.core.stats import Array

FEWEST = 3
"""Fewest models for any figure of an item but its difficulty: any two correlate."""
DIGITS = 9
"""Decimals of rest scores; smaller differences are ties."""
APART = 3.0
"""Distance between items in the sequence that is fitted at once; scores span 2 at most."""

BY_ITEM: Any = {"axis": 0, "nan_policy": "omit"}


def judge_items(matrix: Matrix) -> pd.DataFrame:
    """Returns the figures of each item, indexed by its name.

    - `models`: number of models with a score.
    - `difficulty`: 1 minus the mean score, in [0, 1].
    - `isotonic`: signed isotonic R^2 (Hardy, Gilbert and Domingue 2026, arXiv 2603.24999): the
      share of the variance of the item's scores that the best monotone function of the rest scores
      explains, negative if better models do worse. In [-1, 1]. The authors take the mean over all
      pairs of items; here the rest score stands for the other items. The direction is the sign of
      Spearman's correlation, which for right and wrong is that of Kendall's tau.
    - `item_rest`: Pearson's correlation with the rest scores, in [-1, 1].

    All but the first two are NaN for an item with fewer than three models, equal scores of all
    models, or equal rest scores of all models.
    """
    scores = matrix.scores
    rests = rest_scores(scores)
    ranks, models = rankdata(rests, **BY_ITEM), (~np.isnan(scores)).sum(axis=0)
    figures = {
        "isotonic": _isotonic(scores, ranks),
        "item_rest": _correlate(scores, rests),
    }
    unclear = (models < FEWEST) | _constant(scores) | _constant(rests)
    judged = {name: np.where(unclear, np.nan, values) for name, values in figures.items()}
    difficulty = 1 - np.nansum(scores, axis=0) / np.where(models > 0, models, np.nan)
    index = pd.Index(matrix.items, name="item")
    return pd.DataFrame({"models": models, "difficulty": difficulty, **judged}, index=index)


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


def _constant(values: Array) -> NDArray[np.bool_]:
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


def _isotonic(scores: Array, ranks: Array) -> Array:
    """Returns the (I,) signed isotonic R^2, from (M, I) scores and ranks of rest scores.

    All items are fitted at once, in one sequence, far enough apart not to mix.
    """
    signs = np.sign(_correlate(rankdata(scores, **BY_ITEM), ranks))
    # A monotone function has one value for all models with a rest score.
    cells = pd.DataFrame({"score": scores.T.ravel(), "rank": ranks.T.ravel()})
    cells["item"] = np.repeat(np.arange(scores.shape[1]), len(scores))
    blocks = cells.dropna().groupby(["item", "rank"])["score"].agg(["mean", "size"]).reset_index()
    if blocks.empty:
        return np.full(len(signs), np.nan)
    item, weights = blocks["item"].to_numpy(), blocks["size"].to_numpy(float)
    values = np.nan_to_num(signs)[item] * blocks["mean"].to_numpy()
    fitted = isotonic_regression(values + APART * item, weights=weights).x - APART * item
    total = (center_items(np.where(np.isnan(ranks), np.nan, scores)) ** 2).sum(axis=0)
    with np.errstate(invalid="ignore", divide="ignore"):
        sums, squares, counts = (
            np.bincount(item, weights * power, len(signs)) for power in (fitted, fitted**2, 1.0)
        )
        return signs * (squares - sums**2 / counts) / total
