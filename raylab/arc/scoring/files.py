"""The files of a score tree: which are missing, the accuracies in the others, and new ones."""

from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime

from raylab.arc.scoring.evaluation import UnitScore
from raylab.arc.scoring.plan import ModelOnGeneration, Scoring
from raylab.errors import RunError
from raylab.runs.eval_logs import EvalLog, read_score

FILE_THREADS = 16

Missing = Mapping[ModelOnGeneration, tuple[str, ...]]
"""Units or tasks without a file, by pair of model and generation; complete pairs are left out."""
UnitAccuracies = dict[ModelOnGeneration, dict[str, float]]
"""Accuracy of every unit with a file, by pair of model and generation."""


def missing_units(scoring: Scoring) -> Missing:
    """Returns the units that have no file yet.

    Raises:
        DataError: The tree cannot be listed.
    """
    return without_file(scoring, scoring.subdir, scoring.file, scoring.plan.units)


def without_file(
    scoring: Scoring,
    folder: str,
    file_of: Callable[[ModelOnGeneration, str], str],
    names: Iterable[str],
) -> Missing:
    """Returns which of `names` have no `file_of` them in a folder of the run.

    Raises:
        DataError: The folder cannot be listed.
    """
    tree, names = scoring.tree, tuple(names)
    present = {file.path for file in (tree / folder).files("**/*.json")}
    missing = {
        pair: tuple(name for name in names if (tree / file_of(pair, name)).path not in present)
        for pair in scoring.plan.pairs
    }
    return {pair: lacking for pair, lacking in missing.items() if lacking}


def read_accuracies(scoring: Scoring, missing: Missing) -> UnitAccuracies:
    """Returns the accuracies in the existing files; every pair has an entry.

    Raises:
        RunError: A file holds no usable score.
        DataError: A file cannot be read.
    """
    plan = scoring.plan
    wanted = [
        (pair, unit)
        for pair in plan.pairs
        for unit in sorted(plan.units.keys() - set(missing.get(pair, ())))
    ]
    accuracies: UnitAccuracies = {pair: {} for pair in plan.pairs}
    with ThreadPoolExecutor(FILE_THREADS) as threads:
        values = threads.map(lambda place: _accuracy_in(scoring, *place), wanted)
        for (pair, unit), value in zip(wanted, values, strict=True):
            accuracies[pair][unit] = value
    return accuracies


def write_scores(
    scoring: Scoring, pair: ModelOnGeneration, scores: Mapping[str, UnitScore]
) -> dict[str, float]:
    """Writes a file for each unit; returns their accuracies.

    Raises:
        RunError: A file cannot be written.
    """
    created = datetime.now(UTC).isoformat(timespec="seconds")
    metric = scoring.plan.scoring.metric

    def write(unit: str, score: UnitScore) -> None:
        log = EvalLog(
            model=pair[0],
            task=unit,
            dataset=pair[1],
            samples=score.grids,
            metrics=_logged_metrics(score, metric),
            created=created,
            run_id=scoring.tree.id,
            metadata={
                "metric": metric,
                "unit": scoring.plan.scoring.unit,
                "tasks": scoring.plan.units[unit],
                "checkpoint": scoring.plan.models[pair[0]].checkpoint,
            },
        )
        scoring.tree.write_record(log, scoring.file(pair, unit))

    with ThreadPoolExecutor(FILE_THREADS) as threads:
        list(threads.map(write, scores.keys(), scores.values()))
    return {unit: score.metrics[metric] for unit, score in scores.items()}


def _accuracy_in(scoring: Scoring, pair: ModelOnGeneration, unit: str) -> float:
    name = scoring.file(pair, unit)
    with (scoring.tree / name).opened() as file:
        accuracy = read_score(file, name)
    if isinstance(accuracy, str):
        raise RunError(
            f"{scoring.tree / name} cannot be used ({accuracy}): remove it, and resume=true writes "
            "it again"
        )
    return accuracy


def _logged_metrics(score: UnitScore, chosen: str) -> dict[str, float]:
    """Returns all metrics by name, and the `chosen` one as `accuracy` and `stderr` too."""
    errors = {f"{name}_stderr": error for name, error in score.standard_errors.items()}
    logged = {"accuracy": score.metrics[chosen], **score.metrics, **errors}
    if chosen in score.standard_errors:
        logged["stderr"] = score.standard_errors[chosen]
    return logged
