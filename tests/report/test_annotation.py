import struct
import xml.etree.ElementTree as ET
from collections.abc import Iterable, Sequence
from io import BytesIO, StringIO

import pytest
from matplotlib import image
from rich.console import Console
from rich.table import Table

from raylab.annotation.outcome import HumanDecision, Outcome, Status
from raylab.annotation.report import AnnotationReport
from raylab.annotation.statistics.canaries import RunCounts, count_run
from raylab.annotation.statistics.confusion import Confusion, ConfusionPanel
from raylab.annotation.statistics.drift import compare_runs
from raylab.annotation.statistics.estimates import Estimate
from raylab.opt.code import parse
from raylab.report.annotation import (
    annotation_tables,
    drift_table,
    drift_tables,
    shown_number,
    shown_share,
)
from raylab.report.charts.confusion import confusion_cells, confusion_maps, confusion_maps_png
from tests.annotation.outcomes import (
    CODEBOOK,
    NOON,
    adjudication,
    answer,
    call,
    decision,
    outcome,
    report,
)
from tests.report.runs import content

SVG = "{http://www.w3.org/2000/svg}"
CASES = [
    outcome("1", "Lrn", "Lrn", gold="Lrn"),
    outcome("2", "Evo", "Evo/Lrn", gold="Evo", status=Status.ADJUDICATED, code="OPT=Evo",
            adjudication=adjudication(("A", "B"), "A", "Evo", report())),
    outcome("3", answer(None), "Swm", gold="Sym", trap=True, status=Status.HUMAN,
            evaluation_a=None, path=("human:unparsable",)),
    outcome("4", "Lrn", "Lrn", gold="Lrn"),
]  # fmt: skip


def quality(cases: Sequence[Outcome] = CASES, *decisions: HumanDecision) -> AnnotationReport:
    return content(cases, decisions)


def rows_of(table: Table) -> list[list[str]]:
    out = StringIO()
    Console(file=out, width=300).print(table)
    lines = out.getvalue().replace("┃", "│").splitlines()
    return [[cell.strip() for cell in line.strip("│").split("│")] for line in lines if "│" in line]


def all_rows(tables: Iterable[Table]) -> dict[str, list[str]]:
    """Rows by their first cell."""
    return {row[0]: row[1:] for table in tables for row in rows_of(table)}


def size(png: bytes) -> tuple[int, int]:
    assert png[:8] == b"\x89PNG\r\n\x1a\n"
    return struct.unpack(">II", png[16:24])


# Tables


def test_the_tables_of_a_run():
    tables = list(annotation_tables(quality()))
    assert [str(table.title).partition(",")[0] for table in tables] == [
        "4 cases",
        "Annotators",
        "Agreement of A and B on 3 cases with both codes",
        "Right against gold",
        "Recall / precision of each root in gold",
        "The evaluator against gold",
    ]
    rows = all_rows(tables)
    assert rows["accepted"] == ["2", "50.0 % [15.0, 85.0]"]
    assert rows["waiting for a person now"] == ["1", ""]
    assert rows["calls sent"][0] == "17"
    assert rows["cost"][0] == "4.2500"
    assert rows["answers without a code"] == ["25.0 % [4.6, 69.9]", "0.0 % [0.0, 49.0]"]
    assert rows["adjudicator chose the first shown"][0] == "100.0 % [20.7, 100.0]"
    assert rows["equal composition (consensus)"] == ["66.7 % [20.8, 93.9]"]
    # Equal twice, and Evo against Evo/Lrn once.
    few = "(no interval: 3 cases: an interval needs 20)"
    assert rows["Jaccard of the sets"][0] == f"0.833 {few}"
    # Of four, A is right in three; three have a final code.
    assert [cell.partition(" [")[0] for cell in rows["set of roots"]] == [
        "75.0 %",
        "50.0 %",
        "100.0 %",
    ]
    assert rows["left out, no answer or decision"] == ["0", "0", "1"]
    assert rows["Lrn"] == ["2", "100 % / 100 %", "100 % / 67 %", "100 % / 100 %"]
    assert rows["Ctl"] == ["0", "- / -", "- / -", "- / -"]
    # A's three codes are right and B's two of four; all have PASS and one score, no skill.
    for label in ("right codes", "right, given PASS"):
        assert [cell.partition(" [")[0] for cell in rows[label]] == ["100.0 %", "50.0 %"]
    assert rows["right, given FAIL"] == ["-", "-"]
    a, b = rows["area under the curve of the score"]
    assert a == "undefined: no code is wrong" and b.startswith("0.500 [")


def test_what_is_missing_is_a_dash_or_a_reason():
    rows = all_rows(annotation_tables(quality([])))
    assert rows["accepted"] == ["0", "-"]
    assert rows["pass rate"] == ["-", "-"]
    assert rows["Krippendorff's alpha, sets"] == ["undefined: no case with both answers"]
    assert "set of roots" not in rows
    assert shown_share(None) == "-"
    assert shown_share(Estimate(value=0.5, interval=None, count=1, reason=None)) == "50.0 %"
    assert shown_number(Estimate(value=0.25, interval=None, count=1, reason=None)) == "0.250"
    unpriced = outcome("1", answer("Lrn", [call(cost=None)]), "Lrn")
    assert all_rows(annotation_tables(quality([unpriced])))["cost"][0] == (
        "unknown: 1 calls without a price"
    )


def test_reviews_have_a_column_once_there_are_any():
    rows = all_rows(annotation_tables(quality(CASES, decision("3", "Sym"))))
    assert rows["waiting for a person now"][0] == "0"
    assert [cell.partition(" [")[0] for cell in rows["set of roots"]][2:] == ["100.0 %", "100.0 %"]
    assert rows["left out, no answer or decision"] == ["0", "0", "1", "0"]


def test_the_tables_of_drift():
    def of(name: str, right: int) -> RunCounts:
        cases = [outcome(f"c{n}", "Lrn" if n < right else "Sch", "Lrn") for n in range(10)]
        canary = {(case.case, case.description_hash): parse("Lrn") for case in cases}
        return count_run(name, NOON, cases, canary, CODEBOOK)

    drift = compare_runs([of("1", 10), of("2", 1)])
    runs, changes = map(rows_of, drift_tables(drift))
    assert runs[1][:6] == ["1", "2026-03-01 12:00", "A", "m-1", "classify_maximal@1 h", "10"]
    by_measure = {row[0]: row[1:] for row in changes}
    ours = by_measure["right roots, A"]
    assert ours[:6] == ["1", "2", "10 of 10", "1 of 10", "9", "0"]
    assert ours[6].endswith("*") and ours[7] == "0.00391*" and ours[8] == "-"
    assert by_measure["passed, B"][6:] == ["1", "1", "-"]
    nothing = drift.comparisons[0].model_copy(update={"result": None, "reason": "no canary"})
    assert rows_of(drift_table([nothing], drift.level))[1][-1] == "no canary"


# Pictures


def test_cells_hold_counts_and_are_shaded_by_their_share_of_the_row():
    cells = confusion_cells([[3, 1, 0], [0, 0, 0], [0.5, 0.01, 1234.25]])
    assert [[cell.text for cell in row] for row in cells] == [
        ["3", "1", ""], ["", "", ""], ["0.5", "<0.1", "1,234.2"]
    ]  # fmt: skip
    assert [cell.shade for cell in cells[0]] == [0.75, 0.25, 0.0]
    assert [cell.shade for cell in cells[1]] == [0.0] * 3
    assert sum(cell.shade for cell in cells[2]) == pytest.approx(1)


def test_the_picture_has_a_panel_for_each_pair():
    confusion = quality().confusion
    svg = ET.fromstring(confusion_maps(confusion))
    texts = ["".join(node.itertext()) for node in svg.iter(f"{SVG}text")]
    for title in ("annotator A against annotator B", "gold against final code"):
        assert title in texts
    # Each panel names the eight labels on both sides.
    assert texts.count("Sym") == texts.count("none") == 2 * 4
    counts = [
        cell.text
        for panel in confusion.panels.values()
        for row in confusion_cells(panel.sets)
        for cell in row
        if cell.text
    ]
    assert sorted(text for text in texts if text.replace(".", "").isdigit()) == sorted(counts)


def test_the_picture_is_a_png_that_grows_with_its_panels():
    confusion = quality().confusion
    width, height = size(confusion_maps_png(confusion))
    assert (width, height) == (1344, 1456)
    one = confusion.model_copy(update={"panels": {"a_b": confusion.panels["a_b"]}})
    assert size(confusion_maps_png(one)) == (688, 768)
    assert confusion_maps_png(confusion) == confusion_maps_png(confusion)


def test_the_shades_stay_in_order_without_colour():
    def darkest(share: float) -> float:
        matrix = ((share, 1 - share), (0, 0))
        panel = ConfusionPanel(rows="r", columns="c", sets=matrix, primary=((1, 0), (0, 0)))
        png = confusion_maps_png(Confusion(labels=("x", "y"), panels={"p": panel}))
        pixels = image.imread(BytesIO(png), format="png")[:, :, :3]
        grey = pixels @ [0.2126, 0.7152, 0.0722]
        # Halfway between the middle of the first cell and its corner there is no text.
        height, width = grey.shape
        return float(grey[int(height * 0.2), int(width * 0.25)])

    light = [darkest(share) for share in (0.0, 0.25, 0.5, 1.0)]
    assert light == sorted(light, reverse=True)
    assert light[0] == pytest.approx(1.0)
    assert light[0] - light[-1] > 0.2
