"""Bars of the accuracies of groups of tasks."""

from collections.abc import Mapping

from matplotlib.axes import Axes
from matplotlib.patches import Patch
from matplotlib.ticker import PercentFormatter

from raylab.report.charts.theme import MUTED, SERIES, as_svg, drawing, new_figure, shortened

Groups = Mapping[str, Mapping[str, float]]
"""Metrics of each group of tasks."""


def group_bars(groups_by_model: Mapping[str, Groups], prefix: str = "bars") -> str:
    """Returns an SVG of the accuracies of each group of tasks, one bar per model.

    The pale bar is the cell accuracy, the solid bar in it the grid accuracy. The difference is the
    compositional gap, written at the end in percentage points.

    Args:
        groups_by_model: By model and group, `cell_accuracy`, `grid_accuracy` and
            `compositional_gap` in [0, 1]; a metric that is missing is not drawn.
        prefix: Start of the ids in the SVG.
    """
    groups = list(dict.fromkeys(group for of in groups_by_model.values() for group in of))
    span = len(groups_by_model) + 0.8
    with drawing():
        figure = new_figure(1.0 + 0.19 * span * max(len(groups), 1))
        axes = figure.add_subplot()
        for row, group in enumerate(groups):
            for index, of in enumerate(groups_by_model.values()):
                _bar(axes, row * span + index, of.get(group, {}), SERIES[index % len(SERIES)])
        middle = (len(groups_by_model) - 1) / 2
        axes.set_yticks([row * span + middle for row in range(len(groups))])
        axes.set_yticklabels([shortened(group) for group in groups])
        axes.set_ylim(len(groups) * span - 0.9, -0.9)
        axes.set_xlim(0, 1.19)
        axes.set_xticks([0, 0.25, 0.5, 0.75, 1])
        axes.xaxis.set_major_formatter(PercentFormatter(1))
        axes.grid(axis="y", visible=False)
        handles = [
            *(
                Patch(color=SERIES[index % len(SERIES)], label=shortened(model))
                for index, model in enumerate(groups_by_model)
            ),
            Patch(color=MUTED, label="grid accuracy"),
            Patch(facecolor=MUTED, alpha=0.3, label="cell accuracy"),
        ]
        figure.legend(
            handles=handles, loc="outside upper left", ncols=min(3, len(handles)), handlelength=1.1
        )
        return as_svg(figure, prefix, "Cell and grid accuracy and their gap, by group of tasks")


def _bar(axes: Axes, y: float, metrics: Mapping[str, float], colour: str) -> None:
    cell, grid, gap = (
        metrics.get(key) for key in ("cell_accuracy", "grid_accuracy", "compositional_gap")
    )
    if cell is not None:
        axes.barh(y, cell, height=0.84, color=colour, alpha=0.3)
    if grid is not None:
        axes.barh(y, grid, height=0.84, color=colour)
    if gap is not None:
        end = max(cell or 0.0, grid or 0.0)
        axes.annotate(f"gap {100 * gap:.1f}", (end, y), (3, 0), textcoords="offset points")
        axes.texts[-1].set(va="center", fontsize=8.5, color=MUTED)
