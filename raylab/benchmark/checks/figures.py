"""Figures of a diagnosis: a value with its interval and what it says."""

import numpy as np
from numpy.typing import NDArray

from raylab.benchmark.figures.record import BenchmarkFigure

LEVEL = 0.05


def make_figure(
    value: float, interval: tuple[float, float] | None, sentence: str, no_interval: str = ""
) -> BenchmarkFigure:
    """Returns a figure with its 95 % interval, or with the reason why it has none."""
    reason = None if interval else no_interval
    return BenchmarkFigure(value=value, interval=interval, reason=reason, sentence=sentence)


def missing_figure(name: str, reason: str) -> BenchmarkFigure:
    """Returns a figure that cannot be computed, with the reason."""
    return BenchmarkFigure(reason=reason, sentence=f"{name} cannot be computed: {reason}.")


def points(share: float) -> str:
    """Returns a difference of shares in percentage points."""
    return f"{100 * share:.1f} points"


def interval_from_zero(draws: NDArray[np.float64]) -> tuple[float, float]:
    """Returns the 95 % interval of a value >= 0 from draws of its confidence distribution.

    Draws may be negative. Nothing lies below a true 0, so there the whole level is on one side
    (after Feldman and Cousins, Phys. Rev. D 57, 1998).
    """
    low, whole, high = np.quantile(draws, (LEVEL / 2, LEVEL, 1 - LEVEL / 2)).tolist()
    return max(low if low > 0 else whole, 0.0), max(high, 0.0)
