"""Distances between sets of labels, from a table of distances between labels."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError
from scipy.optimize import linear_sum_assignment

from raylab.codebook import Categories
from raylab.config.base import Strict
from raylab.errors import DataError
from raylab.files import Place

TOLERANCE = 1e-9
Table = tuple[tuple[float, ...], ...]


@dataclass(frozen=True, eq=False)
class Distance:
    """Distances between N labels, and so between sets of them.

    Attributes:
        version: Name recorded with results.
        labels: The labels.
        table: (N, N) distances in [0, 1], in the order of the labels; a metric.
    """

    version: str
    labels: tuple[str, ...]
    table: Table

    def __call__(self, a: Categories, b: Categories) -> float:
        """Returns the 1-Wasserstein distance of uniform masses on two sets of labels, in [0, 1].

        Both sets are expanded to lcm(|a|, |b|) equal masses, for which an optimal transport is an
        assignment. The result is exact, and a metric since the distance of the labels is one.

        Raises:
            ValueError: A set is empty.
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


class _DistanceFile(Strict):
    version: str
    description: str = ""
    labels: tuple[str, ...]
    table: Table


def read_distance(location: str, labels: Sequence[str]) -> Distance:
    """Reads a table of distances between labels.

    Args:
        location: Path or URI of a JSON file `{"version": ..., "labels": [...], "table": [[...],
            ...]}` with these labels in any order.
        labels: The labels.

    Raises:
        DataError: The file cannot be read, or its table is no metric in [0, 1] on the labels.
        ConfigError: The storage of its URI cannot be opened.
    """
    place = Place.at(location)
    try:
        file = _DistanceFile.model_validate_json(place.read(), strict=True)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        key = ".".join(map(str, first["loc"])) or "the file"
        raise DataError(f"distances {place}: {key}: {first['msg']}") from error
    table = check_table(file.labels, labels, file.table, f"distances {place}")
    return Distance(file.version, tuple(labels), table)


def check_table(columns: Sequence[str], labels: Sequence[str], table: Table, where: str) -> Table:
    """Returns a table of distances in the order of the labels.

    Args:
        columns: The labels in the order of the table.
        labels: The same in another order.
        table: The distances.
        where: Names the table in errors.

    Raises:
        DataError: The table is no metric in [0, 1] on the labels.
    """
    if sorted(columns) != sorted(labels) or {*map(len, (table, *table))} != {len(labels)}:
        raise DataError(
            f"{where}: should have each of the labels {', '.join(labels)}, and a table with a row "
            "and a column for each"
        )
    order = [columns.index(label) for label in labels]
    ordered = np.array(table)[np.ix_(order, order)]
    _check_metric(ordered, labels, where)
    return tuple(map(tuple, ordered.tolist()))


def _check_metric(table: NDArray[np.float64], labels: Sequence[str], where: str) -> None:
    ways = (table[:, :, None] + table).min(axis=1)
    same = np.eye(len(table), dtype=bool)
    for wrong, rule in (
        (same & (table != 0), "0"),
        (~same & ~((table > 0) & (table <= 1)), "above 0 and at most 1"),
        (table != table.T, "equal in both directions"),
        (table > ways + TOLERANCE, "at most the way by another label (the triangle inequality)"),
    ):
        if wrong.any():
            row, column = np.argwhere(wrong)[0]
            pair = f"{labels[row]}-{labels[column]} is {table[row, column]:g}"
            raise DataError(f"{where}: {pair}, should be {rule}")
