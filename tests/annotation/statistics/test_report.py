"""The report of an annotation run as a record."""

import json

from raylab.annotation.statistics.report import AnnotationReport
from tests.annotation.outcomes import decision
from tests.report.runs import content


def test_what_is_written_is_read_again():
    report = content(decisions=[decision("4", "Ctl")])
    assert AnnotationReport.of_content(json.loads(json.dumps(report.content()))) == report
