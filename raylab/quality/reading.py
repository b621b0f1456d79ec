"""Reading of score trees into partial sums.

The files of a unit are listed by the task that reads them, which returns only sums.
"""

import io
import math
import os
import platform
import posixpath
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import BinaryIO, cast

import numpy as np
from numpy.typing import NDArray
from pyarrow import fs

from raylab.errors import DataError
from raylab.files import Place
from raylab.quality.cache import CacheFile, Entry, by_shard, cache_key
from raylab.quality.record import SkippedFile
from raylab.quality.trees import Unit, is_visible
from raylab.quality.weights import chunk_weights
from raylab.runs.eval_logs import SUFFIXES, read_score

SETTLED_NANOSECONDS = 2_000_000_000
"""Age in ns below which a file may change again without a new time stamp."""
LISTED_FILES = 100
"""Most skipped files of a unit that are named; all are counted."""
CHUNK = 256
"""Number of files whose weights are added at once."""
TASKS_PER_CPU = 4
"""Enough for an even load, few enough that starting them costs nothing."""
UNITS_PER_TASK = 64
"""Most units per task, so that large trees show progress."""

Array = NDArray[np.float64]
File = tuple[str, int, int]
"""Path below the unit's directory, size, and time of change in ns."""


@dataclass
class UnitScores:
    """Sums over the files of a unit.

    Attributes:
        unit: The directory.
        count: Number of files with an accuracy.
        total: Sum of their accuracies, rounded once.
        read: Number of files opened.
        cached: Number of files known from the cache.
        skipped: Number of files that cannot be used.
        listed: The first of these by path.
        weighted: (replicates,) sums of weight times accuracy.
        weights: (replicates,) sums of the weights.
    """

    unit: Unit
    count: int = 0
    total: float = 0.0
    read: int = 0
    cached: int = 0
    skipped: int = 0
    listed: list[SkippedFile] = field(default_factory=list[SkippedFile])
    weighted: Array = field(default_factory=lambda: np.zeros(0))
    weights: Array = field(default_factory=lambda: np.zeros(0))


def read_units(
    units: Sequence[Unit], cache: str | None = None, replicates: int = 0
) -> list[UnitScores]:
    """Reads the files of some units. Memory grows only with the files of one cache shard.

    A file's key for the bootstrap is its path below its unit, so a task with the same path for all
    models and generations is drawn for all of them together. Trees are drawn independently.

    Args:
        units: Units to read.
        cache: Path or URI of the storage whose score cache is used; None reads every file.
        replicates: Number of bootstrap replicates; see `raylab.quality.weights`.

    Raises:
        DataError: A directory is missing on the machine where this runs.
        OSError: A file or directory cannot be read, perhaps only for the moment.
    """
    if cache is None:
        return [_read_unit(unit, {}, replicates)[0] for unit in units]
    done: list[UnitScores] = []
    for shard, members in by_shard(units).items():
        file = CacheFile(cache, shard)
        known = file.read()
        found = dict(known)
        for unit in members:
            key = cache_key(unit)
            scores, found[key] = _read_unit(unit, known.get(key, {}), replicates)
            done.append(scores)
        if found != known:
            file.write(found)
    return done


def task_groups(units: Sequence[Unit], cpus: int) -> list[list[Unit]]:
    """Divides units among the tasks that read them on this many CPUs."""
    return groups_of(units, max(TASKS_PER_CPU * cpus, math.ceil(len(units) / UNITS_PER_TASK)))


def groups_of(units: Sequence[Unit], groups: int) -> list[list[Unit]]:
    """Divides units into at most `groups` groups of similar size; a shard stays in one group."""
    dealt: list[list[Unit]] = [[] for _ in range(min(groups, len(units)))]
    for members in sorted(by_shard(units).values(), key=len, reverse=True):
        min(dealt, key=len).extend(members)
    return [group for group in dealt if group]


def _read_unit(
    unit: Unit, known: Mapping[str, Entry], replicates: int
) -> tuple[UnitScores, dict[str, Entry]]:
    """Returns the sums of a unit, and the cache entries of its files."""
    root = Place.at(unit.location)
    scores = UnitScores(unit, weighted=np.zeros(replicates), weights=np.zeros(replicates))
    settled = time.time_ns() - SETTLED_NANOSECONDS
    names: list[str] = []
    accuracies: list[float] = []
    entries: dict[str, Entry] = {}
    for name, size, changed in _files(root.filesystem, unit):
        path = f"{unit.path}/{name}"
        entry = known.get(name)
        if entry is not None and entry[0] == size and entry[1] == changed:
            scores.cached += 1
            outcome = entry[2]
            entries[name] = entry
        else:
            scores.read += 1
            outcome = _read_local(path) if root.is_local else _read_remote(root.filesystem, path)
            if changed < settled:
                entries[name] = (size, changed, outcome)
        if isinstance(outcome, str):
            scores.skipped += 1
            if scores.skipped <= LISTED_FILES:
                scores.listed.append(SkippedFile(path=path, reason=outcome))
        else:
            names.append(name)
            accuracies.append(outcome)
    scores.count, scores.total = len(accuracies), math.fsum(accuracies)
    if replicates:
        _add_weights(scores, [f"{unit.tree}/{name}" for name in names], accuracies)
    return scores, entries


def _read_local(path: str) -> float | str:
    try:
        with io.FileIO(path) as file:
            return read_score(file, path)
    except (FileNotFoundError, PermissionError) as error:
        return f"cannot be read: {error.strerror}"


def _read_remote(filesystem: fs.FileSystem, path: str) -> float | str:
    try:
        with filesystem.open_input_file(path) as file:
            return read_score(cast(BinaryIO, file), path)
    except (FileNotFoundError, PermissionError) as error:
        return f"cannot be read: {error}"


def _files(filesystem: fs.FileSystem, unit: Unit) -> list[File]:
    """Returns the score files of a unit, by path."""
    try:
        if isinstance(filesystem, fs.LocalFileSystem):
            return sorted(_walk(unit.path, "", set()))
        selector = fs.FileSelector(unit.path, recursive=True)
        infos = filesystem.get_file_info(selector)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise DataError(
            f"{unit.path} is not there on {platform.node()}: with several machines the scores must "
            "lie on storage that all of them see, and must not be moved during the run"
        ) from error
    names = {posixpath.relpath(info.path, unit.path): info for info in infos if info.is_file}
    return sorted(
        (name, info.size, info.mtime_ns or 0)
        for name, info in names.items()
        if name.endswith(SUFFIXES) and all(map(is_visible, name.split("/")))
    )


def _walk(directory: str, prefix: str, above: set[tuple[int, int]]) -> Iterator[File]:
    """Yields score files at any depth; does not follow a link to a directory above itself."""
    status = os.stat(directory)
    identity = (status.st_dev, status.st_ino)
    if identity in above:
        return
    with os.scandir(directory) as entries:
        for entry in entries:
            name = entry.name
            if name.startswith("."):
                continue
            if name.endswith(SUFFIXES) and entry.is_file():
                status = entry.stat()
                yield prefix + name, status.st_size, status.st_mtime_ns
            elif entry.is_dir():
                yield from _walk(entry.path, f"{prefix}{name}/", above | {identity})


def _add_weights(scores: UnitScores, keys: Sequence[str], accuracies: Sequence[float]) -> None:
    for start in range(0, len(keys), CHUNK):
        weights, sums = chunk_weights(tuple(keys[start : start + CHUNK]), len(scores.weights))
        scores.weighted += np.asarray(accuracies[start : start + CHUNK]) @ weights
        scores.weights += sums
