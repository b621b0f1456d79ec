"""The page of an annotation run, whose tables the terminal prints too."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from raylab.annotation.outcome import (
    ADJUDICATE,
    STAGES,
    HumanDecision,
    Outcome,
    Status,
    classify_stage,
    evaluate_stage,
)
from raylab.annotation.statistics.accuracy import FINAL, NAMES, AuditReport, ConfusionPanel
from raylab.annotation.statistics.agreement import NONE, AgreementReport, PairReport
from raylab.annotation.statistics.estimates import Estimate
from raylab.annotation.statistics.figures import CallUsage, Seconds
from raylab.annotation.statistics.people import SubstituteReport
from raylab.annotation.statistics.report import AnnotationReport
from raylab.config.annotation import MOST_ANNOTATORS
from raylab.printable import join_names, pluralize
from raylab.report.drift import drift_section
from raylab.report.page import Block, Page, Section, block, provenance
from raylab.report.table import (
    RULE,
    Cell,
    Column,
    Row,
    Table,
    duration,
    figure_cell,
    hues,
    share_cell,
    shorten,
)
from raylab.runs.records import Measure, Part, meaning_of, measures_of
from raylab.runs.run_record import RunRecord

SHOWN_CODES = 10
RELIABLE, TENTATIVE = 0.8, 0.667
"""Krippendorff's conventional limits of alpha."""
STATUSES = {
    Status.ACCEPTED: "accepted",
    Status.ADJUDICATED: "adjudicated",
    Status.HUMAN: "left to a person",
    Status.FAILED: "failed",
}
KINDS = {
    "one-acceptable": "One answer acceptable",
    "few-acceptable": "Too few answers acceptable",
    "none-acceptable": "No answer acceptable",
    "disagreement": "Codes differ",
    "candidate": "Candidate refused",
    "unconfirmed": "Adjudication refused",
    "unparsable": "Answer without a code",
    "unreadable": "Reply unreadable",
    "audit": "Audit",
    "judge": "Waits for a judgement",
    "settle": "Two people differ",
}
"""Names for people of the reasons why a case waits."""
QUEUES = {"decision": "open cases", "audit": "audited cases"}
HASH_DIGITS = 8
LONGEST_NAME = 50
"""Most characters shown of the name of a model or a prompt."""


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
    diagnosis: Sequence[Section] = (),
) -> Page:
    """Returns the page of a run.

    Args:
        uri: The run directory.
        record: Its record.
        report: Its report.
        disagreements: The cases of the disagreements in the report, in the same order.
        diagnosis: The section on the diagnosis of gold, if there is one.
    """
    archive = {"archive": report.archive, "records": f"{report.records:,}"}
    made = provenance(uri, record, {**archive, "distances": report.distance})
    return Page(
        "annotation",
        report.run,
        uri,
        list(summarize(report)),
        [*_sections(report, disagreements), *diagnosis, drift_section(report), made],
        report.notices,
        "smoke test" if report.smoke else "",
    )


def summarize(report: AnnotationReport) -> Iterator[str]:
    """Yields sentences that sum up the run and its results."""
    cases = report.cases
    if report.codes:
        codes = [f"{share.cases:,} {code}" for code, share in report.codes.items()]
        yield f"Final codes: {join_names(codes)}."
    if report.audit is not None:
        yield _summarize_audit(report.audit)
    if (final := report.substitutes.get(FINAL)) is not None:
        yield _summarize_substitute(final)
    annotators = [_served(report, classify_stage(name)) for name in report.annotators]
    settled = f", and settled by {_served(report, ADJUDICATE)} where they differed"
    yield (
        f"{pluralize(cases.total, 'case')}, classified by {_joined(annotators)}, "
        f"judged by {_served(report, evaluate_stage(next(iter(report.annotators))))}"
        f"{settled if report.adjudication.cases else ''}."
    )
    shares = [(share.cases, STATUSES[status]) for status, share in cases.status.items()]
    if ended := [f"{count:,} {label}" for count, label in shares if count]:
        yield f"How they ended: {join_names(ended)}."
    yield from _summarize_agreement(report.agreement)


def _summarize_agreement(agreement: AgreementReport) -> Iterator[str]:
    if agreement.exact.value is not None:
        yield (
            f"Where {'both' if len(agreement.pairs) == 1 else 'several'} annotators gave a code, "
            f"all gave the same one in {share_cell(agreement.exact).text} of the cases."
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


def _summarize_substitute(final: SubstituteReport) -> str:
    if final.passes is None:
        return f"Whether the models may stand in for people cannot be said: {final.reason}."
    rate, advantage = final.winning_rate, share_cell(final.advantage).text
    return (
        f"The final codes {'may' if final.passes else 'may not'} stand in for people's, by the "
        f"alternative annotator test: winning rate {rate:.2f}, average advantage probability "
        f"{advantage}."
    )


def _reliability(alpha: float) -> str:
    if alpha >= RELIABLE:
        return "reliable"
    return "good for tentative conclusions" if alpha >= TENTATIVE else "too low to rely on"


def _served(report: AnnotationReport, stage: str) -> str:
    """Returns the served names of the models that answered in a stage."""
    names = dict.fromkeys(
        shorten(row.shown_model, LONGEST_NAME)
        for row in report.usage.by_source
        if row.role == stage
    )
    return join_names([*names] or ["nobody"])


def _sections(report: AnnotationReport, disagreements: Sequence[FullCase]) -> Iterator[Section]:
    audit = [] if report.audit is None else [_audit_table(report.audit)]
    yield Section("codes", "Final codes", [_code_table(report), *audit])
    if report.people:
        yield _people(report)
    yield _endings(report)
    if report.agreement.pairs:
        yield _agreement(report)
    yield _annotators(report)
    if report.cases.with_gold:
        yield _gold(report)
    if any(judge.codes for judge in report.judge.values()):
        yield _judge(report)
    yield _confusion(report)
    yield _disagreements(report, disagreements)
    yield _cost(report)


def _code_table(report: AnnotationReport) -> Table:
    """Returns the codes in force, the most frequent first, and how often each label is named."""
    codes = [[code, *_count_cells(share)] for code, share in report.codes.items()]
    look = hues(report.labels)
    labels = [
        [Cell(name, look=look[name]), *_count_cells(share)]
        for name, share in report.labels.items()
        if share.cases
    ]
    return Table(
        "Final codes",
        ["code", "cases", "share"],
        [*codes[:SHOWN_CODES], RULE, *labels],
        f"The codes in force, people's decisions included: the {SHOWN_CODES} most frequent of "
        f"{len(report.codes):,}, and below them how many codes name each label.",
    )


def _audit_table(audit: AuditReport) -> Table:
    weight = "" if audit.weight is None else f", with a weight of {audit.weight:.2f} for the scores"
    return Table(
        f"Audit of {audit.audited:,} of {pluralize(audit.decided, 'decided case')}",
        ["right codes", "share"],
        list(_part_rows([audit])),
        f"People classified {audit.audited:,} of {pluralize(audit.drawn, 'case')} drawn at random "
        f"from the {audit.decided:,} that the protocol decided, by the description alone: taken "
        "for a random part of the sample where some are not answered. The last row joins scores "
        f"and audit by prediction-powered inference{weight}.",
    )


def _people(report: AnnotationReport) -> Section:
    judged = (
        "Two people judged each case by the description alone, neither knowing the other's code. "
        "Alpha is over the cases to which both gave a code."
    )
    people = {QUEUES[kind]: own for kind, own in report.people.items()}
    blocks: list[Block] = [_part_table("Independent judgements", people, judged)]
    if report.substitutes:
        notes = (
            "The alternative annotator test (arXiv 2501.10970) on the audited cases that two "
            "people judged: it leaves out each person in turn, and asks who is nearer to the "
            "other, the code or that person. A code wins against a person whose advantage is less "
            "than review.epsilon; a winning rate of 0.5 or more lets it stand in for people. The "
            "audited cases are a sample of those that the protocol decided, so it says nothing of "
            "the others."
        )
        reason = report.substitutes[FINAL].reason
        caption = f"{notes} {reason[0].upper()}{reason[1:]}." if reason else notes
        blocks.append(_part_table("Whether codes may stand in", report.substitutes, caption))
    return Section("people", "Two people a case", blocks)


def _endings(report: AnnotationReport) -> Section:
    tables: list[Block] = [_summary_table(report)]
    if endings := report.cases.endings:
        rows: list[Row] = [
            [_ending(step), f"{ending.cases:,}", ending.example or ""]
            for step, ending in endings.items()
        ]
        columns = ["last step", "cases", Column("example", text=True)]
        notes = (
            "The last step of each case, the most frequent first, with an example where there is "
            "one."
        )
        tables.append(Table("Cases by reason", columns, rows, notes))
    return Section("endings", "How the cases ended", tables)


def _summary_table(report: AnnotationReport) -> Table:
    cases, calls, uncertain = report.cases, report.usage.total, report.usage.uncertain
    people = list(_part_rows([report.decisions]))
    parts = (calls, calls.seconds, uncertain if uncertain.attempts else None)
    spent = [row for part in parts if part for row in _part_rows([part])]
    rows = [
        *([label, *_count_cells(cases.status[key])] for key, label in STATUSES.items()),
        RULE,
        *([*row, ""] for row in (people if report.decisions.cases else people[-1:])),
        RULE,
        *([*row, ""] for row in spent),
    ]
    return Table(
        pluralize(cases.total, "case"),
        ["", "cases", "share"],
        rows,
        "As the protocol left the cases, with their 95 % intervals; what people decided; and what "
        "the calls took.",
    )


def _ending(step: str) -> str:
    """Returns the last step of a case in words."""
    kind, _, what = step.partition(":")
    stage = STAGES.get(what.removesuffix("-unreadable"), what)
    if kind == "failed":
        return f"Call to {stage} failed"
    return f"Reply of {stage} unreadable" if stage != what else KINDS.get(what, step)


def _agreement(report: AnnotationReport) -> Section:
    agreement, measures = report.agreement, measures_of(AgreementReport).items()
    codes = "both codes" if len(report.annotators) == 2 else "two codes or more"
    table = Table(
        f"Agreement of {_joined([*report.annotators])} on "
        f"{pluralize(agreement.compared, 'case')} with {codes}",
        ["measure", "figure", Column("what it says", text=True, page_only=True)],
        [
            [
                measure.label,
                figure_cell(measure, getattr(agreement, name)),
                meaning_of(AgreementReport, name),
            ]
            for name, measure in measures
        ],
        f"{'Both' if len(report.annotators) == 2 else 'Two or more'} annotators gave a code in "
        f"{agreement.compared:,} of {pluralize(agreement.cases, 'case')}, on which all of this "
        "rests; what is said of two codes is averaged over the pairs of a case. A 95 % interval "
        "says how far a figure may be off because these cases and no others were drawn: of 100 "
        "such intervals, about 95 hold the true figure. By convention an alpha of 0.8 or more is "
        "reliable, and one from 0.667 good for tentative conclusions.",
    )
    rows = [*agreement.pairs.items(), *agreement.rest.items()]
    pairs = Table(
        "Agreement of two",
        ["", *(measure.label for measure in measures_of(PairReport).values())],
        [
            [_joined(names) if len(names) > 1 else f"{names} and the rest", *_pair_cells(pair)]
            for names, pair in rows
        ],
        "The rest is another annotator who answered the case, drawn at random.",
    )
    return Section("agreement", "Agreement of the annotators", [table, pairs])


def _pair_cells(pair: PairReport) -> Iterator[Cell]:
    for name, measure in measures_of(PairReport).items():
        yield figure_cell(measure, getattr(pair, name))


def _annotators(report: AnnotationReport) -> Section:
    answers = report.annotators.items()
    blocks: list[Block] = [
        _part_table("Form of the answers", {name: each.format for name, each in answers}),
        _part_table(
            "The evaluator's verdicts",
            {name: each.evaluation for name, each in answers},
            "To pass is PASS or WEAK_PASS; to be acceptable takes the score of the threshold too.",
        ),
    ]
    if report.adjudication.cases:
        notes = (
            "An order drawn at random should make a half of the share of choices, between the "
            "codes shown first and last, that fell on the first."
        )
        blocks.append(_part_table("Adjudicator", {ADJUDICATE: report.adjudication}, notes))
    blocks.append(_traps(report))
    return Section("annotators", "Annotators, as the evaluator saw them", blocks)


def _traps(report: AnnotationReport) -> Block:
    if not report.cases.traps:
        return "No case of this run is a trap; `cases.packaged=proposed` has some."
    notes = (
        f"{pluralize(report.cases.traps, 'case suggests', 'cases suggest')} a wrong label. A trap "
        "is taken where the code names a label that it baits and gold lacks. Of the traps that "
        "have gold and were answered."
    )
    return _part_table("Traps", report.sensitivity, notes)


def _gold(report: AnnotationReport) -> Section:
    cases, tree = report.cases, report.score_tree
    proposed = f", {cases.proposed_gold:,} of them proposals that nobody reviewed"
    notes = (
        f"{pluralize(cases.with_gold, 'case has', 'cases have')} a gold code"
        f"{proposed if cases.proposed_gold else ''}. An answer without a readable code is wrong. "
        "Recall: of the cases whose gold names a label, those whose code does. Precision: of the "
        "cases whose code names it, those whose gold does."
    )
    of_tree = [f"{note[0].upper()}{note[1:]}." for note in tree.notes]
    left_out = [block("fold", "Not in the score tree", tree.left_out)] if tree.left_out else []
    table = _part_table("Right against gold", report.gold, notes)
    return Section("gold", "Right against gold", [table, *of_tree, *left_out])


def _judge(report: AnnotationReport) -> Section:
    notes = (
        "The evaluator's verdicts against held-out gold: a code is right if it has the right set "
        "of labels. A judge is of use where right codes are more frequent under PASS than among "
        "all codes, and where its score ranks right codes above wrong ones: an area of 0.5 is no "
        "skill, 1 is perfect. Last, by bands of ten scores: where the score can be read as the "
        "chance of being right, the share lies within its band."
    )
    audit = (
        "Gold may not be like the other cases. `jobs/review.py audit=0.05 export=FILE` draws a "
        "random sample of the decided cases for people, whose codes correct the estimate of "
        "the batch's accuracy."
    )
    table = _part_table("The evaluator against gold", report.judge, notes)
    blocks = [table, *([] if report.audit else [audit])]
    return Section("judge", "Whether the judge is any good", blocks)


def _confusion(report: AnnotationReport) -> Section:
    text = (
        "A row is a label as the one names it, a column as the other does; what both name lies on "
        "the diagonal. Several labels in a code count one each, and none is a label that the other "
        "side has no partner for, or no code at all. The shade is the share of the row."
    )
    labels, title = report.confusion.labels, "Which labels are mistaken for which"
    tables = [confusion_table(panel, labels) for panel in report.confusion.panels.values()]
    return Section("confusion", title, [text, *tables], page_only=True)


def confusion_table(panel: ConfusionPanel, labels: Sequence[str]) -> Table:
    """Returns a confusion matrix, shaded by the share of the row."""
    look = hues(label for label in labels if label != NONE)
    rows = [
        [
            Cell(label, look=look[label]),
            *(Cell(_count(count), shade=count / (sum(counts) or 1.0)) for count in counts),
        ]
        for label, counts in zip(labels, panel.sets, strict=True)
    ]
    title = f"Rows: {panel.rows}. Columns: {panel.columns}."
    return Table(title, ["label", *labels], rows, dense=True)


def _disagreements(report: AnnotationReport, cases: Sequence[FullCase]) -> Section:
    shown, total = report.disagreements.shown, report.disagreements.total
    text = (
        f"In {total:,} of {pluralize(report.agreement.compared, 'case')} the codes differ. First "
        "stand those where the codes lie far apart and the evaluator still found two convincing, "
        "for there the description or the taxonomy can be read in two ways. A dashed frame marks a "
        "label that no other annotator named."
        if shown
        else "The annotators gave the same code in every case where two gave one, so there is no "
        "disagreement to learn from."
    )
    pairs = zip(shown, cases, strict=True)
    drawn = block("disagreements", pairs, STATUSES, hues(report.labels))
    return Section("disagreements", "The most instructive disagreements", [text, drawn])


def _cost(report: AnnotationReport) -> Section:
    blocks: list[Block] = [_usage_table(report)]
    if unpriced := report.usage.total.unpriced:
        calls = pluralize(unpriced, "call has", "calls have")
        blocks.append(f"{calls} no price; `llm.prices` sets one for each model.")
    if seconds := report.cases.seconds:
        blocks.append(
            f"From its first call to its end a case took {duration(seconds.p50)} at the median, "
            f"{duration(seconds.p99)} at the 99th percentile."
        )
    return Section("cost", "Cost and latency", blocks, page_only=True)


def _usage_table(report: AnnotationReport) -> Table:
    usage, stages = report.usage, [*STAGES]
    rows: list[Row] = [
        [
            STAGES.get(row.role, row.role),
            shorten(row.shown_model, LONGEST_NAME),
            f"{shorten(row.prompt, LONGEST_NAME)} {row.prompt_hash[:HASH_DIGITS]}",
            *_usage_cells(row),
        ]
        for row in sorted(usage.by_source, key=lambda row: [*stages, row.role].index(row.role))
    ]
    rows += [RULE, ["all", "", "", *_usage_cells(usage.total)]]
    if report.decisions.usage.sent:
        rows.append(["confirming people's codes", "", "", *_usage_cells(report.decisions.usage)])
    texts = (Column("model as served", text=True), Column("prompt", text=True))
    figures = [
        figure.label for kind in (CallUsage, Seconds) for figure in measures_of(kind).values()
    ]
    notes = (
        "Calls answered from the journal were paid by the run that sent them and cost nothing "
        "here. Times are those of the calls that were sent."
    )
    return Table("Cost and latency by role and model", ["role", *texts, *figures], rows, notes)


def _usage_cells(usage: CallUsage) -> Iterator[Cell]:
    for kind, part in ((CallUsage, usage), (Seconds, usage.seconds)):
        for name, measure in measures_of(kind).items():
            yield figure_cell(measure, getattr(part, name, None))


def compare_annotations(reports: Mapping[str, AnnotationReport]) -> Table:
    """Returns the figures of several runs side by side, by the label of a run."""
    runs = list(reports.values())
    groups: list[tuple[str, Sequence[Part | None]]] = [("", [run.agreement for run in runs])]
    for names in dict.fromkeys(names for run in runs for names in run.agreement.pairs):
        groups.append((f"{_joined(names)}: ", [run.agreement.pairs.get(names) for run in runs]))
    for name in dict.fromkeys(name for run in runs for name in run.annotators):
        answers = [run.annotators.get(name) for run in runs]
        groups += [
            (f"{NAMES[name]}: ", [answer and answer.format for answer in answers]),
            (f"{NAMES[name]}: ", [answer and answer.evaluation for answer in answers]),
            (f"evaluator of {name} against gold: ", [run.judge.get(name) for run in runs]),
        ]
    for name, label in NAMES.items():
        groups.append((f"{label} against gold: ", [run.gold.get(name) for run in runs]))
    totals = [run.usage.total for run in runs]
    groups += [("", totals), ("", [total.seconds for total in totals])]
    rows: list[Row] = [
        [label, *(figure_cell(Measure(label), run.cases.status[key]) for run in runs)]
        for key, label in STATUSES.items()
    ]
    for whose, parts in groups:
        rows += [RULE, *([f"{whose}{row[0]}", *row[1:]] for row in _part_rows(parts))]
    return Table("Annotation", ["", *reports], rows, "Small, the 95 % intervals.")


def _part_table(title: str, parts: Mapping[Any, Part], notes: str = "") -> Table:
    """Returns the figures of parts of one kind, by giver of codes, side by side."""
    columns = ["", *(NAMES.get(name, STAGES.get(name, name)) for name in parts)]
    return Table(title, columns, list(_part_rows(parts.values())), notes)


def _part_rows(parts: Iterable[Part | None]) -> Iterator[Row]:
    """Yields a row for each field with a measure of some parts of one kind, side by side.

    A field that is a mapping has a row for each of its keys that any part has cases of, and its
    shares have the number that they are of.
    """
    parts = list(parts)
    kinds = {type(part) for part in parts if part is not None}
    for name, measure in (item for kind in kinds for item in measures_of(kind).items()):
        values = [getattr(part, name, None) for part in parts]
        if not any(isinstance(value, Mapping) for value in values):
            yield [measure.label, *(figure_cell(measure, value) for value in values)]
            continue
        for key in dict.fromkeys(key for value in values if value for key in value):
            cells = [_cell_of_key(measure, value.get(key) if value else None) for value in values]
            if any(cell.text not in ("-", "0") for cell in cells):
                yield [f"{measure.label} {key}", *cells]


def _cell_of_key(measure: Measure, figure: Estimate | float | None) -> Cell:
    if isinstance(figure, Estimate):
        return share_cell(figure, figure.count)
    return figure_cell(measure, figure)


def _joined(names: Sequence[str]) -> str:
    return join_names(names, MOST_ANNOTATORS)


def _count_cells(estimate: Estimate) -> Row:
    return [f"{estimate.cases:,}", share_cell(estimate)]


def _count(count: float) -> str:
    if count == round(count):
        return f"{count:,.0f}"
    return f"{count:,.1f}" if count >= 0.05 else "<0.1"
