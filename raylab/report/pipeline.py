"""The page of a pipeline, and of a training run, which is shown as a pipeline of one model."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from operator import eq
from typing import NamedTuple

from markupsafe import Markup

from raylab.arc.records import Example, GridRows, TrainingMetrics
from raylab.config.arc import ScoringConfig
from raylab.config.jobs import PipelineConfig, TrainConfig
from raylab.grid_metrics import best_rule
from raylab.printable import join_names, pluralize
from raylab.quality.record import TreeQuality
from raylab.report.charts import SERIES, grid_svg
from raylab.report.models import (
    FREE_MARK,
    accuracy_phrase,
    comparison_table,
    fine_tuning_table,
    group_table,
    rule_label,
    side_of,
)
from raylab.report.page import Page, Section, block, curves, provenance
from raylab.report.quality import quality_section
from raylab.report.table import percent
from raylab.runs.run_record import RunRecord

PUBLISHED_EPOCHS = 100
"""Epochs of the published recipe; its logged runs ended before."""
SHOWN_MODELS = len(SERIES)
"""Most models in pictures: the best on the metric."""
METRICS_TEXT = (
    "Each model at the epoch that was best on the validation tasks. Free-running rows come first: "
    "they alone show what a model produces on its own. Teacher-forced figures give it the right "
    f"cells so far, and the size, and ask for the next; models with {FREE_MARK} write all cells at "
    "once, and all of their figures are free-running. A rule learns nothing: it copies the "
    "source's cell, repeats the cell before, or copies and repeats outside the source; "
    "free-running it writes a grid of the source's size. In brackets the skill, (model - best "
    "rule) / (1 - best rule): 0 is no better than the best rule."
)
COMPOSITIONAL_GAP = (
    "The compositional gap is cell accuracy minus grid accuracy: how much of what a model gets "
    "right cell by cell never adds up to a whole grid. In its formal form it is the share of a "
    "group's tasks with over 80 % of their cells right and under 10 % of their grids. The paler a "
    "category is, the fewer of its grids are solved."
)


@dataclass(frozen=True)
class PipelineReport:
    """Content of the page.

    Attributes:
        uri: The run directory.
        record: Of the run.
        config: Of the run, validated.
        models: Metrics by model.
        quality: Quality by the name of the score tree.
        examples: Tasks to picture.
        rules: Accuracies of the rules that learn nothing, by score tree or prior and rule.
    """

    uri: str
    record: RunRecord
    config: TrainConfig | PipelineConfig
    models: Mapping[str, TrainingMetrics] = field(default_factory=dict[str, TrainingMetrics])
    quality: Mapping[str, TreeQuality] = field(default_factory=dict[str, TreeQuality])
    examples: Sequence[Example] = ()
    rules: Mapping[str, Mapping[str, float]] = field(default_factory=dict[str, Mapping[str, float]])

    @property
    def metric(self) -> str:
        """The metric that the score tree of the run calls accuracy."""
        scoring = self.config.scoring if isinstance(self.config, PipelineConfig) else None
        return (scoring or ScoringConfig()).metric


class Picture(NamedTuple):
    """An ARC grid with its caption."""

    svg: Markup
    label: str
    note: str
    solved: bool | None = None


def pipeline_page(report: PipelineReport) -> Page:
    """Returns the page."""
    return Page(
        report.record.job,
        report.record.name,
        report.uri,
        list(_summarize(report)) or ["No model was trained and no score tree was read."],
        list(_sections(report)),
        list(_caveats(report)),
    )


def _summarize(report: PipelineReport) -> Iterator[str]:
    if models := report.models:
        yield from _summarize_models(models)
    for name, quality in report.quality.items():
        figures = quality.figures.items()
        named = [f"{metric} {of.value:.3f}" for metric, of in figures if of.value is not None]
        shown = join_names(named) if named else "no figure could be computed"
        yield f"Quality of {name}: {shown}."


def _summarize_models(models: Mapping[str, TrainingMetrics]) -> Iterator[str]:
    epochs = sorted({len(model.history) for model in models.values()})
    span = " to ".join(map(str, dict.fromkeys((epochs[0], epochs[-1]))))
    yield (
        f"{pluralize(len(models), 'model')} trained for {span} "
        f"{'epoch' if epochs[-1] == 1 else 'epochs'}: {join_names(list(models))}."
    )
    side = " or ".join(sorted({model.reported.side for model in models.values()}))
    if leader := _find_leader(models, "solve_rate"):
        name, share, rule = leader
        yield f"On its own (free-running), {name} solves {share} of the {side} grids{rule}."
    else:
        yield "No solve rate was measured, so nothing here says what the models solve."
    forced = {name: model for name, model in models.items() if model.teacher_forced}
    if leader := _find_leader(forced, "grid_accuracy"):
        name, share, rule = leader
        yield (
            f"Given the right cells so far (teacher-forced), {name} gets every cell right of "
            f"{share} of them{rule}."
        )


def _caveats(report: PipelineReport) -> Iterator[str]:
    if report.models:
        yield from _training_caveats(report)
    for name, quality in report.quality.items():
        if skipped := quality.files.skipped:
            files = pluralize(skipped, "file")
            yield f"{files} of {name} could not be used; `quality.json` has the reasons."


def _training_caveats(report: PipelineReport) -> Iterator[str]:
    planned, data = report.config.training.epochs, report.config.data
    if planned < PUBLISHED_EPOCHS:
        yield (
            f"This is a short training: {planned} of the {PUBLISHED_EPOCHS} epochs of the "
            "published recipe. Its figures show that the pipeline works and are no result."
        )
    unreduced = {"tasks": None, "pairs_per_task": None, "every": 1}
    if kept := [key for key, value in unreduced.items() if getattr(data, key) != value]:
        yield f"Only part of the tasks or pairs was used (data.{', data.'.join(kept)})."
    if any(model.reported.chosen_on for model in report.models.values()):
        yield (
            f"Figures are on the {side_of(report.models)}: they are the best of as many epochs "
            "there, and too good for others."
        )


def _sections(report: PipelineReport) -> Iterator[Section]:
    if report.models:
        yield from _training_sections(report)
    if report.examples:
        yield _examples_section(report)
    rules = {
        tree: {rule_label(rule): value for rule, value in values.items()}
        for tree, values in report.rules.items()
    }
    for place, (name, quality) in enumerate(report.quality.items(), 1):
        first = place == 1 and report.models
        lead = f" Accuracy is {accuracy_phrase(report.metric)}." if first else ""
        yield quality_section(place, name, quality, lead, rules)
    yield provenance(report.uri, report.record)


def _training_sections(report: PipelineReport) -> Iterator[Section]:
    models = report.models
    blocks = [METRICS_TEXT, comparison_table(models)]
    yield Section("metrics", "Metrics beside rules that learn nothing", blocks)
    histories = {name: model.rows for name, model in models.items()}
    drawn = curves(histories, report.config.training.monitor)
    yield Section("curves", "Learning curves", [drawn])
    if any(model.reported.groups for model in models.values()):
        blocks = [COMPOSITIONAL_GAP, group_table(models)]
        yield Section("groups", "By category of task", blocks)
    tuned = [fine_tuning_table(name, model) for name, model in models.items()]
    if any(tuned):
        lead = "The checkpoint that the training started from, and its best one: before → after."
        blocks = [lead, *filter(None, tuned)]
        yield Section("tuning", "Before and after fine-tuning", blocks)


def _find_leader(models: Mapping[str, TrainingMetrics], metric: str) -> tuple[str, str, str] | None:
    """Returns the best model on a metric, its value, and the best rule as the end of a phrase.

    None if no model has the metric.
    """
    values = {name: model.reported.metrics.get(metric) for name, model in models.items()}
    present = {name: value for name, value in values.items() if value is not None}
    if not present:
        return None
    name = max(present, key=lambda name: present[name])
    rule = best_rule(models[name].reported.rules, metric)
    phrase = "" if rule is None else f"; the best rule ({rule[0]}) reaches {percent(rule[1])}"
    return name, percent(present[name]), phrase


def _examples_section(report: PipelineReport) -> Section:
    pictured = [name for example in report.examples for name in example.predictions]
    metrics = {name: model.reported.metrics for name, model in report.models.items()}
    names = dict.fromkeys(pictured)
    best = sorted(names, key=lambda name: -metrics.get(name, {}).get(report.metric, -1.0))
    shown = best[:SHOWN_MODELS]
    tasks = [(example.task, list(_pictures(example, shown))) for example in report.examples]
    text = (
        "Predictions are free-running: the model chooses the shape and every cell itself. Dotted "
        "cells are wrong."
    )
    return Section("tasks", "Answers of the models", [text, block("pictures", tasks)])


def _pictures(example: Example, shown: Sequence[str]) -> Iterator[Picture]:
    """Yields input and target, then the prediction of each model that is shown."""
    for label, grid in (("input", example.input), ("target", example.target)):
        title = f"{label} of task {example.task}, {_size(grid)}"
        yield Picture(grid_svg(grid, title), label, _size(grid))
    for name, answer in ((name, example.predictions.get(name)) for name in shown):
        if answer is not None:
            title = f"prediction of {name} for task {example.task}"
            svg = grid_svg(answer.grid, title, target=example.target)
            yield Picture(svg, name, _score(answer.grid, example.target), answer.solved)


def _size(grid: GridRows) -> str:
    return f"{len(grid)} by {len(grid[0]) if len(grid) else 0}"


def _score(grid: GridRows, target: GridRows) -> str:
    if _size(grid) != _size(target):
        return f"{_size(grid)} instead of {_size(target)}"
    ours, theirs = (list(chain.from_iterable(rows)) for rows in (grid, target))
    right = list(map(eq, ours, theirs))
    return f"{sum(right)} of {len(right)} cells right"
