"""The page of an evaluation as ARC Prize scores: two attempts, votes, and training on the tasks."""

from collections.abc import Iterator

from markupsafe import Markup

from raylab.arc.records import EvaluationMetrics, PrizeScore
from raylab.report.charts.votes import votes_curves
from raylab.report.page import counted, render
from raylab.report.tables import percent, prize_cells, rule_label
from raylab.runs.run import Run


def render_prize(run: Run, metrics: EvaluationMetrics) -> str:
    """Renders the page, a complete HTML document; at least one model has a score."""
    rows = [(name, of) for name, of in metrics.prize.items()]
    rows += [(rule_label(rule), of) for rule, of in metrics.prize_rules.items()]
    trained = any(score.trained for of in metrics.prize.values() for score in of.values())
    curves = {
        f"{name} on {generation}" if len(by_generation) > 1 else name: score.curve
        for name, by_generation in metrics.prize.items()
        for generation, score in by_generation.items()
        if len(score.curve) > 1
    }
    return render(
        "prize.html",
        uri=str(run),
        record=run.record,
        lead=list(_summary(metrics)),
        trained=trained,
        rows=[
            (name, generation, prize_cells(score, trained=trained))
            for name, by_generation in rows
            for generation, score in by_generation.items()
        ],
        curves=Markup(votes_curves(curves)) if curves else None,
    )


def _summary(metrics: EvaluationMetrics) -> Iterator[str]:
    name, generation, best = _best(metrics)
    yield (
        f"With two attempts {name} solves {percent(best.two_attempts)} of the test outputs of a "
        f"task on {generation}, with the first alone {percent(best.first_attempt)}: the means of "
        f"{counted(best.tasks, 'task')} with {counted(best.outputs, 'test output')}."
    )
    if best.trained is not None:
        before = percent(best.trained.before.two_attempts)
        yield f"Before training on the demonstrations it was {before}."
    rules = {rule: of[generation] for rule, of in metrics.prize_rules.items() if generation in of}
    if rules:
        rule = max(rules, key=lambda one: rules[one].two_attempts)
        yield (
            f"The best rule that learns nothing, {rule_label(rule).removeprefix('rule: ')}, "
            f"solves {percent(rules[rule].two_attempts)} of them."
        )
    if metrics.by == "pair":
        yield "The tasks were trained on, with other pairs than these."


def _best(metrics: EvaluationMetrics) -> tuple[str, str, PrizeScore]:
    scores = [
        (name, generation, score)
        for name, of in metrics.prize.items()
        for generation, score in of.items()
    ]
    return max(scores, key=lambda one: one[2].two_attempts)
