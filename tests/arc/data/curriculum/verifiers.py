"""What the families of the curriculum ask for, by other algorithms than those that draw them."""

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

from raylab.arc.data.curriculum.family import STEPS, Rule

Rows = list[list[int]]
Places = set[tuple[int, int]]
Verifier = Callable[[Rows, Rule], Rows]


def transpose(rows: Iterable[list[int]]) -> Rows:
    return [list(column) for column in zip(*rows, strict=True)]


def either(change: Callable[[list[Any]], list[Any]]) -> Verifier:
    """Changes every row or, by the rule 1, the list of the rows."""
    return lambda rows, rule: change(rows) if rule[0] else [change(row) for row in rows]


def shift(rows: Rows, rule: Rule) -> Rows:
    down, right = STEPS[rule[0]]
    return [row[-right:] + row[:-right] for row in rows[-down:] + rows[:-down]]


def complete(rows: Rows, rule: Rule) -> Rows:
    mirrored = either(lambda line: line[::-1])(rows, rule)
    return [
        [a or b for a, b in zip(*both, strict=True)] for both in zip(rows, mirrored, strict=True)
    ]


def replace(rows: Rows, colours: dict[int, int]) -> Rows:
    return [[colours.get(cell, cell) for cell in row] for row in rows]


def keep(rows: Rows, kept: Rule) -> Rows:
    return [[cell if cell in kept else 0 for cell in row] for row in rows]


def coloured(rows: Rows) -> Counter[int]:
    """The cells of each colour but the background, in the order of appearance."""
    return Counter(cell for row in rows for cell in row if cell)


def frame(rows: Rows, rule: Rule) -> Rows:
    line = [rule[0]] * len(rows[0])
    return [line, *([rule[0], *row[1:-1], rule[0]] for row in rows[1:-1]), line]


def fall(rows: Rows, rule: Rule) -> Rows:
    down, right = STEPS[rule[0]]
    lines = [
        sorted(line, key=lambda cell: (cell > 0) * (down + right))
        for line in (rows if right else transpose(rows))
    ]
    return lines if right else transpose(lines)


def fill(rows: Rows, rule: Rule) -> Rows:
    """Fills what no path of empty cells connects with the edge."""
    height, width = len(rows), len(rows[0])
    inside = {(y, x) for y, row in enumerate(rows) for x, cell in enumerate(row) if not cell}
    reached = [(y, x) for y in range(-1, height + 1) for x in (-1, width)]
    reached += [(y, x) for y in (-1, height) for x in range(width)]
    for y, x in reached:
        around = {(y + down, x + right) for down, right in STEPS} & inside
        inside -= around
        reached.extend(around)
    return [
        [rule[0] if (y, x) in inside else cell for x, cell in enumerate(row)]
        for y, row in enumerate(rows)
    ]


def connect(rows: Rows, _: Rule) -> Rows:
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


def shoot(rows: Rows, rule: Rule) -> Rows:
    down, right = STEPS[rule[0]]
    shot = [list(row) for row in rows]
    for y, row in enumerate(rows):
        for x, colour in enumerate(row):
            at_y, at_x = y, x
            while colour and 0 <= at_y < len(rows) and 0 <= at_x < len(row):
                shot[at_y][at_x] = colour
                at_y, at_x = at_y + down, at_x + right
    return shot


def outline(rows: Rows, rule: Rule) -> Rows:
    def beside(y: int, x: int) -> bool:
        return any(any(row[max(0, x - 1) : x + 2]) for row in rows[max(0, y - 1) : y + 2])

    return [
        [rule[0] if not cell and beside(y, x) else cell for x, cell in enumerate(row)]
        for y, row in enumerate(rows)
    ]


def keep_greatest(size: Callable[[Places], int]) -> Verifier:
    """Keeps the greatest connected region of coloured cells by a measure of its size."""

    def answer(rows: Rows, _: Rule) -> Rows:
        left = {(y, x) for y, row in enumerate(rows) for x, cell in enumerate(row) if cell}
        regions: list[Places] = []
        while left:
            region, reached = Places(), {min(left)}
            while reached:
                region |= reached
                around = {(y + down, x + right) for y, x in reached for down, right in STEPS}
                reached = (around & left) - region
            left -= region
            regions.append(region)
        most = max(regions, key=size)
        return [
            [cell if (y, x) in most else 0 for x, cell in enumerate(row)]
            for y, row in enumerate(rows)
        ]

    return answer


def bars(counts: Iterable[tuple[int, int]]) -> Rows:
    counts = list(counts)
    longest = max(count for _, count in counts)
    return [[colour] * count + [0] * (longest - count) for colour, count in counts]


def sort(rows: Rows, rule: Rule) -> Rows:
    by_empty = {column.count(0): column for column in transpose(rows)}
    return transpose(by_empty[empty] for empty in sorted(by_empty, reverse=not rule[0]))


def combine(rows: Rows, rule: Rule) -> Rows:
    operation, colour = rule
    width = len(rows[0]) // 2
    wanted = ((2,), (1, 2), (1,), (0,))[operation]
    return [
        [colour if (row[x] > 0) + (row[x + width + 1] > 0) in wanted else 0 for x in range(width)]
        for row in rows
    ]


VERIFIERS: dict[str, Verifier] = {
    "flip_columns": lambda rows, _: [row[::-1] for row in rows],
    "flip_rows": lambda rows, _: rows[::-1],
    "quarter_turn": lambda rows, _: transpose(rows[::-1]),
    "half_turn": lambda rows, _: [row[::-1] for row in rows[::-1]],
    "transpose": lambda rows, _: transpose(rows),
    "shift": shift,
    "crop": lambda rows, _: transpose(filter(any, transpose(filter(any, rows)))),
    "double": lambda rows, _: [[cell for cell in row for _ in "ab"] for row in rows for _ in "ab"],
    "tile": either(lambda line: line + line),
    "unfold": either(lambda line: line + line[::-1]),
    "half": either(lambda line: line[len(line) // 2 :]),
    "symmetry": complete,
    "recolour": lambda rows, rule: replace(rows, dict(zip(rule[::2], rule[1::2], strict=True))),
    "swap": lambda rows, rule: replace(rows, dict(zip(rule, rule[::-1], strict=True))),
    "keep": keep,
    "common": lambda rows, _: [
        [Counter(cell for row in rows for cell in row).most_common(1)[0][0]]
    ],
    "border": frame,
    "gravity": fall,
    "fill": fill,
    "connect": connect,
    "ray": shoot,
    "outline": outline,
    "largest": keep_greatest(len),
    "bars": lambda rows, _: bars(coloured(rows).most_common()),
    "sort": sort,
    "logic": combine,
    "overlay": lambda rows, _: [
        [*map(lambda a, b: a or b, row[: len(row) // 2], row[len(row) // 2 :])] for row in rows
    ],
}
"""The output for the rows of an input of each family, by a rule."""
NEAR: list[tuple[Verifier, Rule]] = [
    (keep_greatest(lambda region: len({y for y, _ in region})), ()),
    (keep_greatest(lambda region: len({x for _, x in region})), ()),
    (lambda rows, _: keep(rows, coloured(rows).most_common()[0][:1]), ()),
    (lambda rows, _: keep(rows, coloured(rows).most_common()[-1][:1]), ()),
    (lambda rows, _: bars(coloured(rows).items()), ()),
    (lambda rows, _: bars(coloured(rows).items())[::-1], ()),
]
"""Rules of no family that somebody may read out of the pairs of one."""
