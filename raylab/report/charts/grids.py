"""ARC grids as SVG."""

from collections.abc import Iterator, Sequence
from html import escape

ARC_PALETTE = (
    "#000000",
    "#0074d9",
    "#ff4136",
    "#2ecc40",
    "#ffdc00",
    "#aaaaaa",
    "#f012be",
    "#ff851b",
    "#7fdbff",
    "#870c25",
)
"""The colours 0..9 as the ARC site shows them."""


def grid_svg(
    cells: Sequence[Sequence[int]], title: str, target: Sequence[Sequence[int]] | None = None
) -> str:
    """Returns an SVG of an ARC grid, one unit per cell, the cells of a colour drawn as one path.

    Args:
        cells: Rows of colours 0..9; a grid of no cells is an empty frame.
        title: Text for screen readers and tooltips.
        target: Rows of colours of the right answer. Cells that differ from it at the same (row,
            column), or lie outside it, are dotted.

    Raises:
        ValueError: A row differs in length from the first, or a colour is not in 0..9.
    """
    height = len(cells)
    width = len(cells[0]) if height else 0
    runs: dict[int, list[str]] = {}
    for y, row in enumerate(cells):
        if len(row) != width:
            raise ValueError(f"row {y} has {len(row)} cells, the first has {width}")
        for x, length, colour in _runs(row):
            if not 0 <= colour < len(ARC_PALETTE):
                raise ValueError(f"cell ({y}, {x}) is {colour}, expected a colour 0..9")
            runs.setdefault(colour, []).append(f"M{x} {y}h{length}v1h-{length}z")
    paths = [f'<path fill="{ARC_PALETTE[c]}" d="{"".join(d)}"/>' for c, d in sorted(runs.items())]
    lines = [f"M{x} 0v{height}" for x in range(width + 1)]
    lines += [f"M0 {y}h{width}" for y in range(height + 1)]
    paths.append(f'<path fill="none" stroke="#666" stroke-width=".06" d="{"".join(lines)}"/>')
    if target is not None and (dots := _wrong_cells(cells, target)):
        d = "".join(f"M{x + 0.5} {y + 0.5}h0" for y, x in dots)
        paths.append(f'<path class="wrong-rim" d="{d}" {_dots("#000", 0.4)}/>')
        paths.append(f'<path class="wrong" d="{d}" {_dots("#fff", 0.26)}/>')
    box = f"-.05 -.05 {max(width, 1) + 0.1:g} {max(height, 1) + 0.1:g}"
    name = escape(title)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="arc-grid" viewBox="{box}" role="img" '
        f'aria-label="{name}"><title>{name}</title>{"".join(paths)}</svg>'
    )


def _dots(colour: str, width: float) -> str:
    return f'stroke="{colour}" stroke-width="{width}" stroke-linecap="round"'


def _runs(row: Sequence[int]) -> Iterator[tuple[int, int, int]]:
    """Yields start, length and colour of the runs of equal cells."""
    start = 0
    for x in range(1, len(row) + 1):
        if x == len(row) or row[x] != row[start]:
            yield start, x - start, int(row[start])
            start = x


def _wrong_cells(
    cells: Sequence[Sequence[int]], target: Sequence[Sequence[int]]
) -> list[tuple[int, int]]:
    return [
        (y, x)
        for y, row in enumerate(cells)
        for x, colour in enumerate(row)
        if y >= len(target) or x >= len(target[y]) or target[y][x] != colour
    ]
