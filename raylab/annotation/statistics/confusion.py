"""Confusion matrices of primary roots and of sets of roots.

Rows are of one side (gold, or A), columns of the other (an annotator, or B), both in the order of
`LABELS`: the seven roots, then `none` for a case without a code.
"""

import math
from collections.abc import Mapping

from raylab.annotation.statistics.estimates import Estimate, proportion
from raylab.opt.code import Root
from raylab.runs.records import Part

Roots = frozenset[str]
"""A set of roots; empty where there is no code."""
Matrix = tuple[tuple[float, ...], ...]

NONE = "none"
LABELS = (*(root.value for root in Root), NONE)
PLACE: Mapping[str | None, int] = {root: place for place, root in enumerate((*Root, None))}
UNIT = math.lcm(*range(1, len(Root) + 1))
"""Parts that a case is counted in, so that the sums stay exact."""


class RootFigures(Part):
    """How a root of gold is found."""

    gold: int
    """Cases whose gold names it."""
    answered: int
    """Cases whose code names it."""
    right: int
    """Cases where both name it."""
    recall: Estimate
    precision: Estimate


class ConfusionPanel(Part):
    """Two sides against each other, in the order of the labels."""

    rows: str
    """Name of the side that the rows are of."""
    columns: str
    sets: Matrix
    """See `set_confusion`."""
    primary: tuple[tuple[int, ...], ...]
    """See `primary_confusion`."""


class Confusion(Part):
    """Which roots are mistaken for which."""

    labels: tuple[str, ...]
    """Of the rows and columns."""
    panels: dict[str, ConfusionPanel]
    """`a_b` and, with gold, `gold_A`, `gold_B` and `gold_final`."""


def primary_confusion(
    counts: Mapping[tuple[str | None, str | None], int],
) -> tuple[tuple[int, ...], ...]:
    """Returns (8, 8) numbers of cases by the primary roots of two codes, None without a code."""
    matrix = _empty()
    for (row, column), count in counts.items():
        matrix[PLACE[row]][PLACE[column]] += count
    return tuple(map(tuple, matrix))


def set_confusion(counts: Mapping[tuple[Roots, Roots], int]) -> Matrix:
    """Returns (8, 8) numbers of roots, for codes that may name several.

    A root that both name counts 1 on the diagonal. Those that only one names are matched with those
    that only the other names at random, of which the expectation is counted: of m and n such roots
    each pair gets 1 / max(m, n), and what is left over of the longer side meets `none`. So a row
    sums to the cases whose row side names that root, a column to those whose column side does,
    and exchanging the sides transposes the matrix. Two cases without a code meet in the corner.

    Args:
        counts: Cases by the two sets.
    """
    parts = _empty()
    for (row, column), count in counts.items():
        for r, c, share in _matched(row, column):
            parts[r][c] += share * count
    return tuple(tuple(part / UNIT for part in line) for line in parts)


def by_root(matrix: Matrix) -> dict[str, RootFigures]:
    """Returns how each root of a matrix of `set_confusion` with gold rows is found.

    Recall and precision are proportions, each undefined without a case.
    """
    columns = [round(math.fsum(column)) for column in zip(*matrix, strict=True)]
    found: dict[str, RootFigures] = {}
    for place, root in enumerate(Root):
        gold, right = round(math.fsum(matrix[place])), round(matrix[place][place])
        found[root.value] = RootFigures(
            gold=gold,
            answered=columns[place],
            right=right,
            recall=proportion(right, gold),
            precision=proportion(right, columns[place]),
        )
    return found


def _empty() -> list[list[int]]:
    return [[0] * len(LABELS) for _ in LABELS]


def _matched(row: Roots, column: Roots) -> list[tuple[int, int, int]]:
    """Returns places of row and column, and the parts of a case that they get."""
    ours, theirs = [PLACE[r] for r in row - column], [PLACE[r] for r in column - row]
    common = [(PLACE[root], PLACE[root], UNIT) for root in row & column]
    nothing = PLACE[None]
    if not row and not column:
        return [(nothing, nothing, UNIT)]
    longest = max(len(ours), len(theirs))
    if not longest:
        return common
    share = UNIT // longest
    left = [(r, nothing, UNIT - share * len(theirs)) for r in ours]
    over = [(nothing, c, UNIT - share * len(ours)) for c in theirs]
    return common + [(r, c, share) for r in ours for c in theirs] + left + over
