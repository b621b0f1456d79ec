"""The report of an annotation run as a record."""

import json
from typing import Any, cast

from raylab.annotation.accuracy.verdicts import JudgeCounts
from raylab.annotation.report import COMPARED_FIGURES, AnnotationReport
from raylab.annotation.roles import SIDES
from raylab.annotation.statistics.estimates import Estimate
from tests.annotation.outcomes import decision
from tests.report.runs import content


def older(value: Any) -> Any:
    """The content of a report as it was written before schema versions."""
    names = {"response_model": "served", "cached": "journalled"}
    if isinstance(value, dict):
        items = cast("dict[str, Any]", value).items()
        found = {names.get(key, key): older(one) for key, one in items if key != "schema_version"}
        for side, candidate in found.pop("candidates", {}).items():
            found[side.lower()] = candidate
        return found | ({"reviewed": None} if "final" in found and "by_root" in str(found) else {})
    return [older(one) for one in cast("list[Any]", value)] if isinstance(value, list) else value


def before_version_2(report: AnnotationReport) -> dict[str, Any]:
    """The content of a report as version 1 had it, without its version."""
    written = json.loads(json.dumps(report.content()))
    for part, key in ((written, "judge"), (written, "audit"), (written, "schema_version")):
        del part[key]
    del written["cases"]["open_book"], written["score_tree"]["notes"]
    return written


def without_news(report: AnnotationReport) -> AnnotationReport:
    """A report as it is read from an earlier version, which had no judge and no notes."""
    nothing = JudgeCounts().summary()
    tree = report.score_tree.model_copy(update={"notes": ()})
    return report.model_copy(
        update={"judge": dict.fromkeys(SIDES, nothing), "audit": None, "score_tree": tree}
    )


def test_what_is_written_is_read_again():
    report = content(decisions=[decision("4", "Ctl")])
    assert AnnotationReport.of_content(json.loads(json.dumps(report.content()))) == report


def test_a_report_of_before_schema_versions_is_migrated():
    report = content()
    found = AnnotationReport.of_content(older(before_version_2(report)))
    assert found == without_news(report)


def test_a_report_of_version_1_is_migrated():
    report = content()
    written = {**before_version_2(report), "schema_version": 1}
    assert AnnotationReport.of_content(written) == without_news(report)


def test_the_first_reports_count_as_absent():
    written = older(before_version_2(content()))
    del written["disagreements"]
    assert AnnotationReport.of_content(written) is None


def test_the_figures_that_are_compared_are_those_of_the_report():
    report = content()
    found = {figure.path: figure.read(report) for figure in COMPARED_FIGURES}
    assert found["cases.total"] == 4
    assert found["gold.reviewed.roots"] is None
    for path, value in found.items():
        at: Any = report
        for name in path.split("."):
            at = at.get(name) if isinstance(at, dict) else getattr(at, name, None)
        assert value == (at if isinstance(at, int | float | Estimate) else None), path
