"""The report of an annotation run as a record."""

import json
from typing import Any

from raylab.annotation.statistics.estimates import Estimate
from raylab.annotation.statistics.report import COMPARED_FIGURES, AnnotationReport
from tests.annotation.outcomes import decision
from tests.report.runs import content


def test_what_is_written_is_read_again():
    report = content(decisions=[decision("4", "Ctl")])
    assert AnnotationReport.of_content(json.loads(json.dumps(report.content()))) == report


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
