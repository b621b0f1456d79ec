import pytest

from raylab.annotation.judging import Format, judge, judge_unparsable
from raylab.codebook import ReportReply, Verdict
from raylab.opt.answers import CRITERIA


def report_of(verdict: Verdict, score: int, issues: tuple[str, ...]) -> ReportReply:
    """A report as it is when it has been read."""
    return ReportReply.model_construct(summary="so", issues=issues, score=score, verdict=verdict)


NAMES = {"mechanism": "mechanism", "execution": "parallelism/pipelines", "fields": "attributes"}

# What the evaluator says: verdict, score, issues; what counts: verdict, score, acceptable, and
# whether the report contradicts itself. Bands: PASS from 85, WEAK_PASS from 70. Caps: mechanism
# 50, execution 60. The threshold is 70.
REPORTS = """
    PASS      100 -                    PASS      100 yes no
    PASS       85 -                    PASS       85 yes no
    PASS       84 -                    WEAK_PASS  84 yes contradictory
    PASS       70 -                    WEAK_PASS  70 yes contradictory
    PASS       69 -                    FAIL       69 no  contradictory
    PASS        0 -                    FAIL        0 no  contradictory
    WEAK_PASS 100 -                    WEAK_PASS  84 yes contradictory
    WEAK_PASS  85 -                    WEAK_PASS  84 yes contradictory
    WEAK_PASS  84 -                    WEAK_PASS  84 yes no
    WEAK_PASS  70 fields               WEAK_PASS  70 yes no
    WEAK_PASS  69 -                    FAIL       69 no  contradictory
    FAIL      100 fields               FAIL       69 no  contradictory
    FAIL       70 fields               FAIL       69 no  contradictory
    FAIL       69 fields               FAIL       69 no  no
    FAIL       10 mechanism            FAIL       10 no  no
    FAIL       65 mechanism            FAIL       50 no  no
    FAIL       65 execution            FAIL       60 no  no
    FAIL       65 mechanism,execution  FAIL       50 no  no
    FAIL       40 -                    FAIL       40 no  contradictory
    PASS       95 mechanism            FAIL       50 no  contradictory
    PASS       95 execution            FAIL       60 no  contradictory
    WEAK_PASS  75 execution            FAIL       60 no  contradictory
"""


@pytest.mark.parametrize(
    "line", [line.split() for line in REPORTS.strip().splitlines()], ids="-".join
)
def test_worse_half_of_a_report_counts(line: list[str]) -> None:
    said, raw, issues, verdict, score, acceptable, contradictory = line
    listed = tuple(NAMES[name] for name in issues.split(",") if name != "-")
    evaluation = judge(report_of(Verdict(said), int(raw), listed), "strict", 70, CRITERIA)
    assert (evaluation.verdict, evaluation.score) == (verdict, int(score))
    assert (evaluation.raw_verdict, evaluation.raw_score) == (said, int(raw))
    assert evaluation.acceptable is (acceptable == "yes")
    assert evaluation.contradictory is (contradictory == "contradictory")
    assert (evaluation.caps != ()) is (raw != score)
    assert evaluation.summary == "so"


@pytest.mark.parametrize(
    ("said", "raw", "threshold", "acceptable"),
    [
        (Verdict.WEAK_PASS, 60, 60, True),
        (Verdict.WEAK_PASS, 59, 60, False),
        (Verdict.FAIL, 65, 60, False),
        (Verdict.PASS, 90, 90, True),
        (Verdict.PASS, 89, 90, False),
        (Verdict.WEAK_PASS, 95, 85, False),
        (Verdict.WEAK_PASS, 0, 0, True),
    ],
)
def test_threshold_moves_what_is_acceptable(
    said: Verdict, raw: int, threshold: int, acceptable: bool
) -> None:
    report = report_of(said, raw, ("attributes",))
    assert judge(report, "strict", threshold, CRITERIA).acceptable is acceptable


@pytest.mark.parametrize(("form", "unmet"), [("strict", False), ("repaired", True)])
def test_format_is_computed(form: Format, unmet: bool) -> None:
    evaluation = judge(report_of(Verdict.PASS, 90, ()), form, 70, CRITERIA)
    assert ("format" in evaluation.issues) is unmet
    assert evaluation.acceptable and not evaluation.contradictory


def test_caps_say_why() -> None:
    report = report_of(Verdict.PASS, 95, ("mechanism", "parallelism/pipelines"))
    assert judge(report, "strict", 70, CRITERIA).caps == ("issue mechanism: at most 50",)
    report = report_of(Verdict.WEAK_PASS, 95, ("parallelism/pipelines",))
    assert judge(report, "strict", 70, CRITERIA).caps == (
        "issue parallelism/pipelines: at most 60",
    )


def test_answer_without_a_code() -> None:
    evaluation = judge_unparsable("it is empty")
    assert (evaluation.verdict, evaluation.score) == (Verdict.FAIL, 0)
    assert evaluation.issues == ("format",) and not evaluation.acceptable
    assert evaluation.caps == ("no code could be read, it is empty: 0",)
