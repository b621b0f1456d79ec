"""Runs of any kinds side by side: their figures, configurations and provenance."""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from raylab.annotation.report import COMPARED_FIGURES
from raylab.config.schema import flat
from raylab.grid_metrics import GRID_METRICS, LOSS, TEST, VALIDATION, RuleMetrics, label_of
from raylab.quality.metrics import METRICS as QUALITY_METRICS
from raylab.report.charts.curves import History
from raylab.report.charts.intervals import Measured
from raylab.report.tables import rule_label
from raylab.runs.measures import Measure
from raylab.runs.records import Part, Record
from raylab.runs.run import REPORT
from raylab.runs.run_record import RunRecord

ALWAYS_DIFFERENT = {"storage", "name", "resume", "log"}
"""Keys of a configuration that do not change what a run does."""

Row = Mapping[str, Measured]
"""Figures of a run, or of a model of it, by the key of their measure."""
Values = dict[str, dict[str, Any]]
"""JSON values by a key and the label of a run."""


class ComparedValue(Part):
    """A figure of a run."""

    value: float | None
    """The figure; None if the run has none."""
    interval: tuple[float, float] | None = None
    """Low and high end at 95 %; None without one."""


@dataclass(frozen=True)
class Figures:
    """Figures of one kind, side by side.

    Attributes:
        key: Key of the kind in `report.json` and in the page.
        title: Title of the table.
        measures: Measures by key.
        values: Values by the label of a run, or of a model of a run.
    """

    key: str
    title: str
    measures: Mapping[str, Measure]
    values: Mapping[str, Row]


SKILL = "skill"
"""Key, after the prefix of a side, of the skill over the best rule on the solve rate."""
SIDES = {TEST: "test", VALIDATION: "validation"}
"""Names of the sides of a split, by the prefix of their metrics."""
MODELS = {
    **{
        f"{prefix}{name}": measure
        for prefix, side in SIDES.items()
        for name, measure in {
            **{
                name: Measure(
                    f"{metric.label}, {side}", better="higher" if metric.higher_is_better else None
                )
                for name, metric in GRID_METRICS.items()
                if metric.compared
            },
            SKILL: Measure(f"skill (solve rate), {side}", "number"),
            LOSS: Measure(f"loss, {side}", "number", "lower"),
        }.items()
    },
    "train_loss": Measure("train loss", "number", "lower"),
    "epoch": Measure("best epoch", "count", None),
    "samples_per_second": Measure("samples/s in training", "number"),
    "parameters": Measure("parameters", "count", None),
}
BENCHMARKS = {
    name: Measure(name, "number", metric.better) for name, metric in QUALITY_METRICS.items()
}
ANNOTATIONS = {figure.path: figure.measure for figure in COMPARED_FIGURES}


class RunState(Part):
    """The state of a run of the comparison."""

    uri: str
    """Its directory."""
    job: str | None
    """Its kind; None if the record cannot be used."""
    finished: str | None
    """Time when the whole run was done; None before that."""
    problem: str | None
    """The reason why nothing or not all of it can be compared; None if all can."""


class ComparisonReport(Record):
    """The content of the `report.json` of a comparison."""

    file: ClassVar[str] = REPORT

    runs: Mapping[str, RunState]
    """States by label; all fields below use the same labels."""
    figures: Mapping[str, Mapping[str, Mapping[str, ComparedValue]]]
    """By kind, run or model, and measure."""
    differences: Mapping[str, Values]
    """By job: values of the keys of the configuration that differ, by key and run."""
    provenance: Values
    """By fact and run."""
    caveats: tuple[str, ...]
    """Sentences on what keeps the figures from being compared."""


@dataclass(frozen=True)
class ComparedRun:
    """A run of the comparison.

    Attributes:
        uri: Its directory.
        record: Its record; None if it cannot be used.
        problem: The reason why nothing or not all of it can be compared; None if all can.
    """

    uri: str
    record: RunRecord | None
    problem: str | None = None

    @property
    def job(self) -> str | None:
        """Its kind; None if the record cannot be used."""
        return None if self.record is None else self.record.job

    @property
    def finished(self) -> str | None:
        """Time when the whole run was done; None before that."""
        return None if self.record is None else self.record.finished

    @property
    def config(self) -> dict[str, Any]:
        """Values of the configuration by their dotted keys, as JSON has them."""
        config = {} if self.record is None else self.record.config
        return flat({key: of for key, of in config.items() if key not in ALWAYS_DIFFERENT})


@dataclass
class Comparison:
    """Figures of several runs, by the label of each run.

    Attributes:
        runs: All of them.
        models: Figures of trained models.
        rules: Metrics of the rules that learn nothing on the tasks of the same models, with the
            prefixes of their sides.
        histories: Rows of the epochs of the same models.
        scores: By metric, the mean accuracy of scored models on each generation.
        benchmarks: Figures of the quality of benchmarks.
        annotations: Figures of annotation runs, by their path in `report.json`.
    """

    runs: dict[str, ComparedRun] = field(default_factory=dict[str, ComparedRun])
    models: dict[str, Row] = field(default_factory=dict[str, Row])
    rules: dict[str, RuleMetrics] = field(default_factory=dict[str, RuleMetrics])
    histories: dict[str, History] = field(default_factory=dict[str, History])
    scores: dict[str, dict[str, Row]] = field(default_factory=dict[str, dict[str, Row]])
    benchmarks: dict[str, Row] = field(default_factory=dict[str, Row])
    annotations: dict[str, Row] = field(default_factory=dict[str, Row])

    @property
    def figures(self) -> list[Figures]:
        """All figures by kind."""
        models = {**self.models, **_rule_rows(self.rules)}
        found = [Figures("models", "Trained models", MODELS, models)]
        for metric, scores in self.scores.items():
            names = dict.fromkeys(name for row in scores.values() for name in row)
            measures = {name: Measure(name) for name in names}
            title = f"Scores by generation: {label_of(metric)}"
            found.append(Figures(f"scores-{metric}", title, measures, scores))
        found.append(Figures("benchmarks", "Benchmark quality", BENCHMARKS, self.benchmarks))
        found.append(Figures("annotations", "Annotation", ANNOTATIONS, self.annotations))
        return [_measured(figures) for figures in found if figures.values]

    @property
    def differences(self) -> dict[str, Values]:
        """Values of the keys that differ, by job, key and run; for jobs of two runs or more."""
        found: dict[str, Values] = {}
        for job, count in Counter(run.job for run in self.runs.values()).items():
            if job is not None and count > 1:
                same = {label: run.config for label, run in self.runs.items() if run.job == job}
                found[job] = _differing(same)
        return found

    @property
    def provenance(self) -> Values:
        """Values by fact and run: job, times, host, commit, versions, configuration."""
        facts = {
            label: dict(_facts(run.record))
            for label, run in self.runs.items()
            if run.record is not None
        }
        return {key: _by_run(facts, key) for key in _keys(facts)}

    @property
    def caveats(self) -> list[str]:
        """Sentences on what keeps figures of different runs from being compared."""
        found: list[str] = []
        for section, jobs, what in (
            ("data", ("train", "tune", "pipeline", "evaluate"), "models"),
            ("cases", ("annotate",), "annotations"),
        ):
            asked = {
                label: {key: value for key, value in run.config.items() if _within(key, section)}
                for label, run in self.runs.items()
                if run.job in jobs and run.problem is None
            }
            if different := _differing(asked):
                keys = ", ".join(different)
                found.append(
                    f"The {what} are on different {section} ({keys}): their figures may differ for "
                    "that reason alone."
                )
        return found

    def report(self) -> ComparisonReport:
        """Returns the content of `report.json`."""
        return ComparisonReport(
            runs={
                label: RunState(
                    uri=run.uri, job=run.job, finished=run.finished, problem=run.problem
                )
                for label, run in self.runs.items()
            },
            figures={
                figures.key: {
                    label: {
                        key: ComparedValue(value=of.value, interval=of.interval)
                        for key, of in row.items()
                    }
                    for label, row in figures.values.items()
                }
                for figures in self.figures
            },
            differences=self.differences,
            provenance=self.provenance,
            caveats=tuple(self.caveats),
        )


def _rule_rows(rules: Mapping[str, RuleMetrics]) -> dict[str, Row]:
    """Returns the rows of rules; models that were validated on the same tasks share theirs."""
    distinct: dict[str, RuleMetrics] = {}
    for label, of in rules.items():
        if of and of not in distinct.values():
            distinct[label] = of
    return {
        f"{rule_label(rule)}{f' ({label})' if len(distinct) > 1 else ''}": {
            name: ComparedValue(value=value) for name, value in values.items()
        }
        for label, of in distinct.items()
        for rule, values in of.items()
    }


def _measured(figures: Figures) -> Figures:
    """Leaves out measures without any value."""
    has = {
        key
        for estimates in figures.values.values()
        for key, estimate in estimates.items()
        if estimate.value is not None
    }
    measures = {key: measure for key, measure in figures.measures.items() if key in has}
    values = {
        label: {key: estimate for key, estimate in estimates.items() if key in has}
        for label, estimates in figures.values.items()
    }
    return Figures(figures.key, figures.title, measures, values)


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


def _differing(values: Mapping[str, Mapping[str, Any]]) -> Values:
    """Returns the values, by key and label, of the keys that differ."""
    found = {key: _by_run(values, key) for key in _keys(values)}
    return {
        key: of
        for key, of in found.items()
        if len(of) < len(values) or any(value != next(iter(of.values())) for value in of.values())
    }


def _keys(values: Mapping[str, Mapping[str, Any]]) -> list[str]:
    return list(dict.fromkeys(key for of in values.values() for key in of))


def _by_run(values: Mapping[str, Mapping[str, Any]], key: str) -> dict[str, Any]:
    return {label: of[key] for label, of in values.items() if key in of}


def _within(key: str, section: str) -> bool:
    return key.startswith(f"{section}.")
