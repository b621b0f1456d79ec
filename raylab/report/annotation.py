"""Tables of an annotation run, and of runs over time, for the terminal."""

from collections.abc import Iterable, Iterator, Mapping, Sequence

from rich.table import Table

from raylab.annotation.accuracy.audit import AuditReport
from raylab.annotation.accuracy.verdicts import JudgeReport
from raylab.annotation.outcome import Verdict
from raylab.annotation.report import STATUSES, AnnotationReport
from raylab.annotation.roles import SIDES, Side
from raylab.annotation.statistics.adjudication import AdjudicationReport
from raylab.annotation.statistics.annotators import FormatReport, JudgementReport, SourceReport
from raylab.annotation.statistics.batch_quality import NAMES
from raylab.annotation.statistics.canaries import DriftRun
from raylab.annotation.statistics.drift import CanaryChange, Drift, DriftTest
from raylab.annotation.statistics.estimates import Estimate
from raylab.annotation.statistics.pairs import AgreementReport, GoldReport
from raylab.annotation.statistics.traps import TrapReport
from raylab.annotation.statistics.usage import CallUsage
from raylab.report.progress import duration
from raylab.runs.measures import Measure, measures_of
from raylab.runs.records import Part

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
HASH_DIGITS = 8


def shown_share(estimate: Estimate | None) -> str:
    """Returns an estimated share in percent with its interval; a dash if it is missing."""
    if estimate is None or estimate.value is None:
        return "-"
    value = f"{100 * estimate.value:.1f} %"
    if estimate.interval is None:
        return value
    low, high = estimate.interval
    return f"{value} [{100 * low:.1f}, {100 * high:.1f}]"


def shown_number(estimate: Estimate) -> str:
    """Returns an estimated number with its interval, or the reason why it is missing."""
    if estimate.value is None:
        return f"undefined: {estimate.reason}"
    value = f"{estimate.value:.3f}"
    if estimate.interval is None:
        return f"{value} (no interval: {estimate.reason})" if estimate.reason else value
    low, high = estimate.interval
    return f"{value} [{low:.3f}, {high:.3f}]"


def shown_seconds(seconds: float) -> str:
    """Returns a time in words, short ones to two digits."""
    return f"{seconds:.2g} s" if seconds < 10 else duration(seconds)


def estimates_of(
    parts: Iterable[Part], kind: type[Part], names: Iterable[str] | None = None
) -> Iterator[tuple[Measure, list[Estimate]]]:
    """Yields each measure of a kind of part with its estimates in some parts of that kind.

    Args:
        parts: Parts whose estimates are shown side by side.
        kind: Class of the parts.
        names: Fields to show; None takes all that have a measure.
    """
    measures = measures_of(kind)
    parts = list(parts)
    for name in measures if names is None else names:
        yield measures[name], [getattr(part, name) for part in parts]


def annotation_tables(report: AnnotationReport) -> Iterator[Table]:
    """Yields the tables of a run: its endings, its annotators, their agreement, and gold."""
    yield summary_table(report)
    yield annotator_table(report)
    yield agreement_table(report.agreement)
    if report.cases.with_gold:
        yield gold_table(report.gold)
        yield root_table(report.gold)
        yield judge_table(report.judge)
    if report.audit is not None:
        yield audit_table(report.audit)


def summary_table(report: AnnotationReport) -> Table:
    """Returns the endings of the cases, and time and cost."""
    table = Table(title=f"{report.cases.total:,} cases, intervals of 95 %")
    table.add_column("")
    table.add_column("cases", justify="right")
    table.add_column("share", justify="right")
    for status, label in STATUSES.items():
        estimate = report.cases.status[status]
        table.add_row(label, f"{estimate.cases:,}", shown_share(estimate))
    table.add_row("waiting for a person now", f"{report.decisions.waiting:,}", "")
    table.add_section()
    for label, value in _spent(report.usage.total):
        table.add_row(label, value, "")
    return table


def annotator_table(report: AnnotationReport) -> Table:
    """Returns the evaluator's judgements of each annotator, and the form of its answers."""
    table = Table(title="Annotators")
    table.add_column("share of the answers")
    for side in SIDES:
        table.add_column(NAMES[side], justify="right")
    annotators = [report.annotators[side] for side in SIDES]
    traps = [report.sensitivity[side] for side in SIDES]
    for measure, estimates in (
        *estimates_of([one.evaluation for one in annotators], JudgementReport),
        *estimates_of([one.format for one in annotators], FormatReport),
        *estimates_of(traps, TrapReport, ("taken",)),
    ):
        table.add_row(measure.label, *map(shown_share, estimates))
    table.add_section()
    for measure, estimates in estimates_of([report.adjudication], AdjudicationReport):
        table.add_row(measure.label, *map(shown_share, estimates), "")
    return table


def agreement_table(agreement: AgreementReport) -> Table:
    """Returns the agreement of A and B."""
    table = Table(title=f"Agreement of A and B on {agreement.both:,} cases with both codes")
    table.add_column("measure")
    table.add_column("mean", justify="right")
    for measure, (estimate,) in estimates_of([agreement], AgreementReport, AGREEMENT_ORDER):
        table.add_row(measure.label, _shown(measure, estimate))
    return table


def gold_table(gold: dict[str, GoldReport]) -> Table:
    """Returns the share of codes that are right against gold."""
    table = Table(title="Right against gold")
    table.add_column("")
    for name in gold:
        table.add_column(NAMES[name], justify="right")
    for measure, estimates in estimates_of(gold.values(), GoldReport):
        table.add_row(measure.label, *map(shown_share, estimates))
    table.add_section()
    table.add_row("cases", *(f"{of.cases:,}" for of in gold.values()))
    table.add_row("left out, no answer or decision", *(f"{of.left_out:,}" for of in gold.values()))
    return table


def judge_table(judges: Mapping[Side, JudgeReport]) -> Table:
    """Returns how far the evaluator's verdicts and scores tell right codes from wrong ones."""
    table = Table(title="The evaluator against gold")
    table.add_column("")
    for side in judges:
        table.add_column(NAMES[side], justify="right")
    for measure, estimates in estimates_of(judges.values(), JudgeReport):
        table.add_row(measure.label, *(_shown(measure, one) for one in estimates))
    for verdict in Verdict:
        of = [judge.right_by_verdict[verdict] for judge in judges.values()]
        table.add_row(f"right, given {verdict}", *map(shown_share, of))
    return table


def audit_table(audit: AuditReport) -> Table:
    """Returns the accuracy of the decided codes by scores, by audit, and by both."""
    table = Table(title=f"Audit of {audit.audited:,} of {audit.decided:,} decided cases")
    table.add_column("right codes")
    table.add_column("share", justify="right")
    judged = "-" if audit.judged is None else f"{100 * audit.judged:.1f} %"
    table.add_row("by the evaluator's scores", judged)
    table.add_row("of the audited cases", shown_share(audit.right))
    table.add_row("of all, scores corrected by the audit", shown_share(audit.corrected))
    return table


def root_table(gold: dict[str, GoldReport]) -> Table:
    """Returns recall and precision of each root, recall first."""
    table = Table(title="Recall / precision of each root in gold")
    table.add_column("root")
    table.add_column("cases", justify="right")
    for name in gold:
        table.add_column(NAMES[name], justify="right")
    for root in next(iter(gold.values())).by_root:
        of = [by.by_root[root] for by in gold.values()]
        shares = [f"{_bare_share(one.recall)} / {_bare_share(one.precision)}" for one in of]
        table.add_row(root, f"{max(one.gold for one in of):,}", *shares)
    return table


def drift_tables(drift: Drift) -> Iterator[Table]:
    """Yields the runs in order of time, and the change of each from the one before."""
    yield runs_table(drift.runs)
    yield drift_table(drift.comparisons, drift.level)


def runs_table(runs: Sequence[DriftRun]) -> Table:
    """Returns a row for each run and each of its models."""
    table = Table(title="Runs over time")
    for label in ("run", "started", "side", "response_model", "prompt"):
        table.add_column(label)
    table.add_column("answers", justify="right")
    for measure in measures_of(SourceReport).values():
        table.add_column(measure.label, justify="right")
    for run in runs:
        for row in run.sources:
            table.add_row(
                run.run,
                shown_time(run.started),
                row.side,
                row.response_model,
                f"{row.prompt} {row.prompt_hash[:HASH_DIGITS]}",
                f"{row.answers:,}",
                *(_bare_share(of) for _, (of,) in estimates_of([row], SourceReport)),
            )
    return table


def drift_table(changes: Sequence[CanaryChange], level: float) -> Table:
    """Returns a row for each measure of a run against the earlier run of the same models."""
    table = Table(title=f"Change on the canary cases; * is flagged at {level:g} (Holm)")
    for label in ("measure", "before", "after"):
        table.add_column(label)
    for label in ("right before", "right after", "lost", "gained", "p", "p paired"):
        table.add_column(label, justify="right")
    table.add_column("changed")
    for change in changes:
        names, result = (change.label, change.before, change.after), change.result
        if result is None:
            table.add_row(*names, *["-"] * 6, change.reason)
            continue
        table.add_row(
            *names,
            f"{result.right_before} of {change.cases}",
            f"{result.right_after} of {change.cases}",
            str(result.lost),
            str(result.gained),
            _p_value(result.tests.two_proportion),
            _p_value(result.tests.mcnemar),
            ", ".join(change.changed) or "-",
        )
    return table


def shown_time(time: str) -> str:
    """Returns a time in ISO 8601 to the minute."""
    return time[:16].replace("T", " ")


def _spent(usage: CallUsage) -> Iterator[tuple[str, str]]:
    for name, measure in measures_of(CallUsage).items():
        if measure.form == "count":
            yield measure.label, f"{getattr(usage, name):,}"
    unknown = f"unknown: {usage.unpriced:,} calls without a price"
    yield "cost", unknown if usage.cost is None else f"{usage.cost:,.4f}"
    seconds = usage.seconds
    if seconds is not None:
        times = " / ".join(map(shown_seconds, (seconds.p50, seconds.p90, seconds.p99)))
        yield "a call took, p50 / p90 / p99", times


def _shown(measure: Measure, estimate: Estimate) -> str:
    return shown_share(estimate) if measure.form == "share" else shown_number(estimate)


def _bare_share(estimate: Estimate) -> str:
    return "-" if estimate.value is None else f"{100 * estimate.value:.0f} %"


def _p_value(test: DriftTest) -> str:
    return f"{test.p_value:.3g}{'*' if test.flagged else ''}"
