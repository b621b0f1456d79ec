"""Figures of a diagnosis: a value with its interval, or the reason why there is none."""

import numpy as np
from numpy.typing import NDArray

from raylab.quality.record import QualityFigure

LEVEL = 0.05


class Finding(QualityFigure):
    """A figure and what it says."""

    sentence: str
    """A sentence or two for readers who do not know the statistics."""


def make_figure(
    value: float, interval: tuple[float, float] | None, sentence: str, no_interval: str = ""
) -> Finding:
    """Returns a figure of a value and its 95 % interval, or the reason why it has no interval."""
    return Finding(
        value=value,
        interval=interval,
        no_interval=None if interval else no_interval,
        sentence=sentence,
    )


def missing_figure(name: str, reason: str) -> Finding:
    """Returns a figure that cannot be computed, for this reason."""
    return Finding(reason=reason, sentence=f"{name} cannot be computed: {reason}.")


def points(share: float) -> str:
    """Returns a difference of shares in percentage points."""
    return f"{100 * share:.1f} points"


def interval_from_zero(draws: NDArray[np.float64]) -> tuple[float, float]:
    """Returns the 95 % interval of a value >= 0 from draws of its confidence distribution.

    Draws may be negative. Nothing lies below a true 0, so that it has the whole level on one side
    (after Feldman and Cousins, Phys. Rev. D 57, 1998).
    """
    low, whole, high = np.quantile(draws, (LEVEL / 2, LEVEL, 1 - LEVEL / 2)).tolist()
    return max(low if low > 0 else whole, 0.0), max(high, 0.0)
