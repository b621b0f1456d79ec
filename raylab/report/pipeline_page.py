"""The page of a pipeline or of a training run, which is shown as a pipeline of one model."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from markupsafe import Markup

from raylab.arc.records import Example, GridRows, GroupMetrics, TrainingMetrics
from raylab.config.arc import ScoringConfig
from raylab.config.jobs import PipelineConfig, TrainConfig
from raylab.grid_metrics import GRID_METRICS, LOSS, RuleMetrics, best_rule, label_of
from raylab.quality.record import TreeQuality
from raylab.report import published
from raylab.report.charts.bars import group_bars
from raylab.report.charts.grids import grid_svg
from raylab.report.charts.heat import heat_map
from raylab.report.charts.theme import SERIES
from raylab.report.page import counted, curves, listed, render
from raylab.report.published import published_runs
from raylab.report.quality_section import quality_section
from raylab.report.tables import (
    FINE_TUNING,
    GROUP_COLUMNS,
    MARK,
    by_published,
    changes,
    model_labels,
    number,
    percent,
    published_values,
    rule_label,
    rules_of,
    side_of,
    trained_note,
    with_skill,
)
from raylab.runs.run_record import RunRecord

SHOWN_MODELS = len(SERIES)
"""Most models in pictures and bars; if there are more, the best on the metric are shown."""
QUALITY_TILES = 2
"""Quality figures at the top of the page."""
THEIR_METRICS = {
    "grid_accuracy": "best grids",
    "cell_accuracy": "best cells",
    "change_recall": "change recall",
}
"""Columns of the published runs."""


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


@dataclass(frozen=True)
class Row:
    """A row of a table.

    Attributes:
        label: Its name.
        cells: One of each model.
        best: True for the best of them.
        others: Models by the published definitions, then rules.
    """

    label: str
    cells: Sequence[str]
    best: Sequence[bool]
    others: Sequence[str]


@dataclass(frozen=True)
class Picture:
    """An ARC grid with its caption."""

    svg: Markup
    label: str
    note: str = ""
    solved: bool | None = None


def render_pipeline(report: PipelineReport) -> str:
    """Renders the page, a complete HTML document; names and messages in it are escaped.

    Raises:
        ValueError: A grid of an example is not rectangular or has colours outside 0..9.
    """
    shown = _shown_models(report)
    models = {name: report.models[name] for name in shown if name in report.models}
    histories = {name: of.rows for name, of in report.models.items()}
    return render(
        "pipeline.html",
        report=report,
        lead=list(summary(report)),
        caveats=list(caveats(report)),
        tiles=list(_tiles(report)),
        sections=dict(_sections(report)),
        comparison=_comparison(report.models),
        labels=model_labels(report.models),
        free=", ".join(name for name, of in report.models.items() if not of.teacher_forced),
        marked=list(by_published(report.models)),
        rules=list(map(rule_label, rules_of(report.models))),
        theirs=published_runs(),
        their_metrics=THEIR_METRICS,
        their_rows=list(_their_rows(report.models)),
        side=side_of(report.models),
        tuned={name: found for name, of in report.models.items() if (found := changes(of))},
        tuned_notes={name: trained_note(of) for name, of in report.models.items()},
        tuned_figures=FINE_TUNING,
        shown=list(shown),
        curves=curves(histories, report.config.training.monitor),
        bars=_bars(models),
        solved=_solved(models),
        groups=_group_rows(report.models),
        group_columns=GROUP_COLUMNS,
        trees=[quality_section(i, *item) for i, item in enumerate(report.quality.items())],
        tasks=[(example.task, list(_pictures(example, shown))) for example in report.examples],
        accuracy=accuracy_phrase(report.metric),
        tree_rules={
            tree: {rule_label(rule): value for rule, value in of.items()}
            for tree, of in report.rules.items()
        },
    )


def summary(report: PipelineReport) -> Iterator[str]:
    """Yields sentences that sum up the run and its results."""
    if report.models:
        epochs = sorted({len(of.history) for of in report.models.values()})
        span = f"{epochs[0]}" if len(epochs) == 1 else f"{epochs[0]} to {epochs[-1]}"
        yield (
            f"{counted(len(report.models), 'model')} trained for {span} "
            f"{'epoch' if epochs[-1] == 1 else 'epochs'}: {listed(list(report.models))}."
        )
        rules = rules_of(report.models)
        side = " or ".join(sorted({of.reported.side for of in report.models.values()}))
        if found := _leading(report.models, "solve_rate"):
            yield (
                f"On its own (free-running), {found[0]} solves {percent(found[1])} of the "
                f"{side} grids{_beside_rule(rules, 'solve_rate')}."
            )
        else:
            yield "No solve rate was measured, so nothing here says what the models solve."
        told = {name: of for name, of in report.models.items() if of.teacher_forced}
        if found := _leading(told, "grid_accuracy"):
            yield (
                f"Given the right cells so far (teacher-forced), {found[0]} gets every cell right "
                f"of {percent(found[1])} of them{_beside_rule(rules, 'grid_accuracy')}."
            )
    for name, quality in report.quality.items():
        named = [
            f"{metric} {figure.value:.3f}"
            for metric, figure in quality.figures.items()
            if figure.value is not None
        ]
        yield f"Quality of {name}: {listed(named) if named else 'no figure could be computed'}."


def caveats(report: PipelineReport) -> Iterator[str]:
    """Yields reasons to read the figures with care."""
    planned, data = report.config.training.epochs, report.config.data
    if report.models and planned < published.EPOCHS:
        yield (
            f"This is a short training: {planned} of the {published.EPOCHS} epochs of the "
            "published recipe. Its figures show that the pipeline works and are no result."
        )
    reduced = {
        "tasks": data.tasks is not None,
        "pairs_per_task": data.pairs_per_task is not None,
        "every": data.every != 1,
    }
    kept = [key for key, is_set in reduced.items() if is_set]
    if report.models and kept:
        yield f"Only part of the tasks or pairs was used (data.{', data.'.join(kept)})."
    if report.models and data.source != published.DATA_SOURCE:
        yield (
            f"The published runs are on {published.DATA_SOURCE}, this run is on {data.source}: "
            "they give the order of magnitude, not a comparison."
        )
    if any(of.reported.chosen_on for of in report.models.values()):
        yield (
            f"Figures are on the {side_of(report.models)}: they are the best of as many epochs "
            "there, and too good for others."
        )
    if report.models and not rules_of(report.models):
        yield "This run is from before rules that learn nothing were measured beside the models."
    for name, quality in report.quality.items():
        if skipped := quality.files.skipped:
            yield f"{counted(skipped, 'file')} of {name} could not be used; the list is below."


def accuracy_phrase(metric: str, *, teacher_forced: bool = True) -> str:
    """Names a metric and the way its predictions were made, by a model that may never be told."""
    known = GRID_METRICS.get(metric)
    free = not teacher_forced or (known and known.free_running)
    way = "free-running" if free else "teacher-forced"
    label = label_of(metric)
    return label if way in label else f"{label}, {way}"


def _value(result: TrainingMetrics, metric: str) -> float | None:
    return result.reported.metrics.get(metric)


def _leading(models: Mapping[str, TrainingMetrics], metric: str) -> tuple[str, float] | None:
    """Returns the best model on a metric, with its value; None if none has it."""
    values = {name: _value(of, metric) for name, of in models.items()}
    known = {name: value for name, value in values.items() if value is not None}
    return max(known.items(), key=lambda item: item[1]) if known else None


def _shown_models(report: PipelineReport) -> list[str]:
    """Names the models that get pictures and bars, in the order of the report."""
    pictured = [name for example in report.examples for name in example.predictions]
    names = list(dict.fromkeys([*report.models, *pictured]))
    if len(names) <= SHOWN_MODELS:
        return names

    def worth(name: str) -> float:
        value = _value(report.models[name], report.metric) if name in report.models else None
        return -1.0 if value is None else value

    best = sorted(names, key=worth, reverse=True)[:SHOWN_MODELS]
    return [name for name in names if name in best]


def _sections(report: PipelineReport) -> Iterator[tuple[str, str]]:
    """Yields ids and titles of the sections."""
    if report.models:
        yield "metrics", "Metrics"
        yield "curves", "Learning curves"
    if any(of.reported.groups for of in report.models.values()):
        yield "groups", "Categories"
    if any(changes(of) for of in report.models.values()):
        yield "tuning", "Fine-tuning"
    if report.examples:
        yield "tasks", "Tasks"
    for index, name in enumerate(report.quality, 1):
        yield f"quality-{index}", f"Quality of {name}"
    yield "provenance", "Provenance"


def _tiles(report: PipelineReport) -> Iterator[tuple[str, str, str]]:
    """Yields value, label and note of the large numbers at the top."""
    rules = rules_of(report.models)
    for metric in ("solve_rate", "grid_accuracy", "cell_accuracy"):
        if found := _leading(report.models, metric):
            note = f"{found[0]}{_beside_rule(rules, metric)}"
            told = report.models[found[0]].teacher_forced
            yield percent(found[1]), accuracy_phrase(metric, teacher_forced=told), note
    for name, quality in list(report.quality.items())[:1]:
        for metric, figure in list(quality.figures.items())[:QUALITY_TILES]:
            if figure.value is not None:
                yield f"{figure.value:.3f}", metric, f"of {name}"


def _comparison(models: Mapping[str, TrainingMetrics]) -> list[Row]:
    rows: list[Row] = []
    rules, theirs = rules_of(models), by_published(models)
    for metric, known in GRID_METRICS.items():
        if not known.compared:
            continue
        values = [_value(of, metric) for of in models.values()]
        top = _top(values) if known.higher_is_better else None
        best = [value is not None and value == top for value in values]
        name = accuracy_phrase(metric) if known.free_running else known.label
        cells = [with_skill(value, rules, metric) for value in values]
        others = [percent(of.get(metric)) for of in (*theirs.values(), *rules.values())]
        rows.append(Row(name, cells, best, others))
    results = models.values()
    for label, cells in (
        ("best epoch", [str(of.best.epoch) for of in results]),
        ("loss", [number(of.reported.metrics.get(LOSS)) for of in results]),
        ("train loss", [f"{of.best.train_loss:.4f}" for of in results]),
        ("samples/s in training", [f"{of.last.samples_per_second:.1f}" for of in results]),
        ("parameters", [f"{of.parameters:,}" for of in results]),
    ):
        rows.append(Row(label, cells, [False] * len(cells), ["-"] * (len(theirs) + len(rules))))
    return rows


def _their_rows(models: Mapping[str, TrainingMetrics]) -> Iterator[tuple[str, list[str]]]:
    """Yields our models and the rules by the published definitions, for the published table."""
    rules = {rule_label(name): published_values(of) for name, of in rules_of(models).items()}
    for name, values in {**by_published(models), **rules}.items():
        if values:
            yield f"{name} {MARK}", [percent(values.get(metric)) for metric in THEIR_METRICS]


def _beside_rule(rules: RuleMetrics, metric: str) -> str:
    """Returns the best rule on a metric as the end of a phrase; nothing without one."""
    best = best_rule(rules, metric)
    return "" if best is None else f"; the best rule ({best[0]}) reaches {percent(best[1])}"


def _top(values: Sequence[float | None]) -> float | None:
    """Returns the highest of several values; None if there is nothing to compare."""
    known = [value for value in values if value is not None]
    return max(known) if len(known) > 1 and len(set(known)) > 1 else None


def _bars(models: Mapping[str, TrainingMetrics]) -> Markup | None:
    groups = {
        name: {group: found.metrics for group, found in of.reported.groups.items()}
        for name, of in models.items()
    }
    return Markup(group_bars(groups, prefix="bars")) if any(groups.values()) else None


def _solved(models: Mapping[str, TrainingMetrics]) -> Markup | None:
    """Returns a map of the grids that each model solves, groups in rows; None without groups."""
    groups = dict.fromkeys(group for of in models.values() for group in of.reported.groups)
    rates = {
        group: {
            name: found.metrics.get("solve_rate")
            for name, of in models.items()
            if (found := of.reported.groups.get(group))
        }
        for group in groups
    }
    title = "Grids solved free-running by category and model, in percent"
    return Markup(heat_map(rates, "solved", title)) if rates else None


def _group_rows(
    models: Mapping[str, TrainingMetrics],
) -> dict[str, list[tuple[str, GroupMetrics]]]:
    """Groups the metrics of the models, then of the rules, by group of tasks."""
    rows: dict[str, list[tuple[str, GroupMetrics]]] = {}
    for name, of in models.items():
        for group, metrics in of.reported.groups.items():
            rows.setdefault(group, []).append((name, metrics))
    tables = (of.reported.group_rules for of in models.values())
    beside = next(filter(None, tables), {})
    for group, found in rows.items():
        grids = found[0][1].grids
        found += [
            (rule_label(rule), GroupMetrics(grids=grids, metrics=metrics))
            for rule, metrics in beside.get(group, {}).items()
        ]
    return rows


def _pictures(example: Example, shown: Sequence[str]) -> Iterator[Picture]:
    """Yields input and target, then the prediction of each model that is shown."""
    for label, grid in (("input", example.input), ("target", example.target)):
        svg = Markup(grid_svg(grid, f"{label} of task {example.task}, {_size(grid)}"))
        yield Picture(svg, label, _size(grid))
    for name in shown:
        if prediction := example.predictions.get(name):
            title = f"prediction of {name} for task {example.task}"
            svg = Markup(grid_svg(prediction.grid, title, target=example.target))
            note = _score(prediction.grid, example.target)
            yield Picture(svg, name, note, prediction.solved)


def _size(grid: GridRows) -> str:
    return f"{len(grid)} by {len(grid[0]) if len(grid) else 0}"


def _score(grid: GridRows, target: GridRows) -> str:
    if _size(grid) != _size(target):
        return f"{_size(grid)} instead of {_size(target)}"
    pairs = [
        (cell, wanted)
        for row, other in zip(grid, target, strict=True)
        for cell, wanted in zip(row, other, strict=True)
    ]
    right = sum(int(cell == wanted) for cell, wanted in pairs)
    return f"{right} of {len(pairs)} cells right"
