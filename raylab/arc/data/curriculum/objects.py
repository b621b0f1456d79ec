"""Families of things on a background: boxes, points and lines."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from raylab.arc.data.curriculum.colours import one_colour, palette
from raylab.arc.data.curriculum.dice import NONZERO, Dice
from raylab.arc.data.curriculum.family import Drawn, Family, Level, Rule
from raylab.arc.data.curriculum.geometry import DIRECTIONS, direction
from raylab.arc.data.tasks import Grid

TRIES = 10


class _Box(NamedTuple):
    top: int
    left: int
    height: int
    width: int

    @property
    def area(self) -> int:
        return self.height * self.width

    def cells(self, grid: Grid, margin: int = 0) -> Grid:
        """Returns a view of the cells of the box, with those around it up to a margin."""
        top, left = max(0, self.top - margin), max(0, self.left - margin)
        bottom, right = self.top + self.height + margin, self.left + self.width + margin
        return grid[top:bottom, left:right]


def _boxes(dice: Dice, shape: Sequence[int], count: int, least: int, most: int) -> list[_Box]:
    """Draws boxes that do not touch, of sides least..most; fewer where there is no room."""
    taken = np.zeros(tuple(shape), np.uint8)
    boxes: list[_Box] = []
    for _ in range(count * TRIES):
        height, width = (dice.between(least, min(most, side)) for side in shape)
        box = _Box(
            dice.between(0, shape[0] - height), dice.between(0, shape[1] - width), height, width
        )
        if not box.cells(taken, 1).any():
            box.cells(taken)[:] = 1
            boxes.append(box)
            if len(boxes) == count:
                break
    return boxes


def _empty(dice: Dice, level: Level) -> Grid:
    return np.zeros((level.side(dice), level.side(dice)), np.uint8)


def _draw_gravity(dice: Dice, level: Level, rule: Rule) -> Drawn:
    colours = (0, 0, 0, 0, *palette(dice, 3))
    grid = dice.cells(level.side(dice), level.side(dice), colours)
    rightwards = np.rot90(grid, rule[0])
    order = np.argsort(rightwards != 0, axis=1, kind="stable")
    return grid, np.rot90(np.take_along_axis(rightwards, order, axis=1), -rule[0])


def _draw_fill(dice: Dice, level: Level, rule: Rule) -> Drawn:
    """Draws rings; at level 2 and 3 some have a gap in a side, and stay empty.

    Some cells lie outside all rings, so that it is not everything beside a ring that is painted.
    """
    grid = _empty(dice, level)
    boxes = _boxes(dice, grid.shape, level.number, 3, 2 + 2 * level.number)
    if len(boxes) < level.number:
        return None
    colours = palette(dice, 3, rule)
    filled = grid.copy()
    for index, box in enumerate(boxes):
        ring = dice.cells(box.height, box.width, colours)
        ring[1:-1, 1:-1] = 0
        is_open = index > 0 and dice.below(2) == 1
        if is_open:
            ring[dice.one((0, -1)), dice.between(1, box.width - 2)] = 0
        box.cells(grid)[:] = ring
        if not is_open:
            ring[1:-1, 1:-1] = rule[0]
        box.cells(filled)[:] = ring
    return None if filled.all() else (grid, filled)


def _draw_connect(dice: Dice, level: Level, _: Rule) -> Drawn:
    """Draws pairs of points of a colour, and single points, all in lines of their own.

    Single points are not at the ends of their line, where a ray would not show.
    """
    grid = _empty(dice, level)
    height, width = grid.shape
    lines = dice.sample(range(height), level.number + dice.between(1, 1 + level.number))
    joined = grid.copy()
    for index, (y, colour) in enumerate(zip(lines, palette(dice, len(lines)), strict=True)):
        if index < level.number:
            first = dice.below(width - 2)
            last = dice.between(first + 2, width - 1)
        else:
            first = last = dice.between(1, width - 2)
        grid[y, [first, last]] = colour
        joined[y, first : last + 1] = colour
    return (grid.T, joined.T) if dice.below(2) else (grid, joined)


def _draw_ray(dice: Dice, level: Level, rule: Rule) -> Drawn:
    """Draws points in lines of their own, none at the end of its line."""
    grid = _empty(dice, level)
    rays = grid.copy()
    height, width = grid.shape
    for y in dice.sample(range(height), dice.between(1, 2 + level.number)):
        x, colour = dice.below(width - 1), dice.one(NONZERO)
        grid[y, x] = rays[y, x:] = colour
    return np.rot90(grid, -rule[0]), np.rot90(rays, -rule[0])


def _draw_outline(dice: Dice, level: Level, rule: Rule) -> Drawn:
    grid = _empty(dice, level)
    outlined = grid.copy()
    colours = palette(dice, 3, rule)
    boxes = _boxes(dice, grid.shape, dice.between(1, 1 + level.number), 1, 1 + level.number)
    for box in boxes:
        box.cells(outlined, 1)[:] = rule[0]
    for box in boxes:
        cells = dice.cells(box.height, box.width, colours)
        box.cells(grid)[:] = cells
        box.cells(outlined)[:] = cells
    return grid, outlined


def _draw_largest(dice: Dice, level: Level, _: Rule) -> Drawn:
    """Draws boxes of which one has more cells than each other."""
    grid = _empty(dice, level)
    boxes = _boxes(dice, grid.shape, 1 + level.number, 1, 2 + level.number)
    boxes.sort(key=lambda box: box.area)
    if len(boxes) < 2 or boxes[-1].area == boxes[-2].area:
        return None
    colours = palette(dice, len(boxes))
    for box, colour in zip(boxes, colours, strict=True):
        box.cells(grid)[:] = colour
    return grid, np.where(grid == colours[-1], grid, 0)


FAMILIES = (
    Family("gravity", "All cells fall.", _draw_gravity, direction, DIRECTIONS),
    Family(
        "fill",
        "The inside of closed rings is painted.",
        _draw_fill,
        one_colour,
        "the colour of the inside",
    ),
    Family("connect", "Two points of a colour are joined.", _draw_connect),
    Family("ray", "Points shoot to the edge.", _draw_ray, direction, DIRECTIONS),
    Family(
        "outline", "Boxes get an outline.", _draw_outline, one_colour, "the colour of the outline"
    ),
    Family("largest", "The largest box remains.", _draw_largest),
)
