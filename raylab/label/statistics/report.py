"""The report of an annotation run, `report.json`: endings, answers, verdicts, people, cost."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Annotated, Any, ClassVar

import numpy as np
import pandas as pd
from pydantic import Field

from raylab.core.runs.records import Figure, Measure, Part, Record
from raylab.core.stats import proportion, share_of
from raylab.label.codebooks.codebook import FORMAT, SYNTHESIS, Label
from raylab.label.judgement import UNCLEAR
from raylab.label.protocol.outcome import Annotator, HumanDecision, Status, Verdict
from raylab.label.statistics.accuracy import (
    CODES,
    REVIEWED,
    AuditReport,
    ConfusionPanel,
    GoldReport,
    JudgeReport,
    audit_report,
    confusion_panels,
    givers_of,
    gold_report,
    judge_report,
)
from raylab.label.statistics.agreement import (
    AgreementReport,
    DisagreementReport,
    counted_values,
    disagreement_report,
    measure_agreement,
)
from raylab.label.statistics.columns import SEPARATOR, TOKENS
from raylab.label.statistics.drift import DriftChange
from raylab.label.statistics.frame import Frame, Tables, rank, tabulate_calls, tally, view
from raylab.label.statistics.panel import PanelReport, panel_report
from raylab.label.statistics.people import PeopleReport, SubstituteReport
from raylab.label.statistics.scores import ScoreTreeReport
from raylab.llm.chat import Cost
from raylab.llm.embedded import SMOKE_NOTICE

EXAMPLES = 200
"""Longest example of a reason, in characters."""
SOURCE = ["role", "model", "response_model"]
"""The columns of a call that tell sources apart."""


class Ending(Part):
    """The cases that ended with one step of the protocol."""

    cases: int
    example: str | None
    """One of them and its reason; None if there is no reason."""


class CaseReport(Part):
    """The cases of a run."""

    total: int
    with_gold: int
    """Cases whose gold measures accuracy."""
    open_book: int
    """Cases whose gold measures no accuracy, because the prompts name the system."""
    proposed_gold: int
    """Cases whose gold nobody reviewed."""
    traps: int
    status: dict[Status, Figure]
    """The share of each status at the end of the protocol."""
    endings: dict[str, Ending]
    """Endings by the last step of the protocol."""


class AnnotatorReport(Part):
    """One annotator's answers and the evaluator's verdicts on them.

    Answers without a code get FAIL without asking an evaluator.
    """

    answers: Annotated[int, Measure("answers", "count", None)]
    strict: Annotated[Figure, Measure("in the requested format")]
    repaired: Annotated[Figure, Measure("repaired", better="lower")]
    unparsable: Annotated[Figure, Measure("without a code", better="lower")]
    pass_rate: Annotated[Figure, Measure("pass rate")]
    """PASS or WEAK_PASS, after the caps."""
    acceptable: Annotated[Figure, Measure("acceptable")]
    """PASS or WEAK_PASS with a score that reaches the threshold."""
    verdicts: Annotated[dict[Verdict, int], Measure("verdict", "count", None)]
    """The verdicts after the caps."""
    issues: Annotated[dict[str, Figure], Measure("issue:", better="lower")]
    """Share of the codes for which an evaluator was asked; for `format`, of all codes."""
    contradictory: Annotated[Figure, Measure("contradictory reports", better="lower")]
    """Share of the codes for which an evaluator was asked."""


class TrapReport(Part):
    """Codes on the traps with gold: cases whose text suggests a wrong label.

    A trap is taken where the code names that label and gold does not.
    """

    answered: Annotated[int, Measure("answered traps", "count", None)]
    taken: Annotated[Figure, Measure("traps taken", better="lower")]
    """Share of codes with a label that the trap suggests and gold lacks."""
    taken_for: Annotated[dict[str, int], Measure("taken for", "count", "lower")]
    """Cases by that label."""


class AdjudicationReport(Part):
    """The adjudicator's choices between codes that it saw in a random order.

    Without position bias, half of the choices of the first or last code fall on the first.
    """

    cases: Annotated[int, Measure("cases", "count", None)]
    choices: Annotated[dict[str, int], Measure("chose", "count", None)]
    """Cases by choice: an annotator or synthesis."""
    first_shown: Annotated[Figure, Measure("chose the first code shown", better=None)]
    """Share of the choices of the code shown first or last that took the first."""


class CallUsage(Part):
    """Calls of one kind; tokens, cost and times are those of the calls that were sent."""

    sent: Annotated[int, Measure("calls sent", "count", None)]
    cached: Annotated[int, Measure("calls answered from the archive", "count", None)]
    """Calls paid earlier, by this run or another."""
    prompt_tokens: Annotated[int, Measure("prompt tokens", "count", "lower")]
    completion_tokens: Annotated[int, Measure("reply tokens", "count", "lower")]
    cached_prompt_tokens: int
    """Prompt tokens that the server had cached."""
    reasoning_tokens: int
    """Reply tokens spent on reasoning."""
    cost: Annotated[float | None, Measure("cost", "number", "lower")]
    """None if a call has no price."""
    priced: float
    """Cost of the calls that have a price."""
    unpriced: Annotated[int, Measure("calls without a price", "count", "lower")]
    median_seconds: Annotated[float | None, Measure("median time", "seconds", "lower")]
    slow_seconds: Annotated[float | None, Measure("99th percentile", "seconds", "lower")]
    """Times of a call; None without calls."""


class SourceUsage(CallUsage):
    """The calls to one model in one role."""

    role: str
    """The stage of the protocol."""
    model: str
    response_model: str
    """The model as the server names it."""

    @property
    def shown_model(self) -> str:
        """The model as the server names it, or else as requested."""
        return self.response_model or self.model


class UsageReport(Part):
    """The calls of a run."""

    total: CallUsage
    """With the confirmations of people's codes."""
    by_source: tuple[SourceUsage, ...]
    """Without them."""
    uncertain: Cost
    """Attempts that may have been billed, at the most that they may have cost: the server did not
    say, or its answer was lost. No other figure counts them."""


class DecisionReport(Part):
    """Counts of people's decisions; the latest on each case holds, and an undo removes it."""

    cases: Annotated[int, Measure("decided by people", "count", None)]
    """Cases with a decision that holds."""
    insisted: Annotated[int, Measure("decided over the evaluator", "count", None)]
    """Codes on which a person insisted."""
    unclear: Annotated[int, Measure("no code right", "count", None)]
    """Cases for which a person found no code."""
    confirmed: Annotated[int, Measure("confirmed by the evaluator", "count", None)]
    refused: Annotated[int, Measure("refused by the evaluator", "count", None)]
    unconfirmed: Annotated[int, Measure("waiting for the evaluator", "count", None)]
    """Codes that the evaluator has not judged."""
    waiting: Annotated[int, Measure("waiting for a person", "count", None)]
    """Cases that nobody has decided, or whose code the evaluator refused."""
    usage: CallUsage
    """The calls of the confirmations."""


class AnnotationReport(Record):
    """The report of an annotation run."""

    file: ClassVar[str] = "report.json"
    version: ClassVar[int] = 12

    run: str = ""
    archive: str = ""
    """The file or URL of its archive."""
    records: int = 0
    """Cases, decisions and audit entries of the run at the time of the report."""
    basis: str = ""
    """SHA-256 of what the report was made from, by which a run that goes on knows it."""
    smoke: bool
    """True if the embedded model answered, so that the figures mean nothing."""
    notices: tuple[str, ...]
    """Sentences that belong beside the figures."""
    distance: str
    """Version of the distance between sets of labels."""
    cases: CaseReport
    codes: dict[str, Figure]
    """Share of the cases with a code by the composition of the code in force, people's decisions
    included, the most frequent first."""
    labels: dict[str, Figure]
    """Share of the cases with a code that name each label or number; one may name several."""
    annotators: dict[Annotator, AnnotatorReport]
    agreement: AgreementReport
    disagreements: DisagreementReport
    gold: dict[str, GoldReport]
    """Accuracy of each annotator, the `final` code and, if people decided, the `reviewed` code."""
    confusion: dict[str, ConfusionPanel]
    """Confusion matrices; see `confusion_panels`."""
    judge: dict[Annotator, JudgeReport]
    """The evaluator's verdicts on each annotator's codes, against held-out gold."""
    audit: AuditReport | None
    """The audit of the decided cases; None if none was drawn."""
    panel: PanelReport
    """What the annotators are worth together, by the labels of people."""
    sensitivity: dict[str, TrapReport]
    """Results on traps of each annotator and of the `final` code."""
    adjudication: AdjudicationReport
    decisions: DecisionReport
    usage: UsageReport
    people: dict[str, PeopleReport] = Field(default={})
    """The judgements of two people a case, of the queues `decision` and `audit`."""
    substitutes: dict[str, SubstituteReport] = Field(default={})
    """Whether each annotator and the `final` code may stand in for people, on the audited cases."""
    score_tree: ScoreTreeReport = ScoreTreeReport(files=0, left_out=())
    changes: tuple[DriftChange, ...] = ()
    """The run against earlier runs of the archive, on the cases that they share."""
    unpaired: str = ""
    """The reason why some annotators are compared with no earlier run; empty if all are."""


def annotation_report(
    tables: Tables,
    decisions: Sequence[HumanDecision] = (),
    audited: Mapping[str, Sequence[Label]] | None = None,
    weights: Mapping[str, float] | None = None,
    *,
    uncertain: Cost | None = None,
    smoke: bool = False,
    warnings: Sequence[str] = (),
    seed: int = 307,
    **others: Any,
) -> AnnotationReport:
    """Returns the report of a run.

    Args:
        audited: Each case drawn for the audit with the codes that people gave it; None without an
            audit.
        weights: Weight of each of these cases with codes; None if all are equal.
        warnings: Further weaknesses of the results, as in `Settings.warnings`.
        others: Fields of the report that have a default.
    """
    cases, people = case_report(tables), decision_report(tables, decisions)
    givers, final = givers_of(tables), tables.labels("code")
    notices = [SMOKE_NOTICE] if smoke else []
    if cases.proposed_gold:
        notices.append(
            "Gold codes that one person proposed and nobody reviewed (meta.reviewed is false): "
            f"{cases.proposed_gold:,} of {cases.with_gold:,}. Accuracy is provisional."
        )
    if cases.open_book:
        notices.append(
            "Gold codes that count in no accuracy, because the prompts name their systems "
            f"(meta.open_book): {cases.open_book:,}. No prompt names cases.packaged=systems."
        )
    return AnnotationReport(
        smoke=smoke,
        notices=(*notices, *warnings),
        distance=tables.codebook.distance.version,
        cases=cases,
        codes={
            code: proportion(count, len(final))
            for code, count in rank(Counter(label.composition for label in final))
        },
        labels={
            name: proportion(sum(name in label.categories for label in final), len(final))
            for name in chain(*counted_values(tables).values())
        },
        annotators={name: annotator_report(tables, name) for name in tables.annotators},
        agreement=measure_agreement(tables, seed),
        disagreements=disagreement_report(tables),
        gold={
            name: gold_report(tables, name)
            for name in (*givers, *([REVIEWED] if people.cases else []))
        },
        confusion=confusion_panels(tables),
        judge={name: judge_report(tables, name) for name in tables.annotators},
        audit=None if audited is None else audit_report(tables, audited, weights),
        # An active audit has more of the cases in which annotators are wrong.
        panel=panel_report(tables, {} if weights or not audited else audited),
        sensitivity={name: trap_report(tables, CODES[name]) for name in givers},
        adjudication=adjudication_report(tables),
        decisions=people,
        usage=usage_report(tables, _confirmations(decisions), uncertain or Cost()),
        **others,
    )


def case_report(tables: Tables) -> CaseReport:
    """Returns the figures of the cases themselves."""
    cases = tables.cases
    gold, path = cases.gold_code.notna(), cases.path.astype(str)
    last = path.str.split(" > ").str[-1].where(path != "", cases.run_status.astype(str))
    reasons = cases.assign(last=last)[cases.reason.notna()].drop_duplicates("last")
    examples = {
        ending: f"{case}: {reason}"[:EXAMPLES]
        for ending, case, reason in zip(reasons["last"], reasons.case, reasons.reason, strict=True)
    }
    return CaseReport(
        total=len(cases),
        with_gold=int(cases.held_out.sum()),
        open_book=int((gold & ~cases.held_out).sum()),
        proposed_gold=int((cases.held_out & ~cases.gold_reviewed).sum()),
        traps=int(cases.trap.sum()),
        status={status: share_of(cases.run_status.eq(status)) for status in Status},
        endings={
            ending: Ending(cases=count, example=examples.get(ending))
            for ending, count in rank(Counter(last))
        },
    )


def annotator_report(tables: Tables, annotator: Annotator) -> AnnotatorReport:
    """Returns the figures of one annotator's answers."""
    answers = view(tables.cases, annotator)
    forms, judged = answers.format.dropna(), answers[answers.verdict.notna()]
    verdicts, read = tally(judged, "verdict"), judged[judged.raw_verdict.notna()]
    issues = Counter(judged.issues.astype(str).str.split(SEPARATOR).explode())
    return AnnotatorReport(
        answers=len(forms),
        **{form: share_of(forms.eq(form)) for form in ("strict", "repaired", "unparsable")},
        pass_rate=share_of(judged.verdict.ne(Verdict.FAIL)),
        acceptable=share_of(judged.acceptable),
        verdicts={verdict: verdicts[verdict] for verdict in Verdict},
        issues={
            criterion.name: proportion(
                issues[criterion.name], len(judged if criterion == FORMAT else read)
            )
            for criterion in tables.codebook.criteria
        },
        contradictory=proportion(int(judged.contradictory.sum()), len(read)),
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
        taken=proportion(taken, len(answered)),
        taken_for={name: names[name] for name in codebook.categories if names[name]},
    )


def adjudication_report(tables: Tables) -> AdjudicationReport:
    """Returns the adjudicator's choices on the cases where the annotators differ."""
    settled = tables.cases[tables.cases.choice.notna()]
    choices, shown = tally(settled, "choice"), settled.shown.astype(str)
    first, last = (int(settled.choice.astype(str).eq(shown.str[n]).sum()) for n in (0, -1))
    return AdjudicationReport(
        cases=len(settled),
        choices={name: choices[name] for name in (*tables.annotators, SYNTHESIS)},
        first_shown=proportion(first, first + last),
    )


def usage_report(tables: Tables, confirmations: Frame, uncertain: Cost) -> UsageReport:
    """Returns the calls of a run, in total and by source, and the uncertain attempts."""
    names = tables.calls[SOURCE].astype(object).fillna("")
    return UsageReport(
        uncertain=uncertain,
        total=call_usage(pd.concat([tables.calls, confirmations])),
        by_source=tuple(
            SourceUsage(**dict(call_usage(rows)), **dict(zip(SOURCE, source, strict=True)))
            for source, rows in tables.calls.groupby([names[key] for key in SOURCE])
        ),
    )


def call_usage(calls: Frame) -> CallUsage:
    """Returns the numbers, tokens, cost and times of calls."""
    sent = calls[~calls.cached]
    times = sent.seconds.to_numpy(float)
    # A quantile without interpolation is the time of a call.
    median, slow = (
        float(np.quantile(times, share, method="inverted_cdf")) if len(times) else None
        for share in (0.5, 0.99)
    )
    priced, unpriced = float(sent.cost.sum()), int(sent.cost.isna().sum())
    return CallUsage(
        sent=len(sent),
        cached=len(calls) - len(sent),
        **{name: int(sent[name].sum()) for name in TOKENS},
        cost=None if unpriced else priced,
        priced=priced,
        unpriced=unpriced,
        median_seconds=median,
        slow_seconds=slow,
    )


def decision_report(tables: Tables, decisions: Sequence[HumanDecision]) -> DecisionReport:
    """Returns the counts of people's decisions, in the order in which they were archived."""
    latest = {decision.case: decision for decision in decisions}
    standing = [last for last in latest.values() if last.choice is not None]
    counts = dict.fromkeys(("insisted", "unclear", "confirmed", "refused", "unconfirmed"), 0)
    for last in standing:
        if last.insisted or last.choice == UNCLEAR:
            counts["insisted" if last.insisted else "unclear"] += 1
        elif last.confirmation is None:
            counts["unconfirmed"] += 1
        else:
            counts["confirmed" if last.confirmation.acceptable else "refused"] += 1
    settled = [last.case for last in standing if last.choice == UNCLEAR or not last.confirmation]
    left = tables.cases[tables.cases.run_status.eq(Status.HUMAN) & tables.cases.code.isna()]
    return DecisionReport(
        cases=len(standing),
        **counts,
        waiting=int((~left.case.isin(settled)).sum()),
        usage=call_usage(_confirmations(decisions)),
    )


def _confirmations(decisions: Iterable[HumanDecision]) -> Frame:
    """Returns the calls to the evaluator about people's codes."""
    reports = [decision.confirmation for decision in decisions]
    return tabulate_calls([call for report in reports if report for call in report.calls])
