"""The four figures of a benchmark's quality, from the accuracies of models on it.

Difficulty, separability and novelty follow AutoBencher (arXiv 2407.08351), consistency follows Data
Swarms (arXiv 2506.00741).
"""

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from raylab.core.stats import Array

METRICS = {
    "difficulty": (
        "How much the best model gets wrong: 0 if one model is always right, 1 if no model is ever "
        "right.",
        "1 - the highest accuracy of a model",
    ),
    "separability": (
        "How far apart the models lie: 0 if the benchmark cannot tell them apart, at most 0.5.",
        "mean over models of |accuracy - mean accuracy|",
    ),
    "consistency": (
        "How stable a model's accuracy is across generations: 1 if it never changes. The choice of "
        "tasks lowers it; the corrected figure is free of that bias.",
        "1 - mean over models of the sample standard deviation (n - 1) over generations",
    ),
    "novelty": (
        "How little earlier benchmarks predict the ranking of the models on this one: 0 if they "
        "predict it fully, 1 if not at all.",
        "1 - Spearman's rank correlation of the accuracies with their least-squares prediction "
        "from the prior benchmarks, clamped to [0, 1]",
    ),
}
"""The meaning and the formula of each figure, in the order shown."""
DECIMALS = 12
"""Decimals to which tied accuracies and predictions agree."""
RANK_TOLERANCE = 1e-10
"""Share of the largest singular value below which others count as zero."""
MIN_MODELS = 6
"""Fewest models for novelty: with fewer, a rank correlation takes too few values."""

LOGGER = logging.getLogger(__name__)

Accuracies = Mapping[str, float] | Iterable[float]


def compute_benchmark_difficulty(accuracies: Accuracies) -> float:
    """Returns one minus the best model's accuracy, in [0, 1].

    Raises:
        ValueError: There are none, or one is outside [0, 1] or NaN.
    """
    return float(1.0 - _finite_array(accuracies).max())


def compute_benchmark_separability(accuracies: Accuracies) -> float:
    """Returns the mean absolute deviation of the models' accuracies from their mean, in [0, 0.5].

    Raises:
        ValueError: There are none, or one is outside [0, 1] or NaN.
    """
    array = _finite_array(accuracies)
    return float(np.abs(array - array.mean()).mean())


def compute_benchmark_consistency(accuracies: Mapping[Any, Iterable[float]]) -> float:
    """Returns one minus the models' mean sample standard deviation (ddof = 1) over generations.

    Args:
        accuracies: Accuracies in [0, 1] of each model over the generations; two generations or
            more, the same number for every model.

    Returns:
        At most 1, and at least `1 - sqrt(1 / 2)`.

    Raises:
        ValueError: There is no model, a model has fewer than two generations or another number of
            them than the first, or an accuracy is outside [0, 1] or NaN.
    """
    if not accuracies:
        raise ValueError("consistency of no models: give one model or more")
    rows = {
        name: _finite_array(values, f"accuracy of {name!r}, generation")
        for name, values in accuracies.items()
    }
    expected = len(next(iter(rows.values())))
    for name, row in rows.items():
        if len(row) < 2 or len(row) != expected:
            raise ValueError(
                f"model {name!r} has {len(row)} generations, the first model {expected}: "
                "consistency needs two or more, the same number for every model"
            )
    return float(1.0 - np.array(list(rows.values())).std(axis=-1, ddof=1).mean())


def compute_benchmark_novelty(
    current: Mapping[str, float], priors: Sequence[Mapping[str, float]]
) -> float:
    """Returns one minus the rank correlation with the prediction from earlier benchmarks.

    Ordinary least squares with intercept predicts the current accuracies from the prior ones. The
    novelty, in [0, 1], is one minus Spearman's correlation of predictions and actual accuracies;
    it is 1 where that is undefined because either side is constant.

    Args:
        current: Accuracy of each model on the benchmark, in [0, 1].
        priors: A figure of each model on each earlier benchmark, of the same models, on any scale.

    Raises:
        ValueError: There are no models or no priors, the models differ, an accuracy is outside
            [0, 1] or NaN, or a prior figure is not finite.
    """
    actual = _finite_array(current)
    if not priors:
        raise ValueError("novelty against no prior benchmark: give one or more")
    columns = list[Array]()
    for number, prior in enumerate(priors, 1):
        if difference := model_difference(current, prior):
            raise ValueError(f"prior {number} has other models than the benchmark: {difference}")
        own = {name: prior[name] for name in current}
        columns.append(_finite_array(own, f"figure of prior {number},", bounded=False))
    if warning := novelty_warning(len(current), len(priors)):
        LOGGER.warning(warning)
    return novelty(actual, columns)


def novelty(current: Array, earlier: Sequence[Array]) -> float:
    """Returns the novelty of (models,) accuracies against (models,) figures of each prior."""
    actual, priors = np.round(current, DECIMALS), np.stack(earlier, axis=-1)
    columns = np.round(priors / np.maximum(np.abs(priors).max(axis=0), 1.0), DECIMALS)
    columns = np.round(columns - columns.mean(axis=0), DECIMALS)
    weights = np.linalg.pinv(columns, rcond=RANK_TOLERANCE) @ (actual - actual.mean())
    predicted = np.round(columns @ weights + actual.mean(), DECIMALS)
    # Spearman's correlation, 0 where it is undefined.
    a, b = (pd.Series(v).rank().to_numpy() - (len(v) + 1) / 2 for v in (predicted, actual))
    spread = np.sqrt((a * a).sum() * (b * b).sum())
    return float(np.clip(1.0 - ((a * b).sum() / spread if spread else 0.0), 0.0, 1.0))


def model_difference(current: Iterable[str], prior: Iterable[str]) -> str:
    """Names the models that a prior lacks and those it has in addition; empty if none."""
    ours, theirs = set(current), set(prior)
    parts = {"missing": sorted(ours - theirs), "extra": sorted(theirs - ours)}
    return "; ".join(f"{kind} {', '.join(names)}" for kind, names in parts.items() if names)


def novelty_warning(models: int, priors: int) -> str:
    """Returns the warning that novelty is meaningless; empty if it is not."""
    if priors >= models - 1:
        return (
            f"{priors} prior benchmarks and an intercept fit {models} models exactly, so novelty "
            f"means nothing: it needs {priors + 2} models or more"
        )
    if models >= MIN_MODELS:
        return ""
    return (
        f"novelty of {models} models means nothing, because a rank correlation of so few takes few "
        f"values: it needs {MIN_MODELS} models or more"
    )


def _finite_array(accuracies: Accuracies, what: str = "accuracy of", bounded: bool = True) -> Array:
    """Returns finite values, in [0, 1] if they are bounded; errors begin with `what`."""
    named = accuracies if isinstance(accuracies, Mapping) else dict(enumerate(accuracies))
    if not named:
        raise ValueError("no accuracies: give one model or more")
    for name, value in named.items():
        if not np.isfinite(value) or (bounded and not 0.0 <= value <= 1.0):
            allowed = "in [0, 1]" if bounded else "finite"
            raise ValueError(f"{what} {name!r} is {value}, not {allowed}")
    return np.array(list(named.values()), float)
