"""Which roots are mistaken for which: confusion matrices of primary roots and of sets of roots.

Rows are of the one side (gold, or A), columns of the other (an annotator, or B), both in the order
of `LABELS`: the seven roots, then `none` for a case without a code.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from raylab.annotation.statistics.estimates import proportion
from raylab.opt.code import Root

Json = dict[str, Any]
Roots = frozenset[Root]
"""A set of roots; empty where there is no code."""
Matrix = list[list[float]]

NONE = "none"
LABELS = (*(root.value for root in Root), NONE)
PLACE: Mapping[Root | None, int] = {root: place for place, root in enumerate((*Root, None))}
UNIT = math.lcm(*range(1, len(Root) + 1))
"""Parts that a case is counted in, so that the sums stay exact."""


def primary_confusion(counts: Mapping[tuple[Root | None, Root | None], int]) -> Matrix:
    """(8, 8) numbers of cases by the primary roots of two codes, None where there is no code."""
    matrix = _empty()
    for (row, column), count in counts.items():
        matrix[PLACE[row]][PLACE[column]] += count
    return matrix


def set_confusion(counts: Mapping[tuple[Roots, Roots], int]) -> Matrix:
    """(8, 8) numbers of roots, for codes that may name several.

    A root that both name counts 1 on the diagonal. Those that only one names are matched with those
    that only the other names at random, of which the expectation is counted: of m and n such roots
    each pair gets 1 / max(m, n), and what is left over of the longer side meets `none`. So a row
    sums to the cases whose row side names that root, a column to those whose column side does,
    and exchanging the sides transposes the matrix. Two cases without a code meet in the corner.

    Args:
        counts: Cases by the two sets.
    """
    parts = [[0] * len(LABELS) for _ in LABELS]
    for (row, column), count in counts.items():
        for r, c, share in _matched(row, column):
            parts[r][c] += share * count
    return [[part / UNIT for part in line] for line in parts]


def by_root(matrix: Sequence[Sequence[float]]) -> dict[str, Json]:
    """How each root of a matrix of `set_confusion` with gold rows is found.

    Returns:
        By root, `gold` and `answered` (cases that name it) and `right` (cases where both do), with
        `recall` and `precision` as proportions, each undefined without a case.
    """
    columns = [round(math.fsum(column)) for column in zip(*matrix, strict=True)]
    found: dict[str, Json] = {}
    for place, root in enumerate(Root):
        gold, right = round(math.fsum(matrix[place])), round(matrix[place][place])
        found[root.value] = {
            "gold": gold,
            "answered": columns[place],
            "right": right,
            "recall": proportion(right, gold),
            "precision": proportion(right, columns[place]),
        }
    return found


def _empty() -> Matrix:
    return [[0] * len(LABELS) for _ in LABELS]


def _matched(row: Roots, column: Roots) -> list[tuple[int, int, int]]:
    """Places of row and column, and the parts of a case that they get."""
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
