"""Charts as inline SVG that follow the theme of their page, and as PNG.

Charts are drawn in the colours of a light theme. In the SVG every one of these becomes
`currentColor` or a CSS variable with that colour as its fallback, so that a page can set others
for dark, while a file with nothing but the SVG still shows what was drawn. The ids within an SVG
start with the caller's `prefix`, which must be unique in the page.
"""

import math
import re
import warnings
import xml.etree.ElementTree as ET
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from html import escape
from io import BytesIO, StringIO
from typing import Any, Protocol, cast

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch, Rectangle
from matplotlib.ticker import MaxNLocator, PercentFormatter

from raylab.annotation.statistics.confusion import Confusion, ConfusionPanel
from raylab.grid_metrics import label_of

INK = "#1b1f24"
MUTED = "#57606a"
RULE = "#d8dee4"
ACCENT = "#0b62b0"
SERIES = (
    "#0072b2",
    "#c04e00",
    "#00775a",
    "#a8478f",
    "#806600",
    "#6a51a3",
    "#7f4a1e",
    "#55606b",
)
"""Colours of the models, told apart with any colour vision and at least 4.5:1 against white."""
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

THEMED = {
    INK: "currentColor",
    MUTED: f"var(--muted, {MUTED})",
    RULE: f"var(--rule, {RULE})",
    ACCENT: f"var(--accent, {ACCENT})",
} | {colour: f"var(--series-{i}, {colour})" for i, colour in enumerate(SERIES)}

STYLE = {
    "svg.fonttype": "none",
    "svg.hashsalt": "raylab",
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
    "hatch.linewidth": 1.2,
}
WIDTH = 5.3
"""Width of a chart in inches of 72 units: narrow, so that its text is legible on a phone."""
PANEL_WIDTH, PANEL_HEIGHT = 4.1, 4.3
"""Of a confusion matrix, in inches."""
LABEL_LENGTH = 22
INTERVAL_LABEL_LENGTH = 32
_MARKERS = "osD^vPX*"
_REFERENCE = re.compile(r"#([\w-]+)")
_FONT_FAMILY = re.compile(r"font-family: [^;]*;? ?")

History = Sequence[Mapping[str, Any]]
"""Rows of the epochs, each with `epoch` (from 1) and metrics."""
Groups = Mapping[str, Mapping[str, Any]]
"""Metrics of each group of tasks."""


class Measured(Protocol):
    """A figure and its 95 % interval, each None where there is none."""

    @property
    def value(self) -> float | None:
        """The figure."""
        ...

    @property
    def interval(self) -> tuple[float, float] | None:
        """Its low and high end."""
        ...


def shortened(text: str, length: int = LABEL_LENGTH) -> str:
    """`text` with an ellipsis in its middle where it is longer than `length` characters."""
    if len(text) <= length:
        return text
    head = (length - 1) // 2
    return f"{text[:head]}…{text[head + 1 - length :]}"


def learning_curves(histories: Mapping[str, History], metric: str, prefix: str = "curves") -> str:
    """SVG of a metric over the epochs, one line a model, its best epoch marked.

    Args:
        histories: rows with `epoch` (from 1) and metrics, by model. An epoch without the metric is
            left out. With more models than there are colours, all but the best are grey.
        metric: key of a row; one that ends in `loss` is better low, all others are shares in
            [0, 1], better high, and shown as percentages.
        prefix: start of the ids in the SVG.
    """
    with _drawing():
        figure = _curves_figure(histories, metric)
        best = "lowest" if _is_loss(metric) else "highest"
        return _svg(figure, prefix, f"{label_of(metric)} by epoch; the dot is the {best}")


def learning_curves_png(histories: Mapping[str, History], metric: str) -> bytes:
    """PNG of `learning_curves`, on white, for a sweep: many trials, the best in colour."""
    with _drawing():
        return _png(_curves_figure(histories, metric, height=4.2))


def group_bars(groups_by_model: Mapping[str, Groups], prefix: str = "bars") -> str:
    """SVG of the accuracies of each group of tasks, one bar a model.

    The pale bar is the cell accuracy, the solid bar in it the grid accuracy; what of the pale bar
    stays visible is the compositional gap, which is written at its end in percentage points.

    Args:
        groups_by_model: by model and group, `cell_accuracy`, `grid_accuracy` and
            `compositional_gap` in [0, 1]; what is missing or None is not drawn.
        prefix: start of the ids in the SVG.
    """
    groups = list(dict.fromkeys(group for of in groups_by_model.values() for group in of))
    span = len(groups_by_model) + 0.8
    with _drawing():
        figure = _figure(1.0 + 0.19 * span * max(len(groups), 1))
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
        return _svg(figure, prefix, "Cell and grid accuracy and their gap, by group of tasks")


def heat_map(
    accuracies: Mapping[str, Mapping[str, float | None]],
    prefix: str = "heat",
    title: str = "Accuracy by model and generation, in percent",
) -> str:
    """SVG of accuracies by model (rows) and generation (columns), the number in each cell.

    Args:
        accuracies: in [0, 1]; None, or a generation that a model lacks, is hatched. The shades
            span the accuracies shown.
        prefix: start of the ids in the SVG.
        title: what screen readers and tooltips say.
    """
    generations = list(dict.fromkeys(name for of in accuracies.values() for name in of))
    known = [value for of in accuracies.values() for value in of.values() if value is not None]
    low, high = min(known, default=0.0), max(known, default=1.0)
    with _drawing():
        figure = _figure(0.75 + 0.42 * len(accuracies), max(WIDTH, 1.8 + 0.8 * len(generations)))
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
        return _svg(figure, prefix, title)


@dataclass(frozen=True)
class ConfusionCell:
    """What a cell of a confusion matrix shows.

    Attributes:
        text: the count; empty for none, one decimal for a part of a case.
        shade: share of its row, in [0, 1].
    """

    text: str
    shade: float


def confusion_cells(matrix: Sequence[Sequence[float]]) -> list[list[ConfusionCell]]:
    """What the cells of a matrix of counts show, row by row; an empty row has no shade."""
    return [
        [ConfusionCell(_counted(count), count / (sum(row) or 1.0)) for count in row]
        for row in matrix
    ]


def confusion_maps(confusion: Confusion, prefix: str = "confusion") -> str:
    """SVG of the confusion matrices, the count in each cell, shaded by its share of the row.

    Args:
        confusion: of an annotation run.
        prefix: start of the ids in the SVG.
    """
    with _drawing():
        return _svg(_confusion_figure(confusion), prefix, _confusion_title(confusion))


def confusion_maps_png(confusion: Confusion) -> bytes:
    """PNG of `confusion_maps`, on white; legible in greyscale."""
    with _drawing():
        return _png(_confusion_figure(confusion))


def interval_plot(
    rows: Mapping[str, Mapping[str, Measured]],
    title: str,
    prefix: str = "intervals",
    *,
    shares: bool = False,
) -> str:
    """SVG of figures on [0, 1], or further where they reach further, each with its 95 % interval.

    Args:
        rows: estimates by the name of the row and of the series, of which each has its colour.
        title: what screen readers and tooltips say.
        prefix: start of the ids in the SVG.
        shares: write the numbers as percentages.
    """
    series = list(dict.fromkeys(name for row in rows.values() for name in row))
    span = len(series) + (0.4 if len(series) > 1 else 0.0)
    reach = [0.0, 1.0, *(x for row in rows.values() for one in row.values() for x in _reach(one))]
    low, high = min(reach), max(reach)
    with _drawing():
        legend = 0.3 if len(series) > 1 else 0.0
        figure = _figure(0.62 + legend + 0.37 * span * max(len(rows), 1))
        axes = figure.add_subplot()
        for place, row in enumerate(rows.values()):
            for name, estimate in row.items():
                index = series.index(name)
                y, colour = place * span + index, SERIES[index] if legend else ACCENT
                axes.plot([low, high], [y, y], color=RULE, linewidth=4, solid_capstyle="round")
                _estimate(axes, y, estimate, (colour, _MARKERS[index]), shares)
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
            figure.legend(
                handles=[
                    Line2D(
                        [], [], ls="", marker=_MARKERS[i], color=SERIES[i], label=shortened(name)
                    )
                    for i, name in enumerate(series)
                ],
                loc="outside upper left",
                ncols=len(series),
            )
        return _svg(figure, prefix, title)


def grid_svg(
    cells: Sequence[Sequence[int]], title: str, target: Sequence[Sequence[int]] | None = None
) -> str:
    """SVG of an ARC grid, one unit a cell, the cells of a colour drawn as one path.

    Args:
        cells: rows of colours 0..9; a grid of no cells is an empty frame.
        title: what screen readers and tooltips say.
        target: rows of colours of the right answer. Cells that differ from it on the same (row,
            column) are dotted, and so are those that it does not have.

    Raises:
        ValueError: a row differs in length from the first, or a colour is none of 0..9.
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
    """Start, length and colour of the runs of equal cells."""
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


@contextmanager
def _drawing() -> Generator[None]:
    """The style, without complaints about letters that the font which measures text lacks."""
    with mpl.rc_context(cast(dict[Any, Any], STYLE)), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from font")
        yield


def _figure(height: float, width: float = WIDTH) -> Figure:
    """A figure of a size in inches."""
    return Figure(figsize=(width, height), layout="constrained", facecolor="none")


def _is_loss(metric: str) -> bool:
    return metric.endswith("loss")


def _curves_figure(histories: Mapping[str, History], metric: str, height: float = 3.1) -> Figure:
    figure = _figure(height)
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
        _curve(axes, points[name], tops[name], colour, "" if grey else _MARKERS[index % 8])
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
    """A line, thin and pale without a marker."""
    epochs, values = zip(*points, strict=True)
    if not marker:
        axes.plot(epochs, values, color=colour, linewidth=0.9, alpha=0.35)
        return
    small = marker if len(points) <= 12 else ""
    axes.plot(epochs, values, color=colour, linewidth=2, marker=small, markersize=3.5, zorder=3)
    axes.plot([top[0]], [top[1]], marker=marker, color=colour, markersize=8, zorder=4)


def _label_ends(axes: Axes, ends: Sequence[tuple[float, float, str, str]]) -> None:
    """Names at the right ends of the lines, moved apart where they would touch."""
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


def _reach(figure: Measured) -> Iterator[float]:
    """Yields the numbers that a plot of a figure must have room for."""
    if figure.value is not None:
        yield figure.value
        yield from figure.interval or ()


def _estimate(
    axes: Axes, y: float, estimate: Measured, look: tuple[str, str], shares: bool
) -> None:
    """Draws a dot on its interval with the number above; words where there is no number."""
    value, interval, (colour, marker) = estimate.value, estimate.interval, look
    if value is None:
        axes.annotate("not computed", (0, y), (4, 5), textcoords="offset points")
        axes.texts[-1].set(color=MUTED, fontsize=9, fontstyle="italic")
        return
    if interval is not None:
        axes.plot(list(interval), [y, y], color=colour, linewidth=4, alpha=0.45)
    axes.plot([value], [y], marker, color=colour, markersize=8)
    shown = f"{100 * value:.1f} %" if shares else f"{value:.3f}"
    axes.annotate(shown, (value, y), (0, 7), textcoords="offset points")
    # At the ends of the scale it must reach into neither the names nor the margin.
    side = "left" if value < 0.06 else "right" if value > 0.94 else "center"
    axes.texts[-1].set(ha=side, fontsize=9.5, fontweight="bold")


def _bar(axes: Axes, y: float, metrics: Mapping[str, Any], colour: str) -> None:
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


def _heat_cell(axes: Axes, x: int, y: int, value: float | None, shade: float) -> None:
    corner = (x - 0.47, y - 0.45)
    if value is None:
        missing = Rectangle(corner, 0.94, 0.9, facecolor="none", edgecolor=RULE, hatch="////")
        axes.add_patch(missing)
        return
    axes.add_patch(Rectangle(corner, 0.94, 0.9, color=ACCENT, alpha=0.07 + 0.43 * shade))
    axes.text(x, y, f"{100 * value:.2f}", ha="center", va="center", fontsize=10)


def _counted(count: float) -> str:
    if count == 0:
        return ""
    if count == round(count):
        return f"{count:,.0f}"
    return f"{count:,.1f}" if count >= 0.05 else "<0.1"


def _confusion_figure(confusion: Confusion) -> Figure:
    panels = confusion.panels
    columns = min(2, len(panels))
    rows = math.ceil(len(panels) / (columns or 1))
    figure = _figure(0.5 + PANEL_HEIGHT * rows, 0.2 + PANEL_WIDTH * columns)
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


def _png(figure: Figure) -> bytes:
    buffer = BytesIO()
    figure.savefig(buffer, format="png", dpi=160, facecolor="white")
    return buffer.getvalue()


def _svg(figure: Figure, prefix: str, title: str) -> str:
    """The figure as one `<svg>` element without width and height, in the colours of its page."""
    buffer = StringIO()
    figure.savefig(buffer, format="svg", transparent=True)
    root = ET.fromstring(buffer.getvalue())
    _strip(root)
    _prefix_ids(root, prefix)
    width = float(root.attrib["viewBox"].split()[2])
    for name in ("width", "height", "version"):
        root.attrib.pop(name, None)
    root.attrib |= {
        "xmlns": "http://www.w3.org/2000/svg",
        "class": "chart",
        "role": "img",
        "aria-label": title,
        "style": f"min-width: {0.82 * width:.0f}px; stroke-linejoin: round",
    }
    heading = ET.Element("title")
    heading.text = title
    root.insert(0, heading)
    return ET.tostring(root, encoding="unicode")


def _strip(root: ET.Element) -> None:
    """Takes out namespaces, metadata, style sheets and blanks; themes colours and fonts."""
    for element in list(root.iter()):
        for child in list(element):
            if child.tag.rpartition("}")[2] in ("metadata", "style"):
                element.remove(child)
    for element in root.iter():
        element.tag = element.tag.rpartition("}")[2]
        element.tail = None
        if element.tag not in ("text", "tspan"):
            element.text = None
        element.attrib = {
            name.rpartition("}")[2]: value
            for name, value in element.attrib.items()
            if not name.startswith("{http://www.w3.org/XML")
        }
        if style := element.attrib.get("style"):
            element.attrib["style"] = _themed(style)


def _themed(style: str) -> str:
    """A style attribute with themed colours and with the font family left to the page."""
    for colour, variable in THEMED.items():
        style = style.replace(colour, variable)
    return _FONT_FAMILY.sub("", style)


def _prefix_ids(root: ET.Element, prefix: str) -> None:
    """Keeps the ids that something refers to, with the prefix."""
    ids = {element.attrib["id"] for element in root.iter() if "id" in element.attrib}
    used = {
        name
        for element in root.iter()
        for value in element.attrib.values()
        for name in _REFERENCE.findall(value)
        if name in ids
    }

    def renamed(found: re.Match[str]) -> str:
        return f"#{prefix}-{found[1]}" if found[1] in used else found[0]

    for element in root.iter():
        if (own := element.attrib.pop("id", None)) in used:
            element.attrib["id"] = f"{prefix}-{own}"
        for name in ("style", "href", "clip-path", "fill"):
            if name in element.attrib:
                element.attrib[name] = _REFERENCE.sub(renamed, element.attrib[name])
