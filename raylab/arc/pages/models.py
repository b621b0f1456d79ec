"""The page of a training, with the sections, tables and curves that other pages share with it.

Trained models stand beside baselines, which learn nothing.
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from markupsafe import Markup

from raylab.arc.config.jobs import TrainConfig
from raylab.arc.config.sections import DataConfig, TrainingConfig
from raylab.arc.grid_metrics import (
    BASELINES,
    GAP_RATE,
    GRID_METRICS,
    LOSS,
    OBJECTIVE,
    VALIDATION,
    BaselineMetrics,
    best_baseline,
    label_of,
    mode_of,
    skill,
)
from raylab.arc.records import TaskFigures, TrainingMetrics
from raylab.core.page.charts import SERIES, History, learning_curves
from raylab.core.page.page import Page, Section, block, provenance
from raylab.core.page.table import BEST, LINE, Cell, Column, Row, Table, number, percent, shorten
from raylab.core.printable import duration, join_names, pluralize
from raylab.core.runs.run_record import RunRecord

FREE_MARK = "‡"
"""Mark of models whose figures are all free-running."""
SHORT_LABELS = {
    "solve_rate": "solved",
    "shape_accuracy": "shape",
    "shapes_by_rule": "by size rule",
    OBJECTIVE: "objective",
    "grid_accuracy": "grid",
    "grid_tol_0p95": "≥ 95 % right",
    "cell_accuracy": "cell",
    "change_precision": "precision",
    "transformation_f1": "change F1",
    "copy_rate": "copied",
    "compositional_gap": "gap",
    GAP_RATE: "tasks with gap",
}
"""Labels of metrics above the columns of a page; others have their own."""
GROUP_METRICS = (
    "solve_rate",
    "shape_accuracy",
    "cell_accuracy",
    "grid_accuracy",
    "compositional_gap",
    GAP_RATE,
    "change_recall",
)
"""The metrics of a group of tasks, free-running ones first."""
SUMMARY = {
    "solve_rate": "solved\n%",
    "grid_accuracy": "grid\n%",
    "cell_accuracy": "cell\n%",
    "change_recall": "change\nrecall %",
    OBJECTIVE: "objective",
    LOSS: "loss",
}
"""Labels of the metrics in the terminal."""
MAX_NAME = 17
"""Most characters of a model's name in the terminal."""
SKILL = "the skill over the best baseline, (model - best baseline) / (1 - best baseline)"
INTERVAL = "the 95 % interval for the choice of tasks"
FINE_TUNING = ("solve_rate", "cell_accuracy", "grid_accuracy")
"""The metrics that stand before and after a fine-tuning."""
Models = Mapping[str, TrainingMetrics]
MONITOR = f"{VALIDATION}{OBJECTIVE}"
"""The metric that selects checkpoints unless the configuration says otherwise."""
FEW_GRIDS = 10
"""Validation grids below which the choice of an epoch is told to be by so few."""
PUBLISHED_EPOCHS = 100
"""Epochs of the published recipe; its logged runs ended before."""
METRICS_TEXT = (
    "Free-running, a model writes a whole grid on its own: only these figures show what it solves. "
    "Teacher-forced, it is given the size and the right cells so far, and writes the next one; "
    f"models with {FREE_MARK} write all cells at once, so all of their figures are free-running. "
    "The baselines below the models learn nothing: they copy the source's cell, repeat the cell "
    "before, or copy inside the source and repeat outside. A skill of 0 is no better than the best "
    "baseline, 1 is perfect."
)
COMPOSITIONAL_GAP = (
    "The compositional gap is cell accuracy minus grid accuracy: cells that a model gets right "
    "without completing a grid. A task has a gap if over 80 % of its cells and under 10 % of its "
    "grids are right. A darker shade means more grids solved."
)


def training_page(uri: str, record: RunRecord, config: TrainConfig, models: Models) -> Page:
    """Returns the page of a training, whose only model is in `models` by its name."""
    return Page(
        record.job,
        record.name,
        uri,
        list(summarize_models(models)),
        [
            *tuning_sections(models),
            *training_sections(models, config.training.monitor),
            provenance(uri, record),
        ],
        list(list_caveats(config.training, config.data, models)),
    )


def summarize_models(models: Models) -> Iterator[str]:
    tuned = list(summarize_tuning(models))
    yield from tuned
    if not tuned:
        side = " or ".join(sorted({model.result.side for model in models.values()}))
        name, share, baseline = find_leader(models, "solve_rate")
        solves = f"{name} solves {share} of the {side} grids{baseline}"
        if not any(model.result.metrics["solve_rate"] for model in models.values()):
            solves = f"no model solves any of the {side} grids"
        yield f"On its own (free-running), {solves}."
    if forced := {name: model for name, model in models.items() if model.teacher_forced}:
        name, share, baseline = find_leader(forced, "grid_accuracy")
        yield (
            f"Given the right cells so far (teacher-forced), {name} gets every cell right in "
            f"{share} of the grids{baseline}."
        )
    epochs = sorted({len(model.history) for model in models.values()})
    span = " to ".join(map(str, dict.fromkeys((epochs[0], epochs[-1]))))
    yield (
        f"{pluralize(len(models), 'model')} trained for {span} "
        f"{'epoch' if epochs[-1] == 1 else 'epochs'}: {join_names(list(models))}."
    )


def summarize_tuning(models: Models) -> Iterator[str]:
    for name, model in models.items():
        if (before := model.before) is not None:
            had, has = (percent(own.metrics["solve_rate"]) for own in (before, model.result))
            yield (
                f"Fine-tuning took {name} from {had} to {has} of the {model.result.name} solved on "
                f"its own (free-running){baseline_phrase(model, 'solve_rate')}."
            )


def list_caveats(training: TrainingConfig, data: DataConfig, models: Models) -> Iterator[str]:
    planned = training.epochs if training.max_minutes is None else None
    planned = planned or max(len(model.history) for model in models.values())
    if planned < PUBLISHED_EPOCHS:
        yield (
            f"This is a short training: {planned} of the {PUBLISHED_EPOCHS} epochs of the "
            "published recipe. Its figures show that the pipeline works; they are no result."
        )
    yield from tell_reduced(data.model_dump())
    for name, model in models.items():
        best, grids = model.best, sum(group.grids for group in model.best.groups.values())
        score = best.validation.get(training.monitor.removeprefix(VALIDATION))
        if score is not None and mode_of(training.monitor) == "max" and score * grids < FEW_GRIDS:
            yield (
                f"Epoch {best.epoch} of {name} was chosen by about {score * grids:.0f} of "
                f"{pluralize(grids, 'validation grid')}."
            )
    if any(model.result.chosen_on for model in models.values()):
        yield (
            f"Figures are on the {side_of(models)}: the best of that many epochs, and too good "
            "for other tasks."
        )


def tell_reduced(data: Mapping[str, Any]) -> list[str]:
    """Tells by which keys of `data` only part of its tasks or pairs was used, if any."""
    unreduced = {"tasks": None, "pairs_per_task": None, "every": 1, "max_side": None}
    kept = [f"data.{key}" for key, value in unreduced.items() if data[key] != value]
    return [f"Only part of the tasks or pairs was used ({', '.join(kept)})."] if kept else []


def tuning_sections(models: Models) -> Iterator[Section]:
    if tuned := [fine_tuning_table(name, model) for name, model in models.items() if model.before]:
        yield Section("tuning", "Before and after fine-tuning", tuned)


def training_sections(models: Models, monitor: str) -> Iterator[Section]:
    tables = [score_table(models), METRICS_TEXT]
    yield Section("metrics", "Scores beside baselines that learn nothing", tables)
    histories = {name: model.rows for name, model in models.items()}
    blocks = [curves(histories, monitor), training_table(models)]
    yield Section("curves", "Learning curves", blocks, page_only=True)
    blocks = [group_table(models), COMPOSITIONAL_GAP]
    yield Section("groups", "By category of task", blocks, page_only=True)


def baseline_label(baseline: str) -> str:
    """Returns the name of a baseline in tables."""
    return f"baseline: {BASELINES.get(baseline, baseline)}"


def side_of(models: Models) -> str:
    """Names the tasks that the figures of models are on, and says whether they chose the epoch."""
    return " or ".join(sorted({model.result.name for model in models.values()}))


def accuracy_phrase(metric: str) -> str:
    """Names a metric and the way its predictions were made."""
    definition = GRID_METRICS.get(metric)
    way = "free-running" if definition and definition.free_running else "teacher-forced"
    label = label_of(metric)
    return label if way in label else f"{label}, {way}"


def find_leader(models: Models, metric: str) -> tuple[str, str, str]:
    """Returns the best model on a metric, its value, and `baseline_phrase`."""
    name = max(models, key=lambda name: models[name].result.metrics[metric])
    return name, percent(models[name].result.metrics[metric]), baseline_phrase(models[name], metric)


def baseline_phrase(model: TrainingMetrics, metric: str) -> str:
    """Returns the best baseline on a model's tasks as the end of a phrase; empty without one."""
    best = best_baseline(model.result.baselines, metric)
    return "" if best is None else f"; the best baseline ({best[0]}) reaches {percent(best[1])}"


def summary_table(models: Models) -> Table:
    """Returns the main figures of each model at its best epoch, and of the best baseline on each.

    It fits a terminal of 80 columns. A fine-tuned model has the figures before it as well.
    """
    rows: list[Row] = []
    for name, model in models.items():
        label = shorten(_label(name, model), MAX_NAME)
        rows.append([label, *_summary_cells(model.result.metrics)])
        if model.before is not None:
            rows.append(["before tuning", *_summary_cells(model.before.metrics)])
    rows.append(LINE)
    for name, baselines in _distinct_baselines(models).items():
        best = _best_values(baselines, SUMMARY)
        rows.append([shorten(f"best baseline{name}", MAX_NAME), *_summary_cells(best)])
    return Table(
        f"Best epoch, on the {side_of(models)}; solved free-running, the rest teacher-forced"
        f"{_explain_mark(models)}",
        ["", *SUMMARY.values()],
        rows,
    )


def _label(name: str, model: TrainingMetrics) -> str:
    return name if model.teacher_forced else f"{name} {FREE_MARK}"


def _explain_mark(models: Models) -> str:
    is_shown = any(not model.teacher_forced for model in models.values())
    return f"; {FREE_MARK} all free-running" if is_shown else ""


def _explain_shares(models: Models) -> str:
    return f"Solved and shape are free-running, all others teacher-forced{_explain_mark(models)}."


def _short_label(metric: str) -> str:
    return SHORT_LABELS.get(metric, label_of(metric))


def _summary_cells(metrics: Mapping[str, float]) -> Iterator[str]:
    for key, label in SUMMARY.items():
        say = percent if label.endswith("%") else number
        yield say(metrics.get(key)).removesuffix(" %")


def score_table(models: Models) -> Table:
    """Returns a row of metrics for each model at its best epoch, then one for each baseline.

    Where models have tasks of their own, none is marked as the best, and the best values of all
    baselines on each are one row.
    """
    present = {key for model in models.values() for key in model.result.metrics}
    labels = {
        key: _short_label(key)
        for key, metric in GRID_METRICS.items()
        if metric.compared and key in present
    }
    distinct = _distinct_baselines(models)
    best: dict[str, float] = {}
    # Values on different tasks do not compare.
    for key in labels if len(distinct) < 2 else ():
        values = {model.result.metrics.get(key) for model in models.values()} - {None}
        if len(values) > 1 and GRID_METRICS[key].higher_is_better:
            best[key] = max(value for value in values if value is not None)
    rows: list[Row] = []
    for name, model in models.items():
        result, cells = model.result, list[Cell]()
        for key in labels:
            value, interval = result.metrics.get(key), result.intervals.get(key)
            look = BEST if key in best and value == best[key] else ""
            cells.append(_with_skill(value, result.baselines, key, look, interval=interval))
        rows.append([_label(name, model), *cells])
    rows.append(LINE)
    for name, baselines in distinct.items():
        named = {baseline_label(baseline): values for baseline, values in baselines.items()}
        if name:
            named = {f"best baseline{name}": _best_values(baselines, labels)}
        for label, values in named.items():
            rows.append([label, *(percent(values.get(key)) for key in labels)])
    beside = INTERVAL if any(model.result.intervals for model in models.values()) else SKILL
    return Table(
        f"Scores at the best epoch, on the {side_of(models)}",
        ["model", *(Column(label, page_only=key not in SUMMARY) for key, label in labels.items())],
        rows,
        f"{_explain_shares(models)} Beside each share, {beside}.",
        dense=True,
    )


def training_table(models: Models) -> Table:
    """Returns the facts about the training of each model."""
    sides = {model.result.name for model in models.values()}
    return Table(
        "Training",
        [
            "model",
            *([Column("measured on", text=True)] if len(sides) > 1 else []),
            *("best epoch", "loss", "train loss", "samples/s", "parameters"),
        ],
        [
            [
                name,
                *([model.result.name] if len(sides) > 1 else []),
                str(model.best.epoch),
                number(model.result.metrics.get(LOSS)),
                number(model.best.train_loss),
                f"{model.last.samples_per_second:.1f}",
                f"{model.parameters:,}",
            ]
            for name, model in models.items()
        ],
    )


def group_table(models: Models) -> Table:
    """Returns metrics of each group of the tasks that all models share, beside the baselines."""
    shared = next(iter(models.values())).result
    rows: list[Row] = []
    for group, first in shared.groups.items():
        # The first row alone names the group.
        label, grids, baselines = group, str(first.grids), shared.group_baselines.get(group, {})
        for name, model in models.items():
            metrics = model.result.groups[group].metrics
            shades = {"solve_rate": metrics["solve_rate"]}
            cells = [
                _with_skill(metrics[key], baselines, key, shade=shades.get(key))
                for key in GROUP_METRICS
            ]
            rows.append([label, _label(name, model), grids, *cells])
            label = ""
        for baseline, metrics in baselines.items():
            values = [percent(metrics.get(key)) for key in GROUP_METRICS]
            rows.append(["", baseline_label(baseline), grids, *values])
        rows.append(LINE)
    return Table(
        f"By group of tasks, at the best epoch, on the {side_of(models)}",
        ["group", Column("model", text=True), "grids", *map(_short_label, GROUP_METRICS)],
        rows,
        f"{_explain_shares(models)} Beside each share, {SKILL}.",
    )


def fine_tuning_table(name: str, metrics: TrainingMetrics) -> Table:
    """Returns the mean over tasks before and after a fine-tuning, then the tasks by their gain."""
    before, after = metrics.before, metrics.result
    assert before is not None
    tasks = [(task, had, after.by_task[task]) for task, had in before.by_task.items()]

    def rank(row: tuple[str, TaskFigures, TaskFigures]) -> list[float]:
        _, had, has = row
        # The greatest gain is first.
        return [getattr(had, key) - getattr(has, key) for key in FINE_TUNING]

    rows: list[Row] = []
    mean = "mean of the tasks", before.mean_of_tasks, after.mean_of_tasks
    for task, had, has in (mean, *sorted(tasks, key=rank)):
        shares = ([percent(getattr(own, key)) for own in (had, has)] for key in FINE_TUNING)
        rows.append([task, str(has.pairs), *map(" → ".join, shares)])
    return Table(
        f"{name} before → after fine-tuning, on the {after.name}",
        ["task", "pairs", *map(_short_label, FINE_TUNING)],
        [rows[0], LINE, *rows[1:]],
        "Solved is free-running. The first model was trained on "
        f"{before.trained_pairs} of these {before.pairs} pairs.",
    )


def epoch_line(figures: Mapping[str, float]) -> str:
    """Returns the progress line of an epoch, a flat row; its ETA is for all planned steps."""
    epoch = int(figures["epoch"])
    planned = epoch * figures["planned_steps"] / figures["step"]
    left = (planned - epoch) * (figures["train_seconds"] + figures["validation_seconds"])
    epochs = math.ceil(planned)
    return (
        f"epoch {epoch:>{len(str(epochs))}}/{epochs}  {epoch_figures(figures)}"
        f"  {figures['samples_per_second']:.1f} samples/s  ETA {duration(left)}"
    )


def epoch_figures(figures: Mapping[str, float]) -> str:
    """Returns the main figures of an epoch, of a flat row, in at most 80 characters."""
    return (
        f"loss {figures['train_loss']:.4f}"
        f"  solved {100 * figures[f'{VALIDATION}solve_rate']:.2f} %"
        f"  grid {100 * figures[f'{VALIDATION}grid_accuracy']:.2f} %"
        f"  cell {100 * figures[f'{VALIDATION}cell_accuracy']:.2f} %"
        f"  objective {figures[f'{VALIDATION}{OBJECTIVE}']:.4f}"
    )


def _best_values(baselines: BaselineMetrics, metrics: Iterable[str]) -> dict[str, float]:
    """Returns the value of the best baseline on each metric that has one."""
    best = {metric: best_baseline(baselines, metric) for metric in metrics}
    return {metric: baseline[1] for metric, baseline in best.items() if baseline}


def _distinct_baselines(models: Models) -> dict[str, BaselineMetrics]:
    """Returns distinct metrics of the baselines by the end of their label: a model or nothing."""
    distinct: dict[str, BaselineMetrics] = {}
    for name, model in models.items():
        if (baselines := model.result.baselines) and baselines not in distinct.values():
            distinct[name] = baselines
    return {f" ({name})" if len(distinct) > 1 else "": own for name, own in distinct.items()}


def _with_skill(
    value: float | None,
    baselines: BaselineMetrics,
    metric: str,
    look: str = "",
    shade: float | None = None,
    interval: tuple[float, float] | None = None,
) -> Cell:
    """Returns a share as a percentage, with its interval, or its skill over the best baseline."""
    over = skill(value, baselines, metric)
    small = "" if over is None else f"{over:+.3f}"
    if interval is not None:
        small = "{:.1f} to {:.1f}".format(*(100 * end for end in interval))
    return Cell(percent(value), small, look, shade)


def curves(histories: Mapping[str, History], monitor: str) -> Markup:
    """Draws the main validation metrics and both losses, but none whose values are all equal."""
    shares = ("val_solve_rate", monitor, "val_grid_accuracy", "val_cell_accuracy")
    rows = [row for history in histories.values() for row in history]
    charts = [
        learning_curves(histories, metric, label_of(metric), prefix=f"curve-{metric}")
        for metric in dict.fromkeys((*shares, "train_loss", f"{VALIDATION}{LOSS}"))
        if len({row.get(metric) for row in rows} - {None}) > 1
    ]
    caption = (
        "Losses and validation metrics after each epoch; a large mark is the best epoch on that "
        "metric."
    )
    if len(histories) > len(SERIES):
        caption += f" Only the best of {len(histories)} curves is in colour."
    return block("charts", charts, caption)
