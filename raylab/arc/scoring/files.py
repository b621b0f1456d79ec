"""The files of units in a run: finding the missing ones, reading and writing score trees."""

import statistics
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Any, TypeVar

from raylab.arc.scoring.evaluation import UnitScore
from raylab.arc.scoring.plan import ModelOnGeneration, Scoring, unit_file
from raylab.core.errors import RunError
from raylab.core.runs.eval_logs import EvalLog, read_score

FILE_THREADS = 16
R = TypeVar("R")
Missing = Mapping[ModelOnGeneration, tuple[str, ...]]
"""Units or tasks without a file, by incomplete pair of model and generation."""


def in_threads(function: Callable[..., R], *arguments: Iterable[Any]) -> list[R]:
    """Returns the results of a function that reads or writes a file, in the order of the calls."""
    with ThreadPoolExecutor(FILE_THREADS) as threads:
        return list(threads.map(function, *arguments))


def missing_units(scoring: Scoring, folder: str, units: Iterable[str]) -> Missing:
    """Returns the units or tasks that have no file in a folder of the run."""
    tree, units = scoring.tree, tuple(units)
    present = {file.path for file in (tree / folder).files("**/*.json")}
    missing = {
        pair: tuple(u for u in units if (tree / unit_file(folder, pair, u)).path not in present)
        for pair in scoring.plan.pairs
    }
    return {pair: lacking for pair, lacking in missing.items() if lacking}


def read_accuracy(scoring: Scoring, pair: ModelOnGeneration) -> float:
    """Returns the mean accuracy of a pair over the files of all its units."""

    def read(unit: str) -> float:
        place = scoring.tree / unit_file(scoring.subdir, pair, unit)
        with place.reader() as file:
            accuracy = read_score(file, place.name)
        if isinstance(accuracy, str):
            raise RunError(
                f"{place} cannot be used ({accuracy}): remove it, and resume=true writes it again"
            )
        return accuracy

    return statistics.fmean(in_threads(read, scoring.plan.units))


def write_scores(
    scoring: Scoring, pair: ModelOnGeneration, scores: Mapping[str, UnitScore]
) -> None:
    """Writes a file for each unit."""
    created = datetime.now(UTC).isoformat(timespec="seconds")
    plan, metric = scoring.plan, scoring.plan.scoring.metric

    def write(unit: str, score: UnitScore) -> None:
        errors = {f"{name}_stderr": error for name, error in score.standard_errors.items()}
        metrics = {"accuracy": score.metrics[metric], **score.metrics, **errors}
        if metric in score.standard_errors:
            metrics["stderr"] = score.standard_errors[metric]
        log = EvalLog(
            model=pair[0],
            task=unit,
            dataset=pair[1],
            samples=score.grids,
            metrics=metrics,
            created=created,
            run_id=scoring.tree.id,
            metadata={
                "metric": metric,
                "unit": plan.scoring.unit,
                "tasks": plan.units[unit],
                "checkpoint": scoring.models[pair[0]],
            },
        )
        scoring.tree.write_record(log, unit_file(scoring.subdir, pair, unit))

    in_threads(write, scores.keys(), scores.values())
