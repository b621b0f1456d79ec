"""Families that move cells: symmetries, shifts, parts and repetitions."""

from collections.abc import Callable

import numpy as np

from raylab.arc.data.curriculum.dice import NONZERO, Dice
from raylab.arc.data.curriculum.family import Drawn, Family, Level, Rule
from raylab.arc.data.tasks import COLOURS, Grid


def _picture(dice: Dice, height: int, width: int) -> Grid:
    """Returns a grid of three to six colours, any of the ten."""
    return dice.cells(height, width, dice.sample(range(COLOURS), dice.between(3, 6)))


def _moved(move: Callable[[Grid], Grid]) -> Callable[[Dice, Level, Rule], Drawn]:
    """Returns a generator of grids, of which all eight symmetries differ, and of them moved."""

    def draw(dice: Dice, level: Level, _: Rule) -> Drawn:
        grid = _picture(dice, level.side(dice), level.side(dice))
        turned = [view for one in (grid, grid.T) for view in (one, one[::-1])]
        views = {(view.shape, view.tobytes()) for one in turned for view in (one, one[:, ::-1])}
        return (grid, move(grid)) if len(views) == 8 else None

    return draw


def either(dice: Dice, _: Level) -> Rule:
    """Draws a rule that is 0 or 1."""
    return (dice.below(2),)


def direction(dice: Dice, _: Level) -> Rule:
    """Draws a rule that is a direction, the position of its step in `STEPS`."""
    return (dice.below(4),)


STEPS = ((0, 1), (1, 0), (0, -1), (-1, 0))
"""Row and column of a step to the right, down, to the left and up."""


def _draw_shift(dice: Dice, level: Level, rule: Rule) -> Drawn:
    grid = _picture(dice, level.side(dice), level.side(dice))
    return grid, np.roll(grid, STEPS[rule[0]], axis=(0, 1))


def _draw_crop(dice: Dice, level: Level, _: Rule) -> Drawn:
    """Draws a box that is not in the corner where a copy of the input would show it."""
    grid = np.zeros((level.side(dice), level.side(dice)), np.uint8)
    height, width = (dice.between(2, side - 1) for side in grid.shape)
    top, left = dice.between(0, grid.shape[0] - height), dice.between(0, grid.shape[1] - width)
    if top == left == 0:
        return None
    box = dice.cells(height, width, dice.sample(NONZERO, 3))
    grid[top : top + height, left : left + width] = box
    return grid, box


def _draw_double(dice: Dice, level: Level, _: Rule) -> Drawn:
    grid = _picture(dice, level.half(dice), level.half(dice))
    return grid, np.kron(grid, np.ones((2, 2), np.uint8))


def _draw_beside(second: Callable[[Grid], Grid]) -> Callable[[Dice, Level, Rule], Drawn]:
    """Returns a generator of grids, and of them with another beside (rule 0) or below (rule 1)."""

    def draw(dice: Dice, level: Level, rule: Rule) -> Drawn:
        grid = _picture(dice, level.side(dice), level.half(dice))
        other = second(grid)
        if np.array_equal(grid, grid[:, ::-1]):
            return None
        both = np.hstack((grid, other))
        return (grid, both) if rule[0] == 0 else (grid.T, both.T)

    return draw


def _draw_half(dice: Dice, level: Level, rule: Rule) -> Drawn:
    grid = _picture(dice, level.side(dice), level.even(dice))
    right = grid[:, grid.shape[1] // 2 :]
    return (grid.T, right.T) if rule[0] else (grid, right)


def _draw_symmetry(dice: Dice, level: Level, rule: Rule) -> Drawn:
    grid = dice.cells(level.side(dice), level.side(dice), dice.sample(NONZERO, 4))
    height, width = grid.shape
    half = width // 2
    grid[:, width - half :] = grid[:, :half][:, ::-1]
    hidden = grid.copy()
    rows, columns = dice.between(1, (height + 1) // 2), dice.between(1, half)
    top = dice.between(0, height - rows)
    left = dice.between(0, half - columns) + dice.one((0, width - half))
    hidden[top : top + rows, left : left + columns] = 0
    return (hidden.T, grid.T) if rule[0] else (hidden, grid)


DIRECTIONS = "to the right, down, to the left or up"

FAMILIES = (
    Family("flip_columns", "Left and right change places.", _moved(np.fliplr)),
    Family("flip_rows", "Top and bottom change places.", _moved(np.flipud)),
    Family(
        "quarter_turn",
        "The grid turns by 90 degrees, clockwise.",
        _moved(lambda grid: np.rot90(grid, -1)),
    ),
    Family("half_turn", "The grid turns by 180 degrees.", _moved(lambda g: np.rot90(g, 2))),
    Family("transpose", "Rows become columns.", _moved(np.transpose)),
    Family(
        "shift", "All cells move by one, and around the edge.", _draw_shift, direction, DIRECTIONS
    ),
    Family("crop", "The box alone remains.", _draw_crop),
    Family("double", "Each cell becomes two by two cells.", _draw_double),
    Family(
        "tile",
        "The grid stands there twice.",
        _draw_beside(lambda grid: grid),
        either,
        "beside or below each other",
    ),
    Family(
        "unfold",
        "The grid and its mirror image.",
        _draw_beside(np.fliplr),
        either,
        "beside or below each other",
    ),
    Family("half", "One half remains.", _draw_half, either, "the right or the lower one"),
    Family(
        "symmetry",
        "What is hidden of a symmetric pattern appears.",
        _draw_symmetry,
        either,
        "left and right or top and bottom are alike",
    ),
)
