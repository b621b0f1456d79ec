import re
import xml.etree.ElementTree as ET
from collections.abc import Mapping
from importlib import resources

import matplotlib as mpl
import pytest

from raylab.core.page.charts import ARC_PALETTE, SERIES, grid_svg, learning_curves

SVG = "{http://www.w3.org/2000/svg}"
METRIC = "val_grid_accuracy"


def texts(svg: str) -> list[str]:
    return ["".join(node.itertext()) for node in ET.fromstring(svg).iter(f"{SVG}text")]


def history(*values: float | None) -> list[Mapping[str, float]]:
    return [
        {"epoch": epoch} | ({} if value is None else {METRIC: value})
        for epoch, value in enumerate(values, start=1)
    ]


def test_charts_are_whole_elements_that_take_their_colours_from_the_page():
    before = dict(mpl.rcParams)
    # What has no value of the metric is left out.
    histories = {"a": history(None, 0.2, float("nan")), "b": history(0.3), "c": history(None)}
    svg = learning_curves(histories, METRIC, "grid accuracy", "x")
    assert {"a", "b"} <= set(texts(svg)) and "c" not in texts(svg)
    assert dict(mpl.rcParams) == before
    root = ET.fromstring(svg)
    assert root.tag == f"{SVG}svg" and root.attrib["role"] == "img"
    assert {"width", "height"}.isdisjoint(root.attrib)
    title = root.find(f"{SVG}title")
    assert title is not None and title.text == root.attrib["aria-label"]
    css = (resources.files("raylab.core.page") / "templates" / "style.css").read_text()
    assert tuple(re.findall(r"--series-\d: (#\w+)", css)[: len(SERIES)]) == SERIES
    # Every colour is a variable, or that of the text.
    bare = re.sub(r"var\([^)]*\)", "", svg)
    assert re.findall(r"#[0-9a-f]{6}\b", bare) == [] and "currentColor" in svg
    assert "font-family" not in svg and "<style" not in svg
    for name, colour in zip("ab", SERIES, strict=False):
        (style,) = (n.attrib["style"] for n in root.iter(f"{SVG}text") if n.text == name)
        assert colour in style


@pytest.mark.parametrize(("metric", "best"), [(METRIC, "trial-29"), ("train_loss", "trial-0")])
def test_among_many_only_the_best_has_a_name(metric: str, best: str):
    # The value rises with the number of the trial: the last is best, but for a loss the first.
    histories = {
        f"trial-{i}": [{"epoch": 1, metric: i / 100}, {"epoch": 2, metric: i / 50}]
        for i in range(30)
    }
    names = [
        text for text in texts(learning_curves(histories, metric, "loss", "c")) if "trial" in text
    ]
    assert names == [best]


def test_the_score_by_views_has_a_tick_for_each_doubling():
    rows = [{"views": 2**n, "two_attempts": n / 9} for n in range(4)]
    svg = learning_curves({"m": rows}, "two_attempts", "two attempts", "v", "views")
    assert {"m", "1", "2", "4", "8", "views"} <= set(texts(svg))


def test_a_grid_shows_each_cell_in_its_colour():
    root = ET.fromstring(grid_svg([[0, 0, 3], [3, 9, 9]], "<task> & more"))
    drawn = {
        node.attrib["fill"]: node.attrib["d"]
        for node in root.iter(f"{SVG}path")
        if node.attrib.get("fill", "none") != "none"
    }
    assert drawn == {
        ARC_PALETTE[0]: "M0 0h2v1h-2z",
        ARC_PALETTE[3]: "M2 0h1v1h-1zM0 1h1v1h-1z",
        ARC_PALETTE[9]: "M1 1h2v1h-2z",
    }
    assert root.attrib["aria-label"] == "<task> & more"
    assert ET.fromstring(grid_svg([], "none")).attrib["viewBox"] == "-.05 -.05 1.1 1.1"


@pytest.mark.parametrize(
    ("target", "dots"),
    [
        ([[1, 2], [3, 4]], None),
        ([[1, 2], [3, 5]], "M1.5 1.5h0"),
        ([[1], [3]], "M1.5 0.5h0M1.5 1.5h0"),
    ],
)
def test_wrong_cells_are_dotted(target: list[list[int]], dots: str | None):
    root = ET.fromstring(grid_svg([[1, 2], [3, 4]], "t", target))
    drawn = [n.attrib["d"] for n in root.iter(f"{SVG}path") if "stroke-linecap" in n.attrib]
    assert drawn == ([] if dots is None else [dots, dots])
