import re
import xml.etree.ElementTree as ET
from collections.abc import Mapping

import matplotlib as mpl
import pytest

from raylab.arc.records import VotesScore
from raylab.report.charts import (
    ARC_PALETTE,
    SERIES,
    grid_svg,
    learning_curves,
    learning_curves_png,
    votes_curves,
)

SVG = "{http://www.w3.org/2000/svg}"
METRIC = "val_grid_accuracy"


def texts(svg: str) -> list[str]:
    return ["".join(node.itertext()) for node in ET.fromstring(svg).iter(f"{SVG}text")]


def history(*values: float | None) -> list[Mapping[str, float]]:
    return [
        {"epoch": epoch} | ({} if value is None else {METRIC: value})
        for epoch, value in enumerate(values, start=1)
    ]


def votes(*shares: float) -> list[VotesScore]:
    return [
        VotesScore(views=2**place, first_attempt=share / 2, two_attempts=share)
        for place, share in enumerate(shares)
    ]


def all_charts(prefix: str) -> list[str]:
    return [
        learning_curves({"a": history(0.1, 0.2)}, METRIC, f"{prefix}-1"),
        votes_curves({"a": votes(0.1, 0.2)}, f"{prefix}-2"),
    ]


def test_charts_are_whole_elements_that_take_their_colours_from_the_page():
    for svg in all_charts("x"):
        root = ET.fromstring(svg)
        assert root.tag == f"{SVG}svg"
        assert {"width", "height"}.isdisjoint(root.attrib)
        assert root.attrib["role"] == "img"
        title = root.find(f"{SVG}title")
        assert title is not None
        assert title.text == root.attrib["aria-label"]
        bare = re.sub(r"var\([^)]*\)", "", svg)
        # White is the light of no theme; all else is a variable or the colour of the text.
        assert set(re.findall(r"#[0-9a-f]{6}\b", bare)) == set()
        assert "currentColor" in svg
        assert "font-family" not in svg
        assert "<style" not in svg


def test_ids_of_charts_differ_by_their_prefix_and_references_find_them():
    pages = [*all_charts("one"), *all_charts("two")]
    ids = [name for svg in pages for name in re.findall(r'\sid="([^"]+)"', svg)]
    assert len(ids) == len(set(ids)) > 0
    for svg in pages:
        references = set(re.findall(r'(?:href="#|url\(#)([^")]+)', svg))
        assert references == set(re.findall(r'\sid="([^"]+)"', svg))


def test_charts_are_the_same_each_time_and_leave_no_style_behind():
    before = dict(mpl.rcParams)
    assert all_charts("x") == all_charts("x")
    assert dict(mpl.rcParams) == before


def test_each_curve_is_named_in_its_own_colour():
    svg = learning_curves({"a": history(0.1, 0.2), "b": history(0.3)}, METRIC, "c")
    styles = {
        node.text: node.attrib["style"]
        for node in ET.fromstring(svg).iter(f"{SVG}text")
        if node.text in ("a", "b")
    }
    assert f"var(--series-0, {SERIES[0]})" in styles["a"]
    assert f"var(--series-1, {SERIES[1]})" in styles["b"]


def test_an_epoch_without_the_metric_is_left_out_and_so_is_a_model():
    histories = {"a": history(None, 0.2, float("nan")), "b": history(None)}
    svg = learning_curves(histories, METRIC, "c")
    assert "a" in texts(svg)
    assert "b" not in texts(svg)


@pytest.mark.parametrize(("metric", "best"), [(METRIC, "trial-29"), ("train_loss", "trial-0")])
def test_among_many_only_the_best_has_a_name(metric: str, best: str):
    # The value rises with the number of the trial: the last is best, but for a loss the first.
    histories = {
        f"trial-{i}": [{"epoch": 1, metric: i / 100}, {"epoch": 2, metric: i / 50}]
        for i in range(30)
    }
    names = [text for text in texts(learning_curves(histories, metric, "c")) if "trial" in text]
    assert names == [best]


def test_a_sweep_becomes_a_png():
    png = learning_curves_png({f"trial-{i}": history(0.1, i / 50) for i in range(50)}, METRIC)
    assert png.startswith(b"\x89PNG\r\n")
    width, height = (int.from_bytes(png[at : at + 4]) for at in (16, 20))
    assert width > height > 400


def test_votes_have_a_solid_and_a_dashed_line_and_a_tick_for_each_number_of_views():
    svg = votes_curves({"m": votes(0.1, 0.2, 0.3)}, "v")
    assert {"m", "1", "2", "4", "views"} <= set(texts(svg))
    assert svg.count("stroke-dasharray") == 1


@pytest.mark.parametrize("name", ["$x^2$ <b>&", "[/red]"])
def test_names_are_text_whatever_they_hold(name: str):
    assert name in texts(learning_curves({name: history(0.1)}, METRIC, "c"))
    assert name in texts(votes_curves({name: votes(0.1)}, "v"))


@pytest.mark.parametrize("hostile", ["\x1b]0;x", "a\x00", "\u202eevil", "\ud800"])
def test_what_cannot_be_drawn_is_written_out(hostile: str):
    for svg in (
        learning_curves({hostile: history(0.1)}, METRIC, "c"),
        votes_curves({hostile: votes(0.1)}, "v"),
        grid_svg([[1]], hostile),
    ):
        assert hostile not in svg
        # An XML parser refuses control characters and halves of surrogate pairs.
        shown = [*texts(svg), *ET.fromstring(svg).itertext()]
        assert any("\\x" in text or "\\u" in text for text in shown)


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
    assert [node.text for node in root.iter(f"{SVG}title")] == ["<task> & more"]


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
    found = [
        node.attrib["d"] for node in root.iter(f"{SVG}path") if "stroke-linecap" in node.attrib
    ]
    assert found == ([] if dots is None else [dots, dots])


def test_an_empty_grid_is_a_frame():
    assert ET.fromstring(grid_svg([], "none")).attrib["viewBox"] == "-.05 -.05 1.1 1.1"


@pytest.mark.parametrize(("cells", "message"), [([[1], [1, 2]], "row 1"), ([[10]], "10")])
def test_what_is_no_grid_is_refused(cells: list[list[int]], message: str):
    with pytest.raises(ValueError, match=message):
        grid_svg(cells, "t")
