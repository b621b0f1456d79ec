"""Tables of trained models, beside rules that learn nothing, and the line of an epoch."""

from collections.abc import Iterator, Mapping, Sequence

from raylab.arc.records import Epoch, GroupMetrics, HeldOut, TrainingMetrics
from raylab.grid_metrics import (
    GRID_METRICS,
    LOSS,
    OBJECTIVE,
    PUBLISHED,
    RULES,
    RuleMetrics,
    label_of,
    skill,
)
from raylab.report.table import (
    BEST,
    RULE,
    Cell,
    Column,
    Row,
    Table,
    duration,
    number,
    percent,
)

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
FINE_TUNING = {
    "solve_rate": "solved, free-running",
    "cell_accuracy": "cell",
    "grid_accuracy": "grid",
}
"""Labels of the figures that stand before and after a fine-tuning."""
Models = Mapping[str, TrainingMetrics]


def rule_label(rule: str) -> str:
    """Returns the name of a rule in tables."""
    return f"rule: {RULES.get(rule, rule)}"


def rules_of(models: Models) -> RuleMetrics:
    """Returns the rules that models of one split stand beside; empty if none has them."""
    return next((model.reported.rules for model in models.values() if model.reported.rules), {})


def side_of(models: Models) -> str:
    """Names what the figures of models are on, and says where that also chose."""
    return " or ".join(sorted({model.reported.name for model in models.values()}))


def free_names(models: Models) -> list[str]:
    """Names the models that write all cells at once, so that no figure is teacher-forced."""
    return [name for name, model in models.items() if not model.teacher_forced]


def accuracy_phrase(metric: str, *, teacher_forced: bool = True) -> str:
    """Names a metric and the way its predictions were made, by a model that may never be told."""
    definition = GRID_METRICS.get(metric)
    free = not teacher_forced or (definition and definition.free_running)
    way = "free-running" if free else "teacher-forced"
    label = label_of(metric)
    return label if way in label else f"{label}, {way}"


def comparison_table(models: Models) -> Table:
    """Returns the metrics of each model at its best epoch beside the rules that learn nothing."""
    rules, theirs, free = rules_of(models), _by_published(models), free_names(models)
    beside = [*theirs.values(), *rules.values()]
    labels = [f"{name} {FREE_MARK}" if name in free else name for name in models]
    columns: list[Column | str] = ["metric", *labels]
    columns += [Column(f"{name} {MARK}", aside=True) for name in theirs]
    columns += [Column(rule_label(rule), aside=True) for rule in rules]
    rows = [
        [
            label,
            *_model_cells(models, rules, metric),
            *(percent(values.get(metric)) for values in beside),
        ]
        for metric, definition in GRID_METRICS.items()
        if definition.compared
        for label in [accuracy_phrase(metric) if definition.free_running else definition.label]
    ]
    rows += [[label, *cells, *["-"] * len(beside)] for label, cells in _facts(models).items()]
    marked = f"; {MARK} by the published definitions" if theirs else ""
    all_free = f"; {FREE_MARK} all free-running" if free else ""
    return Table(
        f"The best epoch on the {side_of(models)}; teacher-forced unless stated{all_free}; "
        f"in brackets the skill over the best rule{marked}",
        columns,
        rows,
        f"Metrics on the {side_of(models)}; the best of our models in bold.",
    )


def group_table(models: Models, *, with_rules: bool = True) -> Table:
    """Returns metrics of each group of tasks, with the compositional gap and skills over rules.

    Args:
        models: Trained models; groups are those of any.
        with_rules: Give each rule that learns nothing a row.
    """
    rules = next(
        (model.reported.group_rules for model in models.values() if model.reported.group_rules), {}
    )
    groups = dict.fromkeys(group for model in models.values() for group in model.reported.groups)
    rows: list[Row] = []
    for group in groups:
        rows += [*_group_rows(group, models, rules.get(group, {}), with_rules), RULE]
    skills = "; in brackets the skill over the best rule" if rules else ""
    side = f"at the best epoch, on the {side_of(models)}"
    free = ", ".join(free_names(models))
    forced = f"; teacher-forced unless stated{f', of {free} free-running' if free else ''}"
    return Table(
        f"By group of tasks, {side}{skills}",
        ["group", Column("model", text=True), "grids", *GROUP_COLUMNS.values()],
        rows,
        f"By group of tasks, {side}{forced}{skills}.",
    )


def fine_tuning_table(name: str, metrics: TrainingMetrics) -> Table | None:
    """Returns the tasks of a model before and after a fine-tuning, then their mean.

    None if the training started from no other model, or the record tells no figures by task.
    """
    before, after = metrics.before, metrics.test
    if before is None or after is None or not before.by_task:
        return None
    pairs = [(task, had, after.by_task[task]) for task, had in before.by_task.items()]
    had, now = before.mean_of_tasks, after.mean_of_tasks
    if had is not None and now is not None:
        pairs.append(("mean of the tasks", had, now))
    rows = [
        [
            task,
            str(now.pairs),
            *(
                f"{percent(getattr(had, key))} → {percent(getattr(now, key))}"
                for key in FINE_TUNING
            ),
        ]
        for task, had, now in pairs
    ]
    note = _trained_note(before)
    title = f"{name} before and after fine-tuning, on the {after.name}{note and f'; {note}'}"
    return Table(title, ["task", "pairs", *FINE_TUNING.values()], rows)


def epoch_line(epoch: Epoch, epochs: int) -> str:
    """Returns the progress line of an epoch.

    Args:
        epoch: The epoch that ended.
        epochs: Most epochs of the run; the ETA assumes that all are run.
    """
    left = (epochs - epoch.epoch) * (epoch.train_seconds + epoch.validation_seconds)
    measured = epoch.validation
    return (
        f"epoch {epoch.epoch:>{len(str(epochs))}}/{epochs}"
        f"  loss {epoch.train_loss:.4f}"
        f"  solved {100 * measured['solve_rate']:.2f} %"
        f"  grid {100 * measured['grid_accuracy']:.2f} %"
        f"  cell {100 * measured['cell_accuracy']:.2f} %"
        f"  objective {measured[OBJECTIVE]:.4f}"
        f"  {epoch.samples_per_second:.1f} samples/s"
        f"  ETA {duration(left)}"
    )


def _model_cells(models: Models, rules: RuleMetrics, metric: str) -> list[Cell]:
    values = [model.reported.metrics.get(metric) for model in models.values()]
    present = {value for value in values if value is not None}
    comparable = len(present) > 1 and GRID_METRICS[metric].higher_is_better
    best = max(present) if comparable else None
    return [
        Cell(
            _with_skill(value, rules, metric),
            look=BEST if value is not None and value == best else "",
        )
        for value in values
    ]


def _facts(models: Models) -> dict[str, Sequence[str]]:
    """Returns the rows that are about our models alone."""
    trained = models.values()
    return {
        "best epoch": [str(model.best.epoch) for model in trained],
        "loss": [number(model.reported.metrics.get(LOSS)) for model in trained],
        "train loss": [number(model.best.train_loss) for model in trained],
        "samples/s in training": [f"{model.last.samples_per_second:.1f}" for model in trained],
        "parameters": [f"{model.parameters:,}" for model in trained],
    }


def _group_rows(group: str, models: Models, rules: RuleMetrics, with_rules: bool) -> Iterator[Row]:
    """Yields a row for each model, then for each rule; the first one names the group."""
    present = {
        name: model.reported.groups[group]
        for name, model in models.items()
        if group in model.reported.groups
    }
    label = group
    for name, figures in present.items():
        yield [label, name, *_group_cells(figures, rules)]
        label = ""
    grids = next(iter(present.values())).grids
    for rule, metrics in rules.items() if with_rules else ():
        yield ["", rule_label(rule), *_group_cells(GroupMetrics(grids=grids, metrics=metrics), {})]


def _group_cells(group: GroupMetrics, rules: RuleMetrics) -> Row:
    cells = [
        Cell(
            _with_skill(group.metrics.get(key), rules, key),
            shade=group.metrics.get(key) if key == "solve_rate" else None,
        )
        for key in GROUP_COLUMNS
    ]
    return [str(group.grids), *cells]


def _with_skill(value: float | None, rules: RuleMetrics, metric: str) -> str:
    """Returns a share as a percentage, with its skill over the best rule in brackets."""
    over = skill(value, rules, metric)
    return percent(value) if over is None else f"{percent(value)} ({over:+.3f})"


def _by_published(models: Models) -> dict[str, Mapping[str, float]]:
    """Returns metrics by the published definitions, by model; models without any are left out."""
    present = {name: _published_values(model.reported.metrics) for name, model in models.items()}
    return {name: values for name, values in present.items() if values}


def _published_values(metrics: Mapping[str, float]) -> dict[str, float]:
    """Returns the metrics by the published definitions under their names without the prefix."""
    return {
        name.removeprefix(PUBLISHED): value
        for name, value in metrics.items()
        if name.startswith(PUBLISHED)
    }


def _trained_note(before: HeldOut) -> str:
    """Says of how many test pairs the figures before a fine-tuning are not new."""
    if before.trained_pairs == 0:
        return ""
    if before.trained_pairs is None:
        return "which pairs the first model was trained on is not known"
    return f"the first model was trained on {before.trained_pairs} of these {before.pairs} pairs"
