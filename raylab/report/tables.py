"""Tables for the terminal."""

from collections.abc import Mapping
from dataclasses import dataclass

from rich.table import Table

from raylab.arc.records import EvaluationMetrics, HeldOut, PrizeScore, TrainingMetrics
from raylab.arc.sweep import SweepMetrics
from raylab.config.arc import ScoringConfig
from raylab.grid_metrics import COMPARED, LOSS, PUBLISHED, RULES, RuleMetrics, best_rule, skill

MARK = "†"
"""Mark of figures by the published definitions."""
FREE_MARK = "‡"
"""Mark of models whose figures are all free-running."""
GROUP_COLUMNS = {
    "solve_rate": "solved, free-running",
    "shape_accuracy": "shape, free-running",
    "cell_accuracy": "cell",
    "grid_accuracy": "grid",
    "compositional_gap": "gap",
    "compositional_gap_rate": "tasks with gap",
    "change_recall": "change recall",
}
"""Labels of the metrics of a group of tasks, free-running ones first."""


def percent(value: float | None) -> str:
    """Returns a share as a percentage; a dash if it is missing."""
    return "-" if value is None else f"{100 * value:.2f} %"


def number(value: float | None) -> str:
    """Returns a number to four decimals; a dash if it is missing."""
    return "-" if value is None else f"{value:.4f}"


def with_skill(value: float | None, rules: RuleMetrics, metric: str) -> str:
    """Returns a share as a percentage, with its skill over the best rule in brackets."""
    over = skill(value, rules, metric)
    return percent(value) if over is None else f"{percent(value)} ({over:+.3f})"


def rules_of(results: Mapping[str, TrainingMetrics]) -> RuleMetrics:
    """Returns the rules that models of one split stand beside; empty if none has them."""
    found = (result.reported.rules for result in results.values())
    return next((rules for rules in found if rules), {})


def side_of(results: Mapping[str, TrainingMetrics]) -> str:
    """Names what the figures of models are on, and says where that also chose."""
    return " or ".join(sorted({result.reported.name for result in results.values()}))


def by_published(results: Mapping[str, TrainingMetrics]) -> dict[str, Mapping[str, float]]:
    """Returns metrics by the published definitions, by model; models without any are left out."""
    found = {name: published_values(result.reported.metrics) for name, result in results.items()}
    return {name: values for name, values in found.items() if values}


def published_values(metrics: Mapping[str, float]) -> dict[str, float]:
    """Returns the metrics by the published definitions under their names without the prefix."""
    return {
        name.removeprefix(PUBLISHED): value
        for name, value in metrics.items()
        if name.startswith(PUBLISHED)
    }


def rule_label(rule: str) -> str:
    """Returns the name of a rule in tables."""
    return f"rule: {RULES.get(rule, rule)}"


def model_labels(results: Mapping[str, TrainingMetrics]) -> dict[str, str]:
    """Returns the names of models in tables; those that write all cells at once are marked."""
    return {
        name: name if result.teacher_forced else f"{name} {FREE_MARK}"
        for name, result in results.items()
    }


def comparison_table(results: Mapping[str, TrainingMetrics]) -> Table:
    """Returns the metrics of each model at its best epoch beside the rules that learn nothing."""
    rules, theirs = rules_of(results), by_published(results)
    labels = model_labels(results)
    marked = f"; {MARK} by the published definitions" if theirs else ""
    free = f"; {FREE_MARK} all free-running" if [*labels.values()] != [*labels] else ""
    table = Table(
        title=f"The best epoch on the {side_of(results)}; teacher-forced unless stated{free}; "
        f"in brackets the skill over the best rule{marked}"
    )
    table.add_column("metric")
    columns = [*labels.values(), *(f"{name} {MARK}" for name in theirs), *map(rule_label, rules)]
    for name in columns:
        table.add_column(name, justify="right")
    for metric, label in COMPARED.items():
        ours = [
            with_skill(result.reported.metrics.get(metric), rules, metric)
            for result in results.values()
        ]
        others = [percent(of.get(metric)) for of in (*theirs.values(), *rules.values())]
        table.add_row(label, *ours, *others)
    for label, ours in (
        ("best epoch", [str(result.best.epoch) for result in results.values()]),
        ("loss", [number(result.reported.metrics.get(LOSS)) for result in results.values()]),
        ("train loss", [f"{result.best.train_loss:.4f}" for result in results.values()]),
        (
            "samples/s in training",
            [f"{result.last.samples_per_second:.1f}" for result in results.values()],
        ),
        ("parameters", [f"{result.parameters:,}" for result in results.values()]),
    ):
        table.add_row(label, *ours, *["-"] * (len(columns) - len(ours)))
    return table


def group_table(reported: HeldOut) -> Table:
    """Returns metrics of each group of tasks, with the compositional gap and skills over rules."""
    beside = "; in brackets the skill over the best rule" if reported.group_rules else ""
    table = Table(title=f"By group of tasks, at the best epoch, on the {reported.name}{beside}")
    for label in ("group", "grids", *GROUP_COLUMNS.values()):
        table.add_column(label, justify="left" if label == "group" else "right")
    for name, group in reported.groups.items():
        rules = reported.group_rules.get(name, {})
        values = (with_skill(group.metrics.get(key), rules, key) for key in GROUP_COLUMNS)
        table.add_row(name, str(group.grids), *values)
    return table


FINE_TUNING = {
    "solve_rate": "solved, free-running",
    "cell_accuracy": "cell",
    "grid_accuracy": "grid",
}
"""Labels of the figures that stand before and after a fine-tuning."""


@dataclass(frozen=True)
class Change:
    """A task, or the mean of all, before and after a fine-tuning.

    Attributes:
        name: Id of the task.
        pairs: Number of its pairs.
        figures: Before and after, by the keys of `FINE_TUNING`.
    """

    name: str
    pairs: int
    figures: Mapping[str, tuple[float, float]]


def changes(metrics: TrainingMetrics) -> list[Change]:
    """Returns each task before and after a fine-tuning, then their mean; empty without one."""
    before, after = metrics.before, metrics.test
    if before is None or after is None:
        return []
    rows = [(task, of, after.by_task[task]) for task, of in before.by_task.items()]
    had, now = before.mean_of_tasks, after.mean_of_tasks
    if had is not None and now is not None:
        rows.append(("mean of the tasks", had, now))
    return [
        Change(
            name,
            now.pairs,
            {key: (getattr(had, key), getattr(now, key)) for key in FINE_TUNING},
        )
        for name, had, now in rows
    ]


def trained_note(metrics: TrainingMetrics) -> str:
    """Says of how many test pairs the figures before a fine-tuning are not new."""
    before = metrics.before
    if before is None or before.trained_pairs == 0:
        return ""
    if before.trained_pairs is None:
        return "which pairs the first model was trained on is not known"
    return f"the first model was trained on {before.trained_pairs} of these {before.pairs} pairs"


def fine_tuning_table(metrics: TrainingMetrics) -> Table:
    """Returns the tasks before and after a fine-tuning, and their mean."""
    assert metrics.test is not None
    note = trained_note(metrics)
    table = Table(
        title=f"Before and after fine-tuning, on the {metrics.test.name}{note and f'; {note}'}"
    )
    for label in ("task", "pairs", *FINE_TUNING.values()):
        table.add_column(label, justify="left" if label == "task" else "right")
    for change in changes(metrics):
        cells = (f"{percent(had)} -> {percent(now)}" for had, now in change.figures.values())
        table.add_row(change.name, str(change.pairs), *cells)
    return table


def sweep_table(sweep: SweepMetrics, monitor: str) -> Table:
    """Returns trials by rank, best first, and the best rule; `monitor` is the name of the score."""
    table = Table(title=f"Trials by {monitor} at their best epoch, on the validation tasks")
    for label in ("rank", "solved", monitor, "skill", "at epoch", "epochs", "parameters"):
        table.add_column(label, justify="right")
    table.add_column("trial")
    table.add_column("drawn")
    for rank, trial in enumerate(sweep.trials, 1):
        if trial.trained is None:
            reason = f"{trial.description}: {trial.failure or 'no epoch was finished'}"
            table.add_row("-", "-", "failed", *["-"] * 4, trial.trial, reason)
            continue
        found = trial.trained
        over = skill(found.score, sweep.rules, monitor)
        numbers = (str(found.epoch), str(found.epochs), f"{found.parameters:,}")
        table.add_row(
            str(rank),
            percent(found.solve_rate),
            f"{found.score:.4f}",
            "-" if over is None else f"{over:+.3f}",
            *numbers,
            trial.trial,
            trial.description,
        )
    if best := best_rule(sweep.rules, monitor):
        solved = best_rule(sweep.rules, "solve_rate")
        free = percent(None if solved is None else solved[1])
        table.add_row("-", free, f"{best[1]:.4f}", *["-"] * 4, "-", f"best rule: {best[0]}")
    return table


def accuracy_table(metrics: EvaluationMetrics, scoring: ScoringConfig) -> Table:
    """Returns mean accuracies, in [0, 1]; every model and rule has the same generations."""
    new = "" if metrics.by == "task" else ", on new pairs of tasks that were seen"
    table = Table(title=f"Mean {scoring.metric} of a {scoring.unit}{new}")
    table.add_column("model")
    for generation in next(iter(metrics.models.values()), {}):
        table.add_column(generation, justify="right")
    for model, by_generation in metrics.models.items():
        table.add_row(model, *map(percent, by_generation.values()))
    for rule, by_generation in metrics.rules.items():
        table.add_row(rule_label(rule), *map(percent, by_generation.values()))
    return table


def prize_table(metrics: EvaluationMetrics) -> Table:
    """Returns the scores as ARC Prize counts them, with what training on the tasks changed."""
    of_models = [score for of in metrics.prize.values() for score in of.values()]
    trained = any(score.trained for score in of_models)
    new = "" if metrics.by == "task" else ", on new pairs of tasks that were seen"
    table = Table(title=f"Mean share of a task's test outputs that is solved{new}")
    columns = ["model", "generation", "tasks", "test outputs", "attempt 1", "two attempts"]
    if trained:
        columns += ["before, attempt 1", "before, two", "steps a task", "training s a task"]
    for label in (*columns, "answers s a task"):
        name = label in ("model", "generation")
        table.add_column(label, justify="left" if name else "right")
    rows = [(name, of) for name, of in metrics.prize.items()]
    rows += [(rule_label(rule), of) for rule, of in metrics.prize_rules.items()]
    for name, by_generation in rows:
        for generation, score in by_generation.items():
            table.add_row(name, generation, *prize_cells(score, trained=trained))
    return table


def prize_cells(score: PrizeScore, *, trained: bool) -> list[str]:
    """Returns a score for a table, with what training changed if any model was `trained`."""
    errors = score.errors
    first, two = (None, None) if errors is None else (errors.first_attempt, errors.two_attempts)
    cells = [
        f"{score.tasks:,}",
        f"{score.outputs:,}",
        _with_error(score.first_attempt, first),
        _with_error(score.two_attempts, two),
    ]
    of = score.trained
    if trained and of is not None:
        shares = (of.before.first_attempt, of.before.two_attempts)
        cells += [*map(percent, shares), f"{of.steps:.0f}", f"{of.seconds:.1f}"]
    elif trained:
        cells += ["-"] * 4
    return [*cells, "-" if score.seconds is None else f"{score.seconds:.2f}"]


def _with_error(value: float, error: float | None) -> str:
    return percent(value) if error is None else f"{percent(value)} ± {100 * error:.2f}"
