"""Distances between sets of labels, numbers, texts, and records of them."""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from rapidfuzz.distance import Levenshtein
from scipy.optimize import linear_sum_assignment

from raylab.core.errors import DataError
from raylab.label.codebooks.codebook import INTERVAL, Categories, in_field
from raylab.label.config.codebook import FieldConfig

TOLERANCE = 1e-9
NOTHING = "-"
"""The value of a field that an answer leaves empty."""
NOMINAL = "nominal"
WASSERSTEIN = "W1"
Table = Sequence[Sequence[float]]
Measure = Callable[[Categories, Categories], float]


@dataclass(frozen=True, eq=False)
class FieldDistance:
    """The distance of the values of a field; an empty value has distance 1 from all others.

    Attributes:
        level: Level of measurement, or the name of the metric.
        measure: Distance in [0, 1] of two values that are there, as sets of categories.
        version: Name recorded with results.
    """

    level: str
    measure: Measure
    version: str = ""

    def __call__(self, a: Categories, b: Categories) -> float:
        """Returns the distance of two values, in [0, 1]."""
        if a == b:
            return 0.0
        is_empty = any(category.endswith(f": {NOTHING}") for category in a | b)
        return 1.0 if is_empty or not (a and b) else self.measure(a, b)


@dataclass(frozen=True, eq=False)
class RecordDistance:
    """The mean distance of the fields of two answers, each in [0, 1].

    Attributes:
        version: Name recorded with results.
        fields: The distance of each field that is compared, by its name.
    """

    version: str
    fields: Mapping[str, FieldDistance]
    level: str = "mean of the fields"

    def __call__(self, a: Categories, b: Categories) -> float:
        """Returns the distance of two answers, over the fields that both have."""
        distances = [
            distance(ours, theirs)
            for name, distance in self.fields.items()
            if (ours := in_field(a, name)) and (theirs := in_field(b, name))
        ]
        return sum(distances) / len(distances) if distances else 1.0


def wasserstein(labels: Sequence[str], table: Table) -> Measure:
    """Returns the 1-Wasserstein distance of uniform masses on two sets of labels, in [0, 1].

    It is exact, and a metric if the distance of the labels is one.

    Args:
        table: (N, N) distances in [0, 1] between the labels, in their order.
    """
    places, costs = {label: place for place, label in enumerate(labels)}, np.array(table)

    @lru_cache(maxsize=1 << 15)
    def measure(a: Categories, b: Categories) -> float:
        # Both sets become lcm(|a|, |b|) equal masses, for which a transport is an assignment.
        size = math.lcm(len(a), len(b))
        rows, columns = (
            np.repeat([places[label] for label in sorted(each)], size // len(each))
            for each in (a, b)
        )
        moves = costs[np.ix_(rows, columns)]
        return float(moves[linear_sum_assignment(moves)].mean())

    return measure


def equal_sets(a: Categories, b: Categories) -> float:
    """Returns the 1-Wasserstein distance where that of two labels is 0 or 1: what must move."""
    return 1.0 - len(a & b) / max(len(a), len(b))


def jaccard(a: Categories, b: Categories) -> float:
    """Returns 1 minus the share of the labels of either set that are in both."""
    return 1.0 - len(a & b) / len(a | b)


def masi(a: Categories, b: Categories) -> float:
    """Returns the MASI distance (Passonneau, LREC 2006), with the weights of NLTK."""
    weight = 1.0 if a == b else 2 / 3 if a < b or b < a else 1 / 3 if a & b else 0.0
    return 1.0 - len(a & b) / len(a | b) * weight


def text_distance(a: Categories, b: Categories) -> float:
    """Returns the edits between two texts as a share of the longer one, whatever their case."""
    return Levenshtein.normalized_distance(_value(a).casefold(), _value(b).casefold())


def _value(categories: Categories) -> Any:
    return json.loads(next(iter(categories)).partition(": ")[2])


def field_distance(name: str, field: FieldConfig, version: str) -> FieldDistance:
    """Returns the distance of the values of a field that a codebook describes.

    Raises:
        DataError: Its table of distances is no metric.
    """
    level, measure = NOMINAL, equal_sets
    names = [f"{name}: {label}" if name else label for label in field.labels or ()]
    match field.distance:
        case _ if field.text and field.compare == "similar":
            level, measure = "Levenshtein", text_distance
        case "graded" if field.number:
            span = field.number[1] - field.number[0]
            level, measure = INTERVAL, lambda a, b: abs(_value(a) - _value(b)) / span
        case "graded":
            steps, most = range(len(names)), len(names) - 1
            table = [[abs(i - j) / most for j in steps] for i in steps]
            level, measure = INTERVAL, wasserstein(names, table)
        case "jaccard" | "masi" as level:
            measure = {"jaccard": jaccard, "masi": masi}[level]
        case tuple() as table:
            check_metric(table, names, f"distance of {name or 'the labels'}")
            level, measure = "table", wasserstein(names, table)
        case _:
            pass
    if field.several and level in (NOMINAL, INTERVAL, "table"):
        level = WASSERSTEIN
    return FieldDistance(level, measure, version)


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
