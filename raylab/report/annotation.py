"""Tables of an annotation run, and of runs over time."""

from collections.abc import Iterable, Iterator, Mapping, Sequence

from raylab.annotation.outcome import SIDES, STAGES, Side
from raylab.annotation.statistics.agreement import NONE, AgreementReport, ConfusionPanel
from raylab.annotation.statistics.audit import AuditReport
from raylab.annotation.statistics.drift import Drift, DriftChange, DriftRun
from raylab.annotation.statistics.estimates import Estimate
from raylab.annotation.statistics.figures import (
    AdjudicationReport,
    FormatReport,
    JudgementReport,
    SourceReport,
    TrapReport,
)
from raylab.annotation.statistics.gold import NAMES, GoldReport, JudgeReport
from raylab.annotation.statistics.report import STATUSES, AnnotationReport
from raylab.annotation.statistics.scores import RootAccuracy
from raylab.annotation.statistics.usage import CallUsage, SourceUsage
from raylab.report.table import (
    RULE,
    Cell,
    Column,
    Row,
    Table,
    counted,
    duration,
    estimate_cell,
    p_cell,
    shades,
    share_cell,
    shortened,
)
from raylab.runs.measures import Measure, meaning_of, measures_of
from raylab.runs.records import Part

SHOWN_CODES = 10
AGREEMENT_ORDER = (
    "exact",
    "same_roots",
    "jaccard",
    "weighted",
    "composition",
    "levenshtein",
    "levenshtein_normalised",
    "kappa",
    "alpha",
)
"""The measures of agreement in the order shown: plain first, chance-corrected last."""
ENDINGS = {
    "accept": "a code that was acceptable to the evaluator",
    "human:one-acceptable": "only one of the two codes was acceptable",
    "human:none-acceptable": "neither code was acceptable",
    "human:disagreement": "the codes differed, and a person settles differences",
    "human:candidate": "the evaluator refused the candidate of the row",
    "human:unparsable": "an answer held no code that could be read",
    "human:unconfirmed": "the evaluator refused the adjudicated code",
}
HASH_DIGITS = 8
LONGEST_MODEL, LONGEST_PROMPT = 60, 40
"""Most characters shown of the name of a model and of a prompt."""


def annotation_tables(report: AnnotationReport) -> Iterator[Table]:
    """Yields the tables of a run for the terminal."""
    yield code_table(report)
    if report.audit is not None:
        yield audit_table(report.audit)
    yield summary_table(report)
    yield annotator_table(report)
    yield agreement_table(report.agreement)
    if report.cases.with_gold:
        yield gold_table(report.gold)
        yield root_table(report.gold)
        yield judge_table(report.judge)


def summary_table(report: AnnotationReport) -> Table:
    """Returns the endings of the cases, and time and cost."""
    statuses = report.cases.status
    rows = [[label, *_count_cells(statuses[status])] for status, label in STATUSES.items()]
    waiting = ["waiting for a person now", f"{report.decisions.waiting:,}", ""]
    spent = [[label, value, ""] for label, value in _spending(report.usage.total)]
    if (uncertain := report.usage.uncertain).attempts:
        lost = f"{uncertain.cost:,.4f} for {counted(uncertain.attempts, 'call')}"
        spent.append(["perhaps billed as well", lost, ""])
    return Table(
        f"{counted(report.cases.total, 'case')}, intervals of 95 %",
        ["", "cases", "share"],
        [*rows, waiting, RULE, *spent],
        "As the protocol left them, and what the calls took; an interval is of 95 %.",
    )


def code_table(report: AnnotationReport) -> Table:
    """Returns the codes in force, the most frequent first, and how often each root is named."""
    codes = [[final.code, *_count_cells(final.share)] for final in report.codes]
    roots = [
        [root_cell(root), *_count_cells(share)]
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


def ending_table(report: AnnotationReport) -> Table:
    """Returns the last steps of the cases, the most frequent first."""
    return Table(
        "Cases by reason",
        ["last step", "cases", Column("example", text=True)],
        [
            [_ending(step), f"{ending.cases:,}", ending.example or ""]
            for step, ending in report.cases.endings.items()
        ],
        "The last step of each case, the most frequent first, with an example where there is one.",
    )


def annotator_table(report: AnnotationReport) -> Table:
    """Returns the evaluator's judgements of each annotator, and the form of its answers."""
    sides = {NAMES[side]: report.annotators[side] for side in SIDES}
    traps = [report.sensitivity[side] for side in SIDES]
    rows = [
        *part_rows([side.evaluation for side in sides.values()], measures_of(JudgementReport)),
        *part_rows([side.format for side in sides.values()], measures_of(FormatReport)),
        *part_rows(traps, {"taken": measures_of(TrapReport)["taken"]}),
    ]
    adjudicator = part_rows([report.adjudication], measures_of(AdjudicationReport))
    rows += [RULE, *([*row, ""] for row in adjudicator)]
    return Table("Annotators", ["share of the answers", *sides], rows)


def agreement_table(agreement: AgreementReport) -> Table:
    """Returns the agreement of A and B, each measure in words on a page."""
    measures = measures_of(AgreementReport)
    return Table(
        f"Agreement of A and B on {counted(agreement.both, 'case')} with both codes",
        ["measure", "figure", Column("what it says", text=True, page_only=True)],
        [
            [
                measures[name].label,
                estimate_cell(measures[name], getattr(agreement, name)),
                meaning_of(AgreementReport, name),
            ]
            for name in AGREEMENT_ORDER
        ],
    )


def trap_table(report: AnnotationReport) -> Table:
    """Returns what each annotator and the final code made of the traps."""
    traps = {NAMES[name]: trap for name, trap in report.sensitivity.items()}
    notes = "Of the traps that have gold and were answered."
    rows = list(part_rows(traps.values(), measures_of(TrapReport)))
    return Table("Traps", ["", *traps], rows, notes)


def gold_table(gold: Mapping[str, GoldReport]) -> Table:
    """Returns the share of codes that are right against gold."""
    notes = (
        "How often each code is right, of the cases that have one; an answer without a readable "
        "code is wrong."
    )
    rows = list(part_rows(gold.values(), measures_of(GoldReport)))
    return Table("Right against gold", ["", *(NAMES[name] for name in gold)], rows, notes)


def root_table(gold: Mapping[str, GoldReport]) -> Table:
    """Returns recall and precision of each root."""
    columns = [f"{NAMES[name]}: {figure}" for name in gold for figure in ("recall", "precision")]
    rows: list[Row] = []
    for root in next(iter(gold.values())).by_root:
        figures = [report.by_root[root] for report in gold.values()]
        cells = (share_cell(share) for each in figures for share in (each.recall, each.precision))
        rows.append([root_cell(root), f"{max(each.gold for each in figures):,}", *cells])
    return Table(
        "Recall and precision of each root",
        ["root", "in gold", *columns],
        rows,
        "Small, the 95 % intervals. Recall: of the cases whose gold names the root, those whose "
        "code does. Precision: of the cases whose code names it, those whose gold does.",
        dense=True,
    )


def judge_table(judges: Mapping[Side, JudgeReport]) -> Table:
    """Returns how far the evaluator's verdicts and scores tell right codes from wrong ones."""
    return Table(
        "The evaluator against gold",
        ["", *(NAMES[side] for side in judges)],
        list(part_rows(judges.values(), measures_of(JudgeReport))),
        "Shares and area with their 95 % intervals, of codes of cases with held-out gold. Below, "
        "by bands of ten scores: where the score can be read as the chance of being right, the "
        "share lies within its band.",
    )


def audit_table(audit: AuditReport) -> Table:
    """Returns the accuracy of the decided codes by scores, by audit, and by both."""
    judged = "-" if audit.judged is None else f"{100 * audit.judged:.1f} %"
    return Table(
        f"Audit of {audit.audited:,} of {counted(audit.decided, 'decided case')}",
        ["right codes", "share"],
        [
            ["by the evaluator's scores", judged],
            ["of the audited cases", share_cell(audit.right)],
            ["of all, scores corrected by the audit", share_cell(audit.corrected)],
        ],
    )


def confusion_table(panel: ConfusionPanel, labels: Sequence[str]) -> Table:
    """Returns a confusion matrix, shaded by the share of the row."""
    rows = [
        [
            root_cell(label),
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


def score_table(scores: Sequence[RootAccuracy]) -> Table:
    """Returns accuracies by annotator and generation (rows) and root (columns), shaded."""
    roots = list(dict.fromkeys(score.root for score in scores))
    depths = dict(zip(scores, shades(score.accuracy.value for score in scores), strict=True))
    rows: dict[tuple[str, str], dict[str, Cell]] = {}
    for score, depth in depths.items():
        shown = _share_of_count(score.accuracy)
        cell = Cell(shown.text, shown.small, shade=depth)
        rows.setdefault((score.annotator, score.generation), {})[score.root] = cell
    return Table(
        "Accuracy by root",
        ["annotator", Column("generation", text=True), *roots],
        [[*names, *(row.get(root, "-") for root in roots)] for names, row in rows.items()],
        "Small, the 95 % interval and the number of cases. Deeper is higher, from the lowest to "
        "the highest shown.",
    )


def usage_table(report: AnnotationReport) -> Table:
    """Returns calls, tokens, cost and times by role and model."""
    order = [*STAGES]
    sources = sorted(
        report.usage.by_source,
        key=lambda row: order.index(row.role) if row.role in order else len(order),
    )
    rows: list[Row] = [
        [STAGES.get(row.role, row.role), *_source_cells(row), *_usage_cells(row)] for row in sources
    ]
    rows += [RULE, ["all", "", "", *_usage_cells(report.usage.total)]]
    if report.decisions.usage.sent:
        confirming = _usage_cells(report.decisions.usage)
        rows += [RULE, ["confirming people's codes", "", "", *confirming]]
    return Table(
        "Cost and latency by role and model",
        [
            "role",
            Column("model as served", text=True),
            Column("prompt", text=True),
            "sent",
            "journal",
            "tokens in",
            "tokens out",
            "cost",
            "p50",
            "p90",
            "p99",
        ],
        rows,
        "Calls answered from the journal were paid by the run that sent them and cost nothing "
        "here. Times are those of the calls that were sent.",
    )


def drift_tables(drift: Drift) -> Iterator[Table]:
    """Yields the runs in order of time, and the change of each from the one before."""
    yield runs_table(drift.runs)
    yield drift_table(drift.comparisons, drift.level)


def runs_table(runs: Sequence[DriftRun]) -> Table:
    """Returns a row for each run and each of its models."""
    names = ("started", "side", "response_model", "prompt")
    measures = measures_of(SourceReport)
    return Table(
        "Runs over time",
        [
            "run",
            *(Column(name, text=True) for name in names),
            "answers",
            *(measure.label for measure in measures.values()),
        ],
        [
            [
                run.run,
                shown_time(run.started),
                source.side,
                source.response_model,
                f"{source.prompt} {source.prompt_hash[:HASH_DIGITS]}",
                f"{source.answers:,}",
                *(share_cell(getattr(source, name)) for name in measures),
            ]
            for run in runs
            for source in run.sources
        ],
        dense=True,
    )


def drift_table(changes: Sequence[DriftChange], level: float) -> Table:
    """Returns a row for each measure of a run against the earlier run of the same models."""
    labels = ["right before", "right after", "lost", "gained", "p", "p paired"]
    return Table(
        f"Change on shared cases; * is flagged at {level:g} (Holm)",
        [
            "measure",
            Column("before", text=True),
            Column("after", text=True),
            *labels,
            "codes changed",
            Column("changed", text=True),
        ],
        [[change.label, change.before, change.after, *_change_cells(change)] for change in changes],
        "Cases that were right before and are not now (lost), and the other way (gained); p values "
        "of Fisher's and McNemar's exact tests, * where flagged; of how many shared cases the "
        "annotator changed its code; and what else changed.",
    )


def part_rows(parts: Iterable[Part], measures: Mapping[str, Measure]) -> Iterator[Row]:
    """Yields rows of figures of some parts of one kind, side by side.

    Args:
        parts: The parts; each has all fields.
        measures: Label and form by field. A field that is a mapping has a row for each of its keys
            with a case, and its shares have the number that they are of.
    """
    parts = list(parts)
    for name, measure in measures.items():
        values = [getattr(shown, name) for shown in parts]
        if not isinstance(values[0], Mapping):
            yield [measure.label, *(_figure_cell(measure, value) for value in values)]
            continue
        for key in dict.fromkeys(key for value in values for key in value):
            figures = [value.get(key) for value in values]
            if any(figure.count if isinstance(figure, Estimate) else figure for figure in figures):
                cells = (
                    _share_of_count(f) if isinstance(f, Estimate) else _figure_cell(measure, f)
                    for f in figures
                )
                yield [f"{measure.label} {key}", *cells]


def root_cell(name: str) -> Cell:
    """Returns a root in its colour."""
    return Cell(name, look="" if name == NONE else f"root root-{name}")


def shown_time(time: str) -> str:
    """Returns a time in ISO 8601 to the minute."""
    return time[:16].replace("T", " ")


def _ending(step: str) -> str:
    """Returns the last step of a case in words."""
    kind, _, what = step.partition(":")
    if what.endswith("-unreadable"):
        return f"the reply of {STAGES.get(what.removesuffix('-unreadable'), what)} cannot be read"
    if kind == "failed":
        return f"the call to {STAGES.get(what, what)} failed"
    return ENDINGS.get(step, step)


def _spending(usage: CallUsage) -> Iterator[tuple[str, str]]:
    for name, measure in measures_of(CallUsage).items():
        if measure.form == "count":
            yield measure.label, f"{getattr(usage, name):,}"
    unknown = f"unknown: {counted(usage.unpriced, 'call')} without a price"
    yield "cost", unknown if usage.cost is None else f"{usage.cost:,.4f}"
    if (seconds := usage.seconds) is not None:
        times = " / ".join(map(duration, (seconds.p50, seconds.p90, seconds.p99)))
        yield "a call took, p50 / p90 / p99", times


def _source_cells(source: SourceUsage) -> Row:
    prompt = shortened(source.prompt, LONGEST_PROMPT)
    return [
        shortened(source.shown_model, LONGEST_MODEL),
        f"{prompt} {source.prompt_hash[:HASH_DIGITS]}",
    ]


def _usage_cells(usage: CallUsage) -> Row:
    seconds = usage.seconds
    times = ["-"] * 3 if seconds is None else map(duration, (seconds.p50, seconds.p90, seconds.p99))
    counts = (usage.sent, usage.cached, usage.prompt_tokens, usage.completion_tokens)
    cost = "no price" if usage.cost is None else f"{usage.cost:.4f}"
    return [*(f"{count:,}" for count in counts), cost, *times]


def _figure_cell(measure: Measure, value: Estimate | float | None) -> Cell:
    if value is None:
        return Cell("-")
    if isinstance(value, Estimate):
        return estimate_cell(measure, value)
    return Cell(f"{value:,.1f}" if measure.form == "number" else f"{value:,}")


def _change_cells(change: DriftChange) -> Row:
    if (result := change.result) is None:
        return [*["-"] * 6, _recoded(change), change.reason or ""]
    return [
        f"{result.right_before} of {change.cases}",
        f"{result.right_after} of {change.cases}",
        str(result.lost),
        str(result.gained),
        *(
            p_cell(test.p_value, test.flagged)
            for test in (result.tests.two_proportion, result.tests.mcnemar)
        ),
        _recoded(change),
        ", ".join(change.changed) or "-",
    ]


def _recoded(change: DriftChange) -> str:
    return "-" if change.recoded is None else f"{change.recoded:,} of {change.shared:,}"


def _count_cells(estimate: Estimate) -> Row:
    return [f"{estimate.cases:,}", share_cell(estimate)]


def _share_of_count(estimate: Estimate) -> Cell:
    """Returns a share with its interval and the number that it is a share of."""
    shown = share_cell(estimate)
    total = f"of {estimate.count:,}" if estimate.count else ""
    return Cell(shown.text, " ".join(filter(None, (shown.small, total))))


def _count(count: float) -> str:
    if count == round(count):
        return f"{count:,.0f}"
    return f"{count:,.1f}" if count >= 0.05 else "<0.1"
