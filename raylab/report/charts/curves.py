"""Learning curves."""

import math
from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter

from raylab.grid_metrics import label_of
from raylab.report.charts.theme import (
    MARKERS,
    MUTED,
    SERIES,
    as_png,
    as_svg,
    drawing,
    new_figure,
    shortened,
)

History = Sequence[Mapping[str, float]]
"""Rows of the epochs, each with `epoch` (from 1) and metrics."""


def learning_curves(histories: Mapping[str, History], metric: str, prefix: str = "curves") -> str:
    """Returns an SVG of a metric over the epochs, one line per model, its best epoch marked.

    Args:
        histories: Rows with `epoch` (from 1) and metrics, by model. Epochs without the metric are
            left out. With more models than colours, all but the best are grey.
        metric: Key of a row. Lower is better for keys that end in `loss`; all others are shares
            in [0, 1], shown as percentages, and higher is better.
        prefix: Start of the ids in the SVG.
    """
    with drawing():
        figure = _curves_figure(histories, metric)
        best = "lowest" if _is_loss(metric) else "highest"
        return as_svg(figure, prefix, f"{label_of(metric)} by epoch; the dot is the {best}")


def learning_curves_png(histories: Mapping[str, History], metric: str) -> bytes:
    """Returns a PNG of `learning_curves`, on white: many trials, the best in colour."""
    with drawing():
        return as_png(_curves_figure(histories, metric, height=4.2))


def _curves_figure(histories: Mapping[str, History], metric: str, height: float = 3.1) -> Figure:
    figure = new_figure(height)
    axes = figure.add_subplot()
    points = {name: _points(rows, metric) for name, rows in histories.items()}
    points = {name: found for name, found in points.items() if found}
    tops = {name: _best(found, metric) for name, found in points.items()}
    lead = _leader(tops, metric)
    crowded = len(histories) > len(SERIES)
    ends: list[tuple[float, float, str, str]] = []
    for index, name in enumerate(histories):
        if name not in points:
            continue
        grey = crowded and name != lead
        colour = MUTED if grey else SERIES[0 if crowded else index]
        _curve(axes, points[name], tops[name], colour, "" if grey else MARKERS[index % 8])
        if not grey:
            ends.append((*points[name][-1], shortened(name), colour))
    axes.set_title(label_of(metric) + (", lower is better" if _is_loss(metric) else ""))
    axes.set_xlabel("epoch")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=6))
    axes.grid(axis="x", visible=False)
    if not _is_loss(metric):
        axes.yaxis.set_major_formatter(PercentFormatter(1))
        axes.set_ylim(bottom=max(0.0, axes.get_ylim()[0]))
    _label_ends(axes, ends)
    return figure


def _is_loss(metric: str) -> bool:
    return metric.endswith("loss")


def _points(rows: History, metric: str) -> list[tuple[float, float]]:
    values = [(row["epoch"], row.get(metric)) for row in rows]
    return [(epoch, value) for epoch, value in values if value is not None and math.isfinite(value)]


def _best(points: Sequence[tuple[float, float]], metric: str) -> tuple[float, float]:
    choose = min if _is_loss(metric) else max
    return choose(points, key=lambda point: point[1])


def _leader(tops: Mapping[str, tuple[float, float]], metric: str) -> str | None:
    choose = min if _is_loss(metric) else max
    return choose(tops, key=lambda name: tops[name][1], default=None)


def _curve(
    axes: Axes,
    points: Sequence[tuple[float, float]],
    top: tuple[float, float],
    colour: str,
    marker: str,
) -> None:
    """Draws a line; without a marker it is thin and pale."""
    epochs, values = zip(*points, strict=True)
    if not marker:
        axes.plot(epochs, values, color=colour, linewidth=0.9, alpha=0.35)
        return
    small = marker if len(points) <= 12 else ""
    axes.plot(epochs, values, color=colour, linewidth=2, marker=small, markersize=3.5, zorder=3)
    axes.plot([top[0]], [top[1]], marker=marker, color=colour, markersize=8, zorder=4)


def _label_ends(axes: Axes, ends: Sequence[tuple[float, float, str, str]]) -> None:
    """Writes names at the right ends of the lines, moved apart to avoid overlap."""
    if not ends:
        return
    low, high = axes.get_ylim()
    step = 0.075 * (high - low)
    axes.set_ylim(low, high)
    right = max(epoch for epoch, *_ in ends)
    place = -math.inf
    placed: list[tuple[float, str, str]] = []
    for _, value, name, colour in sorted(ends, key=lambda end: end[1]):
        place = max(value, place + step)
        placed.append((place, name, colour))
    shift = max(0.0, place - high)
    for value, name, colour in placed:
        axes.annotate(
            name,
            (right, value - shift),
            (9, 0),
            textcoords="offset points",
            va="center",
            color=colour,
            fontsize=9.5,
            fontweight="bold",
            annotation_clip=False,
        )
