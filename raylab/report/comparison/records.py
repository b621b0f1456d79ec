"""Runs of any kinds side by side: their figures, configurations and provenance.

Only files in the run directories are read, so a comparison needs neither Ray nor torch.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any, ClassVar, TypeVar

from raylab.annotation.outcome import SIDES, Status
from raylab.annotation.statistics.agreement import AgreementReport
from raylab.annotation.statistics.estimates import Estimate
from raylab.annotation.statistics.figures import FormatReport, JudgementReport, TrapReport
from raylab.annotation.statistics.gold import GIVERS, NAMES, GoldReport, JudgeReport
from raylab.annotation.statistics.report import STATUSES, AnnotationReport
from raylab.annotation.statistics.usage import CallUsage, Seconds
from raylab.arc.records import EvaluationMetrics, PipelineMetrics, RuleScores, TrainingMetrics
from raylab.arc.sweep import SweepMetrics
from raylab.config.schema import flat
from raylab.errors import DataError, RunError
from raylab.files import places_of
from raylab.grid_metrics import (
    GRID_METRICS,
    LOSS,
    TEST,
    VALIDATION,
    RuleMetrics,
    label_of,
    skill,
)
from raylab.quality.metrics import METRICS as QUALITY_METRICS
from raylab.quality.record import Quality
from raylab.report.charts import History
from raylab.report.models import rule_label
from raylab.report.quality import known_figures
from raylab.report.table import Measured
from raylab.runs.measures import Measure, measures_of
from raylab.runs.records import Part, Record
from raylab.runs.run import REPORT, TRIALS, Run
from raylab.runs.run_record import RECORD, RunRecord

SHELL_KEYS = {"storage", "name", "resume", "log"}
"""Keys of a configuration that do not change what a run does."""
MODELS, SCORES, BENCHMARKS, ANNOTATIONS = "models", "scores-", "benchmarks", "annotations"
"""Kinds of figures; of scores each metric is a kind."""
TITLES = {
    MODELS: "Trained models",
    BENCHMARKS: "Benchmark quality",
    ANNOTATIONS: "Annotation",
}
SKILL = "skill"
"""Key, after the prefix of a side, of the skill over the best rule on the solve rate."""

R = TypeVar("R", bound=Record)
Values = dict[str, dict[str, Any]]
"""JSON values by a key and the label of a run."""


class ComparedValue(Part):
    """A figure of a run."""

    value: float | None
    """The figure; None if the run has none."""
    interval: tuple[float, float] | None = None
    """Low and high end at 95 %; None without one."""


Row = dict[str, ComparedValue]
"""Figures of a run, or of a model of it, by the key of their measure."""


class RunState(Part):
    """The state of a run of the comparison."""

    uri: str
    """Its directory."""
    job: str | None = None
    """Its kind; None if the record cannot be used."""
    finished: str | None = None
    """Time when the whole run was done; None before that."""
    problem: str | None = None
    """The reason why nothing or not all of it can be compared; None if all can."""


class ComparisonReport(Record):
    """The content of the `report.json` of a comparison."""

    file: ClassVar[str] = REPORT

    runs: Mapping[str, RunState]
    """States by label; all fields below use the same labels."""
    figures: Mapping[str, Mapping[str, Row]]
    """By kind, run or model, and measure."""
    differences: Mapping[str, Values]
    """By job: values of the keys of the configuration that differ, by key and run."""
    provenance: Values
    """By fact and run."""
    caveats: tuple[str, ...]
    """Sentences on what keeps the figures from being compared."""


@dataclass(frozen=True)
class Comparison:
    """Several runs side by side.

    Attributes:
        report: All figures, states and differences.
        histories: Rows of the epochs of the trained models.
        monitor: The metric that selected the checkpoints of the first training; None without one.
    """

    report: ComparisonReport
    histories: Mapping[str, History]
    monitor: str | None


@dataclass
class _Reading:
    """What was read so far, by the label of a run or of a model of a run."""

    runs: dict[str, RunState] = field(default_factory=dict[str, RunState])
    records: dict[str, RunRecord] = field(default_factory=dict[str, RunRecord])
    figures: dict[str, dict[str, Row]] = field(default_factory=lambda: defaultdict(dict))
    rules: dict[str, RuleMetrics] = field(default_factory=dict[str, RuleMetrics])
    histories: dict[str, History] = field(default_factory=dict[str, History])

    @property
    def configs(self) -> dict[str, dict[str, Any]]:
        """By run, the values of its configuration by their dotted keys, as JSON has them."""
        return {
            label: flat(
                {key: value for key, value in record.config.items() if key not in SHELL_KEYS}
            )
            for label, record in self.records.items()
        }


def measures_of_kind(kind: str, rows: Mapping[str, Row]) -> dict[str, Measure]:
    """Returns the measures of a kind of figures of which any row has a value, by their keys."""
    keys = dict.fromkeys(key for row in rows.values() for key in row)
    measures = MEASURES.get(kind) or {key: Measure(key) for key in keys}
    return {
        key: measure
        for key, measure in measures.items()
        if any(key in row and row[key].value is not None for row in rows.values())
    }


def title_of_kind(kind: str) -> str:
    """Returns the title of a kind of figures."""
    metric = kind.removeprefix(SCORES)
    return TITLES.get(kind) or f"Scores by generation: {label_of(metric)}"


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
    short = Counter(run.name for run in runs)
    longer = Counter(_longer(run) for run in runs)
    labels = [
        run.name if short[run.name] == 1 else _longer(run) if longer[_longer(run)] == 1 else run.uri
        for run in runs
    ]
    return dict(zip(labels, runs, strict=True))


def compare(runs: Mapping[str, Run]) -> Comparison:
    """Reads the records of runs by label; a run with an unusable file is listed with the reason."""
    reading = _Reading()
    for label, run in runs.items():
        state = RunState(uri=run.uri)
        try:
            record = _read(run, RunRecord, f"it has no {RECORD}")
            reading.records[label] = record
            state = RunState(uri=run.uri, job=record.job, finished=record.finished)
            if (read := READERS.get(record.job)) is None:
                raise RunError(f"a run of {record.job}, of which nothing can be compared")
            read(reading, label, run)
        except (RunError, DataError) as error:
            state = state.model_copy(update={"problem": str(error)})
        reading.runs[label] = state
    facts = {label: dict(_facts(record)) for label, record in reading.records.items()}
    report = ComparisonReport(
        runs=reading.runs,
        figures=_figures(reading),
        differences=_differences(reading),
        provenance={key: _by_run(facts, key) for key in _keys(facts)},
        caveats=tuple(_caveats(reading)),
    )
    monitors = [config.get("training.monitor") for config in reading.configs.values()]
    return Comparison(report, reading.histories, next(filter(None, monitors), None))


def _figures(reading: _Reading) -> dict[str, dict[str, Row]]:
    """Returns the figures by kind in the order shown, without measures that no run has."""
    reading.figures[MODELS] |= _rule_rows(reading.rules)
    scores = [kind for kind in reading.figures if kind.startswith(SCORES)]
    figures: dict[str, dict[str, Row]] = {}
    for kind in (MODELS, *scores, BENCHMARKS, ANNOTATIONS):
        if rows := reading.figures[kind]:
            measures = measures_of_kind(kind, rows)
            figures[kind] = {
                label: {key: value for key, value in row.items() if key in measures}
                for label, row in rows.items()
            }
    return figures


def _find(text: str, storage: str) -> Run:
    places = places_of(text, storage)
    for place in places:
        if (place / RECORD).exists():
            return Run.at(place)
    where = " or ".join(str(place / RECORD) for place in places)
    raise RunError(
        f"no run {text}: there is no {where}; give in runs= its name under storage=, its "
        "directory or its URI"
    )


def _longer(run: Run) -> str:
    return "/".join(run.path.split("/")[-2:])


def _read(run: Run, kind: type[R], absent: str) -> R:
    """Reads a record.

    Raises:
        RunError: It is absent, with the message `absent`, or cannot be used.
    """
    if (record := run.read_record(kind)) is not None:
        return record
    raise RunError(absent)


def _read_training(reading: _Reading, label: str, run: Run) -> None:
    _add_model(reading, label, _read(run, TrainingMetrics, "no epoch is finished yet"))


def _read_pipeline(reading: _Reading, label: str, run: Run) -> None:
    measured = (run / Quality.file).exists()
    if not measured or (run / PipelineMetrics.file).exists():
        pipeline = _read(run, PipelineMetrics, "no model is trained yet")
        for name, metrics in pipeline.models.items():
            _add_model(reading, f"{label}/{name}", metrics)
    if measured:
        quality = _read_quality(reading, label, run)
        metric = reading.configs[label].get("scoring.metric", "accuracy")
        scored = run.read_record(RuleScores)
        rules = {} if scored is None else scored.rules
        _add_scores(reading, label, metric, quality.generations, rules)


def _read_sweep(reading: _Reading, label: str, run: Run) -> None:
    unranked = "its trials are not ranked yet"
    sweep = _read(run, SweepMetrics, unranked)
    if not sweep.trials:
        raise RunError(unranked)
    best = sweep.trials[0].trial
    metrics = _read(Run.at(run / TRIALS / best), TrainingMetrics, f"no epoch of {best} is finished")
    _add_model(reading, f"{label}/{best}", metrics)


def _read_evaluation(reading: _Reading, label: str, run: Run) -> None:
    metrics = _read(run, EvaluationMetrics, "not every model is scored yet")
    _add_scores(reading, label, metrics.metric, metrics.models, metrics.rules)


def _read_quality(reading: _Reading, label: str, run: Run) -> Quality:
    quality = _read(run, Quality, f"it has no {Quality.file} yet")
    figures = known_figures(quality)
    reading.figures[BENCHMARKS][label] = {name: _value(figure) for name, figure in figures.items()}
    return quality


def _read_annotation(reading: _Reading, label: str, run: Run) -> None:
    report = _read(run, AnnotationReport, f"it has no {AnnotationReport.file} yet")
    reading.figures[ANNOTATIONS][label] = {
        path: _value(read_figure(report, path)) for path in MEASURES[ANNOTATIONS]
    }


READERS: dict[str, Callable[[_Reading, str, Run], object]] = {
    "train": _read_training,
    "pipeline": _read_pipeline,
    "tune": _read_sweep,
    "evaluate": _read_evaluation,
    "quality": _read_quality,
    "annotate": _read_annotation,
}
"""Readers of the records of a run, by its job."""


def read_figure(report: AnnotationReport, path: str) -> Estimate | float | None:
    """Returns a figure of a report by its attributes and keys; None if the report lacks it."""
    value: Any = report
    for name in path.split("."):
        value = value.get(name) if isinstance(value, Mapping) else getattr(value, name, None)
    return value


def _add_model(reading: _Reading, label: str, metrics: TrainingMetrics) -> None:
    row: dict[str, float | None] = {
        **metrics.best.row(),
        "parameters": metrics.parameters,
        "samples_per_second": metrics.last.samples_per_second,
    }
    rules: dict[str, dict[str, float]] = {}
    sides = {VALIDATION: (metrics.best.validation, metrics.rules)}
    if metrics.test is not None:
        sides[TEST] = metrics.test.metrics, metrics.test.rules
    for prefix, (values, beside) in sides.items():
        row |= {f"{prefix}{name}": value for name, value in values.items()}
        row[f"{prefix}{SKILL}"] = skill(values.get("solve_rate"), beside, "solve_rate")
        for rule, figures in beside.items():
            named = {f"{prefix}{name}": value for name, value in figures.items()}
            rules[rule] = rules.get(rule, {}) | named
    reading.rules[label] = rules
    reading.figures[MODELS][label] = {key: _value(row.get(key)) for key in MEASURES[MODELS]}
    reading.histories[label] = metrics.rows


def _add_scores(
    reading: _Reading,
    label: str,
    metric: str,
    models: Mapping[str, Mapping[str, float]],
    rules: RuleMetrics,
) -> None:
    named = {rule_label(rule): metrics for rule, metrics in rules.items()}
    for model, accuracies in {**models, **named}.items():
        row = {name: _value(metrics) for name, metrics in accuracies.items()}
        reading.figures[f"{SCORES}{metric}"][f"{label}/{model}"] = row


def _value(figure: Measured | float | None) -> ComparedValue:
    if figure is None or isinstance(figure, int | float):
        return ComparedValue(value=figure)
    return ComparedValue(value=figure.value, interval=figure.interval)


def _rule_rows(rules: Mapping[str, RuleMetrics]) -> dict[str, Row]:
    """Returns the rows of rules; models that were validated on the same tasks share theirs."""
    distinct: dict[str, RuleMetrics] = {}
    for label, metrics in rules.items():
        if metrics and metrics not in distinct.values():
            distinct[label] = metrics
    return {
        f"{rule_label(rule)}{f' ({label})' if len(distinct) > 1 else ''}": {
            name: _value(value) for name, value in values.items() if name in MEASURES[MODELS]
        }
        for label, of in distinct.items()
        for rule, values in of.items()
    }


def _facts(record: RunRecord) -> Iterator[tuple[str, Any]]:
    yield "job", record.job
    yield "id", record.id
    yield "started", record.started
    yield "finished", record.finished
    yield "host", record.host
    yield "cpus", record.cpus
    yield "commit", None if record.git is None else record.git.commit
    yield "uncommitted changes", None if record.git is None else record.git.dirty
    yield from record.versions.items()
    yield "configuration", record.config_hash


def _differences(reading: _Reading) -> dict[str, Values]:
    """Returns the values of the keys that differ, by job; for jobs of two runs or more."""
    configs: dict[str, dict[str, dict[str, Any]]] = defaultdict(dict)
    for label, config in reading.configs.items():
        configs[reading.records[label].job][label] = config
    return {job: _differing(row) for job, row in configs.items() if len(row) > 1}


def _caveats(reading: _Reading) -> Iterator[str]:
    """Yields sentences on what keeps figures of different runs from being compared."""
    for section, jobs, what in (
        ("data", ("train", "tune", "pipeline", "evaluate"), "models"),
        ("cases", ("annotate",), "annotations"),
    ):
        configs = {
            label: {key: value for key, value in config.items() if key.startswith(f"{section}.")}
            for label, config in reading.configs.items()
            if reading.runs[label].job in jobs and reading.runs[label].problem is None
        }
        if different := _differing(configs):
            yield (
                f"The {what} are on different {section} ({', '.join(different)}): their figures "
                "may differ for that reason alone."
            )


def _differing(values: Mapping[str, Mapping[str, Any]]) -> Values:
    """Returns the values, by key and label, of the keys that differ."""
    by_key = {key: _by_run(values, key) for key in _keys(values)}
    return {
        key: row
        for key, row in by_key.items()
        if len(row) < len(values)
        or any(value != next(iter(row.values())) for value in row.values())
    }


def _keys(values: Mapping[str, Mapping[str, Any]]) -> list[str]:
    return list(dict.fromkeys(key for row in values.values() for key in row))


def _by_run(values: Mapping[str, Mapping[str, Any]], key: str) -> dict[str, Any]:
    return {label: row[key] for label, row in values.items() if key in row}


def _model_measures() -> dict[str, Measure]:
    measures: dict[str, Measure] = {}
    for prefix, side in ((TEST, "test"), (VALIDATION, "validation")):
        for name, metric in GRID_METRICS.items():
            if metric.compared:
                better = "higher" if metric.higher_is_better else None
                measures[f"{prefix}{name}"] = Measure(f"{metric.label}, {side}", better=better)
        measures[f"{prefix}{SKILL}"] = Measure(f"skill (solve rate), {side}", "number")
        measures[f"{prefix}{LOSS}"] = Measure(f"loss, {side}", "number", "lower")
    return {
        **measures,
        "train_loss": Measure("train loss", "number", "lower"),
        "epoch": Measure("best epoch", "count", None),
        "samples_per_second": Measure("samples/s in training", "number"),
        "parameters": Measure("parameters", "count", None),
    }


COMPARED = (
    ("annotators.{}.evaluation", JudgementReport, ("pass_rate",), SIDES),
    ("annotators.{}.format", FormatReport, ("unparsable",), SIDES),
    ("agreement", AgreementReport, ("exact", "same_roots", "weighted", "kappa", "alpha"), ("",)),
    ("gold.{}", GoldReport, ("roots",), NAMES),
    ("judge.{}", JudgeReport, ("auc",), SIDES),
    ("sensitivity.{}", TrapReport, ("taken",), GIVERS),
    ("usage.total", CallUsage, ("cost", "sent", "prompt_tokens", "completion_tokens"), ("",)),
    ("usage.total.seconds", Seconds, ("p50", "p99"), ("",)),
)
"""The figures that compare annotations: where their parts stand, their fields, and of whom."""


def _annotation_measures() -> Iterator[tuple[str, Measure]]:
    yield "cases.total", Measure("cases", "count", None)
    for status, label in STATUSES.items():
        better = "lower" if status in (Status.HUMAN, Status.FAILED) else None
        yield f"cases.status.{status}", Measure(label, better=better)
    for place, kind, fields, names in COMPARED:
        measures = measures_of(kind)
        for name, field_name in product(names, fields):
            measure = measures[field_name]
            label = f"{measure.label}, {NAMES[name]}" if name else measure.label
            yield f"{place.format(name)}.{field_name}", replace(measure, label=label)


MEASURES = {
    MODELS: _model_measures(),
    BENCHMARKS: {
        name: Measure(name, "number", metric.better) for name, metric in QUALITY_METRICS.items()
    },
    ANNOTATIONS: dict(_annotation_measures()),
}
"""Measures by kind of figures and key; those of scores are named by their generation."""
