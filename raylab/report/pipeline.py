"""The page of a pipeline, and of a training run, which is shown as a pipeline of one model."""

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


Trees = Mapping[str, Quality]


def pipeline_page(
    uri: str,
    record: RunRecord,
    config: TrainConfig | PipelineConfig,
    models: Models,
    quality: Trees | None = None,
    examples: Sequence[Example] = (),
    rules: Mapping[str, Mapping[str, float]] | None = None,
    diagnosis: Sequence[Section] = (),
) -> Page:
    """Returns the page of a run.

    Args:
        uri: The run directory.
        record: Its record.
        config: Its configuration.
        models: Metrics by model.
        quality: Quality by the name of the score tree.
        examples: Tasks to picture.
        rules: Accuracies of the rules that learn nothing, by score tree or prior and rule.
        diagnosis: Sections on the diagnosis of its score tree, if there is one.
    """
    trees = quality or {}
    metric = config.scoring.metric if isinstance(config, PipelineConfig) else ""
    sections = list(_fine_tuning(models))
    if examples:
        sections.append(_examples_section(examples, models, metric))
    sections += _training_sections(models, config.training.monitor)
    labels = {
        tree: {rule_label(rule): value for rule, value in values.items()}
        for tree, values in (rules or {}).items()
    }
    for place, (name, tree) in enumerate(trees.items(), 1):
        lead = f" Accuracy is {accuracy_phrase(metric)}." if place == 1 else ""
        sections.append(quality_section(place, name, tree, lead, labels))
    return Page(
        record.job,
        record.name,
        uri,
        [*_summarize_models(models), *map(_summarize_tree, trees, trees.values())],
        [*sections, *diagnosis, provenance(uri, record)],
        [*_training_caveats(config, models), *_skipped_files(trees)],
    )


def _summarize_tree(name: str, quality: Quality) -> str:
    figures = [
        f"{metric} {figure.value:.3f}"
        for metric, figure in quality.figures.items()
        if figure.value is not None
    ]
    shown = join_names(figures) if figures else "no figure could be computed"
    return f"Quality of {name}: {shown}."


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


def _skipped_files(trees: Trees) -> Iterator[str]:
    for name, quality in trees.items():
        if skipped := quality.files.skipped:
            files = pluralize(skipped, "file")
            yield f"{files} of {name} could not be used; `quality.json` has the reasons."


def _training_caveats(config: TrainConfig | PipelineConfig, models: Models) -> Iterator[str]:
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
    tables = [score_table(models), METRICS_TEXT]
    yield Section("metrics", "Scores beside rules that learn nothing", tables)
    histories = {name: model.rows for name, model in models.items()}
    blocks = [curves(histories, monitor), training_table(models)]
    yield Section("curves", "Learning curves", blocks, page_only=True)
    if any(model.result.groups for model in models.values()):
        blocks = [group_table(models), COMPOSITIONAL_GAP]
        yield Section("groups", "By category of task", blocks, page_only=True)


def _fine_tuning(models: Models) -> Iterator[Section]:
    tables = [fine_tuning_table(name, model) for name, model in models.items() if model.before]
    if tables:
        yield Section("tuning", "Before and after fine-tuning", tables)


def _examples_section(examples: Sequence[Example], models: Models, metric: str) -> Section:
    metrics = {name: model.result.metrics for name, model in models.items()}
    names = dict.fromkeys(name for example in examples for name in example.predictions)
    best = sorted(names, key=lambda name: -metrics.get(name, {}).get(metric, -1.0))
    solved = sum(any(a.solved for a in e.predictions.values()) for e in examples)
    lead = f"{pluralize(len(examples), 'task')}, of which models solve {solved or 'none'}"
    lead += "; solved ones come first." if solved else "."
    blocks = [lead, *picture_blocks(examples, best[:SHOWN_MODELS])]
    return Section("tasks", "Answers of the models", blocks)
