"""Chance-corrected agreement of two annotators over many cases.

Only the counts of distinct pairs of answers are kept, so memory depends on the taxonomy and not on
the number of cases.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

import numpy as np

from raylab.annotation.statistics.estimates import DRAWS, Array, Estimate, agreement

TOLERANCE = 1e-9

Category = TypeVar("Category", bound=str)
Answer = TypeVar("Answer")
SetDistance = Callable[[frozenset[Category], frozenset[Category]], float]
"""A distance of two non-empty sets of categories, in [0, 1]; a metric."""


def cohen_kappa(
    counts: Mapping[tuple[Category | None, Category | None], int],
    draws: int = DRAWS,
    seed: int = 307,
) -> Estimate:
    """Computes Cohen's kappa (1960) of two annotators' primary categories.

    In [-1, 1]; 1 is full agreement. Undefined if both always gave the same category, so that
    chance alone explains their agreement.

    Args:
        counts: Cases by the two answers, None for a missing one; those cases are left out.
        draws: Draws from the posterior for the interval; 0 leaves it out.
        seed: Seed of the draws.
    """
    answered = {(a, b): n for (a, b), n in counts.items() if a and b and n}
    values = sorted({value for pair in answered for value in pair})
    differences = 1.0 - np.eye(len(values))

    def kappa(cases: Array) -> Array:
        first, second = cases.sum(-1), cases.sum(-2)
        total = first.sum(-1)
        expected = 1.0 - (first * second).sum(-1) / total**2
        return _one_less((cases * differences).sum((-2, -1)) / total, expected)

    return agreement(_table(answered, values), kappa, draws, seed)


def krippendorff_alpha(
    counts: Mapping[tuple[frozenset[Category], frozenset[Category]], int],
    distance: SetDistance[Category],
    draws: int = DRAWS,
    seed: int = 307,
) -> Estimate:
    """Computes Krippendorff's alpha of two annotators' sets of categories.

    At most 1; 1 is full agreement. The difference function is the squared distance of the sets.
    Formula: Krippendorff, Computing Krippendorff's Alpha-Reliability (2011), for two observers.
    Undefined if all answers are the same set, so that no disagreement is expected.

    Args:
        counts: Cases by the two answers, an empty set for a missing one; those cases hold no
            pair of values and are left out.
        distance: Distance of two sets, in [0, 1].
        draws: Draws from the posterior for the interval; 0 leaves it out.
        seed: Seed of the draws.
    """
    answered = {(a, b): n for (a, b), n in counts.items() if a and b and n}
    values = sorted({answer for pair in answered for answer in pair}, key=sorted)
    differences = np.array([[distance(a, b) ** 2 for b in values] for a in values])

    def alpha(cases: Array) -> Array:
        margin = cases.sum(-1) + cases.sum(-2)
        size = margin.sum(-1)
        expected = ((margin @ differences) * margin).sum(-1) / (size * (size - 1))
        return _one_less((cases * differences).sum((-2, -1)) / (size / 2), expected)

    return agreement(_table(answered, values), alpha, draws, seed)


def _table(counts: Mapping[tuple[Answer, Answer], int], values: Sequence[Answer]) -> Array:
    """Returns the (values, values) numbers of cases, first annotator by second."""
    table = np.zeros((len(values), len(values)))
    for (first, second), count in counts.items():
        table[values.index(first), values.index(second)] = count
    return table


def _one_less(observed: Array, expected: Array) -> Array:
    """Returns 1 minus the ratio; NaN where the expectation is zero within `TOLERANCE`."""
    defined = expected > TOLERANCE
    return np.where(defined, 1.0 - observed / np.where(defined, expected, 1.0), np.nan)
