"""Tasks as a picture: some pairs of each, one task a row."""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure

from raylab.arc.data.tasks import Grid, Pair
from raylab.report.charts.grids import ARC_PALETTE
from raylab.report.charts.theme import MUTED, drawing, new_figure

LABEL = 1.6
"""Width of the name of a task, where each grid has a place of 1 by 1."""
PAIR = 2.5
"""Width of a pair."""
ROW = 1.15
INCHES = 0.52
PALETTE = ListedColormap(ARC_PALETTE)


def tasks_figure(tasks: Mapping[str, Sequence[Pair]], columns: int = 2) -> Figure:
    """Returns a figure of the pairs of each task, input beside output in one scale.

    Args:
        tasks: The pairs to draw of each task, by its name; at least one, of as many each.
        columns: Columns of tasks.
    """
    pairs = max(map(len, tasks.values()))
    rows = -(-len(tasks) // columns)
    width = LABEL + pairs * PAIR
    with drawing():
        figure = new_figure(INCHES * ROW * rows, INCHES * width * columns)
        axes = figure.add_subplot()
        for index, (name, shown) in enumerate(tasks.items()):
            column, row = divmod(index, rows)
            left, middle = width * column, ROW * row + ROW / 2
            axes.text(left, middle, name, va="center", size=8)
            for number, pair in enumerate(shown):
                _draw_pair(axes, pair, left + LABEL + number * PAIR, middle)
        axes.set(xlim=(0, width * columns), ylim=(ROW * rows, 0), aspect="equal")
        axes.axis("off")
        # Text is laid out in the style that it is drawn in.
        figure.draw_without_rendering()
    return figure


def _draw_pair(axes: Axes, pair: Pair, left: float, middle: float) -> None:
    cell = 1 / max(pair.input.shape + pair.output.shape)
    _draw_grid(axes, pair.input, left, middle, cell)
    axes.text(left + 1.125, middle, "→", ha="center", va="center", size=7, color=MUTED)
    _draw_grid(axes, pair.output, left + 1.25, middle, cell)


def _draw_grid(axes: Axes, grid: Grid, left: float, middle: float, cell: float) -> None:
    top = middle - cell * grid.shape[0] / 2
    axes.pcolormesh(
        left + cell * np.arange(grid.shape[1] + 1),
        top + cell * np.arange(grid.shape[0] + 1),
        grid,
        cmap=PALETTE,
        vmin=-0.5,
        vmax=len(ARC_PALETTE) - 0.5,
        edgecolors="#666666",
        linewidth=0.25,
    )
