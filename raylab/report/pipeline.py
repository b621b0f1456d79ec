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
    comparison_tables,
    find_leader,
    fine_tuning_table,
    group_table,
    rule_label,
    side_of,
)
from raylab.report.page import Page, Section, curves, provenance
from raylab.report.pictures import SHOWN_MODELS, picture_blocks
from raylab.report.quality import quality_section
from raylab.runs.run_record import RunRecord

PUBLISHED_EPOCHS = 100
"""Epochs of the published recipe; its logged runs ended before."""
METRICS_TEXT = (
    "Each model at the epoch that was best on the validation tasks. Free-running rows come first: "
    "they alone show what a model produces on its own. Teacher-forced figures give it the right "
    f"cells so far, and the size, and ask for the next; models with {FREE_MARK} write all cells at "
    "once, and all of their figures are free-running. A rule learns nothing: it copies the "
    "source's cell, repeats the cell before, or copies and repeats outside the source; "
    "free-running it writes a grid of the source's size. Small stands the skill, (model - best "
    "rule) / (1 - best rule): 0 is no better than the best rule."
)
COMPOSITIONAL_GAP = (
    "The compositional gap is cell accuracy minus grid accuracy: how much of what a model gets "
    "right cell by cell never adds up to a whole grid. In its formal form it is the share of a "
    "group's tasks with over 80 % of their cells right and under 10 % of their grids. The paler a "
    "category is, the fewer of its grids are solved."
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
    sections = list(_training_sections(models, config.training.monitor)) if models else []
    if examples:
        sections.append(_examples_section(examples, models, scoring.metric))
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
    side = " or ".join(sorted({model.reported.side for model in models.values()}))
    if leader := find_leader(models, "solve_rate"):
        name, share, rule = leader
        yield f"On its own (free-running), {name} solves {share} of the {side} grids{rule}."
    else:
        yield "No solve rate was measured, so nothing here says what the models solve."
    forced = {name: model for name, model in models.items() if model.teacher_forced}
    if leader := find_leader(forced, "grid_accuracy"):
        name, share, rule = leader
        yield (
            f"Given the right cells so far (teacher-forced), {name} gets every cell right of "
            f"{share} of them{rule}."
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
            "published recipe. Its figures show that the pipeline works and are no result."
        )
    unreduced = {"tasks": None, "pairs_per_task": None, "every": 1}
    if kept := [key for key, value in unreduced.items() if getattr(data, key) != value]:
        yield f"Only part of the tasks or pairs was used (data.{', data.'.join(kept)})."
    if any(model.reported.chosen_on for model in models.values()):
        yield (
            f"Figures are on the {side_of(models)}: they are the best of as many epochs "
            "there, and too good for others."
        )


def _training_sections(models: Models, monitor: str) -> Iterator[Section]:
    blocks = [METRICS_TEXT, *comparison_tables(models)]
    yield Section("metrics", "Metrics beside rules that learn nothing", blocks)
    histories = {name: model.rows for name, model in models.items()}
    yield Section("curves", "Learning curves", [curves(histories, monitor)])
    if any(model.reported.groups for model in models.values()):
        blocks = [COMPOSITIONAL_GAP, group_table(models)]
        yield Section("groups", "By category of task", blocks)
    tuned = [fine_tuning_table(name, model) for name, model in models.items()]
    if any(tuned):
        lead = "The checkpoint that the training started from, and its best one: before → after."
        blocks = [lead, *filter(None, tuned)]
        yield Section("tuning", "Before and after fine-tuning", blocks)


def _examples_section(examples: Sequence[Example], models: Models, metric: str) -> Section:
    metrics = {name: model.reported.metrics for name, model in models.items()}
    names = dict.fromkeys(name for example in examples for name in example.predictions)
    best = sorted(names, key=lambda name: -metrics.get(name, {}).get(metric, -1.0))
    shown = best[:SHOWN_MODELS]
    return Section("tasks", "Answers of the models", picture_blocks(examples, shown))
