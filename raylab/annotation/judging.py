"""The judgement of an evaluator's report: caps, contradictions and acceptance of the label."""

from collections.abc import Iterator, Sequence
from typing import Literal

from raylab.annotation.outcome import Evaluation
from raylab.codebook import FORMAT, Criterion, ReportReply, Verdict

PASS_FROM = 85
WEAK_PASS_FROM = 70
SEVERITY = list(Verdict)
TOP = {Verdict.PASS: 100, Verdict.WEAK_PASS: PASS_FROM - 1, Verdict.FAIL: WEAK_PASS_FROM - 1}
"""The highest score of the band that a verdict names."""

Format = Literal["strict", "repaired", "unparsable"]


def judge(
    report: ReportReply,
    form: Format,
    threshold: int,
    criteria: Sequence[Criterion],
    capped: bool = True,
) -> Evaluation:
    """Returns the evaluation that follows from a report.

    The score is lowered to the cap of each issue and to the band of the verdict; the verdict is
    lowered to the band of that score. If a report contradicts itself, its worse half counts. The
    bands are PASS from 85 and WEAK_PASS from 70, or from the threshold if that is lower.

    Args:
        report: The evaluator's report.
        form: The format of the answer; the criterion `format` is unmet unless it is strict.
        threshold: Lowest score of an acceptable label, 0 to 100.
        criteria: The criteria of the codebook, in the order of reports.
        capped: False lowers nothing: verdict and score are those of the report.
    """
    score, verdict, caps = report.score, report.verdict, list[str]()
    if capped:
        for limit, why in _limits(report, criteria):
            if score > limit:
                score = limit
                caps.append(f"{why}: at most {limit}")
        verdict = _worse(verdict, _band(score, min(WEAK_PASS_FROM, threshold)))
    unmet = {*report.issues} | ({FORMAT.name} if form != "strict" else set[str]())
    return Evaluation(
        verdict=verdict,
        raw_verdict=report.verdict,
        score=score,
        raw_score=report.score,
        issues=tuple(criterion.name for criterion in criteria if criterion.name in unmet),
        summary=report.summary,
        contradictory=_contradicts_itself(report, unmet, criteria),
        caps=tuple(caps),
        acceptable=verdict is not Verdict.FAIL and score >= threshold,
    )


def judge_unparsable(problem: str) -> Evaluation:
    """Returns the evaluation of an answer without a label: score 0, without asking an evaluator."""
    return Evaluation(
        verdict=Verdict.FAIL,
        score=0,
        raw_score=0,
        issues=(FORMAT.name,),
        summary="",
        contradictory=False,
        caps=(f"no code could be read, {problem}: 0",),
        acceptable=False,
    )


def _limits(report: ReportReply, criteria: Sequence[Criterion]) -> Iterator[tuple[int, str]]:
    for criterion in criteria:
        if criterion.cap is not None and criterion.name in report.issues:
            yield criterion.cap, f"issue {criterion.name}"
    yield TOP[report.verdict], f"verdict {report.verdict}"


def _contradicts_itself(
    report: ReportReply, unmet: set[str], criteria: Sequence[Criterion]
) -> bool:
    """Returns True if the verdict contradicts the band of the score, or the issues."""
    passed = report.verdict is not Verdict.FAIL
    capping = {criterion.name for criterion in criteria if criterion.cap is not None}
    excluded = not capping.isdisjoint(report.issues)
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


def _worse(a: Verdict, b: Verdict) -> Verdict:
    return max(a, b, key=SEVERITY.index)
