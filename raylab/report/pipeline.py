"""The pages of trainings and pipelines."""

from collections.abc import Iterator, Mapping, Sequence

from raylab.arc.records import Example
from raylab.config.jobs import PipelineConfig, TrainConfig
from raylab.printable import join_names, pluralize
from raylab.quality.record import Quality
from raylab.report.models import (
    FREE_MARK,
    Models,
    accuracy_phrase,
    find_leader,
    fine_tuning_table,
    group_table,
    rule_label,
    rule_phrase,
    score_table,
    side_of,
    training_table,
)
from raylab.report.page import Page, Section, curves, provenance
from raylab.report.pictures import SHOWN_MODELS, picture_blocks
from raylab.report.quality import quality_section
from raylab.report.table import percent
from raylab.runs.run_record import RunRecord

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
        list(_summarize_models(models)),
        [*_training_sections(models, config.training.monitor), provenance(uri, record)],
        list(_caveats(config, models)),
    )


def pipeline_page(
    uri: str,
    record: RunRecord,
    config: PipelineConfig,
    models: Models,
    *,
    tree: str,
    quality: Quality,
    examples: Sequence[Example],
    rules: Mapping[str, Mapping[str, float]],
    diagnosis: Sequence[Section] = (),
) -> Page:
    """Returns the page of a pipeline.

    Args:
        uri: The run directory.
        record: Its record.
        config: Its configuration.
        models: Metrics by model.
        tree: Name of its score tree.
        quality: Quality of the score tree.
        examples: Tasks to picture.
        rules: Accuracies of the rules that learn nothing, by score tree or prior and rule.
        diagnosis: Sections on the diagnosis of the score tree.
    """
    metric = config.scoring.metric
    labels = {
        scored: {rule_label(rule): value for rule, value in values.items()}
        for scored, values in rules.items()
    }
    sections = [
        *_examples(examples, models, metric),
        *_training_sections(models, config.training.monitor),
        quality_section(1, tree, quality, f" Accuracy is {accuracy_phrase(metric)}.", labels),
        *diagnosis,
        provenance(uri, record),
    ]
    figures = [
        f"{name} {figure.value:.3f}"
        for name, figure in quality.figures.items()
        if figure.value is not None
    ]
    figures = figures or ["no figure could be computed"]
    lead = [*_summarize_models(models), f"Quality of {tree}: {join_names(figures)}."]
    return Page(record.job, record.name, uri, lead, sections, list(_caveats(config, models)))


def _summarize_models(models: Models) -> Iterator[str]:
    tuned = [name for name, model in models.items() if model.before]
    for name in tuned:
        before, after = models[name].before, models[name].result
        assert before is not None
        had, has = (percent(own.metrics["solve_rate"]) for own in (before, after))
        yield (
            f"Fine-tuning took {name} from {had} to {has} of the {after.name} solved on its own "
            f"(free-running){rule_phrase(models[name], 'solve_rate')}."
        )
    if not tuned:
        side = " or ".join(sorted({model.result.side for model in models.values()}))
        name, share, rule = find_leader(models, "solve_rate")
        yield f"On its own (free-running), {name} solves {share} of the {side} grids{rule}."
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


def _caveats(config: TrainConfig | PipelineConfig, models: Models) -> Iterator[str]:
    training, data = config.training, config.data
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
    if any(model.result.chosen_on for model in models.values()):
        yield (
            f"Figures are on the {side_of(models)}: the best of that many epochs, and too good "
            "for other tasks."
        )


def _training_sections(models: Models, monitor: str) -> Iterator[Section]:
    if tuned := [fine_tuning_table(name, model) for name, model in models.items() if model.before]:
        yield Section("tuning", "Before and after fine-tuning", tuned)
    tables = [score_table(models), METRICS_TEXT]
    yield Section("metrics", "Scores beside rules that learn nothing", tables)
    histories = {name: model.rows for name, model in models.items()}
    blocks = [curves(histories, monitor), training_table(models)]
    yield Section("curves", "Learning curves", blocks, page_only=True)
    blocks = [group_table(models), COMPOSITIONAL_GAP]
    yield Section("groups", "By category of task", blocks, page_only=True)


def _examples(examples: Sequence[Example], models: Models, metric: str) -> Iterator[Section]:
    if not examples:
        return
    metrics = {name: model.result.metrics for name, model in models.items()}
    names = dict.fromkeys(name for example in examples for name in example.predictions)
    best = sorted(names, key=lambda name: -metrics.get(name, {}).get(metric, -1.0))
    solved = sum(any(a.solved for a in e.predictions.values()) for e in examples)
    lead = f"{pluralize(len(examples), 'task')}, of which models solve {solved or 'none'}"
    lead += "; solved ones come first." if solved else "."
    blocks = [lead, *picture_blocks(examples, best[:SHOWN_MODELS])]
    yield Section("tasks", "Answers of the models", blocks)
