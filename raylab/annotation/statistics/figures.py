"""The figures of a run: how its cases ended, what was answered, judged, decided, and spent."""

from collections import Counter
from collections.abc import Sequence
from itertools import chain
from typing import Annotated, Any

import numpy as np
from scipy import stats

from raylab.annotation.outcome import Annotator, HumanDecision, Status, Verdict
from raylab.annotation.statistics.estimates import Estimate, proportion, share_of
from raylab.annotation.statistics.frame import (
    SEPARATOR,
    TOKENS,
    Frame,
    Tables,
    ranked,
    tabulate_calls,
    tally,
    view,
)
from raylab.archive.records import UNCLEAR
from raylab.codebook import FORMAT, SYNTHESIS, Codebook
from raylab.runs.records import Measure, Part

EXAMPLES = 200
"""Longest example of a reason, in characters."""
SOURCE = ["role", "model", "response_model", "prompt", "prompt_hash"]
"""The columns of a call that tell sources apart."""


class Seconds(Part):
    """Times of calls or cases in seconds."""

    mean: float
    p50: Annotated[float, Measure("a call took, median", "seconds", "lower")]
    p90: float
    p99: Annotated[float, Measure("a call took, 99th percentile", "seconds", "lower")]
    max: float


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
    contradictory: Annotated[Estimate, Measure("contradictory reports", better="lower")]
    """Share of the codes for which an evaluator was asked."""
    verdicts: Annotated[dict[Verdict, int], Measure("verdict", "count", None)]
    """The verdicts after the caps."""
    issues: Annotated[dict[str, Estimate], Measure("issue:", better="lower")]
    """Share of the codes for which an evaluator was asked; for `format`, of all codes."""
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
    """Share of codes with another set of labels than gold."""
    taken: Annotated[Estimate, Measure("traps that were taken", better="lower")]
    """Share of codes with a label that the trap suggests and gold lacks."""
    taken_for: Annotated[dict[str, int], Measure("taken for", "count", "lower")]
    """Cases by that label."""


class AdjudicationReport(Part):
    """The adjudicator's choices and codes."""

    cases: Annotated[int, Measure("settled cases", "count", None)]
    choices: Annotated[dict[str, int], Measure("chose", "count", None)]
    """Cases by choice: an annotator or synthesis."""
    first_shown: Annotated[Estimate, Measure("chose the code shown first, not last", better=None)]
    """Share of the choices of the code shown first or last that took the first."""
    first_shown_p_value: Annotated[float | None, Measure("p that the order is no cause", "number")]
    """p-value of the exact two-sided test that the order has no effect; None without a choice."""


class CallUsage(Part):
    """Calls of one kind; tokens, cost and seconds count only the calls that were sent."""

    sent: Annotated[int, Measure("calls sent", "count", None)]
    cached: Annotated[int, Measure("calls answered from the journal", "count", None)]
    """Calls paid earlier, by this run or another."""
    prompt_tokens: Annotated[int, Measure("tokens of requests", "count", "lower")]
    completion_tokens: Annotated[int, Measure("tokens of replies", "count", "lower")]
    cached_prompt_tokens: int
    """Those of the requests that the server had cached."""
    reasoning_tokens: int
    """Those of the replies that are reasoning."""
    cost: Annotated[float | None, Measure("cost", "number", "lower")]
    """None if a call has no price."""
    priced: float
    """Cost of the calls that have a price."""
    unpriced: int
    """Calls that have no price."""
    seconds: Seconds | None
    """Time of a call; None without calls."""


class SourceUsage(CallUsage):
    """The calls to one model in one role with one prompt."""

    role: str
    """The stage of the protocol."""
    model: str
    response_model: str
    """The model as the server names it."""
    prompt: str
    """Name and version."""
    prompt_hash: str
    """SHA-256 of the prompt's text."""

    @property
    def shown_model(self) -> str:
        """The model as the server names it, or else as requested."""
        return self.response_model or self.model


class UncertainUsage(Part):
    """Attempts that may have been billed, at the most that they may have cost.

    The server did not say, or its answer was lost; no other figure counts them.
    """

    attempts: Annotated[int, Measure("calls perhaps billed as well", "count", None)] = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cost: Annotated[float, Measure("their cost, at most", "number", None)] = 0.0
    """Of the attempts that have a price."""


class UsageReport(Part):
    """The calls of a run."""

    total: CallUsage
    by_source: tuple[SourceUsage, ...]
    uncertain: UncertainUsage


class DecisionReport(Part):
    """Counts of people's decisions; the latest on each case holds, and an undo removes it."""

    cases: Annotated[int, Measure("decided by people", "count", None)]
    """Cases with a decision that holds."""
    choices: dict[str, int]
    """Cases by choice: an annotator, an own code, or unclear: none of these."""
    insisted: Annotated[int, Measure("their codes over the evaluator", "count", None)]
    """Codes on which a person insisted, over the evaluator."""
    unclear: Annotated[int, Measure("found unclear by people", "count", None)]
    """Cases for which a person found no code."""
    confirmed: Annotated[int, Measure("their codes, confirmed", "count", None)]
    """Codes that the evaluator confirmed."""
    refused: Annotated[int, Measure("their codes, refused", "count", None)]
    """Codes that the evaluator refused."""
    unconfirmed: Annotated[int, Measure("their codes, waiting for the evaluator", "count", None)]
    """Codes that wait for the evaluator."""
    waiting: Annotated[int, Measure("waiting for a person now", "count", None)]
    """Cases that wait for a person now."""
    reviewers: dict[str, int]
    """Decisions by reviewer."""
    usage: CallUsage
    """The calls of the confirmations, which the usage of the run does not include."""


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


def annotator_report(tables: Tables, annotator: Annotator) -> AnnotatorReport:
    """Returns the figures of one annotator's answers."""
    answers = view(tables.cases, annotator)
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
    cases, codebook = tables.cases, tables.codebook
    answered = cases[cases.trap & cases.held_out & cases[codes].notna()]
    taken, names = 0, Counter[str]()
    for (gold, line, bait), count in tally(answered, "gold_code", codes, "bait").items():
        right, label = tables.label(gold), tables.label(line)
        assert right is not None and label is not None
        suggested = frozenset(bait.split(SEPARATOR)) if bait else codebook.bait
        named = (label.categories - right.categories) & suggested
        taken += count * bool(named)
        names.update(dict.fromkeys(named, count))
    return TrapReport(
        answered=len(answered),
        wrong=share_of(~tables.equal(answered[codes], answered.gold_code, "categories")),
        taken=proportion(taken, len(answered)),
        taken_for={name: names[name] for name in codebook.categories if names[name]},
    )


def adjudication_report(tables: Tables) -> AdjudicationReport:
    """Returns the adjudicator's choices on the cases where the annotators differ."""
    settled = tables.cases[tables.cases.choice.notna()]
    choices, shown = tally(settled, "choice"), settled.shown.astype(str)
    first, last = (int(settled.choice.astype(str).eq(shown.str[n]).sum()) for n in (0, -1))
    chosen = first + last
    return AdjudicationReport(
        cases=len(settled),
        choices={name: choices[name] for name in (*tables.annotators, SYNTHESIS)},
        first_shown=proportion(first, chosen),
        first_shown_p_value=float(stats.binomtest(first, chosen).pvalue) if chosen else None,
    )


def usage_report(tables: Tables, uncertain: UncertainUsage) -> UsageReport:
    """Returns the calls of a run, in total and by source, and apart from them the uncertain."""
    names = tables.calls[SOURCE].astype(object).fillna("")
    return UsageReport(
        uncertain=uncertain,
        total=call_usage(tables.calls),
        by_source=tuple(
            SourceUsage(**dict(call_usage(rows)), **dict(zip(SOURCE, source, strict=True)))
            for source, rows in tables.calls.groupby([names[key] for key in SOURCE])
        ),
    )


def call_usage(calls: Frame) -> CallUsage:
    """Returns the numbers, tokens, cost and times of calls."""
    sent = calls[~calls.cached]
    priced, unpriced = float(sent.cost.sum()), int(sent.cost.isna().sum())
    return CallUsage(
        sent=len(sent),
        cached=len(calls) - len(sent),
        **{name: int(sent[name].sum()) for name in TOKENS},
        cost=None if unpriced else priced,
        priced=priced,
        unpriced=unpriced,
        seconds=times(sent.seconds),
    )


def times(seconds: Any) -> Seconds | None:
    """Returns the mean, the quantiles and the longest of times; None without a time."""
    values = np.asarray(seconds, float)
    if not len(values):
        return None
    p50, p90, p99 = np.quantile(values, (0.5, 0.9, 0.99), method="inverted_cdf").tolist()
    return Seconds(mean=float(values.mean()), p50=p50, p90=p90, p99=p99, max=float(values.max()))


def decision_report(tables: Tables, decisions: Sequence[HumanDecision]) -> DecisionReport:
    """Returns the counts of people's decisions, in the order in which they were archived."""
    latest = {decision.case: decision for decision in decisions}
    standing = [last for last in latest.values() if last.choice is not None]
    choices = Counter(decision.choice or "own" for decision in standing)
    judged = [
        decision for decision in standing if not decision.insisted and decision.choice != UNCLEAR
    ]
    verdicts = Counter(
        decision.confirmation and decision.confirmation.acceptable for decision in judged
    )
    settled = [
        decision.case
        for decision in standing
        if decision.choice == UNCLEAR or decision.confirmation is None
    ]
    calls = chain.from_iterable(
        decision.confirmation.calls for decision in decisions if decision.confirmation
    )
    left = tables.cases[tables.cases.run_status.eq(Status.HUMAN) & tables.cases.code.isna()]
    return DecisionReport(
        cases=len(standing),
        choices={name: choices[name] for name in (*tables.annotators, "own", UNCLEAR)},
        insisted=sum(decision.insisted for decision in standing),
        unclear=choices[UNCLEAR],
        confirmed=verdicts[True],
        refused=verdicts[False],
        unconfirmed=verdicts[None],
        waiting=int((~left.case.isin(settled)).sum()),
        reviewers=dict(Counter(decision.reviewer for decision in decisions).most_common()),
        usage=call_usage(tabulate_calls(calls)),
    )


def _judgement(answers: Frame, codebook: Codebook) -> JudgementReport:
    judged = answers[answers.verdict.notna()]
    verdicts, read = tally(judged, "verdict"), judged[judged.raw_verdict.notna()]
    issues = Counter(judged.issues.astype(str).str.split(SEPARATOR).explode())
    return JudgementReport(
        evaluated=len(judged),
        pass_rate=share_of(judged.verdict.ne(Verdict.FAIL)),
        acceptable=share_of(judged.acceptable),
        contradictory=proportion(int(judged.contradictory.sum()), len(read)),
        verdicts={verdict: verdicts[verdict] for verdict in Verdict},
        issues={
            name: proportion(issues[name], len(judged if name == FORMAT.name else read))
            for name in (criterion.name for criterion in codebook.criteria)
        },
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
