"""Charts and ARC grids as inline SVG in the colours of their page.

Charts are drawn in the colours of a light theme. In the SVG each colour becomes `currentColor` or a
CSS variable with that colour as its fallback, so that a page can set others for a dark theme. The
ids in an SVG are hashes of its `prefix` and what they name, so a page must not repeat a prefix.
"""

import math
import re
import warnings
from collections import defaultdict
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from io import StringIO
from itertools import groupby
from typing import Any, cast

import matplotlib as mpl
from markupsafe import Markup, escape
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter

from raylab.core.page.table import shorten
from raylab.core.printable import printable

INK, MUTED, RULE = "#1b1f24", "#57606a", "#d8dee4"
SERIES = tuple("#0072b2 #c04e00 #00775a #a8478f #806600 #6a51a3 #7f4a1e #55606b".split())
"""Colours of the models, distinct with any colour vision and at least 4.5:1 against white."""
THEMED = {
    INK: "currentColor",
    MUTED: f"var(--muted, {MUTED})",
    RULE: f"var(--rule, {RULE})",
} | {colour: f"var(--series-{i}, {colour})" for i, colour in enumerate(SERIES)}
STYLE = {
    "svg.fonttype": "none",
    "text.parse_math": False,
    "font.family": "DejaVu Sans",
    "font.size": 10,
    "text.color": INK,
    "axes.labelcolor": MUTED,
    "axes.edgecolor": RULE,
    "axes.facecolor": "none",
    "axes.titlesize": 11,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.titlepad": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.spines.left": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.unicode_minus": False,
    "grid.color": RULE,
    "grid.linewidth": 0.8,
    "xtick.color": RULE,
    "xtick.labelcolor": MUTED,
    "ytick.color": RULE,
    "ytick.labelcolor": INK,
    "ytick.left": False,
    "legend.frameon": False,
    "legend.fontsize": 9.5,
}
WIDTH = 5.3
"""Width of a chart in inches of 72 units, narrow enough for text to be legible on a phone."""
MARKERS = "osD^vPX*"
"""Marks of the series, one per colour."""
NAME_LENGTH = 22
"""Most characters shown of a name."""
ARC_PALETTE = tuple(
    "#000000 #0074d9 #ff4136 #2ecc40 #ffdc00 #aaaaaa #f012be #ff851b #7fdbff #870c25".split()
)
"""The colours 0..9 as the ARC site shows them."""
UNTHEMED = re.compile(r"<style.*?</style>|(?<=<g) id=\"[^\"]*\"", re.DOTALL)
"""The style sheet of a chart, and unused ids."""

History = Sequence[Mapping[str, float]]
"""Rows of the epochs, each with `epoch` (from 1) and metrics."""


@contextmanager
def drawing(prefix: str) -> Generator[None]:
    """Sets the style, and silences warnings about letters that the measuring font lacks."""
    style = cast(dict[Any, Any], STYLE | {"svg.hashsalt": prefix})
    with mpl.rc_context(style), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from font")
        yield


def new_figure(height: float) -> Figure:
    """Returns an empty figure of this height in inches."""
    return Figure(figsize=(WIDTH, height), layout="constrained", facecolor="none")


def as_svg(figure: Figure, title: str) -> Markup:
    """Returns one `<svg>` element without width and height, in the colours of its page."""
    buffer = StringIO()
    metadata = dict.fromkeys(("Creator", "Date", "Format", "Type"))
    figure.savefig(buffer, format="svg", transparent=True, metadata=metadata)
    drawn = UNTHEMED.sub("", buffer.getvalue())
    drawn = re.sub(r"(?<=: )#[0-9a-f]{6}\b", lambda colour: THEMED.get(colour[0], colour[0]), drawn)
    drawn = re.sub(r"(style=\"[^\"]*)font-family: [^;\"]*;? ?", r"\1", drawn)
    body = drawn[drawn.index(">", drawn.index("<svg")) + 1 :]
    width, height = (72 * inches for inches in figure.get_size_inches())
    name = escape(printable(title))
    return Markup(
        '<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" '
        f'class="chart" role="img" aria-label="{name}" viewBox="0 0 {width:g} {height:g}" '
        f'style="min-width: {0.82 * width:.0f}px; stroke-linejoin: round"><title>{name}</title>'
        + re.sub(r"\n *", " ", body)
    )


def learning_curves(
    histories: Mapping[str, History], metric: str, label: str, prefix: str, axis: str = "epoch"
) -> Markup:
    """Returns an SVG of a metric over the epochs, one line per model, its best value marked.

    Args:
        histories: Rows with the axis and metrics, by model. Rows without the metric are left out.
            With more models than colours, all but the best are grey.
        metric: Key of a row. For keys that end in `loss`, lower is better; all others are shares in
            [0, 1], shown as percentages, and higher is better.
        label: Name of the metric.
        prefix: Part of the ids in the SVG.
        axis: Key and name of the horizontal axis: `epoch`, or `views` on a logarithmic scale.
    """
    is_loss, points = metric.endswith("loss"), dict[str, list[tuple[float, float]]]()
    for name, rows in histories.items():
        values = ((row[axis], row.get(metric)) for row in rows)
        if line := [(at, v) for at, v in values if v is not None and math.isfinite(v)]:
            points[name] = line
    choose = min if is_loss else max
    tops = {name: choose(line, key=lambda point: point[1]) for name, line in points.items()}
    lead = choose(tops, key=lambda name: tops[name][1], default=None)
    crowded = len(histories) > len(SERIES)
    with drawing(prefix):
        figure = new_figure(3.1)
        axes = figure.add_subplot(xlabel=axis)
        for index, name in enumerate(histories):
            if name not in points:
                continue
            along, values = zip(*points[name], strict=True)
            if crowded and name != lead:
                axes.plot(along, values, color=MUTED, linewidth=0.9, alpha=0.35)
                continue
            colour, mark = SERIES[0 if crowded else index], MARKERS[index % len(MARKERS)]
            small = mark if len(along) <= 12 else ""
            axes.plot(
                along, values, color=colour, linewidth=2, marker=small, markersize=3.5, zorder=3
            )
            short = shorten(printable(name, breaks=False), NAME_LENGTH)
            axes.plot(*tops[name], marker=mark, color=colour, markersize=8, zorder=4, label=short)
        axes.set_title(label + (", lower is better" if is_loss else ""))
        axes.grid(axis="x", visible=False)
        if axis == "views":
            axes.set_xscale("log", base=2)
            axes.xaxis.set_major_formatter("{x:.0f}")
        else:
            axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=6))
        if not is_loss:
            axes.yaxis.set_major_formatter(PercentFormatter(1))
            # The margin below the points must not suggest shares below 0.
            axes.set_ylim(bottom=max(0.0, axes.get_ylim()[0]))
        if names := axes.get_legend_handles_labels()[1]:
            columns = min(3, len(names))
            figure.legend(
                loc="outside lower left", ncols=columns, labelcolor="linecolor", handlelength=1.2
            )
        best = "lowest" if is_loss else "highest"
        return as_svg(figure, f"{label} by {axis}; the large mark is the {best}")


def grid_svg(
    cells: Sequence[Sequence[int]], title: str, target: Sequence[Sequence[int]] | None = None
) -> Markup:
    """Returns an SVG of an ARC grid, one unit per cell, with one path per colour.

    Args:
        cells: Rows of colours 0..9; a grid without cells is an empty frame.
        title: Text for screen readers and tooltips.
        target: Rows of colours of the right answer; cells that differ from it or lie outside it get
            a dot.
    """
    height = len(cells)
    width = len(cells[0]) if height else 0
    runs: dict[int, list[str]] = defaultdict(list)
    for y, row in enumerate(cells):
        for colour, run in groupby(range(len(row)), key=row.__getitem__):
            x, *more = run
            runs[colour].append(f"M{x} {y}h{1 + len(more)}v1h-{1 + len(more)}z")
    paths = [f'<path fill="{ARC_PALETTE[c]}" d="{"".join(d)}"/>' for c, d in sorted(runs.items())]
    lines = [f"M{x} 0v{height}" for x in range(width + 1)]
    lines += [f"M0 {y}h{width}" for y in range(height + 1)]
    paths.append(f'<path fill="none" stroke="#666" stroke-width=".06" d="{"".join(lines)}"/>')
    wrong = [
        f"M{x + 0.5} {y + 0.5}h0"
        for y, row in enumerate(cells)
        for x, colour in enumerate(row)
        if target is not None
        and (y >= len(target) or x >= len(target[y]) or target[y][x] != colour)
    ]
    # White on black, which can be seen on every colour.
    if dots := "".join(wrong):
        paths += [
            f'<path d="{dots}" stroke="{colour}" stroke-width="{size}" stroke-linecap="round"/>'
            for colour, size in (("#000", 0.4), ("#fff", 0.26))
        ]
    box = f"-.05 -.05 {max(width, 1) + 0.1:g} {max(height, 1) + 0.1:g}"
    name = escape(printable(title))
    return Markup(
        f'<svg xmlns="http://www.w3.org/2000/svg" class="arc-grid" viewBox="{box}" role="img" '
        f'aria-label="{name}"><title>{name}</title>{"".join(paths)}</svg>'
    )
