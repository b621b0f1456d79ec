"""The page of an annotation run, whose tables the terminal prints too, and tables of drift."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from raylab.annotation.outcome import (
    ADJUDICATE,
    SIDES,
    STAGES,
    HumanDecision,
    Outcome,
    Status,
    classify_stage,
    evaluate_stage,
)
from raylab.annotation.statistics.agreement import NONE, AgreementReport, ConfusionPanel
from raylab.annotation.statistics.audit import AuditReport
from raylab.annotation.statistics.estimates import Estimate
from raylab.annotation.statistics.gold import FINAL, NAMES, GoldReport
from raylab.annotation.statistics.report import STATUSES, AnnotationReport
from raylab.annotation.statistics.scores import RootAccuracy
from raylab.annotation.statistics.usage import CallUsage
from raylab.report.page import Block, Page, Section, Tile, block, provenance
from raylab.report.table import (
    RULE,
    Cell,
    Column,
    Row,
    Table,
    duration,
    figure_cell,
    join_names,
    pluralize,
    shades,
    share_cell,
    shorten,
)
from raylab.runs.records import Part, meaning_of, measures_of
from raylab.runs.run_record import RunRecord

SHOWN_CODES = 10
RELIABLE, TENTATIVE = 0.8, 0.667
"""Krippendorff's conventional limits of alpha."""
ENDINGS = {
    "accept": "a code that was acceptable to the evaluator",
    "human:one-acceptable": "only one of the two codes was acceptable",
    "human:none-acceptable": "neither code was acceptable",
    "human:disagreement": "the codes differed, and a person settles differences",
    "human:candidate": "the evaluator refused the candidate of the row",
    "human:unparsable": "an answer held no code that could be read",
    "human:unconfirmed": "the evaluator refused the adjudicated code",
}
CHOICES = {
    "A": "the code of annotator A",
    "B": "the code of annotator B",
    "synthesis": "a code of its own",
    "own": "a code of their own",
}
HASH_DIGITS = 8
LONGEST_MODEL, LONGEST_PROMPT = 60, 40
"""Most characters shown of the name of a model and of a prompt."""
ALPHA = measures_of(AgreementReport)["alpha"]


class FullCase(NamedTuple):
    """A case with the texts that a person reads, and the latest human decision if there is one."""

    outcome: Outcome
    description: str
    decision: HumanDecision | None


def annotation_page(
    uri: str,
    record: RunRecord,
    report: AnnotationReport,
    disagreements: Sequence[FullCase],
    drift: Section,
) -> Page:
    """Returns the page of a run.

    Args:
        uri: The run directory.
        record: Its record.
        report: Its report.
        disagreements: The cases of the disagreements in the report, in the same order.
        drift: The section of the runs of its archive over time.
    """
    archive = {"archive": report.archive.place, "records": f"{report.archive.records:,}"}
    made = provenance(uri, record, {**archive, "distances": report.distance})
    return Page(
        "annotation",
        report.run,
        uri,
        list(summarize(report)),
        [*_sections(report, disagreements), drift, made],
        report.notices,
        list(_tiles(report)),
        "smoke test" if report.smoke else "",
    )


def summarize(report: AnnotationReport) -> Iterator[str]:
    """Yields sentences that sum up the run and its results."""
    cases, agreement = report.cases, report.agreement
    annotators = [_served(report, classify_stage(side)) for side in SIDES]
    settled = f", and settled by {_served(report, ADJUDICATE)} where they differed"
    yield (
        f"{pluralize(cases.total, 'case')}, classified by {' and '.join(annotators)}, "
        f"judged by {_served(report, evaluate_stage(SIDES[0]))}"
        f"{settled if report.adjudication.cases else ''}."
    )
    if report.codes:
        codes = [f"{final.share.cases:,} {final.code}" for final in report.codes]
        yield f"Final codes: {join_names(codes)}."
    if report.audit is not None:
        yield _summarize_audit(report.audit)
    shares = [(share.cases, STATUSES[status]) for status, share in cases.status.items()]
    if ended := [f"{count:,} {label}" for count, label in shares if count]:
        yield f"How they ended: {join_names(ended)}."
    if agreement.exact.value is not None:
        yield (
            "Where both annotators gave a code, they gave the same one in "
            f"{share_cell(agreement.exact).text} of the cases."
        )
    if (alpha := agreement.alpha.value) is not None:
        yield f"Krippendorff's alpha is {alpha:.2f}, by convention {_reliability(alpha)}."


def _summarize_audit(audit: AuditReport) -> str:
    if not audit.audited:
        drawn = pluralize(audit.drawn, "decided case")
        return f"An audit of {drawn} was drawn and is not answered."
    right = audit.right.cases
    return (
        f"People audited {pluralize(audit.audited, 'decided code')}: {right:,} "
        f"{'is' if right == 1 else 'are'} right, and so {share_cell(audit.corrected).text} of all "
        "of them."
    )


def _reliability(alpha: float) -> str:
    if alpha >= RELIABLE:
        return "reliable"
    return "good for tentative conclusions" if alpha >= TENTATIVE else "too low to rely on"


def _served(report: AnnotationReport, stage: str) -> str:
    """Returns the served names of the models that answered in a stage."""
    names = dict.fromkeys(
        shorten(row.shown_model, LONGEST_MODEL)
        for row in report.usage.by_source
        if row.role == stage
    )
    return join_names([*names] or ["nobody"])


def _tiles(report: AnnotationReport) -> Iterator[Tile]:
    cases, usage, audit = report.cases, report.usage.total, report.audit
    decided = sum(cases.status[status].cases for status in (Status.ACCEPTED, Status.ADJUDICATED))
    if cases.total:
        note = f"{decided:,} of {pluralize(cases.total, 'case')}"
        yield Tile(f"{100 * decided / cases.total:.1f} %", "decided by the protocol", note)
    waiting = report.decisions.waiting
    yield Tile(f"{waiting:,}", "waits for a person" if waiting == 1 else "wait for a person", "now")
    if audit is not None and audit.audited:
        note = f"of {pluralize(audit.audited, 'code')} that people audited"
        yield Tile(share_cell(audit.right).text, "right codes", note)
    if report.agreement.alpha.value is not None:
        cell = figure_cell(ALPHA, report.agreement.alpha)
        yield Tile(cell.text, "Krippendorff's alpha", cell.small)
    right = report.gold[FINAL].roots
    if right.value is not None:
        note = f"{pluralize(right.count, 'decided case')} with gold"
        yield Tile(f"{100 * right.value:.1f} %", "right roots in the final code", note)
    tokens = f"{usage.prompt_tokens + usage.completion_tokens:,}"
    if usage.cost:
        yield Tile(f"{usage.cost:,.2f}", "cost", f"{tokens} tokens")
    else:
        note = "cost is not known" if usage.cost is None else "no call was sent"
        yield Tile(tokens, "tokens", note)


def _sections(report: AnnotationReport, disagreements: Sequence[FullCase]) -> Iterator[Section]:
    audit = [] if report.audit is None else _audit_blocks(report.audit)
    yield Section("codes", "Final codes", [_code_table(report), *audit])
    yield _endings(report)
    yield _agreement(report.agreement)
    yield _annotators(report)
    if report.cases.with_gold:
        yield _gold(report)
    if any(judge.codes for judge in report.judge.values()):
        yield _judge(report)
    yield _confusion(report)
    if report.score_tree.scores:
        yield _scores(report)
    yield _disagreements(report, disagreements)
    yield _cost(report)


def _code_table(report: AnnotationReport) -> Table:
    """Returns the codes in force, the most frequent first, and how often each root is named."""
    codes = [[final.code, *_count_cells(final.share)] for final in report.codes]
    roots = [
        [_root_cell(root), *_count_cells(share)]
        for root, share in report.roots.items()
        if share.cases
    ]
    return Table(
        "Final codes",
        ["code", "cases", "share"],
        [*codes[:SHOWN_CODES], RULE, *roots],
        f"The codes in force, people's decisions included: the {SHOWN_CODES} most frequent of "
        f"{len(report.codes):,}, and below them how many codes name each root.",
    )


def _audit_blocks(audit: AuditReport) -> list[Block]:
    partly = (
        " The figures take those for a random part of the sample."
        if audit.audited < audit.drawn
        else ""
    )
    weight = "" if audit.weight is None else f", with a weight of {audit.weight:.2f} for the scores"
    text = (
        f"People classified {audit.audited:,} of {pluralize(audit.drawn, 'case')} drawn at random "
        f"from the {audit.decided:,} that the protocol decided, by the description alone.{partly} "
        f"The last row joins scores and audit by prediction-powered inference{weight}."
    )
    title = f"Audit of {audit.audited:,} of {pluralize(audit.decided, 'decided case')}"
    table = Table(title, ["right codes", "share"], list(_part_rows([audit])))
    return [block("heading", "Audit"), text, table]


def _endings(report: AnnotationReport) -> Section:
    cases, calls, uncertain = report.cases, report.usage.total, report.usage.uncertain
    rows: list[Row] = [[label, *_count_cells(cases.status[key])] for key, label in STATUSES.items()]
    people = list(_part_rows([report.decisions]))
    rows += [
        RULE,
        *([*row, ""] for row in (people if report.decisions.cases else people[-1:])),
        RULE,
    ]
    for part in (calls, calls.seconds, uncertain if uncertain.attempts else None):
        rows += [[*row, ""] for row in (_part_rows([part]) if part else ())]
    summary = Table(
        f"{pluralize(cases.total, 'case')}, intervals of 95 %",
        ["", "cases", "share"],
        rows,
        "As the protocol left the cases, with their 95 % intervals; what people decided; and what "
        "the calls took.",
    )
    if not cases.endings:
        return Section("endings", "How the cases ended", [summary])
    reasons = Table(
        "Cases by reason",
        ["last step", "cases", Column("example", text=True)],
        [
            [_ending(step), f"{ending.cases:,}", ending.example or ""]
            for step, ending in cases.endings.items()
        ],
        "The last step of each case, the most frequent first, with an example where there is one.",
    )
    return Section("endings", "How the cases ended", [summary, reasons])


def _ending(step: str) -> str:
    """Returns the last step of a case in words."""
    kind, _, what = step.partition(":")
    if what.endswith("-unreadable"):
        return f"the reply of {STAGES.get(what.removesuffix('-unreadable'), what)} cannot be read"
    if kind == "failed":
        return f"the call to {STAGES.get(what, what)} failed"
    return ENDINGS.get(step, step)


def _agreement(agreement: AgreementReport) -> Section:
    text = (
        f"Both annotators gave a code in {agreement.both:,} of "
        f"{pluralize(agreement.cases, 'case')}, on which all of this rests. A 95 % interval says "
        "how far a figure may be off because these cases and no others were drawn: of 100 such "
        "intervals, about 95 hold the true figure. By convention an alpha of 0.8 or more is "
        "reliable, and one from 0.667 good for tentative conclusions."
    )
    table = Table(
        f"Agreement of A and B on {pluralize(agreement.both, 'case')} with both codes",
        ["measure", "figure", Column("what it says", text=True, page_only=True)],
        [
            [
                measure.label,
                figure_cell(measure, getattr(agreement, name)),
                meaning_of(AgreementReport, name),
            ]
            for name, measure in measures_of(AgreementReport).items()
        ],
    )
    return Section("agreement", "Agreement of the annotators", [text, table], "Agreement")


def _annotators(report: AnnotationReport) -> Section:
    sides = {NAMES[side]: report.annotators[side] for side in SIDES}
    rows = [
        *_part_rows([side.format for side in sides.values()]),
        *_part_rows([side.evaluation for side in sides.values()]),
    ]
    notes = (
        "Shares of each annotator's codes with their 95 % intervals, then the evaluator's verdicts "
        "and issues. To pass is PASS or WEAK_PASS; to be acceptable takes the score of the "
        "threshold as well."
    )
    blocks: list[Block] = [Table("Annotators", ["", *sides], rows, notes)]
    if report.adjudication.cases:
        notes = (
            "The adjudicator's choices, with the share of those between the two codes that fell on "
            "the one shown first: an order drawn at random should make it a half."
        )
        rows = list(_part_rows([report.adjudication]))
        blocks.append(Table("Adjudicator", ["", "figure"], rows, notes))
    if traps := report.cases.traps:
        notes = (
            f"{pluralize(traps, 'case describes', 'cases describe')} threads, clusters or "
            "marketing that suggest a wrong root. A trap is taken where the code names a root that "
            "it baits and gold lacks. Of the traps that have gold and were answered."
        )
        blocks.append(_part_table("Traps", report.sensitivity, notes))
    else:
        blocks.append("No case of this run is a trap; `cases.packaged=proposed` has some.")
    return Section("annotators", "The annotators, as the evaluator saw them", blocks, "Annotators")


def _gold(report: AnnotationReport) -> Section:
    cases = report.cases
    proposed = f", {cases.proposed_gold:,} of them proposals that nobody reviewed"
    text = (
        f"{pluralize(cases.with_gold, 'case has', 'cases have')} a gold code"
        f"{proposed if cases.proposed_gold else ''}. An answer without a readable code is wrong."
    )
    blocks = [text, _part_table("Right against gold", report.gold), _root_table(report.gold)]
    return Section("gold", "Right against gold", blocks)


def _root_table(gold: Mapping[str, GoldReport]) -> Table:
    columns = [f"{NAMES[name]}: {figure}" for name in gold for figure in ("recall", "precision")]
    rows: list[Row] = []
    for root in gold[FINAL].by_root:
        figures = [report.by_root[root] for report in gold.values()]
        cells = (share_cell(share) for each in figures for share in (each.recall, each.precision))
        rows.append([_root_cell(root), f"{max(each.gold for each in figures):,}", *cells])
    return Table(
        "Recall and precision of each root",
        ["root", "in gold", *columns],
        rows,
        "Small, the 95 % intervals. Recall: of the cases whose gold names the root, those whose "
        "code does. Precision: of the cases whose code names it, those whose gold does.",
        dense=True,
    )


def _judge(report: AnnotationReport) -> Section:
    text = (
        "The evaluator's verdicts against held-out gold: a code is right if it has the right set "
        "of roots. A judge is of use where right codes are more frequent under PASS than among "
        "all codes, and where its score ranks right codes above wrong ones: an area of 0.5 is no "
        "skill, 1 is perfect."
    )
    notes = (
        "Shares and area with their 95 % intervals, of codes of cases with held-out gold. Below, "
        "by bands of ten scores: where the score can be read as the chance of being right, the "
        "share lies within its band."
    )
    audit = (
        "Gold may not be like the other cases. `jobs/review.py audit=0.05 export=FILE` draws a "
        "random sample of the decided cases for people, whose codes correct the estimate of "
        "the batch's accuracy."
    )
    table = _part_table("The evaluator against gold", report.judge, notes)
    blocks = [text, table, *([] if report.audit else [audit])]
    return Section("judge", "Whether the judge is any good", blocks)


def _confusion(report: AnnotationReport) -> Section:
    text = (
        "A row is a root as the one names it, a column as the other does; what both name lies on "
        "the diagonal. Several roots in a code count one each, and none is a root that the other "
        "side has no partner for, or no code at all."
    )
    confusion, title = report.confusion, "Which roots are mistaken for which"
    tables = [confusion_table(panel, confusion.labels) for panel in confusion.panels.values()]
    return Section("confusion", title, [text, *tables], "Confusion", page_only=True)


def confusion_table(panel: ConfusionPanel, labels: Sequence[str]) -> Table:
    """Returns a confusion matrix, shaded by the share of the row."""
    rows = [
        [
            _root_cell(label),
            *(Cell(_count(count), shade=count / (sum(counts) or 1.0)) for count in counts),
        ]
        for label, counts in zip(labels, panel.sets, strict=True)
    ]
    return Table(
        f"{panel.rows} against {panel.columns}",
        ["root", *labels],
        rows,
        f"Rows: {panel.rows}. Columns: {panel.columns}. The shade is the share of the row.",
        dense=True,
    )


def _scores(report: AnnotationReport) -> Section:
    tree = report.score_tree
    text = (
        "The share of answers with the right set of roots, by the first root of gold: what the "
        "score tree of this run holds, from which `jobs/quality.py` measures how good the cases "
        "are as a benchmark."
    )
    notes = [f"{note[0].upper()}{note[1:]}." for note in tree.notes]
    left_out = [block("fold", "Not in the tree", tree.left_out)] if tree.left_out else []
    blocks = [text, _score_table(tree.scores), *notes, *left_out]
    return Section("scores", "Accuracy by root", blocks, page_only=True)


def _score_table(scores: Sequence[RootAccuracy]) -> Table:
    """Returns accuracies by annotator and generation (rows) and root (columns), shaded."""
    roots = list(dict.fromkeys(score.root for score in scores))
    depths = dict(zip(scores, shades(score.accuracy.value for score in scores), strict=True))
    rows: dict[tuple[str, str], dict[str, Cell]] = {}
    for score, depth in depths.items():
        cell = replace(share_cell(score.accuracy, score.accuracy.count), shade=depth, bar=None)
        rows.setdefault((score.annotator, score.generation), {})[score.root] = cell
    return Table(
        "Accuracy by root",
        ["annotator", Column("generation", text=True), *roots],
        [[*names, *(row.get(root, "-") for root in roots)] for names, row in rows.items()],
        "Small, the 95 % interval and the number of cases. Deeper is higher, from the lowest to "
        "the highest shown.",
    )


def _disagreements(report: AnnotationReport, cases: Sequence[FullCase]) -> Section:
    shown, total = report.disagreements.shown, report.disagreements.total
    text = (
        f"In {total:,} of {pluralize(report.agreement.both, 'case')} the two codes differ. Shown "
        f"{'is one' if len(shown) == 1 else f'are {len(shown)}'}: first where the codes lie far "
        "apart and the evaluator still found both convincing, for there the description or the "
        "taxonomy can be read in two ways. A dashed frame marks a root that the other annotator "
        "did not name."
        if shown
        else "The annotators gave the same code in every case where both gave one, so there is no "
        "disagreement to learn from."
    )
    drawn = block("disagreements", zip(shown, cases, strict=True), STATUSES, CHOICES)
    title, short = "The most instructive disagreements", "Instructive disagreements"
    return Section("disagreements", title, [text, drawn], short)


def _cost(report: AnnotationReport) -> Section:
    blocks: list[Block] = [_usage_table(report)]
    if unpriced := report.usage.total.unpriced:
        blocks.append(
            f"{pluralize(unpriced, 'call has', 'calls have')} no price; `llm.prices` sets one for "
            "each model."
        )
    if seconds := report.cases.seconds:
        blocks.append(
            f"From its first call to its end a case took {duration(seconds.p50)} at the median, "
            f"{duration(seconds.p99)} at the 99th percentile."
        )
    return Section("cost", "Cost and latency", blocks, page_only=True)


def _usage_table(report: AnnotationReport) -> Table:
    """Returns calls, tokens, cost and times by role and model."""
    places = {stage: place for place, stage in enumerate(STAGES)}
    sources = sorted(report.usage.by_source, key=lambda row: places.get(row.role, len(places)))
    rows: list[Row] = [
        [
            STAGES.get(row.role, row.role),
            shorten(row.shown_model, LONGEST_MODEL),
            f"{shorten(row.prompt, LONGEST_PROMPT)} {row.prompt_hash[:HASH_DIGITS]}",
            *_usage_cells(row),
        ]
        for row in sources
    ]
    rows += [RULE, ["all", "", "", *_usage_cells(report.usage.total)]]
    if report.decisions.usage.sent:
        rows.append(["confirming people's codes", "", "", *_usage_cells(report.decisions.usage)])
    texts = (Column("model as served", text=True), Column("prompt", text=True))
    figures = ("sent", "journal", "tokens in", "tokens out", "cost", "p50", "p90", "p99")
    return Table(
        "Cost and latency by role and model",
        ["role", *texts, *figures],
        rows,
        "Calls answered from the journal were paid by the run that sent them and cost nothing "
        "here. Times are those of the calls that were sent.",
    )


def _usage_cells(usage: CallUsage) -> Row:
    seconds = usage.seconds
    times = ["-"] * 3 if seconds is None else map(duration, (seconds.p50, seconds.p90, seconds.p99))
    counts = (usage.sent, usage.cached, usage.prompt_tokens, usage.completion_tokens)
    cost = "no price" if usage.cost is None else f"{usage.cost:.4f}"
    return [*(f"{count:,}" for count in counts), cost, *times]


def _part_table(title: str, parts: Mapping[Any, Part], notes: str = "") -> Table:
    """Returns the figures of parts of one kind, by giver of codes, side by side."""
    columns = ["", *(NAMES[name] for name in parts)]
    return Table(title, columns, list(_part_rows(parts.values())), notes)


def _part_rows(parts: Iterable[Part]) -> Iterator[Row]:
    """Yields a row for each field with a measure of some parts of one kind, side by side.

    A field that is a mapping has a row for each of its keys with a case, and its shares have the
    number that they are of.
    """
    parts = list(parts)
    for name, measure in measures_of(type(parts[0])).items():
        values = [getattr(part, name) for part in parts]
        if not isinstance(values[0], Mapping):
            yield [measure.label, *(figure_cell(measure, value) for value in values)]
            continue
        for key in dict.fromkeys(key for value in values for key in value):
            figures = [value.get(key) for value in values]
            if any(figure.count if isinstance(figure, Estimate) else figure for figure in figures):
                cells = [
                    share_cell(figure, figure.count)
                    if isinstance(figure, Estimate)
                    else figure_cell(measure, figure)
                    for figure in figures
                ]
                yield [f"{measure.label} {key}", *cells]


def _root_cell(name: str) -> Cell:
    return Cell(name, look="" if name == NONE else f"root root-{name}")


def _count_cells(estimate: Estimate) -> Row:
    return [f"{estimate.cases:,}", share_cell(estimate)]


def _count(count: float) -> str:
    if count == round(count):
        return f"{count:,.0f}"
    return f"{count:,.1f}" if count >= 0.05 else "<0.1"
