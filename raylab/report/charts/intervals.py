"""Figures with their intervals."""

from collections.abc import Iterator, Mapping
from typing import Protocol

from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import PercentFormatter

from raylab.report.charts.theme import (
    ACCENT,
    MARKERS,
    MUTED,
    RULE,
    SERIES,
    as_svg,
    drawing,
    new_figure,
    shortened,
)

INTERVAL_LABEL_LENGTH = 32


class Measured(Protocol):
    """A figure and its 95 % interval, each None if absent."""

    @property
    def value(self) -> float | None:
        """The figure."""
        ...

    @property
    def interval(self) -> tuple[float, float] | None:
        """The low and high end of its interval."""
        ...


def interval_plot(
    rows: Mapping[str, Mapping[str, Measured]],
    title: str,
    prefix: str = "intervals",
    *,
    shares: bool = False,
) -> str:
    """Returns an SVG of figures with 95 % intervals on [0, 1], or wider if they reach further.

    Args:
        rows: Figures by the name of the row and of the series; each series has its colour.
        title: Text for screen readers and tooltips.
        prefix: Start of the ids in the SVG.
        shares: Write the numbers as percentages.
    """
    series = list(dict.fromkeys(name for row in rows.values() for name in row))
    span = len(series) + (0.4 if len(series) > 1 else 0.0)
    reach = [0.0, 1.0, *(x for row in rows.values() for one in row.values() for x in _reach(one))]
    low, high = min(reach), max(reach)
    with drawing():
        legend = 0.3 if len(series) > 1 else 0.0
        drawn = new_figure(0.62 + legend + 0.37 * span * max(len(rows), 1))
        axes = drawn.add_subplot()
        for place, row in enumerate(rows.values()):
            for name, figure in row.items():
                index = series.index(name)
                y, colour = place * span + index, SERIES[index] if legend else ACCENT
                axes.plot([low, high], [y, y], color=RULE, linewidth=4, solid_capstyle="round")
                _draw_figure(axes, y, figure, (colour, MARKERS[index]), shares)
        middle = (len(series) - 1) / 2
        axes.set_yticks([place * span + middle for place in range(len(rows))])
        axes.set_yticklabels([shortened(name, INTERVAL_LABEL_LENGTH) for name in rows])
        axes.set_xticks([tick for tick in (-1, -0.5, 0, 0.25, 0.5, 0.75, 1) if low <= tick <= high])
        if shares:
            axes.xaxis.set_major_formatter(PercentFormatter(1))
        margin = 0.04 * (high - low)
        axes.set_xlim(low - margin, high + margin)
        axes.set_ylim(len(rows) * span - 0.6, -0.75)
        axes.grid(visible=False)
        axes.spines[:].set_visible(False)
        axes.tick_params(length=0)
        if legend:
            drawn.legend(
                handles=[
                    Line2D([], [], ls="", marker=MARKERS[i], color=SERIES[i], label=shortened(name))
                    for i, name in enumerate(series)
                ],
                loc="outside upper left",
                ncols=len(series),
            )
        return as_svg(drawn, prefix, title)


def _reach(figure: Measured) -> Iterator[float]:
    """Yields the numbers that the axis of a figure must include."""
    if figure.value is not None:
        yield figure.value
        yield from figure.interval or ()


def _draw_figure(
    axes: Axes, y: float, figure: Measured, look: tuple[str, str], shares: bool
) -> None:
    """Draws a dot on its interval with the number above; words where there is no number."""
    value, interval, (colour, marker) = figure.value, figure.interval, look
    if value is None:
        axes.annotate("not computed", (0, y), (4, 5), textcoords="offset points")
        axes.texts[-1].set(color=MUTED, fontsize=9, fontstyle="italic")
        return
    if interval is not None:
        axes.plot(list(interval), [y, y], color=colour, linewidth=4, alpha=0.45)
    axes.plot([value], [y], marker, color=colour, markersize=8)
    shown = f"{100 * value:.1f} %" if shares else f"{value:.3f}"
    axes.annotate(shown, (value, y), (0, 7), textcoords="offset points")
    # At the ends of the scale the text must not overlap the names or the margin.
    side = "left" if value < 0.06 else "right" if value > 0.94 else "center"
    axes.texts[-1].set(ha=side, fontsize=9.5, fontweight="bold")
