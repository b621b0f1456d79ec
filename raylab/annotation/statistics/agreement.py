"""Chance-corrected agreement of two annotators over many cases.

Only the counts of distinct pairs of answers are kept, so memory depends on the taxonomy and not on
the number of cases.
"""

from collections.abc import Callable, Mapping
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from raylab.annotation.statistics.estimates import DRAWS, Array, Estimate, bootstrap

TOLERANCE = 1e-9

Category = TypeVar("Category", bound=str)
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
        draws: Replicates of the percentile bootstrap; 0 leaves the interval out.
        seed: Seed of the bootstrap.
    """
    answered = {(a, b): n for (a, b), n in counts.items() if a and b and n}
    pairs = sorted(answered)
    number = {value: place for place, value in enumerate(sorted({v for p in pairs for v in p}))}
    places = np.array([[number[value] for value in pair] for pair in pairs], int)
    differences = 1.0 - np.eye(len(number))

    def kappa(cases: Array) -> Array:
        observed, a, b = _observed_and_margins(cases, places, differences)
        expected = 1.0 - (a * b).sum(-1) / a.sum(-1) ** 2
        return _one_less(observed, expected)

    return bootstrap([answered[pair] for pair in pairs], kappa, draws, seed)


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
        draws: Replicates of the percentile bootstrap; 0 leaves the interval out.
        seed: Seed of the bootstrap.
    """
    answered = {(a, b): n for (a, b), n in counts.items() if a and b and n}
    pairs = sorted(answered, key=lambda pair: [sorted(answer) for answer in pair])
    values = sorted({answer for pair in pairs for answer in pair}, key=sorted)
    number = {answer: place for place, answer in enumerate(values)}
    places = np.array([[number[answer] for answer in pair] for pair in pairs], int)
    table = np.array([[distance(a, b) ** 2 for b in values] for a in values])

    def alpha(cases: Array) -> Array:
        observed, a, b = _observed_and_margins(cases, places, table)
        margin = a + b
        size = margin.sum(-1)
        expected = ((margin @ table) * margin).sum(-1) / (size * (size - 1))
        return _one_less(observed, expected)

    return bootstrap([answered[pair] for pair in pairs], alpha, draws, seed)


def _observed_and_margins(
    cases: Array, places: NDArray[np.int_], table: Array
) -> tuple[Array, Array, Array]:
    """Returns the mean observed difference and the counts of each value, first and second.

    Args:
        cases: (..., pairs) numbers of cases.
        places: (pairs, 2) places of the two values of each pair.
        table: (values, values) differences.
    """
    given = np.eye(len(table))[places]
    observed = cases @ table[places[:, 0], places[:, 1]] / cases.sum(-1)
    return observed, cases @ given[:, 0], cases @ given[:, 1]


def _one_less(observed: Array, expected: Array) -> Array:
    """Returns 1 minus the ratio; NaN where the expectation is zero within `TOLERANCE`."""
    defined = expected > TOLERANCE
    return np.where(defined, 1.0 - observed / np.where(defined, expected, 1.0), np.nan)
