"""The style of all charts, and figures as SVG that follows the theme of its page, or as PNG.

Charts are drawn in the colours of a light theme. In the SVG each of these becomes
`currentColor` or a CSS variable with that colour as its fallback. So a page can set other colours
for a dark theme, while the SVG alone still shows the original ones. The ids within an SVG
start with the caller's `prefix`, which must be unique in the page.
"""

import re
import warnings
import xml.etree.ElementTree as ET
from collections.abc import Generator
from contextlib import contextmanager
from io import BytesIO, StringIO
from typing import Any, cast

import matplotlib as mpl
from matplotlib.figure import Figure

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
"""Width of a chart in inches of 72 units, narrow enough for text to be legible on a phone."""
LABEL_LENGTH = 22
MARKERS = "osD^vPX*"
"""Marks of the series, one for each colour."""
_REFERENCE = re.compile(r"#([\w-]+)")
_FONT_FAMILY = re.compile(r"font-family: [^;]*;? ?")


def shortened(text: str, length: int = LABEL_LENGTH) -> str:
    """Returns `text` with an ellipsis in its middle if it is longer than `length` characters."""
    if len(text) <= length:
        return text
    head = (length - 1) // 2
    return f"{text[:head]}…{text[head + 1 - length :]}"


@contextmanager
def drawing() -> Generator[None]:
    """Sets the style, and silences warnings of letters that the measuring font lacks."""
    with mpl.rc_context(cast(dict[Any, Any], STYLE)), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from font")
        yield


def new_figure(height: float, width: float = WIDTH) -> Figure:
    """Returns an empty figure of a size in inches."""
    return Figure(figsize=(width, height), layout="constrained", facecolor="none")


def as_png(figure: Figure) -> bytes:
    """Returns the figure as a PNG on white."""
    buffer = BytesIO()
    figure.savefig(buffer, format="png", dpi=160, facecolor="white")
    return buffer.getvalue()


def as_svg(figure: Figure, prefix: str, title: str) -> str:
    """Returns one `<svg>` element without width and height, in the colours of its page."""
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
    """Removes namespaces, metadata, style sheets and blanks; themes colours and fonts."""
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
    """Returns a style attribute with themed colours and without a font family."""
    for colour, variable in THEMED.items():
        style = style.replace(colour, variable)
    return _FONT_FAMILY.sub("", style)


def _prefix_ids(root: ET.Element, prefix: str) -> None:
    """Prefixes the ids that are referred to, and removes all others."""
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
