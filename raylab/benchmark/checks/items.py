"""Figures of items: how well the scores on each agree with those on all others.

Every item is compared with the rest score of the models: their mean over the other items that they
have, each minus the item's mean, so that a model without the easy items does not look weak.
Weights of items are ignored.
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
    - `item_rest`: Pearson's correlation with the rest scores, in [-1, 1]. NaN with fewer than three
      models, equal scores of all models, or equal rest scores of all models.
    """
    scores = matrix.scores
    models, rests = (~np.isnan(scores)).sum(axis=0), rest_scores(scores)
    unclear = (models < FEWEST) | constant(scores) | constant(rests)
    own, rest = (_center(np.where(np.isnan(rests), np.nan, side)) for side in (scores, rests))
    with np.errstate(invalid="ignore", divide="ignore"):
        difficulty = 1 - np.nansum(scores, axis=0) / np.where(models > 0, models, np.nan)
        scale = np.sqrt((own**2).sum(axis=0) * (rest**2).sum(axis=0))
        item_rest = np.where(unclear, np.nan, (own * rest).sum(axis=0) / scale)
    figures = {"models": models, "difficulty": difficulty, "item_rest": item_rest}
    return pd.DataFrame(figures, index=pd.Index(matrix.items, name="item"))


def rest_scores(scores: Array) -> Array:
    """Returns the (models, items) rest scores; NaN where a model lacks the item or all others.

    They are 0 for a model that matches the mean on the other items that it has.
    """
    present, centred = ~np.isnan(scores), _center(scores)
    others = present.sum(axis=1, keepdims=True) - 1
    rests = (centred.sum(axis=1, keepdims=True) - centred) / np.maximum(others, 1)
    return np.where(present & (others > 0), rests.round(DIGITS), np.nan)


def constant(values: Array) -> NDArray[np.bool_]:
    """Returns whether all values of each column are equal, or missing."""
    least = np.where(np.isnan(values), np.inf, values).min(axis=0)
    return least >= np.where(np.isnan(values), -np.inf, values).max(axis=0)


def _center(values: Array) -> Array:
    """Returns the values minus the mean of their column; 0 for missing ones."""
    present = ~np.isnan(values)
    counts = np.maximum(present.sum(axis=0), 1)
    return np.where(present, values - np.nansum(values, axis=0) / counts, 0.0)
