"""What the families of the curriculum ask for, by other algorithms than those that draw them."""

from collections import Counter
from collections.abc import Callable

from raylab.arc.data.curriculum.family import STEPS, Rule

Rows = list[list[int]]
Verifier = Callable[[Rows, Rule], Rows]


def _placed(height: int, width: int, cell: Callable[[int, int], int]) -> Rows:
    return [[cell(y, x) for x in range(width)] for y in range(height)]


def _flipped_columns(rows: Rows, _: Rule) -> Rows:
    return [list(reversed(row)) for row in rows]


def _flipped_rows(rows: Rows, _: Rule) -> Rows:
    return list(reversed(rows))


def _quarter(rows: Rows, _: Rule) -> Rows:
    height, width = len(rows), len(rows[0])
    return _placed(width, height, lambda y, x: rows[height - 1 - x][y])


def _half_turn(rows: Rows, _: Rule) -> Rows:
    height, width = len(rows), len(rows[0])
    return _placed(height, width, lambda y, x: rows[height - 1 - y][width - 1 - x])


def _transposed(rows: Rows, _: Rule) -> Rows:
    return [list(column) for column in zip(*rows, strict=True)]


def _shifted(rows: Rows, rule: Rule) -> Rows:
    height, width = len(rows), len(rows[0])
    down, right = STEPS[rule[0]]
    return _placed(height, width, lambda y, x: rows[(y - down) % height][(x - right) % width])


def _cropped(rows: Rows, _: Rule) -> Rows:
    kept = [row for row in rows if any(row)]
    columns = [column for column in zip(*kept, strict=True) if any(column)]
    return [list(row) for row in zip(*columns, strict=True)]


def _doubled(rows: Rows, _: Rule) -> Rows:
    return _placed(2 * len(rows), 2 * len(rows[0]), lambda y, x: rows[y // 2][x // 2])


def _tiled(rows: Rows, rule: Rule) -> Rows:
    return rows + rows if rule[0] else [row + row for row in rows]


def _unfolded(rows: Rows, rule: Rule) -> Rows:
    return rows + rows[::-1] if rule[0] else [row + row[::-1] for row in rows]


def _halved(rows: Rows, rule: Rule) -> Rows:
    if rule[0]:
        return rows[len(rows) // 2 :]
    return [row[len(row) // 2 :] for row in rows]


def _completed(rows: Rows, rule: Rule) -> Rows:
    height, width = len(rows), len(rows[0])

    def mirrored(y: int, x: int) -> int:
        return rows[height - 1 - y][x] if rule[0] else rows[y][width - 1 - x]

    return _placed(height, width, lambda y, x: rows[y][x] or mirrored(y, x))


def _recoloured(rows: Rows, rule: Rule) -> Rows:
    new = dict(zip(rule[::2], rule[1::2], strict=True))
    return [[new.get(cell, cell) for cell in row] for row in rows]


def _swapped(rows: Rows, rule: Rule) -> Rows:
    # The two add up to the same whichever of them it is.
    return [[sum(rule) - cell if cell in rule else cell for cell in row] for row in rows]


def _kept(rows: Rows, rule: Rule) -> Rows:
    return [[cell if cell in rule else 0 for cell in row] for row in rows]


def _commonest(rows: Rows, _: Rule) -> Rows:
    ((colour, _count),) = Counter(cell for row in rows for cell in row).most_common(1)
    return [[colour]]


def _framed(rows: Rows, rule: Rule) -> Rows:
    line = [rule[0]] * len(rows[0])
    return [line, *([rule[0], *row[1:-1], rule[0]] for row in rows[1:-1]), line]


def _fallen(rows: Rows, rule: Rule) -> Rows:
    down, right = STEPS[rule[0]]
    lines = rows if right else [list(line) for line in zip(*rows, strict=True)]
    fallen: Rows = []
    for line in lines:
        cells, empty = [cell for cell in line if cell], [0] * line.count(0)
        fallen.append(empty + cells if down + right > 0 else cells + empty)
    return fallen if right else [list(line) for line in zip(*fallen, strict=True)]


def _filled(rows: Rows, rule: Rule) -> Rows:
    """Fills what no path of empty cells connects with the edge."""
    height, width = len(rows), len(rows[0])
    outside: set[tuple[int, int]] = set()
    reached = [
        (y, x)
        for y in range(height)
        for x in range(width)
        if y in (0, height - 1) or x in (0, width - 1)
    ]
    while reached:
        y, x = reached.pop()
        if 0 <= y < height and 0 <= x < width and not rows[y][x] and (y, x) not in outside:
            outside.add((y, x))
            reached += [(y + down, x + right) for down, right in STEPS]
    return [
        [cell if cell or (y, x) in outside else rule[0] for x, cell in enumerate(row)]
        for y, row in enumerate(rows)
    ]


def _connected(rows: Rows, _: Rule) -> Rows:
    joined = [list(row) for row in rows]
    places: dict[int, list[tuple[int, int]]] = {}
    for y, row in enumerate(rows):
        for x, cell in enumerate(row):
            places.setdefault(cell, []).append((y, x))
    for colour in places.keys() - {0}:
        (top, left), (bottom, right) = places[colour][0], places[colour][-1]
        for y in range(top, bottom + 1):
            for x in range(left, right + 1):
                joined[y][x] = colour
    return joined


def _shot(rows: Rows, rule: Rule) -> Rows:
    down, right = STEPS[rule[0]]
    shot = [list(row) for row in rows]
    for y, row in enumerate(rows):
        for x, colour in enumerate(row):
            at_y, at_x = y, x
            while colour and 0 <= at_y < len(rows) and 0 <= at_x < len(row):
                shot[at_y][at_x] = colour
                at_y, at_x = at_y + down, at_x + right
    return shot


def _outlined(rows: Rows, rule: Rule) -> Rows:
    def beside(y: int, x: int) -> bool:
        return any(any(row[max(0, x - 1) : x + 2]) for row in rows[max(0, y - 1) : y + 2])

    return [
        [rule[0] if not cell and beside(y, x) else cell for x, cell in enumerate(row)]
        for y, row in enumerate(rows)
    ]


def _regions(rows: Rows) -> list[set[tuple[int, int]]]:
    """The connected regions of coloured cells."""
    left = {(y, x) for y, row in enumerate(rows) for x, cell in enumerate(row) if cell}
    regions: list[set[tuple[int, int]]] = []
    while left:
        region, reached = set[tuple[int, int]](), {min(left)}
        while reached:
            region |= reached
            around = {(y + down, x + right) for y, x in reached for down, right in STEPS}
            reached = (around & left) - region
        left -= region
        regions.append(region)
    return regions


def _remaining(rows: Rows, size: Callable[[set[tuple[int, int]]], int]) -> Rows:
    """The region of the greatest size alone."""
    most = max(_regions(rows), key=size)
    return [
        [cell if (y, x) in most else 0 for x, cell in enumerate(row)] for y, row in enumerate(rows)
    ]


def _largest(rows: Rows, _: Rule) -> Rows:
    return _remaining(rows, len)


def _counted(rows: Rows, _: Rule) -> Rows:
    ranked = Counter(cell for row in rows for cell in row if cell).most_common()
    longest = ranked[0][1]
    return [[colour] * count + [0] * (longest - count) for colour, count in ranked]


def _sorted(rows: Rows, rule: Rule) -> Rows:
    by_empty = {column.count(0): column for column in zip(*rows, strict=True)}
    ordered = [by_empty[empty] for empty in sorted(by_empty, reverse=not rule[0])]
    return [list(row) for row in zip(*ordered, strict=True)]


def _combined(rows: Rows, rule: Rule) -> Rows:
    operation, colour = rule
    width = len(rows[0]) // 2
    wanted = ((2,), (1, 2), (1,), (0,))[operation]
    return [
        [colour if (row[x] > 0) + (row[x + width + 1] > 0) in wanted else 0 for x in range(width)]
        for row in rows
    ]


def _overlaid(rows: Rows, _: Rule) -> Rows:
    width = len(rows[0]) // 2
    return [[row[x] or row[x + width] for x in range(width)] for row in rows]


VERIFIERS: dict[str, Verifier] = {
    "flip_columns": _flipped_columns,
    "flip_rows": _flipped_rows,
    "quarter_turn": _quarter,
    "half_turn": _half_turn,
    "transpose": _transposed,
    "shift": _shifted,
    "crop": _cropped,
    "double": _doubled,
    "tile": _tiled,
    "unfold": _unfolded,
    "half": _halved,
    "symmetry": _completed,
    "recolour": _recoloured,
    "swap": _swapped,
    "keep": _kept,
    "common": _commonest,
    "border": _framed,
    "gravity": _fallen,
    "fill": _filled,
    "connect": _connected,
    "ray": _shot,
    "outline": _outlined,
    "largest": _largest,
    "bars": _counted,
    "sort": _sorted,
    "logic": _combined,
    "overlay": _overlaid,
}
"""The output for the rows of an input of each family, by a rule."""


def _highest(rows: Rows, _: Rule) -> Rows:
    return _remaining(rows, lambda region: len({y for y, _ in region}))


def _widest(rows: Rows, _: Rule) -> Rows:
    return _remaining(rows, lambda region: len({x for _, x in region}))


def _commonest_kept(rows: Rows, _: Rule) -> Rows:
    counts = Counter(cell for row in rows for cell in row if cell)
    return _kept(rows, (counts.most_common(1)[0][0],))


def _rarest_kept(rows: Rows, _: Rule) -> Rows:
    counts = Counter(cell for row in rows for cell in row if cell)
    return _kept(rows, (counts.most_common()[-1][0],))


def _counted_as_they_appear(rows: Rows, rule: Rule) -> Rows:
    counts = Counter(cell for row in rows for cell in row if cell)
    longest = max(counts.values())
    bars = [[colour] * count + [0] * (longest - count) for colour, count in counts.items()]
    return bars[::-1] if rule[0] else bars


NEAR: list[tuple[Verifier, Rule]] = [
    (_highest, ()),
    (_widest, ()),
    (_commonest_kept, ()),
    (_rarest_kept, ()),
    (_counted_as_they_appear, (0,)),
    (_counted_as_they_appear, (1,)),
]
"""Rules of no family that somebody may read out of the pairs of one."""
