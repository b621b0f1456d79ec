"""The power of paired comparisons: what a number of items can detect.

The power of McNemar's test is summed over the numbers of differing items, that of the t-test is the
noncentral t's, both for the pair with the median share of differing items or standard error.
"""

from bisect import bisect_left
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
from scipy.special import bdtrik, nctdtr, stdtrit

from raylab.benchmark.checks.sampling import FEW_CLUSTERS
from raylab.core.runs.records import Figure, Part
from raylab.core.stats import binomial

POWER = 0.8
CURVE = (0.125, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0)
"""Numbers of items on the curve of power, as multiples of the present one."""
GROWTH = 0.75
"""Share of items that models answer differently beyond that of equal models, over the squared
difference of their means: 0.7 to 0.85 where logits are normal and means between 0.5 and 0.75."""
MAX_ITEMS = 10**7
"""Most items that are an answer to what is needed."""
STEPS = 2**20
"""Number of differences among which the smallest is searched."""
TAIL = 1e-9
TINY = 1e-9

Power = Callable[[float, float], float]
"""Takes a multiple of the number of items and a difference > 0, returns the power."""


class PowerPoint(Part):
    """The difference that a number of items can detect."""

    items: int
    difference: float | None
    """Difference that is detected with a power of 80 %; None if even the largest is not."""


def typical_power(table: pd.DataFrame, exact: bool, level: float) -> Power | str:
    """Returns the power for a typical pair of `compare_pairs`, or the reason why it is unknown.

    The test is McNemar's where answers are `exact`, else the t-test.
    """
    usable: Any = table.dropna(subset=["error"])
    if usable.empty:
        if not len(table):
            return "it needs two models"
        share = table["items"].to_numpy().any()
        return "no pair has a standard error" if share else "these models share no items"
    if usable["clusters"].median() < FEW_CLUSTERS:
        usable = usable.assign(error=usable[["error", "unclustered"]].max(axis=1))
    typical = usable[["items", "differing", "error", "freedom"]].median()
    items, differing, error, freedom = typical.tolist()
    if exact:
        spread = usable["differing"] / usable["items"] - GROWTH * usable["difference"] ** 2
        share = max(float(spread.median()), TINY)
        return lambda times, gap: mcnemar_power(
            round(times * items), share + GROWTH * gap**2, gap, level
        )
    if differing < 1 - np.log2(level):
        return "the models differ on too few items"

    def student(times: float, gap: float) -> float:
        own = freedom * times
        missed = nctdtr(own, gap / error * times**0.5, stdtrit(own, 1 - level / 2))
        # It has no value where a difference is hardly ever missed.
        return 1 - float(np.nan_to_num(missed))

    return student


def mcnemar_power(items: int, differing: float, gap: float, level: float) -> float:
    """Returns the probability that McNemar's test detects a difference.

    Args:
        items: Their number.
        differing: Share of items that the models answer differently, at least `gap`.
        gap: The true difference, > 0.
        level: Level of the test.
    """
    differing = min(max(differing, gap), 1.0)
    low, high = bdtrik((TAIL, 1 - TAIL), items, differing) if differing < 1 else (items, items)
    # Of few items, the quantiles below the first and above the last number are NaN.
    low, high = np.nan_to_num(low, nan=0.0), np.nan_to_num(high, nan=float(items))
    numbers = np.arange(np.ceil(max(low, 0.0)), np.ceil(min(high, items)) + 1)
    critical = np.ceil(bdtrik(level / 2, np.maximum(numbers, 1), 0.5))
    # Rounding may end one too high; a test beyond its level would overstate its power.
    critical -= binomial(critical, numbers, 0.5) > level / 2 * (1 + TINY)
    detected = binomial(critical, numbers, (1 - gap / differing) / 2)
    up_to = binomial(np.append(numbers[0] - 1, numbers), items, differing)
    return float(np.diff(up_to) @ detected)


def smallest_difference(power: Power | str, times: float = 1.0) -> Figure:
    """Returns the difference that is detected with a multiple of the items."""
    if isinstance(power, str):
        return Figure(reason=power)
    # Power grows with the difference, so the smallest one is found by bisection.
    step = 1 + bisect_left(
        range(1, STEPS + 1), True, key=lambda step: power(times, step / STEPS) >= POWER
    )
    if step > STEPS:
        return Figure(reason="these items cannot tell any two models apart")
    reason = "it is a property of the items and the number of models, not an estimate"
    return Figure(value=step / STEPS, reason=reason)


def power_curve(power: Power | str, size: int) -> tuple[PowerPoint, ...]:
    """Returns the smallest differences for other numbers of items than the present one."""
    if isinstance(power, str):
        return ()
    return tuple(
        PowerPoint(items=items, difference=smallest_difference(power, items / size).value)
        for items in sorted({max(2, round(times * size)) for times in CURVE})
    )


def needed_items(power: Power | str, size: int, detect: float | None) -> Figure:
    """Returns the number of items that detect a difference."""
    if detect is None or isinstance(power, str):
        return Figure(reason=power if isinstance(power, str) else "no difference was named")
    low, high = 1, 2
    while power(high / size, detect) < POWER:
        low, high = high, 2 * high
        if high > MAX_ITEMS:
            return Figure(reason=f"it needs more than {MAX_ITEMS:,} items")
    while high - low > max(1, low // 1000):
        middle = (low + high) // 2
        low, high = (low, middle) if power(middle / size, detect) >= POWER else (middle, high)
    return Figure(value=high, reason="it is for a typical pair of these models, not an estimate")
