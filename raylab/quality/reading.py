"""Reading of score trees into partial sums.

The files of a unit are listed by the task that reads them, which returns only sums.
"""

import errno
import io
import math
import os
import platform
import posixpath
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import BinaryIO, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray
from pyarrow import fs

from raylab.bounded import over
from raylab.errors import DataError
from raylab.files import Place
from raylab.quality.intervals import chunk_weights
from raylab.quality.record import SkippedFile
from raylab.quality.trees import Unit, is_visible
from raylab.runs.eval_logs import SUFFIXES, ScoreChoice, read_score

LISTED_FILES = 100
"""Most skipped files of a unit that are named; all are counted."""
LISTED_REASONS = 20
"""Most kinds of reasons of a unit that are counted apart."""
CHUNK = 256
"""Number of files whose weights are added at once."""
MOST_ENTRIES = 2_000_000
"""Most entries of a unit's directories; links can multiply a few of them without end."""
MOST_DEPTH = 100
"""Most directories within each other."""
OF_THE_FILE = frozenset(
    {
        errno.EACCES,
        errno.EINVAL,
        errno.EISDIR,
        errno.ELOOP,
        errno.ENAMETOOLONG,
        errno.ENODEV,
        errno.ENOENT,
        errno.ENOTDIR,
        errno.ENXIO,
        errno.EPERM,
    }
)
"""Errors that are about one file and stay; others may pass, and end the reading."""

Array = NDArray[np.float64]


class _File(NamedTuple):
    """A score file, or something in its place.

    Attributes:
        name: Path below the unit's directory.
        fault: The reason why it cannot even be opened; empty if it can.
    """

    name: str
    fault: str = ""


@dataclass
class UnitScores:
    """Sums over the files of a unit.

    Attributes:
        unit: The directory.
        count: Number of files with an accuracy.
        total: Sum of their accuracies, rounded once.
        read: Number of files opened.
        skipped: Number of files that cannot be used.
        hidden: Number of score files and directories whose names hide them.
        reasons: Number of the skipped files by kind of reason.
        listed: The first of the skipped files by path.
        weighted: (replicates,) sums of weight times accuracy; those of a prior are empty.
        weights: (replicates,) sums of the weights.
    """

    unit: Unit
    count: int = 0
    total: float = 0.0
    read: int = 0
    skipped: int = 0
    hidden: int = 0
    reasons: Counter[str] = field(default_factory=Counter[str])
    listed: list[SkippedFile] = field(default_factory=list[SkippedFile])
    weighted: Array = field(default_factory=lambda: np.zeros(0))
    weights: Array = field(default_factory=lambda: np.zeros(0))

    def skip(self, path: str, reason: str) -> None:
        """Counts a file that cannot be used."""
        self.skipped += 1
        kind = reason.partition(":")[0]
        listed = kind in self.reasons or len(self.reasons) < LISTED_REASONS
        self.reasons[kind if listed else "other reasons"] += 1
        if self.skipped <= LISTED_FILES:
            # A name may hold bytes that are no text.
            shown = os.fsencode(path).decode(errors="backslashreplace")
            self.listed.append(SkippedFile(path=shown, reason=reason))

    def add_weights(self, names: Sequence[str], accuracies: Sequence[float]) -> None:
        """Adds the bootstrap's weights of files by their paths below the unit."""
        keys = [f"{self.unit.tree}/{name}" for name in names]
        for start in range(0, len(keys), CHUNK):
            chunk = tuple(keys[start : start + CHUNK])
            weights, sums = chunk_weights(chunk, len(self.weights))
            self.weighted += np.asarray(accuracies[start : start + CHUNK]) @ weights
            self.weights += sums


def read_unit(unit: Unit, replicates: int = 0, choice: ScoreChoice | None = None) -> UnitScores:
    """Reads the files of a unit.

    A file's key for the bootstrap is its path below its unit, so a task with the same path for all
    models and generations is drawn for all of them together. Priors are not drawn anew: novelty,
    which alone reads them, has no interval.

    Args:
        unit: Unit to read.
        replicates: Number of bootstrap replicates; see `raylab.quality.intervals`.
        choice: What is read of each log; None reads the accuracy of its first score.

    Raises:
        DataError: The directory is missing on the machine where this runs, or holds too many
            entries.
        OSError: A file or directory cannot be read for the moment.
    """
    root = Place.at(unit.location)
    replicates = 0 if unit.is_prior else replicates
    scores = UnitScores(unit, weighted=np.zeros(replicates), weights=np.zeros(replicates))
    names: list[str] = []
    accuracies: list[float] = []
    for file in _files(root, scores):
        scores.read += 1
        path = f"{unit.path}/{file.name}"
        outcome = _read_file(root, path, file.fault, choice)
        if isinstance(outcome, str):
            scores.skip(path, outcome)
        else:
            names.append(file.name)
            accuracies.append(outcome)
    scores.count, scores.total = len(accuracies), math.fsum(accuracies)
    if replicates:
        scores.add_weights(names, accuracies)
    return scores


def read_files(unit: Unit) -> Iterator[tuple[str, float | str]]:
    """Yields the path of each score file of a unit with its accuracy, or why it has none.

    Raises:
        DataError: The directory is missing, or holds too many entries.
        OSError: A file or directory cannot be read for the moment.
    """
    root = Place.at(unit.location)
    for file in _files(root, UnitScores(unit)):
        yield file.name, _read_file(root, f"{unit.path}/{file.name}", file.fault, None)


def holds_files(unit: Unit) -> bool:
    """Returns True if a score file lies in a unit, hidden or unusable ones included.

    Raises:
        DataError: It holds too many entries.
    """
    scores, root = UnitScores(unit), Place.at(unit.location)
    try:
        files = _Walk(scores).files(unit.path, "") if root.is_local else _files(root, scores)
        return any(True for _ in files) or scores.hidden > 0
    except OSError:
        # Reading the unit reports what cannot be read, with the reason.
        return True


def _read_file(root: Place, path: str, fault: str, choice: ScoreChoice | None) -> float | str:
    """Returns the accuracy or the reason why there is none."""
    if fault:
        return fault
    try:
        if root.is_local:
            with io.FileIO(path) as file:
                return read_score(file, path, choice)
        with root.filesystem.open_input_file(path) as remote:
            return read_score(cast(BinaryIO, remote), path, choice)
    except OSError as error:
        return _fault(error)


def _fault(error: OSError) -> str:
    """Returns the reason why a file cannot be read.

    Raises:
        OSError: The error may pass.
    """
    if error.errno not in OF_THE_FILE and not isinstance(
        error, FileNotFoundError | PermissionError
    ):
        raise error
    return f"cannot be read ({error.strerror or error})"


def _files(root: Place, scores: UnitScores) -> list[_File]:
    """Returns the score files of a unit by path, and counts the hidden ones."""
    unit = scores.unit
    try:
        if root.is_local:
            return sorted(_Walk(scores).files(unit.path, ""))
        selector = fs.FileSelector(unit.path, recursive=True)
        infos = root.filesystem.get_file_info(selector)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise DataError(
            f"{unit.path} is not there on {platform.node()}: with several machines the scores must "
            "lie on storage that all of them see, and must not be moved during the run"
        ) from error
    except OSError as error:
        return [_File("", _fault(error))]
    files: list[_File] = []
    for info in infos:
        name = posixpath.relpath(info.path, unit.path)
        if info.is_file and name.endswith(SUFFIXES):
            if all(map(is_visible, name.split("/"))):
                files.append(_File(name))
            else:
                scores.hidden += 1
    return sorted(files)


class _Walk:
    """The way through the directories of a unit on this machine."""

    def __init__(self, scores: UnitScores) -> None:
        self._scores = scores
        self._above: set[tuple[int, int]] = set()
        self._entries = 0

    def files(self, directory: str, prefix: str) -> Iterator[_File]:
        """Yields score files at any depth; does not follow a link to a directory above itself."""
        status = os.stat(directory)
        identity = (status.st_dev, status.st_ino)
        if identity in self._above:
            return
        if len(self._above) > MOST_DEPTH:
            yield _File(prefix, f"more than {MOST_DEPTH} directories within each other")
            return
        self._above.add(identity)
        with os.scandir(directory) as entries:
            for entry in entries:
                self._entries += 1
                if self._entries > MOST_ENTRIES:
                    raise over(self._scores.unit.path, "files and directories", MOST_ENTRIES)
                yield from self._of_entry(entry, prefix + entry.name)
        self._above.remove(identity)

    def _of_entry(self, entry: "os.DirEntry[str]", name: str) -> Iterator[_File]:
        is_score = entry.name.endswith(SUFFIXES)
        try:
            if entry.name.startswith("."):
                self._scores.hidden += is_score or entry.is_dir()
            elif is_score and entry.is_file():
                yield _File(name)
            elif entry.is_dir():
                yield from self.files(entry.path, f"{name}/")
            elif is_score:
                link = entry.is_symlink()
                yield _File(name, "a link to nothing" if link else "not a regular file")
        except OSError as error:
            yield _File(name, _fault(error))
