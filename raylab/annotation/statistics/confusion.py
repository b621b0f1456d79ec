"""Confusion matrices of primary roots and of sets of roots.

Rows belong to one side (gold, or A), columns to the other (an annotator, or B). Both are in the
order of the taxonomy's roots, followed by `none` for a case without a code.
"""

import math
from collections.abc import Iterator, Mapping, Sequence

from raylab.annotation.statistics.estimates import Estimate, proportion
from raylab.codebook import Categories
from raylab.runs.records import Part

Matrix = tuple[tuple[float, ...], ...]
NONE = "none"


class RootFigures(Part):
    """Counts of the cases that name a root in gold, in the code, and in both."""

    gold: int
    """Cases whose gold names it."""
    answered: int
    """Cases whose code names it."""
    right: int
    """Cases where both name it."""
    recall: Estimate
    precision: Estimate


class ConfusionPanel(Part):
    """The confusion matrices of two sides, in the order of the labels."""

    rows: str
    """Name of the side of the rows."""
    columns: str
    sets: Matrix
    """See `set_confusion`."""
    primary: tuple[tuple[int, ...], ...]
    """See `primary_confusion`."""


class Confusion(Part):
    """Confusion matrices of the sides of a run."""

    labels: tuple[str, ...]
    """Labels of the rows and columns."""
    panels: dict[str, ConfusionPanel]
    """`a_b` and, with gold, `gold_A`, `gold_B` and `gold_final`."""


def primary_confusion(
    counts: Mapping[tuple[str | None, str | None], int], categories: Sequence[str]
) -> tuple[tuple[int, ...], ...]:
    """Returns the numbers of cases by the primary roots of two codes.

    Args:
        counts: Cases by the two roots, None for a missing code.
        categories: All N roots, in order; the matrix has N + 1 rows and columns.
    """
    places = _places(categories)
    matrix = _empty(len(places))
    for (row, column), count in counts.items():
        matrix[places[row]][places[column]] += count
    return tuple(map(tuple, matrix))


def set_confusion(
    counts: Mapping[tuple[Categories, Categories], int], categories: Sequence[str]
) -> Matrix:
    """Returns the numbers of roots, for codes that may name several.

    A root that both name counts 1 on the diagonal. The roots that only one side names are matched
    at random with those that only the other names, and the expectation is counted: with m and n
    such roots each pair gets 1 / max(m, n), and the rest of the longer side counts under `none`.
    So a row sums to the cases whose row side names that root, a column to those whose column side
    does, and exchanging the sides transposes the matrix. A case without any code counts in the
    corner.

    Args:
        counts: Cases by the two sets, empty for a missing code.
        categories: All N roots, in order; the matrix has N + 1 rows and columns.
    """
    places, unit = _places(categories), math.lcm(*range(1, len(categories) + 1))
    parts = _empty(len(places))
    for (row, column), count in counts.items():
        for r, c, share in _matched(row, column, unit):
            parts[places[r]][places[c]] += share * count
    return tuple(tuple(part / unit for part in line) for line in parts)


def by_root(matrix: Matrix, categories: Sequence[str]) -> dict[str, RootFigures]:
    """Returns recall and precision of each root from a `set_confusion` with gold rows.

    Both are proportions, undefined without a case.
    """
    columns = [round(math.fsum(column)) for column in zip(*matrix, strict=True)]
    found: dict[str, RootFigures] = {}
    for place, root in enumerate(categories):
        gold, right = round(math.fsum(matrix[place])), round(matrix[place][place])
        found[root] = RootFigures(
            gold=gold,
            answered=columns[place],
            right=right,
            recall=proportion(right, gold),
            precision=proportion(right, columns[place]),
        )
    return found


def _places(categories: Sequence[str]) -> dict[str | None, int]:
    return {category: place for place, category in enumerate((*categories, None))}


def _empty(size: int) -> list[list[int]]:
    return [[0] * size for _ in range(size)]


def _matched(
    row: Categories, column: Categories, unit: int
) -> Iterator[tuple[str | None, str | None, int]]:
    """Yields the pairs of roots of a case, each with its number of parts of the case.

    Args:
        row: Roots of one side.
        column: Roots of the other.
        unit: Parts of a case, chosen so that every share is whole and the sums are exact.
    """
    if not row and not column:
        yield None, None, unit
    yield from ((root, root, unit) for root in row & column)
    ours, theirs = row - column, column - row
    share = unit // max(len(ours), len(theirs), 1)
    yield from ((r, c, share) for r in ours for c in theirs)
    yield from ((r, None, unit - share * len(theirs)) for r in ours)
    yield from ((None, c, unit - share * len(ours)) for c in theirs)
