"""The page of a training, and the sections that a pipeline's page shares with it."""

from collections.abc import Iterator

from raylab.arc.config.jobs import TrainConfig
from raylab.arc.config.sections import DataConfig, TrainingConfig
from raylab.arc.grid_metrics import VALIDATION, mode_of
from raylab.arc.pages.models import (
    FREE_MARK,
    Models,
    curves,
    find_leader,
    fine_tuning_table,
    group_table,
    rule_phrase,
    score_table,
    side_of,
    training_table,
)
from raylab.core.page.page import Page, Section, provenance
from raylab.core.page.table import percent
from raylab.core.printable import join_names, pluralize
from raylab.core.runs.run_record import RunRecord

FEW_GRIDS = 10
"""Validation grids below which the choice of an epoch is told to be by so few."""
PUBLISHED_EPOCHS = 100
"""Epochs of the published recipe; its logged runs ended before."""


METRICS_TEXT = (
    "Free-running, a model writes a whole grid on its own: only these figures show what it solves. "
    "Teacher-forced, it is given the size and the right cells so far, and writes the next one; "
    f"models with {FREE_MARK} write all cells at once, so all of their figures are free-running. "
    "The rules below the models learn nothing: they copy the source's cell, repeat the cell "
    "before, or copy inside the source and repeat outside. A skill of 0 is no better than the best "
    "rule, 1 is perfect."
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
        name, share, rule = find_leader(models, "solve_rate")
        solves = f"{name} solves {share} of the {side} grids{rule}"
        if not any(model.result.metrics["solve_rate"] for model in models.values()):
            solves = f"no model solves any of the {side} grids"
        yield f"On its own (free-running), {solves}."
    if forced := {name: model for name, model in models.items() if model.teacher_forced}:
        name, share, rule = find_leader(forced, "grid_accuracy")
        yield (
            f"Given the right cells so far (teacher-forced), {name} gets every cell right in "
            f"{share} of the grids{rule}."
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
                f"its own (free-running){rule_phrase(model, 'solve_rate')}."
            )


def list_caveats(training: TrainingConfig, data: DataConfig, models: Models) -> Iterator[str]:
    planned = training.epochs if training.max_minutes is None else None
    planned = planned or max(len(model.history) for model in models.values())
    if planned < PUBLISHED_EPOCHS:
        yield (
            f"This is a short training: {planned} of the {PUBLISHED_EPOCHS} epochs of the "
            "published recipe. Its figures show that the pipeline works; they are no result."
        )
    unreduced = {"tasks": None, "pairs_per_task": None, "every": 1}
    if kept := [key for key, value in unreduced.items() if getattr(data, key) != value]:
        yield f"Only part of the tasks or pairs was used (data.{', data.'.join(kept)})."
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


def tuning_sections(models: Models) -> Iterator[Section]:
    if tuned := [fine_tuning_table(name, model) for name, model in models.items() if model.before]:
        yield Section("tuning", "Before and after fine-tuning", tuned)


def training_sections(models: Models, monitor: str) -> Iterator[Section]:
    tables = [score_table(models), METRICS_TEXT]
    yield Section("metrics", "Scores beside rules that learn nothing", tables)
    histories = {name: model.rows for name, model in models.items()}
    blocks = [curves(histories, monitor), training_table(models)]
    yield Section("curves", "Learning curves", blocks, page_only=True)
    blocks = [group_table(models), COMPOSITIONAL_GAP]
    yield Section("groups", "By category of task", blocks, page_only=True)
