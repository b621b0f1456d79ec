import re
import xml.etree.ElementTree as ET
from collections.abc import Mapping
from itertools import pairwise

import matplotlib as mpl
import pytest

from raylab.annotation.statistics.confusion import Confusion, ConfusionPanel
from raylab.quality.record import QualityFigure
from raylab.report.charts.bars import group_bars
from raylab.report.charts.confusion import confusion_maps
from raylab.report.charts.curves import learning_curves, learning_curves_png
from raylab.report.charts.grids import ARC_PALETTE, grid_svg
from raylab.report.charts.heat import heat_map
from raylab.report.charts.intervals import interval_plot
from raylab.report.charts.theme import SERIES, shortened

SVG = "{http://www.w3.org/2000/svg}"
METRIC = "val_grid_accuracy"


def texts(svg: str) -> list[str]:
    return ["".join(node.itertext()) for node in ET.fromstring(svg).iter(f"{SVG}text")]


def history(*values: float | None) -> list[Mapping[str, float]]:
    return [
        {"epoch": epoch} | ({} if value is None else {METRIC: value})
        for epoch, value in enumerate(values, start=1)
    ]


def estimate(value: float | None, interval: tuple[float, float] | None = None) -> QualityFigure:
    return QualityFigure(value=value, interval=interval, reason=None)


def all_charts(prefix: str) -> list[str]:
    groups = {"C1": {"cell_accuracy": 0.9, "grid_accuracy": 0.25, "compositional_gap": 0.65}}
    panel = ConfusionPanel(rows="A", columns="B", sets=((3, 0.5), (0, 1)), primary=())
    confusion = Confusion(labels=("Lrn", "none"), panels={"a_b": panel})
    return [
        learning_curves({"a": history(0.1, 0.2)}, METRIC, f"{prefix}-1"),
        group_bars({"a": groups}, f"{prefix}-2"),
        heat_map({"a": {"1": 0.5, "2": None}}, f"{prefix}-3"),
        interval_plot({"a": {"A": estimate(0.25, (0.2, 0.3))}}, "Figures", f"{prefix}-4"),
        confusion_maps(confusion, f"{prefix}-5"),
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


def test_ids_start_with_the_prefix_and_references_find_them():
    pages = [*all_charts("one"), *all_charts("two")]
    ids = [name for svg in pages for name in re.findall(r'\sid="([^"]+)"', svg)]
    assert len(ids) == len(set(ids)) > 0
    assert all(name.startswith(("one-", "two-")) for name in ids)
    for svg in pages:
        references = set(re.findall(r'(?:href="#|url\(#)([^")]+)', svg))
        assert references == set(re.findall(r'\sid="([^"]+)"', svg))


def test_charts_are_the_same_each_time_and_leave_no_style_behind():
    before = dict(mpl.rcParams)
    assert all_charts("x") == all_charts("x")
    assert dict(mpl.rcParams) == before


def test_each_curve_is_named_in_its_own_colour():
    svg = learning_curves({"a": history(0.1, 0.2), "b": history(0.3)}, METRIC)
    found = {
        node.text: node.attrib["style"]
        for node in ET.fromstring(svg).iter(f"{SVG}text")
        if node.text in ("a", "b")
    }
    assert f"var(--series-0, {SERIES[0]})" in found["a"]
    assert f"var(--series-1, {SERIES[1]})" in found["b"]


def test_names_of_curves_that_end_together_do_not_touch():
    svg = learning_curves({name: history(0.1, 0.2) for name in "abcd"}, METRIC)
    heights = sorted(
        float(node.attrib["y"])
        for node in ET.fromstring(svg).iter(f"{SVG}text")
        if node.text in set("abcd")
    )
    assert len(heights) == 4
    assert min(b - a for a, b in pairwise(heights)) > 9


def test_an_epoch_without_the_metric_is_left_out_and_so_is_a_model():
    histories = {"a": history(None, 0.2, float("nan")), "b": history(None)}
    svg = learning_curves(histories, METRIC)
    assert "a" in texts(svg)
    assert "b" not in texts(svg)


@pytest.mark.parametrize(("metric", "best"), [(METRIC, "trial-29"), ("train_loss", "trial-0")])
def test_among_many_only_the_best_has_a_name(metric: str, best: str):
    # The value rises with the number of the trial: the last is best, but for a loss the first.
    histories = {
        f"trial-{i}": [{"epoch": 1, metric: i / 100}, {"epoch": 2, metric: i / 50}]
        for i in range(30)
    }
    names = [text for text in texts(learning_curves(histories, metric)) if "trial" in text]
    assert names == [best]


def test_a_sweep_becomes_a_png():
    png = learning_curves_png({f"trial-{i}": history(0.1, i / 50) for i in range(50)}, METRIC)
    assert png.startswith(b"\x89PNG\r\n")
    width, height = (int.from_bytes(png[at : at + 4]) for at in (16, 20))
    assert width > height > 400


def test_bars_say_the_gap_in_percentage_points():
    metrics = {"cell_accuracy": 0.9, "grid_accuracy": 0.25, "compositional_gap": 0.65}
    svg = group_bars({"m": {"C1": metrics, "A2": {}}, "n": {"C1": {"cell_accuracy": None}}})
    assert [text for text in texts(svg) if text.startswith("gap")] == ["gap 65.0"]
    assert {"C1", "A2", "m", "n"} <= set(texts(svg))


def test_the_heat_map_writes_its_numbers_and_hatches_what_is_missing():
    svg = heat_map({"a": {"1": 0.5, "2": 0.875}, "b": {"1": None}})
    assert {"50.00", "87.50"} <= set(texts(svg))
    root = ET.fromstring(svg)
    # b has neither generation: one is None, the other absent.
    hatched = [node for node in root.iter(f"{SVG}path") if "url(#" in node.attrib.get("style", "")]
    assert len(hatched) == 2
    assert len(list(root.iter(f"{SVG}pattern"))) == 1


def test_a_heat_map_of_one_accuracy_has_a_shade():
    assert "50.00" in texts(heat_map({"a": {"1": 0.5}}))


def test_a_figure_that_is_null_is_not_drawn_as_zero():
    figures = {"difficulty": {"": estimate(0.25)}, "novelty": {"": estimate(None)}}
    svg = interval_plot(figures, "Quality")
    assert texts(svg).count("not computed") == 1
    assert "0.250" in texts(svg)
    assert "0.000" not in texts(svg)


def test_intervals_of_several_series_are_named_and_reach_as_far_as_they_do():
    rows = {
        "alpha": {"A": estimate(-0.25, (-0.75, 0.5)), "B": estimate(0.5)},
        "kappa": {"A": estimate(0.125)},
    }
    found = texts(interval_plot(rows, "Agreement"))
    assert [text for text in found if text in ("A", "B")] == ["A", "B"]
    assert {"alpha", "kappa", "-0.250", "0.500", "0.125", "-0.50"} <= set(found)
    assert "-1.00" not in found
    assert "50.0 %" in texts(interval_plot(rows, "Agreement", shares=True))


def test_names_are_text_whatever_they_hold():
    name = "$x^2$ <b>&"
    assert name in texts(heat_map({name: {"1": 0.5}}))
    assert name in texts(learning_curves({name: history(0.1)}, METRIC))


def test_long_names_keep_both_ends():
    assert shortened("abcdefghij", 5) == "ab…ij"
    assert shortened("abcdef", 6) == "abcdef"


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
        node.attrib["d"] for node in root.iter(f"{SVG}path") if "wrong" in node.get("class", "")
    ]
    assert found == ([] if dots is None else [dots, dots])


def test_an_empty_grid_is_a_frame():
    assert ET.fromstring(grid_svg([], "none")).attrib["viewBox"] == "-.05 -.05 1.1 1.1"


@pytest.mark.parametrize(("cells", "message"), [([[1], [1, 2]], "row 1"), ([[10]], "10")])
def test_what_is_no_grid_is_refused(cells: list[list[int]], message: str):
    with pytest.raises(ValueError, match=message):
        grid_svg(cells, "t")
