"""Finding runs and reading their records for a comparison.

Only files in the run directories are read, so a comparison needs neither Ray nor torch.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from raylab.annotation.report import COMPARED_FIGURES, AnnotationReport
from raylab.annotation.statistics.estimates import Estimate
from raylab.arc.records import EvaluationMetrics, PipelineMetrics, RuleScores, TrainingMetrics
from raylab.arc.sweep import SweepMetrics
from raylab.errors import DataError, RunError
from raylab.files import places_of
from raylab.grid_metrics import TEST, VALIDATION, RuleMetrics, skill
from raylab.quality.record import Quality
from raylab.report.charts.intervals import Measured
from raylab.report.comparison.compared import MODELS, SKILL, ComparedRun, ComparedValue, Comparison
from raylab.report.quality_section import known_figures
from raylab.report.tables import rule_label
from raylab.runs.records import Record
from raylab.runs.run import TRIALS, Run
from raylab.runs.run_record import RECORD, RunRecord

R = TypeVar("R", bound=Record)


def find_runs(given: Sequence[str], storage: str) -> dict[str, Run]:
    """Returns the named runs by distinct labels.

    Args:
        given: Names under `storage`, directories or URIs.
        storage: The directory of runs.

    Raises:
        RunError: There is no such run, or a run is given twice.
        DataError: The storage cannot be read.
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
    """Reads the records of runs by label; a run with an unusable file is listed with the reason."""
    found = Comparison()
    for label, run in runs.items():
        compared = ComparedRun(run.uri, None)
        try:
            compared = ComparedRun(run.uri, _read(run, RunRecord, f"it has no {RECORD}"))
            _read_run(found, label, run, compared)
        except (RunError, DataError) as error:
            compared = ComparedRun(run.uri, compared.record, str(error))
        found.runs[label] = compared
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


def _read_run(found: Comparison, label: str, run: Run, compared: ComparedRun) -> None:
    """Adds the records of a run to the comparison.

    Raises:
        RunError: It has no results, or a file that cannot be used.
        DataError: A file cannot be read.
    """
    if (read := READERS.get(compared.job or "")) is None:
        raise RunError(f"a run of {compared.job}, of which nothing can be compared")
    read(found, label, run, compared)


def _read(run: Run, kind: type[R], absent: str) -> R:
    """Reads a record.

    Raises:
        RunError: It is absent, with the message `absent`, or cannot be used.
    """
    if (record := run.read_record(kind)) is not None:
        return record
    if (run / kind.file).exists():
        raise RunError(f"its {kind.file} is of another schema version")
    raise RunError(absent)


def _read_training(found: Comparison, label: str, run: Run, compared: ComparedRun) -> None:
    _add_model(found, label, _read(run, TrainingMetrics, "no epoch is finished yet"))


def _read_pipeline(found: Comparison, label: str, run: Run, compared: ComparedRun) -> None:
    measured = (run / Quality.file).exists()
    if not measured or (run / PipelineMetrics.file).exists():
        pipeline = _read(run, PipelineMetrics, "no model is trained yet")
        for name, metrics in pipeline.models.items():
            _add_model(found, f"{label}/{name}", metrics)
    if measured:
        quality = _read(run, Quality, f"it has no {Quality.file} yet")
        found.benchmarks[label] = known_figures(quality)
        metric = compared.config.get("scoring.metric", "accuracy")
        scored = run.read_record(RuleScores)
        rules = {} if scored is None else scored.rules
        _add_scores(found, label, metric, quality.generations, rules)


def _read_sweep(found: Comparison, label: str, run: Run, compared: ComparedRun) -> None:
    unranked = "its trials are not ranked yet"
    sweep = _read(run, SweepMetrics, unranked)
    if not sweep.trials:
        raise RunError(unranked)
    best = sweep.trials[0].trial
    metrics = _read(Run.at(run / TRIALS / best), TrainingMetrics, f"no epoch of {best} is finished")
    _add_model(found, f"{label}/{best}", metrics)


def _read_evaluation(found: Comparison, label: str, run: Run, compared: ComparedRun) -> None:
    metrics = _read(run, EvaluationMetrics, "not every model is scored yet")
    _add_scores(found, label, metrics.metric, metrics.models, metrics.rules)


def _read_quality(found: Comparison, label: str, run: Run, compared: ComparedRun) -> None:
    quality = _read(run, Quality, f"it has no {Quality.file} yet")
    found.benchmarks[label] = known_figures(quality)


def _read_annotation(found: Comparison, label: str, run: Run, compared: ComparedRun) -> None:
    report = _read(run, AnnotationReport, f"it has no {AnnotationReport.file} yet")
    found.annotations[label] = {
        figure.path: _as_measured(figure.read(report)) for figure in COMPARED_FIGURES
    }


READERS: dict[str, Callable[[Comparison, str, Run, ComparedRun], None]] = {
    "train": _read_training,
    "pipeline": _read_pipeline,
    "tune": _read_sweep,
    "evaluate": _read_evaluation,
    "quality": _read_quality,
    "annotate": _read_annotation,
}
"""Readers of the records of a run, by its job."""


def _add_model(found: Comparison, label: str, metrics: TrainingMetrics) -> None:
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
        for rule, of in beside.items():
            named = {f"{prefix}{name}": value for name, value in of.items()}
            rules[rule] = rules.get(rule, {}) | named
    found.rules[label] = rules
    found.models[label] = {key: ComparedValue(value=row.get(key)) for key in MODELS}
    found.histories[label] = metrics.rows


def _add_scores(
    found: Comparison,
    label: str,
    metric: str,
    models: Mapping[str, Mapping[str, float]],
    rules: RuleMetrics,
) -> None:
    scores = found.scores.setdefault(metric, {})
    named = {rule_label(rule): of for rule, of in rules.items()}
    for model, accuracies in {**models, **named}.items():
        scores[f"{label}/{model}"] = {
            name: ComparedValue(value=of) for name, of in accuracies.items()
        }


def _as_measured(value: Estimate | float | None) -> Measured:
    """Returns an estimate unchanged, or a number as a figure without an interval."""
    return value if isinstance(value, Estimate) else ComparedValue(value=value)
