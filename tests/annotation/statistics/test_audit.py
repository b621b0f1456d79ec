import numpy as np
import pytest

from raylab.annotation.outcome import Outcome, Status
from raylab.annotation.statistics.audit import (
    AuditReport,
    audit_report,
    is_drawn,
    predicted_share,
    wilson_interval,
)
from raylab.annotation.statistics.estimates import proportion
from raylab.opt.code import parse
from tests.annotation.outcomes import adjudication, outcome, report, tables


def test_estimate_by_hand() -> None:
    # Labels 1, 1, 0 with predictions 0.9, 0.8, 0.4; over all six, 0.9, 0.8, 0.4, 0.9, 0.6, 0.6.
    labels, predicted = np.array([1.0, 1, 0]), np.array([0.9, 0.8, 0.4])
    everywhere = np.array([0.9, 0.8, 0.4, 0.9, 0.6, 0.6])
    # Covariance 0.225, variance 0.04: the weight 0.225 / (1.5 * 0.04) is cut to 1, so that the
    # estimate is the mean prediction 0.7 plus the mean of 0.1, 0.2 and -0.4, which is -1 / 30.
    found, weight = predicted_share(labels, predicted, everywhere)
    assert weight == 1.0
    assert found.value == pytest.approx(0.7 - 1 / 30)


def test_predictions_without_information_get_no_weight() -> None:
    labels, same = np.array([1.0, 1, 0, 1]), np.full(4, 0.9)
    found, weight = predicted_share(labels, same, np.full(40, 0.9))
    assert (weight, found.value) == (0.0, 0.75)
    assert found.interval == pytest.approx(proportion(3, 4).interval)


def test_wilson_interval_is_that_of_proportions() -> None:
    for right, trials in ((0, 5), (3, 7), (20, 20)):
        assert wilson_interval(right / trials, trials) == pytest.approx(
            proportion(right, trials).interval
        )


def counted(codes: dict[str, str | None], outcomes: list[Outcome]) -> AuditReport:
    """The report of an audit of drawn cases, with the code of each, None if it has none."""
    labels = {case: None if code is None else parse(code) for case, code in codes.items()}
    return audit_report(tables(outcomes), labels)


def test_decided_cases_are_counted_with_the_report_on_their_code() -> None:
    settled = adjudication(("A", "B"), "synthesis", "Lrn", report("PASS", 80))
    outcomes = [
        outcome("a", "Lrn", "Lrn", evaluation_a=report("PASS", 100)),
        outcome("b", "Lrn", "Evo", status=Status.ADJUDICATED, code="Lrn", adjudication=settled),
        outcome("c", "Lrn", "Evo", status=Status.HUMAN),
    ]
    found = counted({"a": "OPT=Lrn", "b": "OPT=Evo", "c": "OPT=Lrn"}, outcomes)
    assert (found.decided, found.drawn, found.audited) == (2, 2, 2)
    assert found.judged == pytest.approx(0.9)
    assert (found.right.value, found.right.count) == (0.5, 2)
    assert found.corrected.value == pytest.approx(0.5) and found.corrected.count == 2


def test_audit_without_codes_has_no_estimate() -> None:
    found = counted({"a": None}, [])
    assert (found.decided, found.judged, found.corrected.reason) == (0, None, "no cases")


def test_larger_sample_holds_the_smaller() -> None:
    cases = [f"case-{n}" for n in range(2000)]
    small = {case for case in cases if is_drawn(case, 1, 0.05)}
    large = {case for case in cases if is_drawn(case, 1, 0.2)}
    assert small < large and 60 < len(small) < 140
