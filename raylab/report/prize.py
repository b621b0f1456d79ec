"""Scores of an evaluation: means by generation, and ARC Prize's scores with their page.

ARC Prize counts two attempts; raylab's come from votes over views, after test-time training if that
is configured.
"""

from collections.abc import Iterator, Mapping, Sequence

from raylab.arc.records import EvaluationMetrics, Example, PrizeScore
from raylab.config.arc import ScoringConfig
from raylab.grid_metrics import ATTEMPTS, RULES
from raylab.printable import pluralize
from raylab.report.charts import learning_curves
from raylab.report.diagnosis import verdict_sections
from raylab.report.models import rule_label
from raylab.report.page import PAGE, Page, Section, block, provenance
from raylab.report.pictures import SHOWN_MODELS, picture_blocks
from raylab.report.table import Column, Row, Table, percent
from raylab.runs.run import Run

GRIDS_A_PAGE = 400
"""Most grids on a page, a few megabytes."""
Scores = Mapping[str, Mapping[str, PrizeScore]]
"""Scores by model or rule and generation."""


def accuracy_table(metrics: EvaluationMetrics, scoring: ScoringConfig) -> Table:
    """Returns mean accuracies, in [0, 1]; every model and rule has the same generations."""
    rules = {rule_label(rule): scores for rule, scores in metrics.rules.items()}
    return Table(
        f"Mean {scoring.metric} of a {scoring.unit}{_seen_tasks(metrics)}",
        ["model", *next(iter(metrics.models.values()), {})],
        [
            [name, *map(percent, scores.values())]
            for name, scores in {**metrics.models, **rules}.items()
        ],
    )


def prize_pages(
    run: Run, metrics: EvaluationMetrics, attempts: Sequence[Example]
) -> dict[str, Page]:
    """Returns the pages of a run by file name: its report, and those of further pictures.

    Args:
        run: The run.
        metrics: Its scores; at least one model has one.
        attempts: The attempts at test inputs, in the order shown.
    """

    def rank(model: str) -> float:
        return -max(score.two_attempts for score in metrics.prize[model].values())

    models = sorted(metrics.prize, key=rank)[:SHOWN_MODELS]
    shown = [f"{model}, attempt {place}" for model in models for place in (1, 2)]
    size = GRIDS_A_PAGE // (2 + len(shown))
    parts = {
        PAGE if start == 0 else f"tasks-{start // size + 1}.html": (
            _title(start, attempts[start : start + size]),
            attempts[start : start + size],
        )
        for start in range(0, len(attempts), size)
    }
    links = [block("link", name, title) for name, (title, _) in parts.items() if len(parts) > 1]
    sections = {
        name: Section("tasks", title, [*picture_blocks(inputs, shown), *links])
        for name, (title, inputs) in parts.items()
    }
    report = _report_page(run, metrics, [sections.pop(PAGE)] if sections else [])
    lead = ["Further attempts of the models; the first ones are on the page of the scores."]
    return {PAGE: report} | {
        name: Page("evaluation", run.record.name, str(run), lead, [section])
        for name, section in sections.items()
    }


def _title(start: int, attempts: Sequence[Example]) -> str:
    solved = sum(any(own.solved for own in example.predictions.values()) for example in attempts)
    return (
        f"Attempts at test inputs {start + 1} to {start + len(attempts)}, {solved} of them solved"
    )


def _report_page(run: Run, metrics: EvaluationMetrics, tasks: Sequence[Section]) -> Page:
    scores = _flatten(metrics.prize)
    sections = [Section("scores", "Scores", [prize_table(metrics)])]
    curves = {
        f"{name} on {generation}": score.curve
        for name, generation, score in scores
        if score.curve[1:]
    }
    if curves:
        histories = {
            name: [point.model_dump() for point in curve] for name, curve in curves.items()
        }
        drawn = [learning_curves(histories, key, f"votes-{key}", "views") for key in ATTEMPTS]
        caption = "The score by the number of views that vote, the first of the same each time."
        sections.append(Section("votes", "Votes", [block("charts", drawn, caption)]))
    sections += [*verdict_sections(run), *tasks, provenance(str(run), run.record)]
    return Page("evaluation", run.record.name, str(run), list(_summarize(metrics)), sections)


def prize_table(metrics: EvaluationMetrics) -> Table:
    """Returns the scores as ARC Prize counts them, with what training on the tasks changed."""
    scores = _flatten(metrics.prize)
    trained = [score.trained for *_, score in scores if score.trained]
    before = any(training.before for training in trained)
    columns: list[Column | str] = ["model", Column("generation", text=True), "tasks"]
    columns += ["test outputs", "attempt 1", "two attempts"]
    columns += ["before, attempt 1", "before, two"] if before else []
    columns += ["steps a task", "training, s a task"] if trained else []
    rules = {rule_label(rule): scores for rule, scores in metrics.prize_rules.items()}
    return Table(
        f"Mean share of a task's test outputs that is solved{_seen_tasks(metrics)}",
        [*columns, "sizes by rule", "answers, s a task"],
        [
            [*names, *_cells(score, before, bool(trained))]
            for *names, score in [*scores, *_flatten(rules)]
        ],
        "Mean over tasks of the share of a task's test outputs that is solved, ± its standard "
        "error over the tasks. Demonstrations are the context, and no test output is read before "
        "the score.",
    )


def _cells(score: PrizeScore, before: bool, trained: bool) -> Row:
    errors, training = score.errors, score.trained
    first, two = (None, None) if errors is None else (errors.first_attempt, errors.two_attempts)
    cells = [
        f"{score.tasks:,}",
        f"{score.outputs:,}",
        _with_error(score.first_attempt, first),
        _with_error(score.two_attempts, two),
    ]
    if before:
        had = training and training.before
        cells += [percent(had.first_attempt), percent(had.two_attempts)] if had else ["-", "-"]
    if trained:
        cells += [f"{training.steps:.0f}", f"{training.seconds:.1f}"] if training else ["-", "-"]
    seconds = "-" if score.seconds is None else f"{score.seconds:.2f}"
    return [*cells, percent(score.sizes_by_rule), seconds]


def _with_error(value: float, error: float | None) -> str:
    return percent(value) if error is None else f"{percent(value)} ± {100 * error:.2f}"


def _seen_tasks(metrics: EvaluationMetrics) -> str:
    return "" if metrics.by == "task" else ", on new pairs of tasks that were seen"


def _summarize(metrics: EvaluationMetrics) -> Iterator[str]:
    name, generation, best = max(_flatten(metrics.prize), key=lambda row: row[2].two_attempts)
    yield (
        f"With two attempts {name} solves {percent(best.two_attempts)} of the test outputs of a "
        f"task on {generation}, with the first alone {percent(best.first_attempt)}: the means of "
        f"{pluralize(best.tasks, 'task')} with {pluralize(best.outputs, 'test output')}."
    )
    if best.trained is not None and best.trained.before is not None:
        before = percent(best.trained.before.two_attempts)
        yield f"Before training on the demonstrations it was {before}."
    rules = [
        (score.two_attempts, RULES.get(rule, rule))
        for rule, scored, score in _flatten(metrics.prize_rules)
        if scored == generation
    ]
    if rules:
        share, rule = max(rules)
        yield f"The best rule that learns nothing, {rule}, solves {percent(share)} of them."
    if metrics.by == "pair":
        yield "The tasks were trained on, with other pairs than these."


def _flatten(scores: Scores) -> list[tuple[str, str, PrizeScore]]:
    """Returns scores with their model or rule and generation."""
    return [
        (name, key, score)
        for name, generations in scores.items()
        for key, score in generations.items()
    ]
