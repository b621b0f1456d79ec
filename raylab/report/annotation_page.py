"""The page of an annotation run."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from raylab.annotation.outcome import (
    ADJUDICATE,
    SIDES,
    HumanDecision,
    Outcome,
    Status,
    classify_stage,
    evaluate_stage,
)
from raylab.annotation.statistics.agreement import AgreementReport
from raylab.annotation.statistics.audit import AuditReport
from raylab.annotation.statistics.drift import DriftChange
from raylab.annotation.statistics.figures import AdjudicationReport
from raylab.annotation.statistics.gold import FINAL
from raylab.annotation.statistics.report import STATUSES, AnnotationReport
from raylab.llm.prompts import shortened as excerpt
from raylab.report.annotation import (
    agreement_table,
    annotator_table,
    audit_table,
    code_table,
    confusion_table,
    drift_table,
    ending_table,
    gold_table,
    judge_table,
    root_table,
    score_table,
    shown_time,
    summary_table,
    trap_table,
    usage_table,
)
from raylab.report.page import (
    Block,
    Fold,
    Heading,
    Notes,
    Page,
    Section,
    Tile,
    fragment,
    provenance,
    render,
)
from raylab.report.table import (
    Column,
    Table,
    counted,
    duration,
    estimate_cell,
    listed,
    share_cell,
    shortened,
)
from raylab.runs.measures import measures_of
from raylab.runs.run_record import RunRecord

RELIABLE, TENTATIVE = 0.8, 0.667
"""Krippendorff's conventional limits of alpha."""
CHOICES = {
    "A": "the code of annotator A",
    "B": "the code of annotator B",
    "synthesis": "a code of its own",
    "own": "a code of their own",
}
LONGEST_MODEL = 60
EXCERPT, SHOWN_NAME = 600, 120
"""Longest excerpt of a text, and of a name, of a disagreement, in characters."""


@dataclass(frozen=True)
class FullCase:
    """A case with the texts that a person reads.

    Attributes:
        outcome: Its outcome.
        description: Its description.
        decision: The latest human decision; None if there is none.
    """

    outcome: Outcome
    description: str
    decision: HumanDecision | None


@dataclass(frozen=True)
class TimedRun:
    """A run of the archive, for the comparison over time.

    Attributes:
        run: Its name.
        started: Time in ISO 8601.
        report: Its report; None if this storage has none that matches the archive.
    """

    run: str
    started: str
    report: AnnotationReport | None


@dataclass(frozen=True)
class OverTime:
    """The latest runs of the archive side by side.

    Attributes:
        level: Chance of a false flag for a run in which nothing changed.
        runs: The runs, earliest first.
        earlier: Number of earlier runs that are left out.
        comparisons: Comparisons of each run with an earlier one, on the cases that they share.
        alarms: A sentence for each measure that is flagged.
    """

    level: float
    runs: Sequence[TimedRun] = ()
    earlier: int = 0
    comparisons: Sequence[DriftChange] = ()
    alarms: Sequence[str] = ()


@dataclass(frozen=True)
class AnnotationPage:
    """The content of the page.

    Attributes:
        uri: The run directory.
        report: Report of the run.
        over_time: The runs of the archive.
        record: Record of the run.
        disagreements: The cases of the disagreements in the report, in the same order.
    """

    uri: str
    report: AnnotationReport
    over_time: OverTime
    record: RunRecord
    disagreements: Sequence[FullCase] = ()


def render_annotation(page: AnnotationPage) -> str:
    """Renders the page, a complete HTML document."""
    report = page.report
    return render(
        Page(
            "annotation",
            report.run,
            page.uri,
            list(summary(report)),
            list(_sections(page)),
            report.notices,
            list(_tiles(report)),
            "smoke test" if report.smoke else "",
        )
    )


def summary(report: AnnotationReport) -> Iterator[str]:
    """Yields sentences that sum up the run and its results."""
    cases, agreement = report.cases, report.agreement
    annotators = [_served(report, classify_stage(side)) for side in SIDES]
    settled = f", and settled by {_served(report, ADJUDICATE)} where they differed"
    yield (
        f"{counted(cases.total, 'case')}, classified by {' and '.join(annotators)}, "
        f"judged by {_served(report, evaluate_stage(SIDES[0]))}"
        f"{settled if report.adjudication.cases else ''}."
    )
    if report.codes:
        codes = [f"{final.share.cases:,} {final.code}" for final in report.codes]
        yield f"Final codes: {listed(codes)}."
    if report.audit is not None:
        yield audit_sentence(report.audit)
    ended = [
        f"{share.cases:,} {STATUSES[status]}"
        for status, share in cases.status.items()
        if share.cases
    ]
    if ended:
        yield f"How they ended: {listed(ended)}."
    if agreement.exact.value is not None:
        yield (
            "Where both annotators gave a code, they gave the same one in "
            f"{share_cell(agreement.exact).text} of the cases."
        )
    alpha = agreement.alpha.value
    if alpha is not None:
        yield f"Krippendorff's alpha is {alpha:.2f}, by convention {_reliability(alpha)}."


def audit_sentence(audit: AuditReport) -> str:
    """Returns what people found among the codes that the protocol decided."""
    if not audit.audited or audit.right.value is None:
        return f"An audit of {counted(audit.drawn, 'decided case')} was drawn and is not answered."
    right = round(audit.right.value * audit.audited)
    corrected = share_cell(audit.corrected)
    return (
        f"People audited {counted(audit.audited, 'decided code')}: {right:,} "
        f"{'is' if right == 1 else 'are'} right, and so {corrected.text} of all of them."
    )


def _reliability(alpha: float) -> str:
    if alpha >= RELIABLE:
        return "reliable"
    return "good for tentative conclusions" if alpha >= TENTATIVE else "too low to rely on"


def _served(report: AnnotationReport, stage: str) -> str:
    """Returns the served names of the models that answered in a stage."""
    rows = [row for row in report.usage.by_source if row.role == stage]
    names = list(dict.fromkeys(row.shown_model for row in rows))
    return listed([shortened(name, LONGEST_MODEL) for name in names or ("nobody",)])


def _tiles(report: AnnotationReport) -> Iterator[Tile]:
    cases, usage, audit = report.cases, report.usage.total, report.audit
    decided = sum(cases.status[status].cases for status in (Status.ACCEPTED, Status.ADJUDICATED))
    if cases.total:
        note = f"{decided:,} of {counted(cases.total, 'case')}"
        yield Tile(f"{100 * decided / cases.total:.1f} %", "decided by the protocol", note)
    waiting = report.decisions.waiting
    yield Tile(f"{waiting:,}", "waits for a person" if waiting == 1 else "wait for a person", "now")
    if audit is not None and audit.right.value is not None:
        note = f"of {counted(audit.audited, 'code')} that people audited"
        yield Tile(share_cell(audit.right).text, "right codes", note)
    if report.agreement.alpha.value is not None:
        cell = estimate_cell(measures_of(AgreementReport)["alpha"], report.agreement.alpha)
        yield Tile(cell.text, "Krippendorff's alpha", cell.small)
    right = report.gold[FINAL].roots
    if right.value is not None:
        note = f"{counted(right.count, 'decided case')} with gold"
        yield Tile(f"{100 * right.value:.1f} %", "right roots in the final code", note)
    tokens = usage.prompt_tokens + usage.completion_tokens
    if usage.cost:
        yield Tile(f"{usage.cost:,.2f}", "cost", f"{tokens:,} tokens")
    else:
        note = "cost is not known" if usage.cost is None else "no call was sent"
        yield Tile(f"{tokens:,}", "tokens", note)


def _sections(page: AnnotationPage) -> Iterator[Section]:
    report = page.report
    yield _codes(report)
    yield _endings(report)
    yield _agreement(report)
    yield _annotators(report)
    if report.cases.with_gold:
        yield _gold(report)
    if any(judge.codes for judge in report.judge.values()):
        yield _judge(report)
    yield _confusion(report)
    if report.score_tree.scores:
        yield _scores(report)
    yield _disagreements(page)
    yield _cost(report)
    yield _drift(page)
    head = report.archive
    facts = {
        "archive": head.place,
        "records": f"{head.records:,}",
        "distances": report.distance,
    }
    yield provenance(page.uri, page.record, facts)


def _codes(report: AnnotationReport) -> Section:
    audit = [] if report.audit is None else [Heading("Audit"), *_audit_blocks(report.audit)]
    return Section("codes", "Final codes", [code_table(report), *audit])


def _endings(report: AnnotationReport) -> Section:
    decisions, blocks = report.decisions, list[Block]([summary_table(report)])
    if report.cases.endings:
        blocks += [Heading("Why"), ending_table(report)]
    people = ""
    if decisions.cases:
        people = (
            f"People decided {decisions.cases:,} of these cases; the evaluator confirmed "
            f"{decisions.confirmed:,} of their codes and refused {decisions.refused:,}. They "
            f"insisted on {decisions.insisted:,}, found no code for {decisions.unclear:,}, and "
            f"{_waiting(decisions.unconfirmed)} for the evaluator. "
        )
    waiting = _waiting(decisions.waiting)
    text = f"{people}{waiting[0].upper()}{waiting[1:]} for a person."
    return Section("endings", "How the cases ended", [*blocks, text])


def _waiting(cases: int) -> str:
    return counted(cases, "case waits", "cases wait") if cases else "no case waits"


def _agreement(report: AnnotationReport) -> Section:
    agreement = report.agreement
    text = (
        f"Both annotators gave a code in {agreement.both:,} of "
        f"{counted(agreement.cases, 'case')}, on which all of this rests. A 95 % interval says how "
        "far a figure may be off because these cases and no others were drawn: of 100 such "
        "intervals, about 95 hold the true figure. By convention an alpha of 0.8 or more is "
        "reliable, and one from 0.667 good for tentative conclusions."
    )
    blocks = [text, agreement_table(agreement)]
    return Section("agreement", "Agreement of the annotators", blocks, "Agreement")


def _annotators(report: AnnotationReport) -> Section:
    blocks: list[Block] = [
        "Shares of each annotator's codes with their 95 % intervals. To pass is PASS or WEAK_PASS; "
        "to be acceptable takes the score of the threshold as well.",
        annotator_table(report),
        Heading("Traps"),
    ]
    if traps := report.cases.traps:
        blocks += [
            f"{counted(traps, 'case describes', 'cases describe')} threads, clusters or marketing "
            "that suggest a wrong root. A trap is taken where the code names a root that it baits "
            "and gold lacks.",
            trap_table(report),
        ]
    else:
        blocks.append("No case of this run is a trap; `cases.packaged=proposed` has some.")
    if report.adjudication.cases:
        blocks += [Heading("Adjudicator"), _adjudication(report.adjudication)]
    return Section("annotators", "The annotators, as the evaluator saw them", blocks, "Annotators")


def _adjudication(settled: AdjudicationReport) -> str:
    choices = [f"{count:,} by {CHOICES[choice]}" for choice, count in settled.choices.items()]
    p_value = settled.first_shown_p_value
    first = share_cell(settled.first_shown)
    return (
        f"It settled {counted(settled.cases, 'case')}: {', '.join(choices)}. Of its choices "
        f"between the two, {first.text} fell on the code that it was shown first, which an order "
        "drawn at random should make a half"
        f"{'' if p_value is None else f' (p = {p_value:.2g})'}."
    )


def _gold(report: AnnotationReport) -> Section:
    cases = report.cases
    proposed = f", {cases.proposed_gold:,} of them proposals that nobody reviewed"
    text = (
        f"{counted(cases.with_gold, 'case has', 'cases have')} a gold code"
        f"{proposed if cases.proposed_gold else ''}."
    )
    each = Fold("Each root", [root_table(report.gold)], opened=True)
    return Section("gold", "Right against gold", [text, gold_table(report.gold), each])


def _judge(report: AnnotationReport) -> Section:
    blocks: list[Block] = [
        "The evaluator's verdicts against held-out gold: a code is right if it has the right set "
        "of roots. A judge is of use where right codes are more frequent under PASS than among "
        "all codes, and where its score ranks right codes above wrong ones: an area of 0.5 is no "
        "skill, 1 is perfect.",
        judge_table(report.judge),
    ]
    if report.audit is None:
        blocks.append(
            "Gold may not be like the other cases. `jobs/review.py audit=0.05 export=FILE` draws a "
            "random sample of the decided cases for people, whose codes correct the estimate of "
            "the batch's accuracy."
        )
    return Section("judge", "Whether the judge is any good", blocks)


def _audit_blocks(audit: AuditReport) -> Sequence[Block]:
    text = (
        f"People classified {audit.audited:,} of {counted(audit.drawn, 'case')} drawn at random "
        f"from the {audit.decided:,} that the protocol decided, by the description alone. "
    )
    if audit.audited < audit.drawn:
        text += "The figures take those for a random part of the sample. "
    text += "The last row joins scores and audit by prediction-powered inference"
    weight = "" if audit.weight is None else f", with a weight of {audit.weight:.2f} for the scores"
    return [f"{text}{weight}.", audit_table(audit)]


def _confusion(report: AnnotationReport) -> Section:
    text = (
        "A row is a root as the one names it, a column as the other does; what both name lies on "
        "the diagonal. Several roots in a code count one each, and none is a root that the other "
        "side has no partner for, or no code at all."
    )
    labels = report.confusion.labels
    tables = [confusion_table(panel, labels) for panel in report.confusion.panels.values()]
    title = "Which roots are mistaken for which"
    return Section("confusion", title, [text, *tables], "Confusion")


def _scores(report: AnnotationReport) -> Section:
    tree = report.score_tree
    text = (
        "The share of answers with the right set of roots, by the first root of gold: what the "
        "score tree of this run holds, from which `jobs/quality.py` measures how good the cases "
        "are as a benchmark."
    )
    notes = [f"{note[0].upper()}{note[1:]}." for note in tree.notes]
    left_out = [Fold("Not in the tree", tree.left_out)] if tree.left_out else []
    blocks = [text, score_table(tree.scores), *notes, *left_out]
    return Section("scores", "Accuracy by root", blocks)


def _disagreements(page: AnnotationPage) -> Section:
    shown, total = page.report.disagreements.shown, page.report.disagreements.total
    title, short = "The most instructive disagreements", "Instructive disagreements"
    if not shown:
        text = (
            "The annotators gave the same code in every case where both gave one, so there is no "
            "disagreement to learn from."
        )
        return Section("disagreements", title, [text], short)
    text = (
        f"In {total:,} of {counted(page.report.agreement.both, 'case')} the two codes differ. "
        "Shown "
        f"{'is one' if len(shown) == 1 else f'are {len(shown)}'}: first where the codes lie far "
        "apart and the evaluator still found both convincing, for there the description or the "
        "taxonomy can be read in two ways. A dashed frame marks a root that the other annotator "
        "did not name."
    )
    cases = fragment(
        "disagreements.html",
        shown=zip(shown, page.disagreements, strict=True),
        statuses=STATUSES,
        choices=CHOICES,
        excerpt=lambda text: excerpt(text, EXCERPT),
        name=lambda text: excerpt(text, SHOWN_NAME),
    )
    return Section("disagreements", title, [text, cases], short)


def _cost(report: AnnotationReport) -> Section:
    blocks: list[Block] = [usage_table(report)]
    if unpriced := report.usage.total.unpriced:
        blocks.append(
            f"{counted(unpriced, 'call has', 'calls have')} no price; `llm.prices` sets one for "
            "each model."
        )
    if seconds := report.cases.seconds:
        blocks.append(
            f"From its first call to its end a case took {duration(seconds.p50)} at the median, "
            f"{duration(seconds.p99)} at the 99th percentile."
        )
    return Section("cost", "Cost and latency", blocks)


def _drift(page: AnnotationPage) -> Section:
    over_time = page.over_time
    blocks: list[Block] = [Notes(over_time.alarms)]
    if len(over_time.runs) < 2:
        blocks.append(
            "This is the only run of the archive. To see whether the models change, annotate the "
            "same cases now and again with `fresh=true`: from the second run on, pass rates "
            "and agreement stand here beside each other, and changes that are no chance raise an "
            "alarm."
        )
        return Section("drift", "Over time", blocks)
    quiet = (
        f" No change raises an alarm at the level {over_time.level:g}, corrected for the number of "
        "measures."
    )
    blocks += [
        _timed_table(page),
        Heading("On the same cases"),
        "What can be laid to the models is measured on the cases that two runs of the same models "
        "share and both answered anew."
        f"{'' if over_time.alarms else quiet}",
        drift_table(over_time.comparisons, over_time.level)
        if over_time.comparisons
        else "No two of these runs asked the same models.",
    ]
    return Section("drift", "Over time", blocks)


def _timed_table(page: AnnotationPage) -> Table:
    over_time, alpha = page.over_time, measures_of(AgreementReport)["alpha"]
    rows = [
        [
            f"{row.run}{' (this run)' if row.run == page.report.run else ''}",
            shown_time(row.started),
            *(
                ["-"] * 5
                if (report := row.report) is None
                else [
                    f"{report.cases.total:,}",
                    *(share_cell(report.annotators[side].evaluation.pass_rate) for side in SIDES),
                    share_cell(report.agreement.exact),
                    estimate_cell(alpha, report.agreement.alpha),
                ]
            ),
        ]
        for row in over_time.runs
    ]
    earlier = f", less {counted(over_time.earlier, 'earlier one')}" if over_time.earlier else ""
    return Table(
        "Runs over time",
        [
            "run",
            Column("started", text=True),
            "cases",
            "passed, A",
            "passed, B",
            "same code",
            "alpha",
        ],
        rows,
        f"The runs of the archive{earlier}, the earliest on top; runs on other cases differ for "
        "that reason alone. A dash: no report of that run, as the archive has it now, lies in this "
        "storage.",
    )
