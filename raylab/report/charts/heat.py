"""Heat maps of accuracies."""

from collections.abc import Mapping

from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from raylab.report.charts.theme import (
    ACCENT,
    LABEL_LENGTH,
    RULE,
    WIDTH,
    as_svg,
    drawing,
    new_figure,
    shortened,
)


def heat_map(
    accuracies: Mapping[str, Mapping[str, float | None]],
    prefix: str = "heat",
    title: str = "Accuracy by model and generation, in percent",
) -> str:
    """Returns an SVG of accuracies, models in rows and generations in columns, with the numbers.

    Args:
        accuracies: In [0, 1]; None, or a generation that a model lacks, is hatched. The shades
            span the accuracies shown.
        prefix: Start of the ids in the SVG.
        title: Text for screen readers and tooltips.
    """
    generations = list(dict.fromkeys(name for of in accuracies.values() for name in of))
    known = [value for of in accuracies.values() for value in of.values() if value is not None]
    low, high = min(known, default=0.0), max(known, default=1.0)
    with drawing():
        figure = new_figure(0.75 + 0.42 * len(accuracies), max(WIDTH, 1.8 + 0.8 * len(generations)))
        axes = figure.add_subplot()
        for row, of in enumerate(accuracies.values()):
            for column, name in enumerate(generations):
                value = of.get(name)
                shade = 0.0 if value is None else (value - low) / ((high - low) or 1.0)
                _heat_cell(axes, column, row, value, shade)
        length = LABEL_LENGTH if len(generations) <= 3 else 11
        axes.set_xticks(range(len(generations)), [shortened(name, length) for name in generations])
        axes.set_yticks(range(len(accuracies)), [shortened(name) for name in accuracies])
        axes.set_xlim(-0.5, len(generations) - 0.5)
        axes.set_ylim(len(accuracies) - 0.5, -0.5)
        axes.xaxis.tick_top()
        axes.tick_params(length=0)
        axes.grid(visible=False)
        axes.spines[:].set_visible(False)
        return as_svg(figure, prefix, title)


def _heat_cell(axes: Axes, x: int, y: int, value: float | None, shade: float) -> None:
    corner = (x - 0.47, y - 0.45)
    if value is None:
        missing = Rectangle(corner, 0.94, 0.9, facecolor="none", edgecolor=RULE, hatch="////")
        axes.add_patch(missing)
        return
    axes.add_patch(Rectangle(corner, 0.94, 0.9, color=ACCENT, alpha=0.07 + 0.43 * shade))
    axes.text(x, y, f"{100 * value:.2f}", ha="center", va="center", fontsize=10)
