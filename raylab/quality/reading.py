"""Reading of the score files of a unit into sums, which are all that leaves the reading task."""

import io
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import BinaryIO, cast

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from raylab.config.jobs import QualityConfig
from raylab.files import Place
from raylab.quality.intervals import chunk_weights
from raylab.quality.record import SkippedFile
from raylab.quality.trees import ScoreTree, Unit, lasting_fault, score_files
from raylab.runs.eval_logs import read_score

CHUNK = 256
"""Number of files whose weights are added at once."""

Array = NDArray[np.float64]


@dataclass(frozen=True)
class UnitScores:
    """Sums over the files of a unit, or over the items of a model in a generation.

    Attributes:
        unit: The directory.
        count: Number of files, or items, with an accuracy.
        total: Sum of their accuracies, rounded once.
        skipped: The files and directories that cannot be used, by path.
        weighted: (replicates,) sums of weight times accuracy; those of a prior are empty.
        weights: (replicates,) sums of the weights.
    """

    unit: Unit
    count: int
    total: float
    skipped: tuple[SkippedFile, ...]
    weighted: Array
    weights: Array

    @property
    def read(self) -> int:
        """Number of files, and of directories that cannot be read."""
        return self.count + len(self.skipped)


def read_unit(unit: Unit, config: QualityConfig) -> UnitScores:
    """Reads the files of a unit.

    A file's key for the bootstrap is its path below its unit, so a task with the same path for all
    models and generations is drawn for all of them together. Priors are not drawn anew: novelty,
    which alone reads them, has no interval.

    Args:
        unit: Unit to read.
        config: Metric and scorer to read, and the number of bootstrap replicates.

    Raises:
        DataError: The directory is missing on the machine where this runs.
        OSError: A file or directory cannot be read for the moment.
    """
    accuracies: dict[str, float] = {}
    skipped: list[SkippedFile] = []
    settings = config.quality_eval_cfg
    for name, outcome in read_files(unit, settings.metric, settings.scorer):
        if isinstance(outcome, str):
            skipped.append(SkippedFile(path=_shown(f"{unit.path}/{name}"), reason=outcome))
        else:
            accuracies[name] = outcome
    weighted, weights = _weigh(unit, accuracies, 0 if unit.tree else config.bootstrap)
    total = math.fsum(accuracies.values())
    return UnitScores(unit, len(accuracies), total, tuple(skipped), weighted, weights)


def _shown(path: str) -> str:
    """Returns a path whose names may hold bytes that are no text."""
    return os.fsencode(path).decode(errors="backslashreplace")


def read_files(
    unit: Unit, metric: str = "accuracy", scorer: str | None = None
) -> Iterator[tuple[str, float | str]]:
    """Yields the path of each score file of a unit with its accuracy, or why it has none.

    The path of a directory that cannot be read ends with a slash.

    Args:
        unit: Unit to read.
        metric: Metric to read, as `read_score` does.
        scorer: Score to read, likewise.

    Raises:
        DataError: The directory is missing on the machine where this runs.
        OSError: A file or directory cannot be read for the moment.
    """
    root = Place.at(unit.location)
    for name, fault in score_files(unit).items():
        yield name, fault or _score_in(root, f"{unit.path}/{name}", metric, scorer)


def _score_in(root: Place, path: str, metric: str, scorer: str | None) -> float | str:
    if root.is_local and not os.path.isfile(path):
        return "no file, or a link to nothing"
    try:
        with io.FileIO(path) if root.is_local else root.filesystem.open_input_file(path) as file:
            return read_score(cast(BinaryIO, file), path, metric, scorer)
    except OSError as error:
        return lasting_fault(error)


def sum_responses(
    tree: ScoreTree,
    number: int,
    table: pd.DataFrame,
    left_out: Sequence[SkippedFile],
    replicates: int,
) -> list[UnitScores]:
    """Adds up the scores of a `NAMED` tree over items, as `read_unit` does over files.

    Args:
        tree: The tree.
        number: Its number.
        table: A row for each response, with `model`, `generation`, `item`, `score` and the item's
            `weight`; several of one cell are averaged.
        left_out: What does not count.
        replicates: Bootstrap replicates; priors are not drawn anew.
    """
    wide = table.pivot_table("score", ["model", "generation"], "item", observed=True)
    weight = table.drop_duplicates("item").set_index("item")["weight"].reindex(wide.columns)
    values, importance = wide.to_numpy(), weight.to_numpy(float)
    counts, shares = (~np.isnan(values)).sum(axis=1), ~np.isnan(values) * importance
    sums = np.nan_to_num(values) * importance
    weighted, weights = np.zeros((2, len(wide), 0 if number else replicates))
    keys = [f"{number}/{item}" for item in wide.columns]
    for start in range(0, len(keys) if weights.size else 0, CHUNK):
        chunk = slice(start, start + CHUNK)
        drawn, _ = chunk_weights(tuple(keys[chunk]), replicates)
        weighted += sums[:, chunk] @ drawn
        weights += shares[:, chunk] @ drawn
    totals = sums.sum(axis=1) / shares.sum(axis=1) * counts
    units = [
        Unit(tree.location, number, str(model), str(generation), tree.location)
        for model, generation in wide.index
    ]
    skipped = [tuple(left_out), *[()] * len(units)]
    columns = units, counts.tolist(), totals.tolist(), skipped, weighted, weights
    return [UnitScores(*values) for values in zip(*columns, strict=False)]


def _weigh(unit: Unit, accuracies: Mapping[str, float], replicates: int) -> tuple[Array, Array]:
    """Returns (replicates,) sums of weight times accuracy, and of the weights."""
    weighted, weights = np.zeros(replicates), np.zeros(replicates)
    if replicates:
        keys, values = [f"{unit.tree}/{name}" for name in accuracies], list(accuracies.values())
        for start in range(0, len(keys), CHUNK):
            drawn, sums = chunk_weights(tuple(keys[start : start + CHUNK]), replicates)
            weighted += np.asarray(values[start : start + CHUNK]) @ drawn
            weights += sums
    return weighted, weights
