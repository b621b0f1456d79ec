"""The page of an annotation run."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from raylab.annotation.accuracy.verdicts import BAND, JudgeReport
from raylab.annotation.outcome import Status
from raylab.annotation.report import STATUSES, AnnotationReport
from raylab.annotation.roles import (
    ADJUDICATE,
    SIDES,
    STAGES,
    Side,
    classify_stage,
    evaluate_stage,
)
from raylab.annotation.scores import RootAccuracy
from raylab.annotation.statistics.annotators import AnnotatorReport, FormatReport, JudgementReport
from raylab.annotation.statistics.batch_quality import FINAL, NAMES
from raylab.annotation.statistics.confusion import Confusion
from raylab.annotation.statistics.drift import CanaryChange
from raylab.annotation.statistics.estimates import Estimate
from raylab.annotation.statistics.pairs import AgreementReport, GoldReport
from raylab.report.annotation import (
    AGREEMENT_ORDER,
    estimates_of,
    shown_seconds,
    shown_share,
    shown_time,
)
from raylab.report.charts.confusion import confusion_cells, confusion_maps
from raylab.report.charts.heat import heat_map
from raylab.report.charts.intervals import interval_plot
from raylab.report.charts.theme import shortened
from raylab.report.page import counted, listed, render
from raylab.runs.measures import Measure, meaning_of, measures_of
from raylab.runs.run_record import RunRecord

PLOTTED = ("exact", "same_roots", "jaccard", "weighted", "composition", "kappa", "alpha")
"""Measures of agreement that are best at 1."""
JUDGED = ("pass_rate", "acceptable", "execution_issue")
"""The evaluator's judgements that are drawn."""
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
        comparisons: Comparisons of each run with an earlier one, on the canaries.
        alarms: A sentence for each measure that is flagged.
    """

    level: float
    runs: Sequence[TimedRun] = ()
    earlier: int = 0
    comparisons: Sequence[CanaryChange] = ()
    alarms: Sequence[str] = ()


@dataclass(frozen=True)
class AnnotationPage:
    """The content of the page.

    Attributes:
        uri: The run directory.
        report: Report of the run.
        over_time: The runs of the archive.
        record: Record of the run.
    """

    uri: str
    report: AnnotationReport
    over_time: OverTime
    record: RunRecord


@dataclass(frozen=True)
class ExplainedMeasure:
    """A measure of agreement in words.

    Attributes:
        measure: Its label and form.
        estimate: Its figure.
        meaning: A sentence.
    """

    measure: Measure
    estimate: Estimate
    meaning: str


def render_annotation(page: AnnotationPage) -> str:
    """Renders the page, a complete HTML document; texts by people and models are escaped."""
    report = page.report
    annotators = [report.annotators[side] for side in SIDES]
    return render(
        "annotation.html",
        page=page,
        report=report,
        lead=list(summary(report)),
        tiles=list(_tiles(report)),
        sections=_sections(report),
        names=NAMES,
        statuses=STATUSES,
        sides=SIDES,
        explained=list(_explained(report.agreement)),
        judgements=list(estimates_of([of.evaluation for of in annotators], JudgementReport)),
        formats=list(estimates_of([of.format for of in annotators], FormatReport)),
        right=list(estimates_of(report.gold.values(), GoldReport)),
        choices=CHOICES,
        stages=STAGES,
        usage=sorted(report.usage.by_source, key=lambda row: _place(row.role)),
        ending=_ending,
        seconds=shown_seconds,
        time=shown_time,
        agreement=_agreement_plot(report.agreement),
        judged=_evaluation_plot(report.annotators),
        reliability=_reliability_plot(report.judge),
        judge_figures=list(estimates_of(report.judge.values(), JudgeReport)),
        confusion=[
            (panel, _confusion_map(report.confusion, name))
            for name, panel in report.confusion.panels.items()
        ],
        cells=confusion_cells,
        scores=_score_map(report.score_tree.scores),
        trends=_trend_plots(page.over_time.runs),
    )


def summary(report: AnnotationReport) -> Iterator[str]:
    """Yields sentences that sum up the run and its results."""
    cases, agreement = report.cases, report.agreement
    annotators = [_served(report, classify_stage(side)) for side in SIDES]
    yield (
        f"{counted(cases.total, 'case')}, classified by {' and '.join(annotators)}, "
        f"judged by {_served(report, evaluate_stage(SIDES[0]))}"
        + (
            f", and settled by {_served(report, ADJUDICATE)} where they differed."
            if report.adjudication.cases
            else "."
        )
    )
    ended = [f"{of.cases:,} {STATUSES[status]}" for status, of in cases.status.items() if of.cases]
    if ended:
        yield f"How they ended: {listed(ended)}."
    if agreement.exact.value is not None:
        yield (
            f"Where both annotators gave a code, they gave the same one in "
            f"{shown_share(agreement.exact).partition(' [')[0]} of the cases."
        )
    alpha = agreement.alpha.value
    if alpha is not None:
        yield (f"Krippendorff's alpha is {alpha:.2f}, by convention {_reliability(alpha)}.")


def _reliability(alpha: float) -> str:
    if alpha >= RELIABLE:
        return "reliable"
    return "good for tentative conclusions" if alpha >= TENTATIVE else "too low to rely on"


def _served(report: AnnotationReport, stage: str) -> str:
    """Returns the served names of the models that answered in a stage."""
    rows = [row for row in report.usage.by_source if row.role == stage]
    names = list(dict.fromkeys(row.shown_model for row in rows))
    return listed([shortened(name, 60) for name in names or ("nobody",)])


def _place(stage: str) -> int:
    """Returns the place of a stage in the order of the protocol; unknown ones come last."""
    return [*STAGES, stage].index(stage)


def _tiles(report: AnnotationReport) -> Iterator[tuple[str, str, str]]:
    """Yields value, label and note of the large numbers at the top."""
    cases, usage = report.cases, report.usage.total
    by_protocol = sum(cases.status[one].cases for one in (Status.ACCEPTED, Status.ADJUDICATED))
    if cases.total:
        share = f"{100 * by_protocol / cases.total:.1f} %"
        yield share, "decided by the protocol", f"{by_protocol:,} of {cases.total:,} cases"
    yield f"{report.decisions.waiting:,}", "wait for a person", "now"
    alpha = report.agreement.alpha
    if alpha.value is not None:
        yield f"{alpha.value:.3f}", "Krippendorff's alpha", _interval(alpha)
    right = report.gold[FINAL].roots
    if right.value is not None:
        note = f"{right.count:,} decided cases with gold"
        yield f"{100 * right.value:.1f} %", "right roots in the final code", note
    tokens = usage.prompt_tokens + usage.completion_tokens
    if usage.cost:
        yield f"{usage.cost:,.2f}", "cost", f"{tokens:,} tokens"
    else:
        note = "cost is not known" if usage.cost is None else "no call was sent"
        yield f"{tokens:,}", "tokens", note


def _interval(estimate: Estimate) -> str:
    if estimate.interval is None:
        return f"no interval: {estimate.reason}" if estimate.reason else ""
    low, high = estimate.interval
    return f"95 % interval {low:.3f} to {high:.3f}"


def _sections(report: AnnotationReport) -> dict[str, str]:
    """Returns the titles of the sections by id."""
    gold = {"gold": "Right against gold"} if report.cases.with_gold else {}
    judged = any(judge.codes for judge in report.judge.values()) or report.audit is not None
    judge = {"judge": "Whether the judge is any good"} if judged else {}
    scores = {"scores": "Accuracy by root"} if report.score_tree.scores else {}
    return {
        "endings": "How the cases ended",
        "agreement": "Agreement",
        "annotators": "Annotators",
        **gold,
        **judge,
        "confusion": "Confusion",
        **scores,
        "disagreements": "Instructive disagreements",
        "cost": "Cost and latency",
        "drift": "Over time",
        "provenance": "Provenance",
    }


def _explained(agreement: AgreementReport) -> Iterator[ExplainedMeasure]:
    measures = measures_of(AgreementReport)
    for name in AGREEMENT_ORDER:
        meaning = meaning_of(AgreementReport, name)
        yield ExplainedMeasure(measures[name], getattr(agreement, name), meaning)


def _ending(step: str) -> str:
    """Returns the last step of a case in words."""
    kind, _, what = step.partition(":")
    if what.endswith("-unreadable"):
        return f"the reply of {STAGES.get(what.removesuffix('-unreadable'), what)} cannot be read"
    if kind == "failed":
        return f"the call to {STAGES.get(what, what)} failed"
    return ENDINGS.get(step, step)


def _agreement_plot(agreement: AgreementReport) -> Markup:
    rows = {
        measure.label: {"": estimate}
        for measure, (estimate,) in estimates_of([agreement], AgreementReport, PLOTTED)
    }
    title = "Measures of agreement with their 95 % intervals"
    return Markup(interval_plot(rows, title, prefix="agreement-plot"))


def _evaluation_plot(annotators: Mapping[Side, AnnotatorReport]) -> Markup:
    sides = [NAMES[side] for side in annotators]
    judgements = [of.evaluation for of in annotators.values()]
    rows = {
        measure.label: dict(zip(sides, estimates, strict=True))
        for measure, estimates in estimates_of(judgements, JudgementReport, JUDGED)
    }
    title = "What the evaluator said of the annotators' codes, with 95 % intervals"
    return Markup(interval_plot(rows, title, prefix="evaluation-plot", shares=True))


def _reliability_plot(judges: Mapping[Side, JudgeReport]) -> Markup | None:
    """Returns the share of right codes by band of the score, the highest on top."""
    rows: dict[str, dict[str, Estimate]] = {}
    for lowest in range(100 - BAND, -BAND, -BAND):
        highest = 100 if lowest == 100 - BAND else lowest + BAND - 1
        found = {
            NAMES[side]: band.right
            for side, judge in judges.items()
            for band in judge.bands
            if band.lowest == lowest
        }
        if found:
            rows[f"score {lowest} to {highest}"] = found
    if not rows:
        return None
    title = "Share of right codes by the evaluator's score, with 95 % intervals"
    return Markup(interval_plot(rows, title, prefix="reliability-plot", shares=True))


def _confusion_map(confusion: Confusion, name: str) -> Markup:
    one = confusion.model_copy(update={"panels": {name: confusion.panels[name]}})
    return Markup(confusion_maps(one, f"confusion-{name}"))


def _score_map(scores: Sequence[RootAccuracy]) -> Markup | None:
    """Returns accuracies by annotator and generation (rows) and root (columns)."""
    rows: dict[str, dict[str, float | None]] = {}
    for score in scores:
        row = rows.setdefault(f"{score.annotator}, {score.generation}", {})
        row[score.root] = score.accuracy.value
    if not rows:
        return None
    title = "Accuracy by annotator, generation and root, in percent"
    return Markup(heat_map(rows, "score-map", title))


def _trend_plots(runs: Sequence[TimedRun]) -> list[Markup]:
    """Plots pass rates and agreement of the runs with a report, the earliest on top."""
    reported = {row.run: row.report for row in runs if row.report is not None}
    if len(reported) < 2:
        return []
    rates = {
        name: {NAMES[side]: of.evaluation.pass_rate for side, of in report.annotators.items()}
        for name, report in reported.items()
    }
    alphas = {name: {"": report.agreement.alpha} for name, report in reported.items()}
    return [
        Markup(interval_plot(rates, "Pass rate by run", "drift-passed", shares=True)),
        Markup(interval_plot(alphas, "Krippendorff's alpha by run", "drift-alpha")),
    ]
