"""Families that count, sort or compare."""

import numpy as np

from raylab.arc.data.curriculum.colours import palette
from raylab.arc.data.curriculum.dice import NONZERO, Dice
from raylab.arc.data.curriculum.family import Drawn, Family, Level, Rule
from raylab.arc.data.curriculum.geometry import either

LINE = 5
"""Colour of the line between the halves of `logic`."""
OPERATIONS = ("both halves", "one half or both", "one half alone", "neither half")


def _draw_bars(dice: Dice, level: Level, _: Rule) -> Drawn:
    counts = sorted(dice.sample(range(1, 3 + 2 * level.number), 1 + level.number), reverse=True)
    colours = palette(dice, len(counts))
    grid = np.zeros((level.side(dice), level.side(dice)), np.uint8)
    dice.scatter(grid, [c for c, count in zip(colours, counts, strict=True) for _ in range(count)])
    bars = np.zeros((len(counts), counts[0]), np.uint8)
    for bar, colour, count in zip(bars, colours, counts, strict=True):
        bar[:count] = colour
    return grid, bars


def _draw_sort(dice: Dice, level: Level, rule: Rule) -> Drawn:
    """Draws as many columns as rows at most, so that all heights can differ."""
    height = level.side(dice)
    width = dice.between(level.low, height)
    heights = np.array(dice.sample(range(1, height + 1), width))
    colours = dice.cells(1, width, NONZERO)
    order = np.argsort(heights if rule[0] == 0 else -heights)
    rows = np.arange(height, 0, -1)[:, None]
    before = np.where(rows <= heights, colours, 0)
    after = np.where(rows <= heights[order], colours[:, order], 0)
    return before.astype(np.uint8), after.astype(np.uint8)


def _operation(dice: Dice, _: Level) -> Rule:
    return dice.below(len(OPERATIONS)), dice.one([c for c in NONZERO if c != LINE])


def _draw_logic(dice: Dice, level: Level, rule: Rule) -> Drawn:
    """Draws two halves in which all four cases occur."""
    height = level.side(dice)
    width = dice.between(max(2, level.low // 2), (level.high - 1) // 2)
    cases = dice.cells(height, width, range(4))
    dice.scatter(cases, range(4))
    first, second = cases & 1 == 1, cases & 2 == 2
    colours = palette(dice, 2, (LINE, rule[1]))
    line = np.full((height, 1), LINE)
    grid = np.hstack((first * colours[0], line, second * colours[1]))
    chosen = (first & second, first | second, first ^ second, ~(first | second))[rule[0]]
    return grid.astype(np.uint8), (chosen * rule[1]).astype(np.uint8)


def _draw_overlay(dice: Dice, level: Level, _: Rule) -> Drawn:
    """Draws two halves with each case: either covers the other, and both are empty or differ."""
    height, width = level.side(dice), level.even(dice)
    colours = palette(dice, 4)
    left, right = (dice.cells(height, width // 2, (0, 0, 0, *colours)) for _ in range(2))
    covered = (left > 0) & (right > 0) & (left != right)
    if not covered.any() or not ((left == 0) & (right > 0)).any():
        return None
    return np.hstack((left, right)), np.where(left > 0, left, right)


FAMILIES = (
    Family("bars", "The cells of each colour become a bar, the longest first.", _draw_bars),
    Family("sort", "Columns are sorted by height.", _draw_sort, either, "rising or falling"),
    Family(
        "logic",
        "The halves beside the line are compared, cell by cell.",
        _draw_logic,
        _operation,
        "cells in both halves, in one or both, in one alone or in neither, and their colour",
    ),
    Family("overlay", "The left half lies over the right one.", _draw_overlay),
)
