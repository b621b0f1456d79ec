"""Families that change or choose colours where they stand."""

import numpy as np

from raylab.arc.data.curriculum.dice import NONZERO, Dice
from raylab.arc.data.curriculum.family import Drawn, Family, Level, Rule
from raylab.arc.data.tasks import COLOURS


def one_colour(dice: Dice, _: Level) -> Rule:
    """Draws a rule that is a colour 1..9."""
    return (dice.one(NONZERO),)


def palette(dice: Dice, count: int, without: Rule = ()) -> list[int]:
    """Draws different colours 1..9 that are not those of a rule."""
    return dice.sample([colour for colour in NONZERO if colour not in without], count)


def _exchanges(dice: Dice, level: Level) -> Rule:
    return tuple(dice.sample(NONZERO, 6)[: 2 * level.number])


def _two_colours(dice: Dice, _: Level) -> Rule:
    return tuple(sorted(dice.sample(NONZERO, 2)))


def _draw_recolour(dice: Dice, level: Level, rule: Rule) -> Drawn:
    """Draws a grid that has all old and all new colours, so that it differs from an exchange."""
    others = palette(dice, 2, rule)
    grid = dice.cells(level.side(dice), level.side(dice), (*rule, *others))
    dice.scatter(grid, rule)
    table = np.arange(COLOURS, dtype=np.uint8)
    table[list(rule[::2])] = rule[1::2]
    return grid, table[grid]


def _draw_swap(dice: Dice, level: Level, rule: Rule) -> Drawn:
    grid = dice.cells(level.side(dice), level.side(dice), (*rule, *palette(dice, 2, rule)))
    dice.scatter(grid, rule)
    table = np.arange(COLOURS, dtype=np.uint8)
    table[list(rule)] = rule[::-1]
    return grid, table[grid]


def _draw_keep(dice: Dice, level: Level, rule: Rule) -> Drawn:
    """Draws a grid where another colour is commoner, so that it is not the commonest that stays."""
    others = palette(dice, 2, rule)
    grid = dice.cells(level.side(dice), level.side(dice), (0, *rule, *others))
    dice.scatter(grid, (*rule, *others))
    counts = np.bincount(grid.ravel(), minlength=COLOURS)
    if counts[others].max() <= counts[rule[0]]:
        return None
    return grid, np.where(grid == rule[0], grid, 0)


def _draw_common(dice: Dice, level: Level, _: Rule) -> Drawn:
    """Draws a grid that does not begin with the commonest colour, which would give it away."""
    colours = palette(dice, 2 + level.number)
    grid = dice.cells(level.side(dice), level.side(dice), colours)
    dice.scatter(grid, colours[:1] * (grid.size // 3))
    counts = np.bincount(grid.ravel(), minlength=COLOURS)
    most = counts.argmax()
    if (counts == counts[most]).sum() > 1 or grid[0, 0] == most:
        return None
    return grid, np.full((1, 1), most, np.uint8)


def _draw_border(dice: Dice, level: Level, rule: Rule) -> Drawn:
    grid = dice.cells(level.side(dice), level.side(dice), (0, *palette(dice, 3, rule)))
    framed = np.full_like(grid, rule[0])
    framed[1:-1, 1:-1] = grid[1:-1, 1:-1]
    return grid, framed


FAMILIES = (
    Family(
        "recolour",
        "A colour becomes another; at level 2 two do, at level 3 three.",
        _draw_recolour,
        _exchanges,
        "the old and the new colours",
    ),
    Family("swap", "Two colours change places.", _draw_swap, _two_colours, "the two colours"),
    Family("keep", "One colour remains.", _draw_keep, one_colour, "the colour"),
    Family("common", "The commonest colour, in one cell.", _draw_common),
    Family("border", "The edge is painted.", _draw_border, one_colour, "the colour of the edge"),
)
