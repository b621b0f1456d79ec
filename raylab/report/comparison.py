"""Runs of any kind side by side: their figures, configurations and provenance.

It reads only files in run directories, so it needs neither Ray nor torch.
"""

import json
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, ClassVar, TypeVar

from raylab.annotation.statistics.report import AnnotationReport
from raylab.arc.records import (
    EvaluationMetrics,
    HeldOut,
    PipelineMetrics,
    RuleScores,
    TrainingMetrics,
)
from raylab.arc.sweep import SweepMetrics
from raylab.config.jobs import ReportConfig
from raylab.config.schema import flat
from raylab.errors import DataError, RunError
from raylab.files import places_of
from raylab.grid_metrics import RuleMetrics, label_of
from raylab.log import log_line
from raylab.printable import join_names, pluralize
from raylab.quality.record import BenchmarkFigure, Quality
from raylab.report.annotation import compare_annotations
from raylab.report.models import find_leader, rule_label, score_table, training_table
from raylab.report.page import MONITOR, PAGE, Block, Page, Section, curves, facts_of, write_page
from raylab.report.table import Column, Table, figure_cell, print_tables, shorten
from raylab.runs.records import Figure, Measure, Part, Record
from raylab.runs.run import REPORT, TRIALS, Run, runs_in
from raylab.runs.run_record import RECORD, RunRecord

COLUMNS = 6
"""Most columns of a table beside the first; the rest continue in further tables."""
LONGEST_STATE, LONGEST_VALUE, LONGEST_FACT = 400, 60, 26
"""Most characters shown of a run's state, a configuration value, and any other fact."""
SHELL_KEYS = {"storage", "name", "resume", "log"}
"""Configuration keys that do not change what a run does."""
R = TypeVar("R", bound=Record)
Values = dict[str, dict[str, Any]]
"""JSON values by a key and the label of a run."""


class RunState(Part):
    """The state of a run in the comparison."""

    uri: str
    """Its directory."""
    job: str | None = None
    """Its kind; None if the record cannot be used."""
    finished: str | None = None
    """Time when the whole run was done; None before that."""
    problem: str | None = None
    """The reason why some of it cannot be compared; None if all can."""

    @property
    def state(self) -> str:
        """Whether it is finished, and the problem."""
        state = "finished" if self.finished else "not finished"
        return f"{state}: {self.problem}" if self.problem else state


class ComparisonReport(Record):
    """The content of the `report.json` of a comparison."""

    file: ClassVar[str] = REPORT

    runs: Mapping[str, RunState]
    """States by label; all fields below use the same labels."""
    models: Mapping[str, HeldOut]
    """The reported figures of each trained model, by its run, or run and name."""
    scores: Mapping[str, Mapping[str, float]]
    """Mean accuracies, in [0, 1], by run and model, then metric and generation."""
    benchmarks: Mapping[str, Mapping[str, BenchmarkFigure]]
    """Quality of score trees by run and metric."""
    differences: Mapping[str, Values]
    """Configuration values that differ, by job with two or more runs."""
    provenance: Values
    """By fact and run."""
    caveats: tuple[str, ...]
    """Sentences on differences that make the figures hard to compare."""


@dataclass
class Comparison:
    """The results of runs, by the label of a run or of its model."""

    runs: dict[str, RunState] = field(default_factory=dict[str, RunState])
    records: dict[str, RunRecord] = field(default_factory=dict[str, RunRecord])
    models: dict[str, TrainingMetrics] = field(default_factory=dict[str, TrainingMetrics])
    scores: dict[str, dict[str, float]] = field(default_factory=dict[str, dict[str, float]])
    benchmarks: dict[str, Quality] = field(default_factory=dict[str, Quality])
    annotations: dict[str, AnnotationReport] = field(default_factory=dict[str, AnnotationReport])

    @property
    def configs(self) -> dict[str, dict[str, Any]]:
        """Configuration values as JSON, by run and dotted key."""
        return {
            label: flat({key: v for key, v in record.config.items() if key not in SHELL_KEYS})
            for label, record in self.records.items()
        }

    @property
    def report(self) -> ComparisonReport:
        """The comparison as a record."""
        configs: dict[str, dict[str, dict[str, Any]]] = defaultdict(dict)
        for label, config in self.configs.items():
            configs[self.records[label].job][label] = config
        return ComparisonReport(
            runs=self.runs,
            models={label: metrics.reported for label, metrics in self.models.items()},
            scores=self.scores,
            benchmarks={label: quality.figures for label, quality in self.benchmarks.items()},
            differences={job: _differing(runs) for job, runs in configs.items() if len(runs) > 1},
            provenance=_by_key({label: facts_of(record) for label, record in self.records.items()}),
            caveats=tuple(_caveats(self)),
        )


def report_runs(config: ReportConfig) -> None:
    """Compares the runs of `config`, prints tables, and writes `report.html` and `report.json`.

    Raises:
        RunError: There is no such run, or the name of this one is taken.
        DataError: A file of a run cannot be read.
    """
    comparison = compare(find_runs(config.runs, config.storage))
    run, report = Run.open(config), comparison.report
    run.write_record(report)
    page = comparison_page(run.name, run.uri, comparison)
    write_page(run, page)
    run.finish()
    print_tables(*page.tables, comparison=report.model_dump(mode="json"))
    for caveat in report.caveats:
        log_line(caveat)
    log_line(f"report {run / PAGE} and {REPORT}", uri=run.uri)


def find_runs(names: Sequence[str], storage: str) -> dict[str, Run]:
    """Returns the named runs by distinct labels.

    Args:
        names: Names under `storage`, directories or URIs.
        storage: The directory of runs.

    Raises:
        RunError: There is no such run, or a run is named twice.
        DataError: The storage cannot be read.
        ConfigError: No filesystem opens a URI.
    """
    runs = [_find(text, storage) for text in names]
    for uri, count in Counter(run.uri for run in runs).items():
        if count > 1:
            raise RunError(f"run {uri} is given {count} times: name it once in runs=")
    names_given = Counter(run.name for run in runs)
    return {run.name if names_given[run.name] == 1 else run.uri: run for run in runs}


def compare(runs: Mapping[str, Run]) -> Comparison:
    """Reads the records of runs by label; a run with an unusable file gets the reason."""
    comparison = Comparison()
    for label, run in runs.items():
        state = RunState(uri=run.uri)
        try:
            record = comparison.records[label] = _read(run, RunRecord)
            state = RunState(uri=run.uri, job=record.job, finished=record.finished)
            _read_results(comparison, label, run, record.job)
        except (RunError, DataError) as error:
            state = state.model_copy(update={"problem": str(error)})
        comparison.runs[label] = state
    return comparison


def _find(text: str, storage: str) -> Run:
    places = places_of(text, storage)
    for place in places:
        if (place / RECORD).exists():
            return Run.at(place)
    where = " or ".join(str(place / RECORD) for place in places)
    raise RunError(f"no run {text}: there is no {where}; {runs_in(storage)}")


def _read(run: Run, kind: type[R], absent: str = "") -> R:
    """Reads a record.

    Raises:
        RunError: It is absent, for the reason `absent`, or cannot be used.
    """
    if (record := run.read_record(kind)) is not None:
        return record
    raise RunError(absent or f"it has no {kind.file} yet")


def _read_results(comparison: Comparison, label: str, run: Run, job: str) -> None:
    """Reads the results of a run of a job.

    Raises:
        RunError: There are none.
    """
    match job:
        case "train":
            comparison.models[label] = _read(run, TrainingMetrics, "no epoch is finished yet")
        case "tune":
            unranked = "its trials are not ranked yet"
            if not (trials := _read(run, SweepMetrics, unranked).trials):
                raise RunError(unranked)
            best = trials[0].trial
            _read_results(comparison, f"{label}/{best}", Run.at(run / TRIALS / best), "train")
        case "pipeline":
            _read_pipeline(comparison, label, run)
        case "evaluate":
            metrics = _read(run, EvaluationMetrics, "not every model is scored yet")
            _add_scores(comparison, label, metrics.metric, metrics.models, metrics.rules)
        case "quality":
            comparison.benchmarks[label] = _read(run, Quality)
        case "annotate":
            comparison.annotations[label] = _read(run, AnnotationReport)
        case _:
            raise RunError(f"a run of {job} has nothing to compare")


def _read_pipeline(comparison: Comparison, label: str, run: Run) -> None:
    measured = (run / Quality.file).exists()
    if not measured or (run / PipelineMetrics.file).exists():
        pipeline = _read(run, PipelineMetrics, "no model is trained yet")
        comparison.models |= {
            f"{label}/{name}": metrics for name, metrics in pipeline.models.items()
        }
    if measured:
        quality = comparison.benchmarks[label] = _read(run, Quality)
        metric = comparison.configs[label].get("scoring.metric", "accuracy")
        rules = run.read_record(RuleScores)
        _add_scores(comparison, label, metric, quality.generations, rules.rules if rules else {})


def _add_scores(
    comparison: Comparison, label: str, metric: str, models: RuleMetrics, rules: RuleMetrics
) -> None:
    for name, scores in {
        **models,
        **{rule_label(rule): means for rule, means in rules.items()},
    }.items():
        named = {f"{label_of(metric)}, {generation}": score for generation, score in scores.items()}
        comparison.scores[f"{label}/{name}"] = named


def _caveats(comparison: Comparison) -> Iterator[str]:
    """Yields sentences on differences between runs that make their figures hard to compare."""
    for section, jobs, what in (
        ("data", ("train", "tune", "pipeline", "evaluate"), "models"),
        ("cases", ("annotate",), "annotations"),
    ):
        configs = {
            label: {key: value for key, value in config.items() if key.startswith(f"{section}.")}
            for label, config in comparison.configs.items()
            if comparison.runs[label].job in jobs and comparison.runs[label].problem is None
        }
        if different := _differing(configs):
            yield (
                f"The {what} are on different {section} ({', '.join(different)}), which alone may "
                "explain a difference between their figures."
            )


def _differing(values: Mapping[str, Mapping[str, Any]]) -> Values:
    """Returns the values that differ, by key and label."""
    return {
        key: row
        for key, row in _by_key(values).items()
        if len(row) < len(values) or any(a != b for a, b in pairwise(row.values()))
    }


def _by_key(values: Mapping[str, Mapping[str, Any]]) -> Values:
    """Returns values by label and key as values by key and label."""
    rows: Values = defaultdict(dict)
    for label, row in values.items():
        for key, value in row.items():
            rows[key][label] = value
    return rows


def comparison_page(name: str, uri: str, comparison: Comparison) -> Page:
    """Returns the page of a comparison."""
    report = comparison.report
    labels = list(report.runs)
    lead = [f"{pluralize(len(labels), 'run')} side by side: {join_names(labels, 8)}."]
    if len(comparison.models) > 1 and (leader := find_leader(comparison.models, "solve_rate")):
        lead.insert(
            0,
            f"{leader[0]} solves the most grids on its own (free-running): {leader[1]}{leader[2]}.",
        )
    if unfinished := [label for label, run in report.runs.items() if not run.finished]:
        lead.append(f"Not finished: {join_names(unfinished)}; the page shows their results so far.")
    sections = list(_sections(comparison, report))
    return Page("comparison", name, uri, lead, sections, report.caveats)


def _sections(comparison: Comparison, report: ComparisonReport) -> Iterator[Section]:
    if models := comparison.models:
        tables = [score_table(models), training_table(models)]
        yield Section("models", "Trained models", tables)
    if report.scores:
        tables = _figure_tables("Scores by generation", Measure(""), report.scores)
        yield Section("scores", "Scores", tables)
    if report.benchmarks:
        tables = _figure_tables("Benchmark quality", Measure("", "number"), report.benchmarks)
        yield Section("benchmarks", "Benchmark quality", tables)
    if annotations := comparison.annotations:
        yield Section(
            "annotations", "Annotation", list(compare_annotations(annotations).split(COLUMNS))
        )
    if models:
        yield Section("curves", "Learning curves", [_curves(comparison)])
    runs = {
        "job": {label: run.job for label, run in report.runs.items()},
        "state": {label: run.state for label, run in report.runs.items()},
    }
    yield Section("runs", "Runs", _value_tables("Runs", runs, LONGEST_STATE))
    if report.differences:
        yield _configurations(report)
    yield _provenance(report)


def _curves(comparison: Comparison) -> Block:
    histories = {label: metrics.rows for label, metrics in comparison.models.items()}
    monitors = [config.get("training.monitor") for config in comparison.configs.values()]
    return curves(histories, next(filter(None, monitors), MONITOR))


def _configurations(report: ComparisonReport) -> Section:
    blocks: list[Block] = []
    for job, keys in report.differences.items():
        title = f"Configurations of {job}"
        same = [f"{title}: the same in every key."]
        blocks += _value_tables(title, keys, LONGEST_VALUE) if keys else same
    return Section("configurations", "Configurations that differ", blocks)


def _provenance(report: ComparisonReport) -> Section:
    marked = {
        f"{key} *" if len({*facts.values()}) > 1 else key: facts
        for key, facts in report.provenance.items()
    }
    tables = _value_tables("Provenance; * marks differences", marked, LONGEST_FACT)
    return Section("provenance", "Provenance", tables)


def _figure_tables(
    title: str, measure: Measure, figures: Mapping[str, Mapping[str, Figure | float]]
) -> list[Table]:
    """Returns tables of figures by key and run."""
    rows = [
        [key, *(figure_cell(measure, row.get(label)) for label in figures)]
        for key, row in _by_key(figures).items()
    ]
    table = Table(title, ["", *figures], rows, "With 95 % intervals.")
    return list(table.arranged.split(COLUMNS))


def _value_tables(title: str, values: Mapping[str, Mapping[str, Any]], longest: int) -> list[Table]:
    """Returns tables of JSON values by key and run; a dash if a run lacks the key."""
    labels = dict.fromkeys(label for row in values.values() for label in row)
    columns = ["", *(Column(label, text=True) for label in labels)]
    rows = [
        [key, *(_as_json(row.get(label), longest) for label in labels)]
        for key, row in values.items()
    ]
    return list(Table(title, columns, rows).arranged.split(COLUMNS))


def _as_json(value: Any, longest: int) -> str:
    if value is None:
        return "-"
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return shorten(text, longest)
