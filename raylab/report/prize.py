"""Scores of an evaluation: means by generation, and as ARC Prize counts, with their page.

ARC Prize counts two attempts; raylab's are by votes over views, with test-time training if asked.
"""

from collections.abc import Iterator

from raylab.arc.records import EvaluationMetrics, PrizeScore
from raylab.config.arc import ScoringConfig
from raylab.report.charts import votes_curves
from raylab.report.models import rule_label
from raylab.report.page import Charts, Page, Section, provenance, render
from raylab.report.table import Column, Row, Table, counted, percent
from raylab.runs.run import Run


def accuracy_table(metrics: EvaluationMetrics, scoring: ScoringConfig) -> Table:
    """Returns mean accuracies, in [0, 1]; every model and rule has the same generations."""
    rules = {rule_label(rule): scores for rule, scores in metrics.rules.items()}
    return Table(
        f"Mean {scoring.metric} of a {scoring.unit}{_new_pairs(metrics)}",
        ["model", *next(iter(metrics.models.values()), {})],
        [
            [name, *map(percent, scores.values())]
            for name, scores in {**metrics.models, **rules}.items()
        ],
    )


def prize_table(metrics: EvaluationMetrics) -> Table:
    """Returns the scores as ARC Prize counts them, with what training on the tasks changed."""
    trained = any(score.trained for scores in metrics.prize.values() for score in scores.values())
    columns: list[Column | str] = ["model", Column("generation", text=True), "tasks"]
    columns += ["test outputs", "attempt 1", "two attempts"]
    if trained:
        columns += ["before, attempt 1", "before, two", "steps a task", "training, s a task"]
    rules = {rule_label(rule): scores for rule, scores in metrics.prize_rules.items()}
    return Table(
        f"Mean share of a task's test outputs that is solved{_new_pairs(metrics)}",
        [*columns, "answers, s a task"],
        [
            [name, generation, *_cells(score, trained)]
            for name, scores in {**metrics.prize, **rules}.items()
            for generation, score in scores.items()
        ],
        "Mean over tasks of the share of a task's test outputs that is solved, ± its standard "
        "error over the tasks. Demonstrations are the context, and no test output is read before "
        "the score.",
    )


def render_prize(run: Run, metrics: EvaluationMetrics) -> str:
    """Renders the page, a complete HTML document; at least one model has a score."""
    curves = {
        f"{name} on {generation}" if len(by_generation) > 1 else name: score.curve
        for name, by_generation in metrics.prize.items()
        for generation, score in by_generation.items()
        if len(score.curve) > 1
    }
    sections = [Section("scores", "Scores", [prize_table(metrics)])]
    if curves:
        caption = (
            "The score by the number of views that vote, the first of the same views each time. "
            "The line counts both attempts, the dashed one the first alone."
        )
        drawn = Charts([votes_curves(curves, "votes")], caption)
        sections.append(Section("votes", "Votes", [drawn]))
    sections.append(provenance(str(run), run.record))
    return render(Page("evaluation", run.record.name, str(run), list(_summary(metrics)), sections))


def _cells(score: PrizeScore, trained: bool) -> Row:
    errors, training = score.errors, score.trained
    first, two = (None, None) if errors is None else (errors.first_attempt, errors.two_attempts)
    cells = [
        f"{score.tasks:,}",
        f"{score.outputs:,}",
        _with_error(score.first_attempt, first),
        _with_error(score.two_attempts, two),
    ]
    if training is not None:
        shares = (training.before.first_attempt, training.before.two_attempts)
        cells += [*map(percent, shares), f"{training.steps:.0f}", f"{training.seconds:.1f}"]
    elif trained:
        cells += ["-"] * 4
    return [*cells, "-" if score.seconds is None else f"{score.seconds:.2f}"]


def _with_error(value: float, error: float | None) -> str:
    return percent(value) if error is None else f"{percent(value)} ± {100 * error:.2f}"


def _new_pairs(metrics: EvaluationMetrics) -> str:
    return "" if metrics.by == "task" else ", on new pairs of tasks that were seen"


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
    rules = {
        rule: scores[generation]
        for rule, scores in metrics.prize_rules.items()
        if generation in scores
    }
    if rules:
        rule = max(rules, key=lambda name: rules[name].two_attempts)
        yield (
            f"The best rule that learns nothing, {rule_label(rule).removeprefix('rule: ')}, "
            f"solves {percent(rules[rule].two_attempts)} of them."
        )
    if metrics.by == "pair":
        yield "The tasks were trained on, with other pairs than these."


def _best(metrics: EvaluationMetrics) -> tuple[str, str, PrizeScore]:
    scores = [
        (name, generation, score)
        for name, by_generation in metrics.prize.items()
        for generation, score in by_generation.items()
    ]
    return max(scores, key=lambda entry: entry[2].two_attempts)
