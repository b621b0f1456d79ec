"""The section of a page about the quality of one benchmark."""

from collections.abc import Iterator
from dataclasses import dataclass

from markupsafe import Markup

from raylab.quality.metrics import METRICS
from raylab.quality.record import QualityFigure, TreeQuality
from raylab.report.charts.heat import heat_map
from raylab.report.charts.intervals import interval_plot


@dataclass(frozen=True)
class ExplainedFigure:
    """A figure in words.

    Attributes:
        metric: Its name.
        value: The figure as text; empty if it was not computed.
        interval: The corrected figure and the ends of its interval, or why it has none.
        reason: The reason why it was not computed; empty if it was.
        meaning: The meaning of the metric.
        computation: Its formula.
    """

    metric: str
    value: str
    interval: str
    reason: str
    meaning: str
    computation: str


@dataclass(frozen=True)
class QualitySection:
    """Content of the section.

    Attributes:
        name: Name of the score tree.
        quality: The measured quality.
        intervals: Plot of the figures.
        heat: Map of accuracies by model and generation; None without generations.
        figures: The figures in words.
    """

    name: str
    quality: TreeQuality
    intervals: Markup
    heat: Markup | None
    figures: list[ExplainedFigure]


def quality_section(number: int, name: str, quality: TreeQuality) -> QualitySection:
    """Returns the section of a tree; `number` keeps its ids distinct from those of other trees."""
    rows = {metric: {"": of} for metric, of in known_figures(quality).items()}
    intervals = interval_plot(
        rows, "The quality figures with their 95 % intervals", prefix=f"interval-{number}"
    )
    known = any(quality.generations.values())
    heat = heat_map(quality.generations, prefix=f"heat-{number}") if known else None
    return QualitySection(
        name=name,
        quality=quality,
        intervals=Markup(intervals),
        heat=None if heat is None else Markup(heat),
        figures=list(_explained(quality)),
    )


def known_figures(quality: TreeQuality) -> dict[str, QualityFigure]:
    """Returns the figures that this raylab knows, in the order of the metrics."""
    return {name: quality.figures[name] for name in METRICS if name in quality.figures}


def _explained(quality: TreeQuality) -> Iterator[ExplainedFigure]:
    for name, metric in METRICS.items():
        if (figure := quality.figures.get(name)) is not None:
            yield ExplainedFigure(
                metric=name,
                value="" if figure.value is None else f"{figure.value:.4f}",
                interval=_interval(figure),
                reason=(figure.reason or "no reason was given") if figure.value is None else "",
                meaning=metric.meaning,
                computation=metric.computation,
            )


def _interval(figure: QualityFigure) -> str:
    if figure.interval is None:
        return f"no interval: {figure.no_interval}" if figure.no_interval else "no interval"
    interval = f"95 % interval {figure.interval[0]:.4f} to {figure.interval[1]:.4f}"
    return interval if figure.corrected is None else f"corrected {figure.corrected:.4f}, {interval}"
