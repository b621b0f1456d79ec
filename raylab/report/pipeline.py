"""The page of a pipeline, and of a training run, which is shown as a pipeline of one model."""

from collections.abc import Iterator, Mapping, Sequence

from raylab.arc.records import Example
from raylab.config.arc import ScoringConfig
from raylab.config.jobs import PipelineConfig, TrainConfig
from raylab.printable import join_names, pluralize
from raylab.quality.record import TreeQuality
from raylab.report.models import (
    FREE_MARK,
    Models,
    accuracy_phrase,
    find_leader,
    fine_tuning_table,
    group_table,
    rule_label,
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


Trees = Mapping[str, TreeQuality]


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
        record: Of the run.
        config: Of the run, validated.
        models: Metrics by model.
        quality: Quality by the name of the score tree.
        examples: Tasks to picture.
        rules: Accuracies of the rules that learn nothing, by score tree or prior and rule.
        diagnosis: The section on the diagnosis of its score tree, if there is one.
    """
    trees, scoring = quality or {}, getattr(config, "scoring", None) or ScoringConfig()
    sections = list(_fine_tuning(models))
    if examples:
        sections.append(_examples_section(examples, models, scoring.metric))
    if models:
        sections += _training_sections(models, config.training.monitor)
    labels = {
        tree: {rule_label(rule): value for rule, value in values.items()}
        for tree, values in (rules or {}).items()
    }
    for place, (name, tree) in enumerate(trees.items(), 1):
        lead = f" Accuracy is {accuracy_phrase(scoring.metric)}." if place == 1 and models else ""
        sections.append(quality_section(place, name, tree, lead, labels))
    return Page(
        record.job,
        record.name,
        uri,
        list(_summarize(models, trees)) or ["No model was trained and no score tree was read."],
        [*sections, *diagnosis, provenance(uri, record)],
        list(_caveats(config, models, trees)),
    )


def _summarize(models: Models, trees: Trees) -> Iterator[str]:
    if models:
        yield from _summarize_models(models)
    for name, quality in trees.items():
        figures = quality.figures.items()
        named = [
            f"{metric} {figure.value:.3f}" for metric, figure in figures if figure.value is not None
        ]
        shown = join_names(named) if named else "no figure could be computed"
        yield f"Quality of {name}: {shown}."


def _summarize_models(models: Models) -> Iterator[str]:
    for name, model in models.items():
        if model.before is not None and model.test is not None:
            had, has = (
                percent(figures.metrics.get("solve_rate")) for figures in (model.before, model.test)
            )
            yield (
                f"Fine-tuning took {name} from {had} to {has} of the {model.test.name} solved on "
                "its own (free-running)."
            )
    side = " or ".join(sorted({model.reported.side for model in models.values()}))
    if leader := find_leader(models, "solve_rate"):
        name, share, rule = leader
        yield f"On its own (free-running), {name} solves {share} of the {side} grids{rule}."
    else:
        yield "No solve rate was measured, so this page does not say what the models solve."
    forced = {name: model for name, model in models.items() if model.teacher_forced}
    if leader := find_leader(forced, "grid_accuracy"):
        name, share, rule = leader
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


def _caveats(config: TrainConfig | PipelineConfig, models: Models, trees: Trees) -> Iterator[str]:
    if models:
        yield from _training_caveats(config, models)
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
    if any(model.reported.chosen_on for model in models.values()):
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
    if any(model.reported.groups for model in models.values()):
        blocks = [group_table(models), COMPOSITIONAL_GAP]
        yield Section("groups", "By category of task", blocks, page_only=True)


def _fine_tuning(models: Models) -> Iterator[Section]:
    tables = [fine_tuning_table(name, model) for name, model in models.items()]
    if shown := [table for table in tables if table]:
        yield Section("tuning", "Before and after fine-tuning", shown)


def _examples_section(examples: Sequence[Example], models: Models, metric: str) -> Section:
    metrics = {name: model.reported.metrics for name, model in models.items()}
    names = dict.fromkeys(name for example in examples for name in example.predictions)
    best = sorted(names, key=lambda name: -metrics.get(name, {}).get(metric, -1.0))
    most_solved = sorted(examples, key=lambda e: -sum(a.solved for a in e.predictions.values()))
    solved = sum(any(a.solved for a in e.predictions.values()) for e in examples)
    lead = f"{pluralize(len(examples), 'task')}; some model solves {solved}, which come first."
    blocks = [lead, *picture_blocks(most_solved, best[:SHOWN_MODELS])]
    return Section("tasks", "Answers of the models", blocks)
