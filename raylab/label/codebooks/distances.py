"""Distances between sets of labels, from a table of distances between labels."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from scipy.optimize import linear_sum_assignment

from raylab.core.errors import DataError
from raylab.label.codebooks.codebook import Categories

TOLERANCE = 1e-9
Table = Sequence[Sequence[float]]


@dataclass(frozen=True, eq=False)
class Distance:
    """Distances between N labels, and so between sets of them.

    Attributes:
        version: Name recorded with results.
        labels: The labels.
        table: (N, N) distances in [0, 1], in the order of the labels; a metric.
    """

    version: str
    labels: Sequence[str]
    table: Table

    def __call__(self, a: Categories, b: Categories) -> float:
        """Returns the 1-Wasserstein distance of uniform masses on two sets of labels, in [0, 1].

        Both sets are expanded to lcm(|a|, |b|) equal masses, for which an optimal transport is an
        assignment. The result is exact, and a metric since the distance of the labels is one. A set
        must not be empty.
        """
        return _wasserstein(self, a, b)


@lru_cache(maxsize=1 << 15)
def _wasserstein(distance: Distance, a: Categories, b: Categories) -> float:
    if not a or not b:
        raise ValueError("an empty set of labels has no distance to another")
    size = math.lcm(len(a), len(b))
    rows, columns = (
        np.repeat([distance.labels.index(label) for label in sorted(each)], size // len(each))
        for each in (a, b)
    )
    costs = np.array(distance.table)[np.ix_(rows, columns)]
    return float(costs[linear_sum_assignment(costs)].mean())


def equal_sets(a: Categories, b: Categories) -> float:
    """Returns the same distance where that of two labels is 0 or 1: the mass that must move."""
    return 1.0 - len(a & b) / max(len(a), len(b))


def check_metric(table: Table, labels: Sequence[str], where: str) -> None:
    """Refuses a table that is no metric in [0, 1] on the labels; the error begins with `where`."""
    if {*map(len, (table, *table))} != {len(labels)}:
        raise DataError(f"{where}: should have a row and a column for each of {', '.join(labels)}")
    values = np.array(table)
    ways = (values[:, :, None] + values).min(axis=1)
    same = np.eye(len(values), dtype=bool)
    for wrong, rule in (
        (same & (values != 0), "0"),
        (~same & ~((values > 0) & (values <= 1)), "above 0 and at most 1"),
        (values != values.T, "equal in both directions"),
        (values > ways + TOLERANCE, "at most the way by another label (the triangle inequality)"),
    ):
        if wrong.any():
            row, column = np.argwhere(wrong)[0]
            pair = f"{labels[row]}-{labels[column]} is {values[row, column]:g}"
            raise DataError(f"{where}: {pair}, should be {rule}")
