"""Runs of any kinds side by side: what they measured, how they were configured, what made them.

Only files that the runs left are read, so that a comparison needs neither Ray nor torch.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from raylab.annotation.report import COMPARED_FIGURES, AnnotationReport
from raylab.annotation.statistics.estimates import Estimate
from raylab.arc.records import EvaluationMetrics, PipelineMetrics, TrainingMetrics
from raylab.arc.sweep import SweepMetrics
from raylab.config.schema import flat
from raylab.errors import RunError
from raylab.files import places_of
from raylab.grid_metrics import GRID_METRICS, VALIDATION, label_of
from raylab.quality.metrics import METRICS as QUALITY_METRICS
from raylab.quality.record import QUALITY, Quality
from raylab.report.charts import History, Measured
from raylab.report.quality_section import known_figures
from raylab.runs.measures import Measure
from raylab.runs.run import RECORD, REPORT, TRIALS, Run

Json = Mapping[str, Any]


@dataclass(frozen=True)
class ComparedValue:
    """A figure of a run.

    Attributes:
        value: None where the run has none.
        interval: Low and high end at 95 %; None without one.
    """

    value: float | None
    interval: tuple[float, float] | None = None


Estimates = Mapping[str, Measured]
"""Figures by the key of their measure."""

ALWAYS_DIFFERENT = {"storage", "name", "resume", "log"}
"""Keys of a configuration that say nothing about what a run does."""


@dataclass(frozen=True)
class Figures:
    """Figures of one kind, side by side.

    Attributes:
        key: Names them in `report.json` and in the page.
        title: What they are.
        measures: By key.
        values: By what was measured, a run or a model of a run.
    """

    key: str
    title: str
    measures: Mapping[str, Measure]
    values: Mapping[str, Estimates]


MODELS = {
    **{
        f"{VALIDATION}{name}": Measure(
            metric.label, better="higher" if metric.higher_is_better else None
        )
        for name, metric in GRID_METRICS.items()
        if metric.compared
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


@dataclass(frozen=True)
class ComparedRun:
    """A run of the comparison.

    Attributes:
        uri: Where it is.
        record: Content of its `record.json`.
        problem: Why nothing of it can be compared; None if something can.
    """

    uri: str
    record: Json
    problem: str | None

    @property
    def job(self) -> str:
        """What kind of run it is."""
        return str(self.record.get("job"))

    @property
    def config(self) -> Json:
        """Values by their dotted keys, as JSON has them."""
        config = cast("dict[str, Any]", self.record.get("config") or {})
        return flat({key: of for key, of in config.items() if key not in ALWAYS_DIFFERENT})


@dataclass
class Comparison:
    """What several runs come to, by the label of each run.

    Attributes:
        runs: All of them.
        models: Figures of trained models.
        histories: Rows of the epochs of the same models.
        scores: By metric, the mean accuracy of scored models on each generation.
        benchmarks: The four figures of the quality of benchmarks.
        annotations: Figures of annotation runs, by their path in `report.json`.
    """

    runs: dict[str, ComparedRun] = field(default_factory=dict[str, ComparedRun])
    models: dict[str, Estimates] = field(default_factory=dict[str, Estimates])
    histories: dict[str, History] = field(default_factory=dict[str, History])
    scores: dict[str, dict[str, Estimates]] = field(default_factory=dict[str, dict[str, Estimates]])
    benchmarks: dict[str, Estimates] = field(default_factory=dict[str, Estimates])
    annotations: dict[str, Estimates] = field(default_factory=dict[str, Estimates])

    @property
    def figures(self) -> list[Figures]:
        """All figures that there are, by kind."""
        found = [Figures("models", "Trained models", MODELS, self.models)]
        for metric, scores in self.scores.items():
            names = dict.fromkeys(name for row in scores.values() for name in row)
            measures = {name: Measure(name) for name in names}
            title = f"Scores by generation: {label_of(metric)}"
            found.append(Figures(f"scores-{metric}", title, measures, scores))
        found.append(Figures("benchmarks", "Benchmark quality", BENCHMARKS, self.benchmarks))
        found.append(Figures("annotations", "Annotation", ANNOTATIONS, self.annotations))
        return [_measured(figures) for figures in found if figures.values]

    @property
    def differences(self) -> dict[str, dict[str, dict[str, Any]]]:
        """By job of two runs or more: values by key and run, of the keys that differ."""
        found: dict[str, dict[str, dict[str, Any]]] = {}
        for job, count in Counter(run.job for run in self.runs.values()).items():
            if count > 1:
                same = {label: run.config for label, run in self.runs.items() if run.job == job}
                found[job] = _differing(same)
        return found

    @property
    def provenance(self) -> dict[str, dict[str, Any]]:
        """Values by fact and run: job, times, host, commit, versions, configuration."""
        facts = {label: dict(_facts(run.record)) for label, run in self.runs.items()}
        return {key: _by_run(facts, key) for key in _keys(facts)}

    @property
    def caveats(self) -> list[str]:
        """What keeps figures of different runs from being compared."""
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

    def as_json(self) -> dict[str, Any]:
        """The content of `report.json`.

        Returns:
            `runs` by label with `uri`, `job`, `finished` and `problem`; `figures` by kind, what was
            measured, and measure, each with `value` and `interval`; `differences` and `provenance`
            as here; `caveats`.
        """
        return {
            "runs": {
                label: {
                    "uri": run.uri,
                    "job": run.job,
                    "finished": run.record.get("finished"),
                    "problem": run.problem,
                }
                for label, run in self.runs.items()
            },
            "figures": {
                figures.key: {
                    label: {key: _value_as_json(of) for key, of in estimates.items()}
                    for label, estimates in figures.values.items()
                }
                for figures in self.figures
            },
            "differences": self.differences,
            "provenance": self.provenance,
            "caveats": self.caveats,
        }


def find_runs(given: Sequence[str], storage: str) -> dict[str, Run]:
    """The runs that users name, by labels that tell them apart.

    Args:
        given: Names under `storage`, directories or URIs.
        storage: The directory of runs.

    Raises:
        RunError: There is no such run, or one is given twice.
        DataError: It cannot be told whether there is one.
        ConfigError: No filesystem opens a URI.
    """
    runs = [_find(text, storage) for text in given]
    for uri, count in Counter(run.uri for run in runs).items():
        if count > 1:
            raise RunError(f"run {uri} is given {count} times: name it once in runs=")
    names = Counter(run.name for run in runs)
    longer = Counter(_longer(run) for run in runs)
    labels = [
        run.name if names[run.name] == 1 else _longer(run) if longer[_longer(run)] == 1 else run.uri
        for run in runs
    ]
    return dict(zip(labels, runs, strict=True))


def compare(runs: Mapping[str, Run]) -> Comparison:
    """Reads what runs left.

    Args:
        runs: By label; each has a record.

    Raises:
        RunError: A file is no JSON object.
        DataError: A file cannot be read.
    """
    found = Comparison()
    for label, run in runs.items():
        record = run.read_json(RECORD) or {}
        read = READERS.get(str(record.get("job")))
        problem = (
            f"a run of {record.get('job')}, of which nothing can be compared"
            if read is None
            else read(found, label, run, record)
        )
        found.runs[label] = ComparedRun(run.uri, record, problem)
    return found


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


def _read_training(found: Comparison, label: str, run: Run, record: Json) -> str | None:
    return _add_model(found, label, run.read_record(TrainingMetrics))


def _read_pipeline(found: Comparison, label: str, run: Run, record: Json) -> str | None:
    pipeline = run.read_record(PipelineMetrics)
    models = {} if pipeline is None else pipeline.models
    for name, metrics in models.items():
        _add_model(found, f"{label}/{name}", metrics)
    if (quality := run.read_record(Quality)) is not None:
        found.benchmarks[label] = known_figures(quality)
        metric = record.get("config", {}).get("scoring", {}).get("metric", "accuracy")
        _add_scores(found, label, metric, quality.generations)
    return None if models or quality else "no model is trained yet"


def _read_sweep(found: Comparison, label: str, run: Run, record: Json) -> str | None:
    sweep = run.read_record(SweepMetrics)
    if sweep is None or not sweep.trials:
        return "its trials are not ranked yet"
    best = sweep.trials[0].trial
    metrics = Run.at(run / TRIALS / best).read_record(TrainingMetrics)
    return _add_model(found, f"{label}/{best}", metrics)


def _read_evaluation(found: Comparison, label: str, run: Run, record: Json) -> str | None:
    metrics = run.read_record(EvaluationMetrics)
    if metrics is None:
        return "not every model is scored yet"
    _add_scores(found, label, metrics.metric, metrics.models)
    return None


def _read_quality(found: Comparison, label: str, run: Run, record: Json) -> str | None:
    quality = run.read_record(Quality)
    if quality is None:
        return f"it has no {QUALITY} yet"
    found.benchmarks[label] = known_figures(quality)
    return None


def _read_annotation(found: Comparison, label: str, run: Run, record: Json) -> str | None:
    report = run.read_record(AnnotationReport)
    if report is None:
        return f"it has no {REPORT} yet"
    found.annotations[label] = {
        figure.path: _measured_value(figure.read(report)) for figure in COMPARED_FIGURES
    }
    return None


READERS: dict[str, Callable[[Comparison, str, Run, Json], str | None]] = {
    "train": _read_training,
    "pipeline": _read_pipeline,
    "tune": _read_sweep,
    "evaluate": _read_evaluation,
    "quality": _read_quality,
    "annotate": _read_annotation,
}
"""Each adds what a run left to the comparison, and tells why that is nothing."""


def _add_model(found: Comparison, label: str, metrics: TrainingMetrics | None) -> str | None:
    if metrics is None:
        return "no epoch is finished yet"
    row = {
        **metrics.best.row(),
        "parameters": metrics.parameters,
        "samples_per_second": metrics.last.samples_per_second,
    }
    found.models[label] = {key: ComparedValue(row.get(key)) for key in MODELS}
    found.histories[label] = metrics.rows
    return None


def _add_scores(
    found: Comparison, label: str, metric: str, models: Mapping[str, Mapping[str, float | None]]
) -> None:
    scores = found.scores.setdefault(metric, {})
    for model, accuracies in models.items():
        scores[f"{label}/{model}"] = {name: ComparedValue(of) for name, of in accuracies.items()}


def _measured_value(value: Estimate | float | None) -> Measured:
    """Returns an estimate as it is, a number without an interval."""
    return value if isinstance(value, Estimate) else ComparedValue(value)


def _value_as_json(figure: Measured) -> dict[str, Any]:
    return {"value": figure.value, "interval": figure.interval and list(figure.interval)}


def _measured(figures: Figures) -> Figures:
    """Without the measures that nothing has."""
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


def _facts(record: Json) -> Iterator[tuple[str, Any]]:
    for key in ("job", "id", "started", "finished", "host", "cpus"):
        yield key, record.get(key)
    git = record.get("git") or {}
    yield "commit", git.get("commit")
    yield "uncommitted changes", git.get("dirty")
    yield from (record.get("versions") or {}).items()
    yield "configuration", record.get("config_hash")


def _differing(values: Mapping[str, Json]) -> dict[str, dict[str, Any]]:
    """Values by key and label, of the keys that do not have the same value everywhere."""
    found = {key: _by_run(values, key) for key in _keys(values)}
    return {
        key: of
        for key, of in found.items()
        if len(of) < len(values) or any(value != next(iter(of.values())) for value in of.values())
    }


def _keys(values: Mapping[str, Json]) -> list[str]:
    return list(dict.fromkeys(key for of in values.values() for key in of))


def _by_run(values: Mapping[str, Json], key: str) -> dict[str, Any]:
    return {label: of[key] for label, of in values.items() if key in of}


def _within(key: str, section: str) -> bool:
    return key.startswith(f"{section}.")
