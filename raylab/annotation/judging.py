"""What an evaluator's report comes to: caps, contradictions, and whether the code is acceptable."""

from collections.abc import Iterator
from typing import Literal

from raylab.annotation.outcome import Call, Evaluation, Issue, Verdict
from raylab.annotation.replies import ReportReply

PASS_FROM = 85
WEAK_PASS_FROM = 70
CAPS = {Issue.MECHANISM: 50, Issue.EXECUTION: 60}
"""The highest score with an issue: a wrong set of roots, and execution taken for a root."""
SEVERITY = (Verdict.PASS, Verdict.WEAK_PASS, Verdict.FAIL)
TOP = {Verdict.PASS: 100, Verdict.WEAK_PASS: PASS_FROM - 1, Verdict.FAIL: WEAK_PASS_FROM - 1}
"""The highest score of the band that a verdict names."""

Format = Literal["strict", "repaired", "unparsable"]


def judged(
    report: ReportReply, form: Format, threshold: int, calls: tuple[Call, ...] = ()
) -> Evaluation:
    """The evaluation that a report amounts to.

    The score is lowered to the cap of each issue and to the band of the verdict; the verdict is
    lowered to the band of that score. So where a report contradicts itself, its worse half counts.
    The bands are PASS from 85 and WEAK_PASS from 70, or from the threshold if that is less.

    Args:
        report: As the evaluator gave it.
        form: How the code's line was read; the criterion `format` is unmet unless it is strict.
        threshold: Least score of an acceptable code, 0 to 100.
        calls: The calls that led to the report.
    """
    score, caps = report.score, list[str]()
    for limit, why in _limits(report):
        if score > limit:
            score = limit
            caps.append(f"{why}: at most {limit}")
    verdict = _worse(report.verdict, _band(score, min(WEAK_PASS_FROM, threshold)))
    unmet = {*report.issues} | ({Issue.FORMAT} if form != "strict" else set[Issue]())
    return Evaluation(
        verdict=verdict,
        raw_verdict=report.verdict,
        score=score,
        raw_score=report.score,
        issues=tuple(issue for issue in Issue if issue in unmet),
        summary=report.summary,
        contradictory=_contradicts_itself(report, unmet),
        caps=tuple(caps),
        repairs=report.repairs,
        acceptable=verdict is not Verdict.FAIL and score >= threshold,
        calls=calls,
    )


def judged_unparsable(problem: str) -> Evaluation:
    """The evaluation of an answer without a code: score 0, and no evaluator is asked."""
    return Evaluation(
        verdict=Verdict.FAIL,
        score=0,
        raw_score=0,
        issues=(Issue.FORMAT,),
        summary="",
        contradictory=False,
        caps=(f"no code could be read, {problem}: 0",),
        acceptable=False,
    )


def _limits(report: ReportReply) -> Iterator[tuple[int, str]]:
    for issue, cap in CAPS.items():
        if issue in report.issues:
            yield cap, f"issue {issue}"
    yield TOP[report.verdict], f"verdict {report.verdict}"


def _contradicts_itself(report: ReportReply, unmet: set[Issue]) -> bool:
    """Verdict and score are of two bands, or a verdict goes with issues that exclude it."""
    passed = report.verdict is not Verdict.FAIL
    excluded = any(issue in report.issues for issue in CAPS)
    unfounded = not passed and not unmet
    return (
        report.verdict is not _band(report.score, WEAK_PASS_FROM)
        or (passed and excluded)
        or unfounded
    )


def _band(score: int, weak_pass_from: int) -> Verdict:
    if score >= PASS_FROM:
        return Verdict.PASS
    return Verdict.WEAK_PASS if score >= weak_pass_from else Verdict.FAIL


def _worse(one: Verdict, other: Verdict) -> Verdict:
    return max(one, other, key=SEVERITY.index)
