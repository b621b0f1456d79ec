"""Score trees: the models and generations below a root, and their score files.

A tree is `root/<model>/<generation>/**` or `root/<model>/**`, of `.json` and `.eval` logs. Names
that start with a dot are skipped. A unit is one generation of a model, or a model without
generations.
"""

import errno
import os
import platform
import posixpath
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import NamedTuple

from pyarrow import fs

from raylab.config.base import absolute_location
from raylab.config.jobs import QualityConfig
from raylab.config.quality import Layout
from raylab.errors import ConfigError, DataError
from raylab.files import Place
from raylab.runs.eval_logs import SUFFIXES

BASE_VARIABLE = "BASE_ARTIFACTS_DIR"
NOVELTY = "novelty"
"""The metric that reads earlier benchmarks."""
LISTING_THREADS = 16


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
    """The directories of a score tree.

    Attributes:
        location: The root, as configured.
        layout: `GENERATIONS` or `FLAT`.
        reason: The reason for this layout.
        units: By model, then generation.
        beside: Number of score files directly under a model with generations; they are ignored.
    """

    location: str
    layout: Layout
    reason: str
    units: tuple[Unit, ...]
    beside: int


class _Entry(NamedTuple):
    name: str
    is_directory: bool
    is_file: bool


class _Model(NamedTuple):
    directories: list[str]
    files: int
    """Number of score files directly under the model."""


def configured_trees(config: QualityConfig) -> list[ScoreTree]:
    """Finds the trees that `config` names: that of the benchmark, then those of its priors.

    Raises:
        DataError: A root is missing or holds no models, or a model holds no generations.
        ConfigError: No root is configured, a reference dataset has no directory, or no filesystem
            opens a URI.
    """
    return find_trees(_scores_root(config), list(_prior_locations(config)), config.layout)


def _scores_root(config: QualityConfig) -> str:
    """Returns the root that `config` names, or that of its `run_id` below BASE_ARTIFACTS_DIR."""
    settings = config.quality_eval_cfg
    if root := settings.scores_root_dir or config.target_data.scores_root_dir:
        return root
    base = os.environ.get(BASE_VARIABLE)
    if not base or config.run_id is None:
        missing = "run_id" if base else f"the environment variable {BASE_VARIABLE}"
        raise ConfigError(
            f"where are the scores? {missing} is not set: set quality_eval_cfg.scores_root_dir, or "
            f"both {BASE_VARIABLE} and run_id for "
            f"{{{BASE_VARIABLE}}}/{settings.scores_subdir}/{{run_id}}"
        )
    try:
        root = Place.at(absolute_location(base))
    except ValueError as error:
        raise ConfigError(f"{BASE_VARIABLE}: {error}") from error
    return str(root / settings.scores_subdir / config.run_id)


def _prior_locations(config: QualityConfig) -> Iterator[str]:
    """Yields the roots of the earlier benchmarks; none where novelty is not wanted."""
    if config.metrics_to_compute and NOVELTY not in config.metrics_to_compute:
        return
    yield from config.quality_eval_cfg.prior_datasets
    above = config.target_data.scores_root_dir
    for number, dataset in enumerate(config.reference_datasets):
        if dataset.scores_dir:
            yield dataset.scores_dir
        elif dataset.name and above:
            yield str(Place.at(above) / dataset.name)
        else:
            raise ConfigError(
                f"reference_datasets[{number}]: needs scores_dir, or a name of a directory in "
                "target_data.scores_root_dir: set one, or take novelty out of metrics_to_compute"
            )


def find_trees(root: str, priors: Sequence[str], layout: Layout) -> list[ScoreTree]:
    """Finds the models and generations of a benchmark's tree, then those of its priors.

    A directory that is or contains the root of another of these trees is not taken for a model.

    Args:
        root: Path or URI with one directory per model.
        priors: The same for earlier benchmarks.
        layout: Layout of the trees; `AUTO` is decided for each tree.

    Raises:
        DataError: A root is missing or holds no models, or a model holds no generations.
        ConfigError: No filesystem opens a URI.
    """
    locations = [root, *priors]
    return [_find_tree(number, locations, layout) for number in range(len(locations))]


def _find_tree(number: int, locations: Sequence[str], layout: Layout) -> ScoreTree:
    location = locations[number]
    models = _models(location, [*locations[:number], *locations[number + 1 :]])
    if not models:
        raise DataError(
            f"{location} holds no model directories: expected {location}/<model>/<generation>/"
            "*.json or, without generations, <model>/*.json; give the directory above the models"
        )
    reason = "as configured"
    if layout is Layout.AUTO:
        layout, reason = _decide(models)
    flat, root = layout is Layout.FLAT, Place.at(location).path
    empty = next((name for name, model in models.items() if not model.directories), None)
    if empty is not None and not flat:
        raise DataError(
            f"model {empty} of {location} has no generation directories: add them, remove the "
            "model, or set layout=flat for a tree without generations"
        )
    units = tuple(
        Unit(location, number, name, generation, f"{root}/{name}/{generation}".rstrip("/"))
        for name, model in models.items()
        for generation in ([""] if flat else model.directories)
    )
    beside = 0 if flat else sum(model.files for model in models.values())
    return ScoreTree(location, layout, reason, units, beside)


def _models(location: str, others: Sequence[str]) -> dict[str, _Model]:
    """Returns the models of a tree by name, without directories that hold one of other roots."""
    root = Place.at(location)
    near = [p.path for p in map(Place.at, others) if p.filesystem.equals(root.filesystem)]
    names = [
        entry.name
        for entry in _list(root, "")
        if entry.is_directory
        and not any(_holds(posixpath.join(root.path, entry.name), path) for path in near)
    ]
    with ThreadPoolExecutor(LISTING_THREADS) as pool:
        listings = list(pool.map(lambda name: _list(root, name), names))
    return {
        name: _Model(
            [entry.name for entry in listing if entry.is_directory],
            sum(not e.is_directory and e.name.endswith(SUFFIXES) for e in listing),
        )
        for name, listing in zip(names, listings, strict=True)
    }


def _decide(models: Mapping[str, _Model]) -> tuple[Layout, str]:
    """Returns the layout that `auto` stands for, with the reason."""
    first, *others = (model.directories for model in models.values())
    if len(first) >= 2 and all(directories == first for directories in others):
        return Layout.GENERATIONS, f"every model has the same {len(first)} subdirectories"
    direct = next((name for name, model in models.items() if model.files), None)
    if direct is not None:
        return Layout.FLAT, (
            f"score files lie directly under model {direct}, and the models do not all have the "
            "same two or more subdirectories"
        )
    if any((first, *others)):
        return Layout.GENERATIONS, "no score file lies directly under a model"
    return Layout.FLAT, "no model has subdirectories"


def _holds(directory: str, path: str) -> bool:
    """Returns True if a path is, or lies below, the directory, with links followed."""
    inner, outer = os.path.realpath(path), os.path.realpath(directory)
    return inner == outer or inner.startswith(f"{outer}/")


def _list(root: Place, name: str) -> list[_Entry]:
    """Lists the root of a tree, or a model in it."""
    try:
        return _entries(root, f"{root.path}/{name}")
    except (FileNotFoundError, NotADirectoryError) as error:
        raise DataError(
            f"{root} is no directory of scores: {root / name if name else root} is missing or a "
            "file; correct quality_eval_cfg.scores_root_dir or prior_datasets, or target_data and "
            "reference_datasets"
        ) from error
    except OSError as error:
        raise DataError(f"{root} cannot be listed: {error}") from error


def _entries(root: Place, directory: str) -> list[_Entry]:
    """Returns the files and directories in a directory whose names do not hide them, sorted."""
    if root.is_local:
        with os.scandir(directory) as found:
            entries = [_local_entry(entry) for entry in found]
    else:
        entries = [
            _Entry(info.base_name, info.type == fs.FileType.Directory, info.is_file)
            for info in root.filesystem.get_file_info(fs.FileSelector(directory.rstrip("/")))
        ]
    return sorted(entry for entry in entries if not entry.name.startswith("."))


def _local_entry(entry: "os.DirEntry[str]") -> _Entry:
    if entry.is_symlink():
        # Unlike the methods of an entry, these raise nothing for a link to itself.
        return _Entry(entry.name, os.path.isdir(entry.path), os.path.isfile(entry.path))
    return _Entry(entry.name, entry.is_dir(), entry.is_file())


def score_files(unit: Unit) -> list[tuple[str, str]]:
    """Returns the score files of a unit at any depth, as paths below it, sorted.

    A directory that several links lead to is read once.

    Returns:
        Each path with the reason why it cannot be read; that is empty if it can be.

    Raises:
        DataError: The unit is missing on the machine where this runs.
        OSError: A directory cannot be read for the moment.
    """
    root, files = Place.at(unit.location), list[tuple[str, str]]()
    pending, seen = [""], set[str]()
    while pending:
        name = pending.pop()
        directory = f"{unit.path}/{name}"
        real = os.path.realpath(directory)
        if real in seen:
            continue
        seen.add(real)
        try:
            entries = _entries(root, directory)
        except OSError as error:
            if not name and isinstance(error, FileNotFoundError | NotADirectoryError):
                raise _missing(unit) from error
            files.append((name, lasting_fault(error)))
            continue
        for entry in entries:
            path = posixpath.join(name, entry.name)
            if entry.is_directory:
                pending.append(path)
            elif path.endswith(SUFFIXES):
                files.append((path, "" if entry.is_file else "no file, or a link to nothing"))
    return sorted(files)


def _missing(unit: Unit) -> DataError:
    return DataError(
        f"{unit.path} is not there on {platform.node()}: with several machines the scores must "
        "lie on storage that all of them see, and must not be moved during the run"
    )


def lasting_fault(error: OSError) -> str:
    """Returns the reason why a file cannot be read.

    Raises:
        OSError: The error may pass.
    """
    lasting = FileNotFoundError | PermissionError | NotADirectoryError | IsADirectoryError
    if isinstance(error, lasting) or error.errno in (errno.ELOOP, errno.ENAMETOOLONG):
        return f"cannot be read ({error.strerror or error})"
    raise error
