"""Confusion matrices."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from raylab.annotation.statistics.confusion import Confusion, ConfusionPanel
from raylab.report.charts.theme import ACCENT, MUTED, RULE, as_png, as_svg, drawing, new_figure

PANEL_WIDTH, PANEL_HEIGHT = 4.1, 4.3
"""Size of a confusion matrix in inches."""


@dataclass(frozen=True)
class ConfusionCell:
    """The look of a cell of a confusion matrix.

    Attributes:
        text: The count; empty for 0, one decimal for fractions.
        shade: Share of its row, in [0, 1].
    """

    text: str
    shade: float


def confusion_cells(matrix: Sequence[Sequence[float]]) -> list[list[ConfusionCell]]:
    """Returns the cells of a matrix of counts, row by row; an empty row has no shade."""
    return [
        [ConfusionCell(_counted(count), count / (sum(row) or 1.0)) for count in row]
        for row in matrix
    ]


def confusion_maps(confusion: Confusion, prefix: str = "confusion") -> str:
    """Returns an SVG of the matrices, the count in each cell, shaded by its share of the row.

    Args:
        confusion: Matrices of an annotation run.
        prefix: Start of the ids in the SVG.
    """
    with drawing():
        return as_svg(_confusion_figure(confusion), prefix, _confusion_title(confusion))


def confusion_maps_png(confusion: Confusion) -> bytes:
    """Returns a PNG of `confusion_maps`, on white; legible in greyscale."""
    with drawing():
        return as_png(_confusion_figure(confusion))


def _confusion_figure(confusion: Confusion) -> Figure:
    panels = confusion.panels
    columns = min(2, len(panels))
    rows = math.ceil(len(panels) / (columns or 1))
    figure = new_figure(0.5 + PANEL_HEIGHT * rows, 0.2 + PANEL_WIDTH * columns)
    for place, panel in enumerate(panels.values(), 1):
        _confusion_panel(figure.add_subplot(rows, columns, place), panel, confusion.labels)
    figure.supxlabel(
        "Shade: share of the row. Several roots in a code count one each.",
        fontsize=9,
        color=MUTED,
    )
    return figure


def _confusion_panel(axes: Axes, panel: ConfusionPanel, labels: Sequence[str]) -> None:
    for y, row in enumerate(confusion_cells(panel.sets)):
        for x, cell in enumerate(row):
            corner = (x - 0.46, y - 0.46)
            axes.add_patch(
                Rectangle(corner, 0.92, 0.92, color=ACCENT, alpha=0.5 * cell.shade, lw=0)
            )
            edge = MUTED if x == y else RULE
            frame = Rectangle(corner, 0.92, 0.92, facecolor="none", edgecolor=edge, linewidth=0.8)
            axes.add_patch(frame)
            axes.text(
                x, y, cell.text, ha="center", va="center", fontsize=9 if len(cell.text) < 5 else 7.5
            )
    axes.set_title(f"{panel.rows} against {panel.columns}")
    axes.set_xlabel(panel.columns)
    axes.set_ylabel(panel.rows)
    axes.set_xticks(range(len(labels)), labels)
    axes.set_yticks(range(len(labels)), labels)
    axes.set_xlim(-0.5, len(labels) - 0.5)
    axes.set_ylim(len(labels) - 0.5, -0.5)
    axes.set_aspect("equal")
    axes.tick_params(length=0)
    axes.grid(visible=False)
    axes.spines[:].set_visible(False)


def _confusion_title(confusion: Confusion) -> str:
    pairs = [f"{panel.rows} and {panel.columns}" for panel in confusion.panels.values()]
    return f"Which roots are mistaken for which, between {'; '.join(pairs)}"


def _counted(count: float) -> str:
    if count == 0:
        return ""
    if count == round(count):
        return f"{count:,.0f}"
    return f"{count:,.1f}" if count >= 0.05 else "<0.1"
