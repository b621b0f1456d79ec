from collections.abc import Iterable, Sequence

from rich.table import Table

from raylab.annotation.outcome import HumanDecision, Outcome, Status
from raylab.annotation.statistics.agreement import ConfusionPanel
from raylab.annotation.statistics.drift import ArchivedRun, compare_runs
from raylab.annotation.statistics.report import AnnotationReport
from raylab.report.annotation import (
    annotation_tables,
    confusion_table,
    drift_table,
    drift_tables,
)
from tests.annotation.outcomes import (
    adjudication,
    answer,
    archived,
    call,
    decision,
    outcome,
    report,
)
from tests.report.pages import rows_of
from tests.report.runs import content

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


def all_rows(tables: Iterable[Table]) -> dict[str, list[str]]:
    """Rows by their first cell."""
    return {row[0]: row[1:] for table in tables for row in rows_of(table)}


def test_the_tables_of_a_run():
    tables = list(annotation_tables(quality()))
    assert [table.title.partition(",")[0] for table in tables] == [
        "Final codes",
        "4 cases",
        "Annotators",
        "Agreement of A and B on 3 cases with both codes",
        "Right against gold",
        "Recall and precision of each root",
        "The evaluator against gold",
    ]
    rows = all_rows(tables)
    assert rows["accepted"] == ["2", "50.0 % [15.0 to 85.0]"]
    assert rows["waiting for a person now"] == ["1", ""]
    assert rows["calls sent"][0] == "17"
    assert rows["cost"][0] == "4.2500"
    assert rows["answers without a code"] == ["25.0 % [4.6 to 69.9]", "0.0 % [0.0 to 49.0]"]
    assert rows["adjudicator chose the first shown"][0] == "100.0 % [20.7 to 100.0]"
    assert rows["equal composition (consensus)"] == ["66.7 % [20.8 to 93.9]"]
    # Equal twice, and Evo against Evo/Lrn once.
    few = "[no interval: 3 cases: an interval needs 20]"
    assert rows["Jaccard of the sets"][0] == f"0.833 {few}"
    # Of four, A is right in three; three have a final code.
    assert [cell.partition(" [")[0] for cell in rows["right roots"]] == [
        "75.0 %",
        "50.0 %",
        "100.0 %",
    ]
    assert rows["left out, no answer or decision"] == ["0", "0", "1"]
    assert rows["Lrn"] == ["2", "100.0 %", "100.0 %", "100.0 %", "66.7 %", "100.0 %", "100.0 %"]
    assert rows["Ctl"] == ["0", *["-"] * 6]
    # A's three codes are right and B's two of four; all have PASS and one score, no skill.
    for label in ("right codes", "right, given PASS"):
        assert [cell.partition(" [")[0] for cell in rows[label]] == ["100.0 %", "50.0 %"]
    assert "right, given FAIL" not in rows
    a, b = rows["area under the curve of the score"]
    assert a == "undefined [no code is wrong]" and b.startswith("0.500 [")


def test_what_is_missing_is_a_dash_or_a_reason():
    rows = all_rows(annotation_tables(quality([])))
    assert rows["accepted"] == ["0", "-"]
    assert rows["pass rate"] == ["-", "-"]
    assert rows["Krippendorff's alpha, sets"] == ["undefined [no case with both answers]"]
    assert "right roots" not in rows
    unpriced = outcome("1", answer("Lrn", [call(cost=None)]), "Lrn")
    assert all_rows(annotation_tables(quality([unpriced])))["cost"][0] == (
        "unknown: 1 call without a price"
    )


def test_reviews_have_a_column_once_there_are_any():
    rows = all_rows(annotation_tables(quality(CASES, decision("3", "Sym"))))
    assert rows["waiting for a person now"][0] == "0"
    assert [cell.partition(" [")[0] for cell in rows["right roots"]][2:] == ["100.0 %", "100.0 %"]
    assert rows["left out, no answer or decision"] == ["0", "0", "1", "0"]


def test_the_tables_of_drift():
    def of(name: str, right: int) -> ArchivedRun:
        codes = ["Lrn"] * right + ["Sch"] * (10 - right)
        cases = [outcome(f"c{n}", code, "Lrn", gold="Lrn") for n, code in enumerate(codes)]
        return archived(name, cases)

    drift = compare_runs([of("1", 10), of("2", 1)])
    runs, changes = map(rows_of, drift_tables(drift))
    assert runs[1][:6] == ["1", "2026-03-01 12:00", "A", "m-1", "classify_maximal@1 h", "10"]
    by_measure = {row[0]: row[1:] for row in changes}
    ours = by_measure["right roots, A"]
    assert ours[:6] == ["1", "2", "10 of 10", "1 of 10", "9", "0"]
    assert ours[6].endswith("*") and ours[7] == "0.00391*" and ours[8:] == ["9 of 10", "-"]
    assert by_measure["passed, B"][6:] == ["1", "1", "0 of 10", "-"]
    nothing = drift.comparisons[0].model_copy(update={"result": None, "reason": "no case"})
    assert rows_of(drift_table([nothing], drift.level))[1][-1] == "no case"


def test_confusion_is_shaded_by_the_share_of_the_row():
    matrix = ((3, 1, 0), (0, 0, 0), (0.5, 0.01, 1234.25))
    panel = ConfusionPanel(rows="A", columns="B", sets=matrix, primary=())
    table = confusion_table(panel, ("Lrn", "Evo", "none"))
    assert rows_of(table) == [
        ["root", "Lrn", "Evo", "none"],
        ["Lrn", "3", "1", "0"],
        ["Evo", "0", "0", "0"],
        ["none", "0.5", "<0.1", "1,234.2"],
    ]
    (rows,) = table.bodies
    assert [cell.shade for cell in rows[0]] == [None, 0.75, 0.25, 0.0]
    assert [cell.shade for cell in rows[1]] == [None, 0.0, 0.0, 0.0]
