"""The families of the curriculum."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from raylab.arc.data.curriculum.family import (
    DIRECTIONS,
    NONZERO,
    STEPS,
    Dice,
    Drawn,
    Family,
    Level,
    Rule,
    draw_colour,
    draw_direction,
    draw_either,
    family,
)
from raylab.arc.data.tasks import COLOURS, Grid

BOX_TRIES = 10
"""Draws of each box that is placed."""
LINE = 5
"""Colour of the line between the halves of `logic`."""


# They move cells: symmetries, shifts, parts and repetitions.


def _picture(dice: Dice, height: int, width: int) -> Grid:
    """Returns a grid of three to six colours, any of the ten."""
    return dice.cells(height, width, dice.sample(range(COLOURS), dice.between(3, 6)))


def _move(name: str, says: str, move: Callable[[Grid], Grid]) -> Family:
    """Returns the family whose outputs are `move` of inputs without any symmetry."""

    def draw(dice: Dice, level: Level, _: Rule) -> Drawn:
        grid = _picture(dice, *level.shape(dice))
        turned = [view for side in (grid, grid.T) for view in (side, side[::-1])]
        views = {(view.shape, view.tobytes()) for side in turned for view in (side, side[:, ::-1])}
        # A symmetric input would fit several of the families.
        return (grid, move(grid)) if len(views) == 8 else None

    return Family(name, says, draw)


@family("All cells move by one and wrap around.", draw_direction, DIRECTIONS)
def shift(dice: Dice, level: Level, rule: Rule) -> Drawn:
    grid = _picture(dice, *level.shape(dice))
    return grid, np.roll(grid, STEPS[rule[0]], axis=(0, 1))


@family("Only the box remains.")
def crop(dice: Dice, level: Level, _: Rule) -> Drawn:
    """Draws a box that is not in the top left corner, where a copy of the input would show it."""
    grid = np.zeros(level.shape(dice), np.uint8)
    height, width = (dice.between(2, side - 1) for side in grid.shape)
    top, left = dice.between(0, grid.shape[0] - height), dice.between(0, grid.shape[1] - width)
    if top == left == 0:
        return None
    box = dice.cells(height, width, dice.sample(NONZERO, 3))
    grid[top : top + height, left : left + width] = box
    return grid, box


@family("Each cell becomes a block of two by two.")
def double(dice: Dice, level: Level, _: Rule) -> Drawn:
    grid = _picture(dice, level.half(dice), level.half(dice))
    return grid, np.kron(grid, np.ones((2, 2), np.uint8))


def _beside(name: str, says: str, second: Callable[[Grid], Grid]) -> Family:
    """Returns the family whose outputs are the input with `second` of it beside or below it."""

    def draw(dice: Dice, level: Level, rule: Rule) -> Drawn:
        grid = _picture(dice, level.side(dice), level.half(dice))
        if np.array_equal(grid, grid[:, ::-1]):
            return None
        both = np.hstack((grid, second(grid)))
        return (grid, both) if rule[0] == 0 else (grid.T, both.T)

    return Family(name, says, draw, draw_either, "beside or below it")


@family("One half remains.", draw_either, "the right or the lower half")
def half(dice: Dice, level: Level, rule: Rule) -> Drawn:
    grid = _picture(dice, level.side(dice), level.even(dice))
    right = grid[:, grid.shape[1] // 2 :]
    return (grid.T, right.T) if rule[0] else (grid, right)


@family(
    "The hidden part of a symmetric pattern is restored.",
    draw_either,
    "the axis: left and right, or top and bottom, match",
)
def symmetry(dice: Dice, level: Level, rule: Rule) -> Drawn:
    """Hides at least two rows of several colours, which hardly any other rule restores."""
    grid = dice.cells(*level.shape(dice), dice.sample(NONZERO, 6))
    height, width = grid.shape
    half = width // 2
    grid[:, width - half :] = grid[:, :half][:, ::-1]
    hidden = grid.copy()
    rows, columns = dice.between(2, (height + 1) // 2), dice.between(1, half)
    top = dice.between(0, height - rows)
    left = dice.between(0, half - columns) + dice.pick((0, width - half))
    patch = hidden[top : top + rows, left : left + columns]
    if (patch == patch[0, 0]).all():
        return None
    patch[:] = 0
    return (hidden.T, grid.T) if rule[0] else (hidden, grid)


# They change or choose colours where they stand.


@family(
    "One colour becomes another; at level 2 two colours do, at level 3 three.",
    lambda dice, level: tuple(dice.sample(NONZERO, 6)[: 2 * level.number]),
    "the old and the new colours",
)
def recolour(dice: Dice, level: Level, rule: Rule) -> Drawn:
    """Draws a grid with all old and all new colours, so that recolouring differs from swapping."""
    others = dice.palette(2, rule)
    grid = dice.cells(*level.shape(dice), (*rule, *others))
    dice.scatter(grid, rule)
    table = np.arange(COLOURS, dtype=np.uint8)
    table[list(rule[::2])] = rule[1::2]
    return grid, table[grid]


@family(
    "Two colours are swapped.",
    lambda dice, _: tuple(sorted(dice.sample(NONZERO, 2))),
    "the two colours",
)
def swap(dice: Dice, level: Level, rule: Rule) -> Drawn:
    grid = dice.cells(*level.shape(dice), (*rule, *dice.palette(2, rule)))
    dice.scatter(grid, rule)
    table = np.arange(COLOURS, dtype=np.uint8)
    table[list(rule)] = rule[::-1]
    return grid, table[grid]


@family("Only one colour remains.", draw_colour, "the colour")
def keep(dice: Dice, level: Level, rule: Rule) -> Drawn:
    """Draws a grid in which some colours are commoner and some rarer than the kept one."""
    others = dice.palette(3, rule)
    grid = dice.cells(*level.shape(dice), (0, *rule, *others))
    dice.scatter(grid, (*rule, *others))
    counts = np.bincount(grid.ravel(), minlength=COLOURS)
    if not counts[others].min() < counts[rule[0]] < counts[others].max():
        return None
    return grid, np.where(grid == rule[0], grid, 0)


@family("The output is one cell of the commonest colour.")
def common(dice: Dice, level: Level, _: Rule) -> Drawn:
    """Draws a grid that does not begin with the commonest colour, which would give it away."""
    colours = dice.palette(2 + level.number)
    grid = dice.cells(*level.shape(dice), colours)
    dice.scatter(grid, colours[:1] * (grid.size // 3))
    counts = np.bincount(grid.ravel(), minlength=COLOURS)
    most = counts.argmax()
    if (counts == counts[most]).sum() > 1 or grid[0, 0] == most:
        return None
    return grid, np.full((1, 1), most, np.uint8)


@family("The edge is painted.", draw_colour, "the colour of the edge")
def border(dice: Dice, level: Level, rule: Rule) -> Drawn:
    grid = dice.cells(*level.shape(dice), (0, *dice.palette(3, rule)))
    framed = np.full_like(grid, rule[0])
    framed[1:-1, 1:-1] = grid[1:-1, 1:-1]
    return grid, framed


# They have objects on a background: boxes, points and lines.


class _Box(NamedTuple):
    top: int
    left: int
    height: int
    width: int

    def cells(self, grid: Grid, margin: int = 0) -> Grid:
        """Returns a view of the cells of the box, with those around it up to a margin."""
        top, left = max(0, self.top - margin), max(0, self.left - margin)
        bottom, right = self.top + self.height + margin, self.left + self.width + margin
        return grid[top:bottom, left:right]


def _boxes(dice: Dice, shape: Sequence[int], count: int, least: int, most: int) -> list[_Box]:
    """Draws boxes with sides least..most that do not touch; fewer if there is no room."""
    taken = np.zeros(tuple(shape), np.uint8)
    boxes: list[_Box] = []
    for _ in range(count * BOX_TRIES):
        height, width = (dice.between(least, min(most, side)) for side in shape)
        box = _Box(
            dice.between(0, shape[0] - height), dice.between(0, shape[1] - width), height, width
        )
        # The margin keeps boxes from touching.
        if not box.cells(taken, 1).any():
            box.cells(taken)[:] = 1
            boxes.append(box)
            if len(boxes) == count:
                break
    return boxes


@family("All cells fall.", draw_direction, DIRECTIONS)
def gravity(dice: Dice, level: Level, rule: Rule) -> Drawn:
    colours = (0, 0, 0, 0, *dice.palette(3))
    grid = dice.cells(*level.shape(dice), colours)
    rightwards = np.rot90(grid, rule[0])
    order = np.argsort(rightwards != 0, axis=1, kind="stable")
    return grid, np.rot90(np.take_along_axis(rightwards, order, axis=1), -rule[0])


@family("The inside of closed rings is painted.", draw_colour, "the colour of the inside")
def fill(dice: Dice, level: Level, rule: Rule) -> Drawn:
    """Draws rings; at levels 2 and 3 some have a gap in a side, and stay empty.

    Some cells stay empty, so that painting all empty cells is wrong.
    """
    grid = np.zeros(level.shape(dice), np.uint8)
    boxes = _boxes(dice, grid.shape, level.number, 3, 2 + 2 * level.number)
    if len(boxes) < level.number:
        return None
    colours = dice.palette(3, rule)
    filled = grid.copy()
    for index, box in enumerate(boxes):
        ring = dice.cells(box.height, box.width, colours)
        ring[1:-1, 1:-1] = 0
        # The first ring is closed, so that something is painted.
        is_open = index > 0 and dice.below(2) == 1
        if is_open:
            ring[dice.pick((0, -1)), dice.between(1, box.width - 2)] = 0
        box.cells(grid)[:] = ring
        if not is_open:
            ring[1:-1, 1:-1] = rule[0]
        box.cells(filled)[:] = ring
    return None if filled.all() else (grid, filled)


@family("Two points of the same colour are joined.")
def connect(dice: Dice, level: Level, _: Rule) -> Drawn:
    """Draws pairs of points of a colour, and single points, each in a line of its own.

    No single point is at an end of its line, where a ray from it would not show.
    """
    grid = np.zeros(level.shape(dice), np.uint8)
    height, width = grid.shape
    lines = dice.sample(range(height), level.number + dice.between(1, 1 + level.number))
    joined = grid.copy()
    for index, (y, colour) in enumerate(zip(lines, dice.palette(len(lines)), strict=True)):
        if index < level.number:
            first = dice.below(width - 2)
            last = dice.between(first + 2, width - 1)
        else:
            first = last = dice.between(1, width - 2)
        grid[y, [first, last]] = colour
        joined[y, first : last + 1] = colour
    return (grid.T, joined.T) if dice.below(2) else (grid, joined)


@family("Each point extends to the edge.", draw_direction, DIRECTIONS)
def ray(dice: Dice, level: Level, rule: Rule) -> Drawn:
    """Draws points, each in a line of its own and not at its end."""
    grid = np.zeros(level.shape(dice), np.uint8)
    rays = grid.copy()
    height, width = grid.shape
    for y in dice.sample(range(height), dice.between(1, 2 + level.number)):
        x, colour = dice.below(width - 1), dice.pick(NONZERO)
        grid[y, x] = rays[y, x:] = colour
    return np.rot90(grid, -rule[0]), np.rot90(rays, -rule[0])


@family("Boxes get an outline.", draw_colour, "the colour of the outline")
def outline(dice: Dice, level: Level, rule: Rule) -> Drawn:
    grid = np.zeros(level.shape(dice), np.uint8)
    outlined = grid.copy()
    colours = dice.palette(3, rule)
    boxes = _boxes(dice, grid.shape, dice.between(1, 1 + level.number), 1, 1 + level.number)
    for box in boxes:
        box.cells(outlined, 1)[:] = rule[0]
    for box in boxes:
        cells = dice.cells(box.height, box.width, colours)
        box.cells(grid)[:] = cells
        box.cells(outlined)[:] = cells
    return grid, outlined


@family("Only the largest box remains.")
def largest(dice: Dice, level: Level, _: Rule) -> Drawn:
    """Draws a box that is higher and wider than all others; another one has its colour."""
    grid = np.zeros(level.shape(dice), np.uint8)
    remaining = grid.copy()
    boxes = _boxes(dice, grid.shape, 1 + level.number, 1, 2 + level.number)
    boxes.sort(key=lambda box: box.height * box.width)
    if len(boxes) < 2 or any(
        box.height >= boxes[-1].height or box.width >= boxes[-1].width for box in boxes[:-1]
    ):
        return None
    colours = dice.palette(len(boxes) - 1)
    for box, colour in zip(boxes, (*colours, dice.pick(colours)), strict=True):
        box.cells(grid)[:] = colour
    boxes[-1].cells(remaining)[:] = boxes[-1].cells(grid)
    return grid, remaining


# They count, sort or compare.


@family("The cells of each colour become a bar, longest first.")
def bars(dice: Dice, level: Level, _: Rule) -> Drawn:
    """Draws colours whose order of appearance is not that of their bars, nor the reverse."""
    counts = sorted(dice.sample(range(1, 3 + 2 * level.number), 2 + level.number), reverse=True)
    colours = dice.palette(len(counts))
    grid = np.zeros(level.shape(dice), np.uint8)
    dice.scatter(grid, [c for c, count in zip(colours, counts, strict=True) for _ in range(count)])
    if [*dict.fromkeys(grid[grid > 0].tolist())] in (colours, colours[::-1]):
        return None
    bars = np.zeros((len(counts), counts[0]), np.uint8)
    for bar, colour, count in zip(bars, colours, counts, strict=True):
        bar[:count] = colour
    return grid, bars


@family("Columns are sorted by height.", draw_either, "ascending or descending")
def sort(dice: Dice, level: Level, rule: Rule) -> Drawn:
    """Draws at most as many columns as rows, so that all heights can differ.

    Neither mirroring nor shifting the grid sorts them.
    """
    height = level.side(dice)
    width = dice.between(level.low, height)
    heights = np.array(dice.sample(range(1, height + 1), width))
    colours = dice.cells(1, width, NONZERO)
    order = np.argsort(heights if rule[0] == 0 else -heights)
    rows = np.arange(height, 0, -1)[:, None]
    before = np.where(rows <= heights, colours, 0)
    after = np.where(rows <= heights[order], colours[:, order], 0)
    simpler = before[:, ::-1], np.roll(before, 1, axis=1), np.roll(before, -1, axis=1)
    if any(np.array_equal(after, moved) for moved in simpler):
        return None
    return before.astype(np.uint8), after.astype(np.uint8)


@family(
    "The halves on both sides of the line are compared cell by cell.",
    lambda dice, _: (dice.below(4), dice.pick([c for c in NONZERO if c != LINE])),
    "the operation (and, or, xor or nor) and the output colour",
)
def logic(dice: Dice, level: Level, rule: Rule) -> Drawn:
    """Draws two halves in which all four cases occur."""
    height = level.side(dice)
    width = dice.between(max(2, level.low // 2), (level.high - 1) // 2)
    cases = dice.cells(height, width, range(4))
    dice.scatter(cases, range(4))
    first, second = cases & 1 == 1, cases & 2 == 2
    colours = dice.palette(2, (LINE, rule[1]))
    line = np.full((height, 1), LINE)
    grid = np.hstack((first * colours[0], line, second * colours[1]))
    chosen = (first & second, first | second, first ^ second, ~(first | second))[rule[0]]
    return grid.astype(np.uint8), (chosen * rule[1]).astype(np.uint8)


@family("The left half is laid over the right half.")
def overlay(dice: Dice, level: Level, _: Rule) -> Drawn:
    """Draws halves that differ in coloured cells, and cells that only the right half colours."""
    height, width = level.side(dice), level.even(dice)
    colours = dice.palette(4)
    left, right = (dice.cells(height, width // 2, (0, 0, 0, *colours)) for _ in range(2))
    covered = (left > 0) & (right > 0) & (left != right)
    if not covered.any() or not ((left == 0) & (right > 0)).any():
        return None
    return np.hstack((left, right)), np.where(left > 0, left, right)


_ALL = (
    _move("flip_columns", "Left and right are swapped.", np.fliplr),
    _move("flip_rows", "Top and bottom are swapped.", np.flipud),
    _move(
        "quarter_turn", "The grid is rotated by 90 degrees clockwise.", lambda g: np.rot90(g, -1)
    ),
    _move("half_turn", "The grid is rotated by 180 degrees.", lambda g: np.rot90(g, 2)),
    _move("transpose", "Rows become columns.", np.transpose),
    *(shift, crop, double),
    _beside("tile", "The grid is repeated once.", lambda g: g),
    _beside("unfold", "The mirror image is added to the grid.", np.fliplr),
    *(half, symmetry),
    *(recolour, swap, keep, common, border),
    *(gravity, fill, connect, ray, outline, largest),
    *(bars, sort, logic, overlay),
)
FAMILIES = {family.name: family for family in _ALL}
"""The families by name, in the order of their page."""
