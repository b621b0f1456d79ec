"""The score by the number of views that vote."""

from collections.abc import Mapping, Sequence

from matplotlib.ticker import NullLocator, PercentFormatter

from raylab.arc.records import VotesScore
from raylab.report.charts.theme import (
    MARKERS,
    MUTED,
    SERIES,
    as_svg,
    drawing,
    new_figure,
    shortened,
)


def votes_curves(curves: Mapping[str, Sequence[VotesScore]], prefix: str = "votes") -> str:
    """Returns an SVG of the score by the number of views.

    Two attempts are a line, the first attempt alone a dashed one. Models beyond the number of
    colours are grey.

    Args:
        curves: By model, its scores, by a growing number of views.
        prefix: Start of the ids in the SVG.
    """
    with drawing():
        figure = new_figure(3.1)
        axes = figure.add_subplot()
        axes.set_xscale("log", base=2)
        for index, (name, scores) in enumerate(curves.items()):
            colour = SERIES[index] if index < len(SERIES) else MUTED
            mark = MARKERS[index % len(MARKERS)]
            views = [score.views for score in scores]
            two, first = (
                [getattr(score, of) for score in scores] for of in ("two_attempts", "first_attempt")
            )
            label = shortened(name)
            axes.plot(views, two, color=colour, marker=mark, markersize=4, label=label)
            axes.plot(views, first, color=colour, linestyle="--", linewidth=1)
        ticks = sorted({score.views for scores in curves.values() for score in scores})
        axes.set_xticks(ticks, [str(tick) for tick in ticks])
        axes.xaxis.set_minor_locator(NullLocator())
        axes.set_xlabel("views")
        axes.set_ylim(bottom=0)
        axes.yaxis.set_major_formatter(PercentFormatter(1))
        axes.grid(axis="x", visible=False)
        figure.legend(loc="outside upper left", ncols=min(3, len(curves)))
        return as_svg(figure, prefix, "Solved test outputs by the number of views that vote")
