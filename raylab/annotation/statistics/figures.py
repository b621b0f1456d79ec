"""The figures of a run: how its cases ended, what its annotators answered, how they were judged."""

from collections import Counter
from typing import Annotated

from scipy import stats

from raylab.annotation.outcome import Side, Status, Verdict
from raylab.annotation.statistics.estimates import Estimate, proportion, share_of
from raylab.annotation.statistics.frame import SEPARATOR, Frame, Tables, ranked, tally, view
from raylab.annotation.statistics.usage import Seconds, times
from raylab.codebook import Codebook
from raylab.runs.records import Measure, Part

EXAMPLES = 200
"""Longest example of a reason, in characters."""


class Ending(Part):
    """Cases that ended with one step of the protocol."""

    cases: int
    example: str | None
    """A case and its reason; None if there is no reason."""


class CaseReport(Part):
    """The cases of a run."""

    total: int
    with_gold: int
    """Cases with held-out gold."""
    open_book: int
    """Cases whose gold measures no accuracy, because the prompts name the system."""
    proposed_gold: int
    """Cases whose gold nobody reviewed."""
    traps: int
    status: dict[Status, Estimate]
    """The share of each status at the end of the protocol."""
    endings: dict[str, Ending]
    """Endings by the last step of the protocol."""
    seconds: Seconds | None
    """Time from the first call of a case to its end."""


class FormatReport(Part):
    """The form of one role's answers."""

    answers: int
    missing: int
    """Cases without an answer."""
    strict: Annotated[Estimate, Measure("answers as asked for")]
    repaired: Annotated[Estimate, Measure("repaired answers", better="lower")]
    unparsable: Annotated[Estimate, Measure("answers without a code", better="lower")]


class JudgementReport(Part):
    """The evaluator's judgement of one role's codes.

    Unreadable codes get FAIL without asking an evaluator.
    """

    evaluated: int
    pass_rate: Annotated[Estimate, Measure("pass rate")]
    """PASS or WEAK_PASS, after the caps."""
    acceptable: Annotated[Estimate, Measure("acceptable")]
    """PASS or WEAK_PASS with a score that reaches the threshold."""
    execution_issue: Annotated[Estimate, Measure("execution taken for a mechanism", better="lower")]
    """Share of the codes for which an evaluator was asked."""
    contradictory: Annotated[Estimate, Measure("contradictory reports", better="lower")]
    """Share of the codes for which an evaluator was asked."""
    verdicts: Annotated[dict[Verdict, int], Measure("verdict", "count", None)]
    """The verdicts after the caps."""
    issues: Annotated[dict[str, int], Measure("issue:", "count", "lower")]
    mean_score: Annotated[float | None, Measure("mean score, 0 to 100", "number")]
    """From 0 to 100; None without an evaluation."""


class AnnotatorReport(Part):
    """One annotator's answers."""

    format: FormatReport
    evaluation: JudgementReport


class TrapReport(Part):
    """One side's codes on the traps with gold."""

    answered: Annotated[int, Measure("answered", "count", None)]
    wrong: Annotated[Estimate, Measure("wrong in any way", better="lower")]
    """Share of codes with another set of roots than gold."""
    taken: Annotated[Estimate, Measure("traps that were taken", better="lower")]
    """Share of codes with a root that the trap suggests and gold lacks."""
    taken_for: Annotated[dict[str, int], Measure("taken for", "count", "lower")]
    """Cases by that root."""


class AdjudicationReport(Part):
    """The adjudicator's choices and codes."""

    cases: Annotated[int, Measure("settled cases", "count", None)]
    choices: Annotated[dict[str, int], Measure("chose", "count", None)]
    """Cases by choice: A, B or synthesis."""
    first_shown: Annotated[Estimate, Measure("chose the code shown first", better=None)]
    """Share of the choices between A and B that took the first shown."""
    first_shown_p_value: Annotated[float | None, Measure("p that the order is no cause", "number")]
    """p-value of the exact two-sided test that the order has no effect; None without a choice."""


def case_report(tables: Tables) -> CaseReport:
    """Returns the figures of the cases themselves."""
    cases = tables.cases
    gold = cases.gold_code.notna()
    return CaseReport(
        total=len(cases),
        with_gold=int(cases.held_out.sum()),
        open_book=int((gold & ~cases.held_out).sum()),
        proposed_gold=int((cases.held_out & ~cases.gold_reviewed).sum()),
        traps=int(cases.trap.sum()),
        status={status: share_of(cases.run_status.eq(status)) for status in Status},
        endings=_endings(cases),
        seconds=times((cases.finished - cases.started).dt.total_seconds()),
    )


def annotator_report(tables: Tables, side: Side) -> AnnotatorReport:
    """Returns the figures of one annotator's answers."""
    answers = view(tables.cases, side.lower())
    forms = answers.format.dropna()
    return AnnotatorReport(
        format=FormatReport(
            answers=len(forms),
            missing=len(answers) - len(forms),
            **{form: share_of(forms.eq(form)) for form in ("strict", "repaired", "unparsable")},
        ),
        evaluation=_judgement(answers, tables.codebook),
    )


def trap_report(tables: Tables, codes: str) -> TrapReport:
    """Returns the results of one column of codes on the traps with held-out gold and a code."""
    cases, execution = tables.cases, tables.codebook.execution_bait
    answered = cases[cases.trap & cases.held_out & cases[codes].notna()]
    taken, roots = 0, Counter[str]()
    for (gold, line, bait), count in tally(answered, "gold_code", codes, "bait").items():
        right, label = tables.label(gold), tables.label(line)
        assert right is not None and label is not None
        suggested = frozenset(bait.split(SEPARATOR)) if bait else execution
        named = (label.categories - right.categories) & suggested
        taken += count * bool(named)
        roots.update(dict.fromkeys(named, count))
    return TrapReport(
        answered=len(answered),
        wrong=share_of(~tables.equal(answered[codes], answered.gold_code, "categories")),
        taken=proportion(taken, len(answered)),
        taken_for={root: roots[root] for root in tables.codebook.categories if roots[root]},
    )


def adjudication_report(tables: Tables) -> AdjudicationReport:
    """Returns the adjudicator's choices on the cases where the annotators differ."""
    settled = tables.cases[tables.cases.choice.notna()]
    choices = tally(settled, "choice")
    chosen = choices["A"] + choices["B"]
    first = int((settled.choice.astype(str) == settled.shown_first.astype(str)).sum())
    return AdjudicationReport(
        cases=len(settled),
        choices={name: choices[name] for name in ("A", "B", "synthesis")},
        first_shown=proportion(first, chosen),
        first_shown_p_value=float(stats.binomtest(first, chosen).pvalue) if chosen else None,
    )


def _judgement(answers: Frame, codebook: Codebook) -> JudgementReport:
    judged = answers[answers.verdict.notna()]
    verdicts, read = tally(judged, "verdict"), judged[judged.raw_verdict.notna()]
    issues = Counter(judged.issues.astype(str).str.split(SEPARATOR).explode())
    return JudgementReport(
        evaluated=len(judged),
        pass_rate=share_of(judged.verdict.ne(Verdict.FAIL)),
        acceptable=share_of(judged.acceptable),
        execution_issue=proportion(issues[codebook.execution_criterion], len(read)),
        contradictory=proportion(int(judged.contradictory.sum()), len(read)),
        verdicts={verdict: verdicts[verdict] for verdict in Verdict},
        issues={criterion.name: issues[criterion.name] for criterion in codebook.criteria},
        mean_score=float(judged.score.mean()) if len(judged) else None,
    )


def _endings(cases: Frame) -> dict[str, Ending]:
    path = cases.path.astype(str)
    last = path.str.split(" > ").str[-1].where(path != "", cases.run_status.astype(str))
    reasons = cases.assign(last=last)[cases.reason.notna()].drop_duplicates("last")
    examples = {
        ending: f"{case}: {reason}"[:EXAMPLES]
        for ending, case, reason in zip(reasons["last"], reasons.case, reasons.reason, strict=True)
    }
    return {
        ending: Ending(cases=count, example=examples.get(ending))
        for ending, count in ranked(Counter(last))
    }
