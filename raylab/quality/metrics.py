"""The four metrics of a benchmark's quality, from accuracies that models reached on it.

Difficulty, separability and novelty are those of AutoBencher (arXiv 2407.08351), consistency is
that of Data Swarms (arXiv 2506.00741). Each formula is written once, over arrays with any leading
axes, so that replicates of a bootstrap go through the same code as the measured accuracies.
"""

import logging
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import rankdata

DECIMALS = 12
"""Accuracies and predictions that agree to these decimals are ties."""
RANK_TOLERANCE = 1e-10
"""Singular values below this share of the largest count as zero."""

LOGGER = logging.getLogger(__name__)

Array = NDArray[np.float64]
Accuracies = Mapping[str, float] | Iterable[float]


def compute_benchmark_difficulty(accuracies: Accuracies) -> float:
    """One minus the best model's accuracy, in [0, 1].

    Args:
        accuracies: Of each model, in [0, 1].

    Raises:
        ValueError: There are none, or one is outside [0, 1] or NaN.
    """
    return float(difficulty(_vector(accuracies)))


def compute_benchmark_separability(accuracies: Accuracies) -> float:
    """Mean absolute deviation of the models' accuracies from their mean, in [0, 0.5].

    Args:
        accuracies: Of each model, in [0, 1].

    Raises:
        ValueError: There are none, or one is outside [0, 1] or NaN.
    """
    return float(separability(_vector(accuracies)))


def compute_benchmark_consistency(accuracies: Mapping[str, Sequence[float]]) -> float:
    """One minus the models' mean sample standard deviation (ddof = 1) over generations.

    Args:
        accuracies: Of each model over the generations, in [0, 1]; two generations or more, the
            same number for every model.

    Returns:
        At most 1, and at least `1 - sqrt(1 / 2)`.

    Raises:
        ValueError: There is no model, a model has fewer than two generations or another number of
            them than the first, or an accuracy is outside [0, 1] or NaN.
    """
    if not accuracies:
        raise ValueError("consistency of no models: give one model or more")
    first, expected = next((name, len(values)) for name, values in accuracies.items())
    for name, values in accuracies.items():
        if len(values) < 2:
            raise ValueError(
                f"model {name!r} has {len(values)} generations: consistency needs two or more"
            )
        if len(values) != expected:
            raise ValueError(
                f"model {name!r} has {len(values)} generations, model {first!r} has {expected}"
            )
    rows = [
        [_accuracy(value, f"model {name!r}, generation {index}") for index, value in enumerate(row)]
        for name, row in accuracies.items()
    ]
    return float(consistency(np.array(rows)))


def compute_benchmark_novelty(
    current: Mapping[str, float], priors: Sequence[Mapping[str, float]]
) -> float:
    """How badly accuracies on earlier benchmarks rank the models on this one, in [0, 1].

    Ordinary least squares with intercept predicts the current accuracies from the prior ones; the
    novelty is one minus Spearman's correlation of predictions and actual accuracies, and 1 where
    that is undefined because either side is constant.

    Args:
        current: Accuracy of each model on the benchmark, in [0, 1].
        priors: The same for each earlier benchmark, of the same models.

    Raises:
        ValueError: There are no models or no priors, the models differ, or an accuracy is outside
            [0, 1] or NaN.
    """
    actual = _vector(current)
    if not priors:
        raise ValueError("novelty against no prior benchmark: give one or more")
    columns: list[list[float]] = []
    for number, prior in enumerate(priors, 1):
        if difference := model_difference(current, prior):
            raise ValueError(f"prior {number} has other models than the benchmark: {difference}")
        columns.append([_accuracy(prior[name], f"prior {number}, {name!r}") for name in current])
    if warning := exact_fit_warning(len(current), len(priors)):
        LOGGER.warning(warning)
    return float(novelty(actual, np.array(columns).T))


def model_difference(current: Iterable[str], prior: Iterable[str]) -> str:
    """Which of the current models a prior lacks and which it has beside them; empty if none."""
    ours, theirs = set(current), set(prior)
    parts = {"missing": sorted(ours - theirs), "extra": sorted(theirs - ours)}
    return "; ".join(f"{kind} {', '.join(names)}" for kind, names in parts.items() if names)


def exact_fit_warning(models: int, priors: int) -> str:
    """Why a novelty says nothing, or an empty string if it does."""
    if priors < models - 1:
        return ""
    return (
        f"{priors} prior benchmarks and an intercept fit {models} models exactly, so that novelty "
        f"says nothing: it needs {priors + 2} models or more"
    )


def difficulty(accuracies: Array) -> Array:
    """Difficulty of accuracies (..., models)."""
    return 1.0 - accuracies.max(axis=-1)


def separability(accuracies: Array) -> Array:
    """Separability of accuracies (..., models)."""
    return np.abs(accuracies - accuracies.mean(axis=-1, keepdims=True)).mean(axis=-1)


def consistency(accuracies: Array) -> Array:
    """Consistency of accuracies (..., models, generations), with two generations or more."""
    return 1.0 - accuracies.std(axis=-1, ddof=1).mean(axis=-1)


def novelty(current: Array, priors: Array) -> Array:
    """Novelty of accuracies (..., models) against those on priors (..., models, priors)."""
    actual = _rounded(current)
    centre = actual.mean(axis=-1, keepdims=True)
    columns = _rounded(priors)
    columns = _rounded(columns - columns.mean(axis=-2, keepdims=True))
    inverse = np.linalg.pinv(columns, rcond=RANK_TOLERANCE)
    weights = inverse @ (actual - centre)[..., None]
    predicted = _rounded((columns @ weights)[..., 0] + centre)
    return np.clip(1.0 - _rank_correlation(predicted, actual), 0.0, 1.0)


def _rank_correlation(left: Array, right: Array) -> Array:
    """Spearman's correlation over the last axis, with average ranks; 0 where undefined."""
    middle = (left.shape[-1] + 1) / 2
    a, b = (np.asarray(rankdata(values, axis=-1)) - middle for values in (left, right))
    spread = np.sqrt((a * a).sum(axis=-1) * (b * b).sum(axis=-1))
    return np.divide((a * b).sum(axis=-1), spread, out=np.zeros_like(spread), where=spread > 0)


def _rounded(values: Array) -> Array:
    return np.round(values, DECIMALS)


def _vector(accuracies: Accuracies) -> Array:
    if isinstance(accuracies, Mapping):
        named = [(f"model {name!r}", value) for name, value in accuracies.items()]
    else:
        named = [(f"number {index}", value) for index, value in enumerate(accuracies)]
    if not named:
        raise ValueError("no accuracies: give one model or more")
    return np.array([_accuracy(value, name) for name, value in named])


def _accuracy(value: Any, name: str) -> float:
    number = float(value)
    if math.isnan(number) or not 0.0 <= number <= 1.0:
        raise ValueError(f"accuracy of {name} is {number}, not in [0, 1]")
    return number
