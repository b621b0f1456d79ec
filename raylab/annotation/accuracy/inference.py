"""Prediction-powered inference of a share: few true labels correct many predicted ones.

The estimate is that of PPI++ (Angelopoulos, Duchi and Zrnic 2023, arXiv 2311.01453), a mean with
power tuning; with weight 1 it is that of Angelopoulos et al. (2023, Science 382:669). Its published
interval is normal. For a share near 1 that fails: with 10 of 200 cases labelled and 90 % right it
held the truth in 60 % of simulated batches, with 98 % right in 18 %. So the interval is Wilson's
with the effective number of labels, as for shares from surveys (Franco, Little, Louis and Slud
2019, Journal of Survey Statistics and Methodology 7:334). It held the truth in 92 to 97 % of
batches of all kinds, and is up to 18 % narrower than Wilson's of the labels alone; measured by
`python -m tests.annotation.accuracy.coverage`.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import stats

Z = float(stats.norm.ppf(0.975))

Array = NDArray[np.float64]


@dataclass(frozen=True)
class PredictedShare:
    """A share estimated from labels and predictions.

    Attributes:
        value: The estimate, in [0, 1].
        interval: 95 % interval.
        weight: Weight of the predictions, from 0 (the labels alone) to 1.
    """

    value: float
    interval: tuple[float, float]
    weight: float


def predicted_share(labels: Array, predicted: Array, everywhere: Array) -> PredictedShare:
    """Estimates a share over all units from the labels of a random sample of them.

    Args:
        labels: (n,) 0 or 1 for each unit of the sample; two at least.
        predicted: (n,) prediction for the same units, in any units.
        everywhere: (N,) prediction for every unit, those of the sample included.

    Raises:
        ValueError: The sample has fewer than two units, or its arrays differ in length.
    """
    n, total = len(labels), len(everywhere)
    if n < 2 or len(predicted) != n:
        raise ValueError(f"{n} labels and {len(predicted)} predictions: give two or more of each")
    weight = _weight(labels, predicted, everywhere)
    rectified = labels - weight * predicted
    value = float(np.clip(weight * everywhere.mean() + rectified.mean(), 0.0, 1.0))
    variance = weight**2 * everywhere.var(ddof=1) / total + rectified.var(ddof=1) / n
    size = float(n)
    if variance > 0 and 0 < value < 1:
        size = min(max(value * (1 - value) / float(variance), n), total)
    return PredictedShare(value, wilson_interval(value, size), weight)


def wilson_interval(share: float, size: float) -> tuple[float, float]:
    """Returns Wilson's 95 % score interval of a share for a size that need not be whole."""
    centre = (share + Z * Z / (2 * size)) / (1 + Z * Z / size)
    half = Z / (1 + Z * Z / size) * math.sqrt(share * (1 - share) / size + (Z / (2 * size)) ** 2)
    return max(centre - half, 0.0), min(centre + half, 1.0)


def _weight(labels: Array, predicted: Array, everywhere: Array) -> float:
    """Returns the weight of the predictions with the least variance, within [0, 1]."""
    n, total = len(labels), len(everywhere)
    spread = float(everywhere.var(ddof=1))
    if spread == 0:
        return 0.0
    together = float(np.cov(labels, predicted)[0, 1])
    return min(max(together / ((1 + n / total) * spread), 0.0), 1.0)
