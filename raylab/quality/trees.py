"""Score trees: finding models and generations, and reading their files into partial aggregates.

A tree is `root/<model>/<generation>/**` or `root/<model>/**`, of `.json` and `.eval` logs; names
that start with a dot are passed over. A unit is one generation of a model, or a model without
generations. Its files are listed where they are read, and only sums come back of them.
"""

import functools
import hashlib
import io
import logging
import math
import os
import platform
import posixpath
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import BinaryIO, cast

import msgspec
import numpy as np
from numpy.typing import NDArray
from pyarrow import fs

from raylab.config.quality import Layout
from raylab.errors import DataError, RunError
from raylab.files import Place
from raylab.quality.logs import SUFFIXES, read_score

CACHE_DIRECTORY = ".score-cache"
CACHE_FORMAT = 1
"""Part of a cache file's name, so that another format never reads it."""
SETTLED_NANOSECONDS = 2_000_000_000
"""A file that changed later than this before it was read may change again within its time stamp."""
SHARDS = 64
"""Files of the score cache; units that share one are read by one task."""
LISTED_FILES = 100
"""Skipped files of a unit that are named; all are counted."""
LISTING_THREADS = 16
DRAW_LEVELS = 1 << 16
"""Values of the two bytes that draw a weight."""
REMEMBERED_WEIGHTS = 1 << 13
REMEMBERED_CHUNKS = 16
CHUNK = 256
"""Files whose weights are added at once."""

LOGGER = logging.getLogger(__name__)

Array = NDArray[np.float64]
File = tuple[str, int, int]
"""Path below the unit's directory, size, and time of change in ns."""
Entry = tuple[int, int, float | str]
"""Size, time of change in ns, and accuracy or why there is none."""


@dataclass(frozen=True)
class Unit:
    """A directory whose files are averaged.

    Attributes:
        location: The tree's root, as configured.
        tree: The tree's number, 0 for the benchmark and then the priors.
        model: Model name.
        generation: Generation name, empty if the tree has none.
        path: The directory within the root's filesystem.
    """

    location: str
    tree: int
    model: str
    generation: str
    path: str


@dataclass(frozen=True)
class ScoreTree:
    """What a root holds.

    Attributes:
        location: The root, as configured.
        layout: `GENERATIONS` or `FLAT`.
        reason: Why it is taken for that.
        units: By model, then generation.
        beside: Score files directly under a model with generations, which count for nothing.
    """

    location: str
    layout: Layout
    reason: str
    units: tuple[Unit, ...]
    beside: int


@dataclass(frozen=True)
class Skipped:
    """A file that cannot be used."""

    path: str
    reason: str


@dataclass
class UnitScores:
    """What the files of a unit came to.

    Attributes:
        unit: Which unit.
        count: Files with an accuracy.
        total: Sum of their accuracies, rounded once.
        read: Files that were opened.
        cached: Files that were known already.
        skipped: Files that cannot be used.
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
    listed: list[Skipped] = field(default_factory=list[Skipped])
    weighted: Array = field(default_factory=lambda: np.zeros(0))
    weights: Array = field(default_factory=lambda: np.zeros(0))


@dataclass(frozen=True)
class _Model:
    name: str
    path: str
    directories: tuple[str, ...]
    """Names of the subdirectories."""
    files: int
    """Score files directly under the model."""


def find_trees(root: str, priors: Sequence[str], layout: Layout) -> list[ScoreTree]:
    """The models and generations of a benchmark's tree and of those of the priors, in this order.

    A directory that is, or holds, the root of another of these trees is not taken for a model.

    Args:
        root: Path or URI with one directory a model.
        priors: The same for earlier benchmarks.
        layout: How the trees are laid out; `AUTO` is decided for each.

    Raises:
        DataError: A root is missing or holds no models, or a model holds no generations.
        ConfigError: No filesystem opens a URI.
    """
    locations = [root, *priors]
    return [_find_tree(place, i, locations, layout) for i, place in enumerate(locations)]


def read_units(
    units: Sequence[Unit], cache: str | None = None, replicates: int = 0
) -> list[UnitScores]:
    """Reads the files of some units. Memory grows with the files of one shard of the cache alone.

    The bootstrap is Poisson's (Oza and Russell 2001; Chamandy et al. 2012, "Estimating uncertainty
    for massive data streams"): in each replicate a file counts as often as a Poisson(1) draw says.
    The draw is a hash of the file's path below its unit, so a task that has the same path for all
    models and generations is drawn for all of them together, wherever each of them is read. Each
    tree draws on its own.

    Args:
        units: What to read.
        cache: Path or URI of the storage whose score cache is used; None reads every file.
        replicates: Replicates of the bootstrap.

    Raises:
        DataError: A directory is not there, on the machine where this runs.
        OSError: A file or directory cannot be read, which may pass.
    """
    if cache is None:
        return [_read_unit(unit, {}, replicates)[0] for unit in units]
    done: list[UnitScores] = []
    for shard, members in _by_shard(units).items():
        file = _CacheFile(cache, shard)
        known = file.read()
        found = dict(known)
        for unit in members:
            key = _cache_key(unit)
            scores, found[key] = _read_unit(unit, known.get(key, {}), replicates)
            done.append(scores)
        if found != known:
            file.write(found)
    return done


def groups_of(units: Sequence[Unit], groups: int) -> list[list[Unit]]:
    """Deals units out to at most `groups` groups of like size, keeping a shard's units together."""
    dealt: list[list[Unit]] = [[] for _ in range(min(groups, len(units)))]
    for members in sorted(_by_shard(units).values(), key=len, reverse=True):
        min(dealt, key=len).extend(members)
    return [group for group in dealt if group]


def _find_tree(location: str, number: int, locations: Sequence[str], layout: Layout) -> ScoreTree:
    root = Place.at(location)
    filesystem = root.filesystem
    others = [_path_in(filesystem, other) for i, other in enumerate(locations) if i != number]
    names, _ = _list(filesystem, root.path, location)
    paths = {name: posixpath.join(root.path, name) for name in names}
    held = {name for name, path in paths.items() if any(_holds(path, p) for p in others if p)}
    names = sorted(paths.keys() - held)
    with ThreadPoolExecutor(LISTING_THREADS) as pool:
        each = map if root.is_local else pool.map
        listings = each(lambda name: _list(filesystem, paths[name], location), names)
        models = [
            _Model(name, paths[name], *listed) for name, listed in zip(names, listings, strict=True)
        ]
    if not models:
        raise DataError(
            f"{location} holds no model directories: expected {location}/<model>/<generation>/"
            "*.json or, without generations, <model>/*.json; give the directory above the models"
        )
    chosen, reason = (layout, "as configured") if layout is not Layout.AUTO else _decide(models)
    if chosen is Layout.FLAT:
        units = [Unit(location, number, m.name, "", m.path) for m in models]
        return ScoreTree(location, chosen, reason, tuple(units), 0)
    for model in models:
        if not model.directories:
            raise DataError(
                f"model {model.name} of {location} has no generation directories: add them, "
                "remove the model, or set layout=flat for a tree without generations"
            )
    units = [
        Unit(location, number, m.name, generation, posixpath.join(m.path, generation))
        for m in models
        for generation in m.directories
    ]
    return ScoreTree(location, chosen, reason, tuple(units), sum(m.files for m in models))


def _decide(models: Sequence[_Model]) -> tuple[Layout, str]:
    """What `auto` stands for, with the reason."""
    first = models[0].directories
    if len(first) >= 2 and all(m.directories == first for m in models):
        return Layout.GENERATIONS, f"every model has the same {len(first)} subdirectories"
    direct = next((m for m in models if m.files), None)
    if direct is None and any(m.directories for m in models):
        return Layout.GENERATIONS, "no score file lies directly under a model"
    if direct is None:
        return Layout.FLAT, "no model has subdirectories"
    return Layout.FLAT, (
        f"score files lie directly under model {direct.name}, and the models do not all have the "
        "same two or more subdirectories"
    )


def _path_in(filesystem: fs.FileSystem, location: str) -> str | None:
    """The path of a location if it is on this filesystem."""
    other = Place.at(location)
    return other.path if other.filesystem.equals(filesystem) else None


def _holds(directory: str, path: str) -> bool:
    """Whether a directory is, or lies above, a path; links are followed where there are any."""
    inner, outer = os.path.realpath(path), os.path.realpath(directory)
    return inner == outer or inner.startswith(f"{outer}/")


def _list(filesystem: fs.FileSystem, path: str, location: str) -> tuple[tuple[str, ...], int]:
    """Names of the subdirectories, and how many score files lie beside them."""
    try:
        if isinstance(filesystem, fs.LocalFileSystem):
            with os.scandir(path) as entries:
                seen = [(entry.name, entry.is_dir()) for entry in entries]
        else:
            infos = filesystem.get_file_info(fs.FileSelector(path))
            seen = [(info.base_name, info.type == fs.FileType.Directory) for info in infos]
    except (FileNotFoundError, NotADirectoryError) as error:
        raise DataError(
            f"{location} is no directory of scores: {path} is missing or a file; correct "
            "quality_eval_cfg.scores_root_dir or prior_datasets"
        ) from error
    except OSError as error:
        raise DataError(f"{location} cannot be listed: {error}") from error
    directories = sorted(name for name, is_directory in seen if is_directory and _visible(name))
    files = [n for n, is_directory in seen if not is_directory and _visible(n)]
    return tuple(directories), sum(name.endswith(SUFFIXES) for name in files)


def _visible(name: str) -> bool:
    return not name.startswith(".")


def _read_unit(
    unit: Unit, known: Mapping[str, Entry], replicates: int
) -> tuple[UnitScores, dict[str, Entry]]:
    """What a unit comes to, and what to know of its files the next time."""
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
                scores.listed.append(Skipped(path, outcome))
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
    """The score files of a unit, by path."""
    try:
        if isinstance(filesystem, fs.LocalFileSystem):
            return sorted(_walk(unit.path, "", set()))
        selector = fs.FileSelector(unit.path, recursive=True)
        infos = filesystem.get_file_info(selector)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise DataError(
            f"{unit.path} is not there on {platform.node()}: with several machines the scores must "
            "lie on storage that all of them see; and nothing may move them during the run"
        ) from error
    names = {posixpath.relpath(info.path, unit.path): info for info in infos if info.is_file}
    return sorted(
        (name, info.size, info.mtime_ns or 0)
        for name, info in names.items()
        if name.endswith(SUFFIXES) and all(map(_visible, name.split("/")))
    )


def _walk(directory: str, prefix: str, above: set[tuple[int, int]]) -> Iterator[File]:
    """Score files at any depth; a link to a directory above itself is not followed."""
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
        weights, sums = _chunk_weights(tuple(keys[start : start + CHUNK]), len(scores.weights))
        scores.weighted += np.asarray(accuracies[start : start + CHUNK]) @ weights
        scores.weights += sums


@functools.lru_cache(maxsize=REMEMBERED_CHUNKS)
def _chunk_weights(keys: tuple[str, ...], replicates: int) -> tuple[Array, Array]:
    """(keys, replicates) weights and their (replicates,) sums; directories tend to be alike."""
    weights = np.stack([_weights(key, replicates) for key in keys]).astype(np.float64)
    return weights, weights.sum(axis=0)


@functools.lru_cache(maxsize=REMEMBERED_WEIGHTS)
def _weights(key: str, replicates: int) -> NDArray[np.uint8]:
    """(replicates,) Poisson(1) draws that are a hash of the key."""
    digest = hashlib.shake_128(key.encode(errors="surrogateescape")).digest(2 * replicates)
    return _poisson_quantiles()[np.frombuffer(digest, "<u2")]


@functools.cache
def _poisson_quantiles() -> NDArray[np.uint8]:
    """(DRAW_LEVELS,) quantiles of Poisson(1) at evenly spaced probabilities."""
    densities = [math.exp(-1) / math.factorial(k) for k in range(12)]
    probabilities = (np.arange(DRAW_LEVELS) + 0.5) / DRAW_LEVELS
    return np.searchsorted(np.cumsum(densities), probabilities).astype(np.uint8)


def _cache_key(unit: Unit) -> str:
    return f"{Place.at(unit.location).filesystem.type_name}:{unit.path}"


def _by_shard(units: Sequence[Unit]) -> dict[int, list[Unit]]:
    """Units by the file of the score cache that keeps them, wherever and when they are read."""
    shards: dict[int, list[Unit]] = {}
    for unit in units:
        digest = hashlib.sha256(_cache_key(unit).encode(errors="surrogateescape")).digest()
        shards.setdefault(digest[0] % SHARDS, []).append(unit)
    return shards


class _CacheFile:
    """What was read of the files of some units, by unit and file; if it cannot be used, nothing."""

    def __init__(self, storage: str, shard: int) -> None:
        name = f"{CACHE_FORMAT}-{shard:02d}.msgpack"
        self._file = Place.at(storage) / CACHE_DIRECTORY / name

    def read(self) -> dict[str, dict[str, Entry]]:
        try:
            return msgspec.msgpack.decode(self._file.read(), type=dict[str, dict[str, Entry]])
        except (DataError, msgspec.MsgspecError):
            return {}

    def write(self, entries: dict[str, dict[str, Entry]]) -> None:
        try:
            # Whole, for another run may be reading it; one that a power cut left torn is nothing.
            self._file.write(msgspec.msgpack.encode(entries), durable=False)
        except (RunError, UnicodeEncodeError) as error:
            LOGGER.warning("score cache: %s", error)
