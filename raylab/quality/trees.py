"""Score trees: the models and generations below a root, and their score files.

A tree is `root/<model>/<generation>/**` or `root/<model>/**`, of `.json` and `.eval` logs; or it is
a directory or file of logs and tables that name their models themselves. Names that start with a
dot are skipped.
"""

import errno
import os
import platform
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import NoReturn

from pyarrow import fs

from raylab.config.jobs import QualityConfig
from raylab.config.quality import Layout
from raylab.errors import ConfigError, DataError
from raylab.files import Place
from raylab.runs.eval_logs import SUFFIXES

BASE_VARIABLE = "BASE_ARTIFACTS_DIR"
NOVELTY = "novelty"
"""The metric that reads earlier benchmarks."""
TABLES = (".csv", ".jsonl", ".ndjson", ".parquet", ".pq")
"""Endings of tables, and of samples that others than Inspect write."""
LISTING_THREADS = 16
LASTING = frozenset(
    {errno.EACCES, errno.EPERM, errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG}
)
"""Errors that are of one file or directory and stay; others may pass."""

_Listing = tuple[list[str], list[str]]
"""Names of the directories and of the files in a directory."""


@dataclass(frozen=True)
class Unit:
    """A directory whose files are averaged: a generation of a model, or a model without any."""

    location: str
    """The tree's root, as configured."""
    tree: int
    """The tree's number, 0 for the benchmark and then the priors."""
    model: str
    generation: str
    """Its name, empty if the tree has none."""
    path: str
    """The directory within the root's filesystem."""


@dataclass(frozen=True)
class ScoreTree:
    """The units of a score tree, by model and then generation."""

    location: str
    layout: Layout
    """`GENERATIONS`, `FLAT` or `NAMED`."""
    reason: str
    """The reason for this layout."""
    units: tuple[Unit, ...]
    """Of a `NAMED` tree the directories below its root, whose names mean nothing."""
    beside: int = 0
    """Number of score files directly under a model with generations; they are ignored."""


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
    return str(Place.at(base) / settings.scores_subdir / config.run_id)


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

    A directory that is or contains the root of another of these trees is not taken for a model. A
    root without directories whose files may be logs or tables is `NAMED`.

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
    location, root = locations[number], Place.at(locations[number])
    if root.info().is_file and root.name.endswith((*SUFFIXES, *TABLES)):
        return ScoreTree(location, Layout.NAMED, "it is a file", ())
    models, files = _models(location, [*locations[:number], *locations[number + 1 :]])
    is_named = any(name.endswith((*SUFFIXES, *TABLES)) for name in files)
    if not models and not is_named:
        raise DataError(
            f"{location} holds no model directories: expected {location}/<model>/<generation>/"
            "*.json or, without generations, <model>/*.json; give the directory above the models, "
            "or one of logs or tables that name their models"
        )
    reason = "as configured"
    if not models:
        layout, reason = Layout.NAMED, "it has no directories of models"
    elif layout is Layout.AUTO:
        layout, reason = _decide(models)
    if layout is not Layout.GENERATIONS:
        units = [Unit(location, number, model, "", f"{root.path}/{model}") for model in models]
        return ScoreTree(location, layout, reason, tuple(units))
    _require_generations(location, models)
    units = [
        Unit(location, number, model, generation, f"{root.path}/{model}/{generation}")
        for model, (generations, _) in models.items()
        for generation in generations
    ]
    beside = sum(name.endswith(SUFFIXES) for _, files in models.values() for name in files)
    return ScoreTree(location, layout, reason, tuple(units), beside)


def _require_generations(location: str, models: Mapping[str, _Listing]) -> None:
    for model, (generations, _) in models.items():
        if not generations:
            raise DataError(
                f"model {model} of {location} has no generation directories: add them, remove "
                "the model, or set layout=flat for a tree without generations"
            )


def _models(location: str, others: Sequence[str]) -> tuple[dict[str, _Listing], list[str]]:
    """Returns the models of a tree by name, and the names of the files beside them.

    Directories that hold one of other roots are no models.
    """
    root = Place.at(location)
    near = [p.path for p in map(Place.at, others) if p.filesystem.equals(root.filesystem)]

    def list_model(name: str) -> _Listing:
        try:
            return list_directory(root, f"{root.path}/{name}".rstrip("/"))
        except (FileNotFoundError, NotADirectoryError) as error:
            raise DataError(
                f"{location} is no directory of scores: {error.filename or location} is missing "
                "or a file; correct quality_eval_cfg.scores_root_dir or prior_datasets, or "
                "target_data and reference_datasets"
            ) from error
        except OSError as error:
            raise DataError(f"{location} cannot be listed: {error}") from error

    directories, files = list_model("")
    names = [n for n in directories if not any(_holds(f"{root.path}/{n}", p) for p in near)]
    with ThreadPoolExecutor(LISTING_THREADS) as pool:
        return dict(zip(names, pool.map(list_model, names), strict=True)), files


def _decide(models: Mapping[str, _Listing]) -> tuple[Layout, str]:
    """Returns the layout that `auto` stands for, with the reason."""
    first, *others = (directories for directories, _ in models.values())
    if len(first) >= 2 and all(directories == first for directories in others):
        return Layout.GENERATIONS, f"every model has the same {len(first)} subdirectories"
    for model, (_, files) in models.items():
        if any(name.endswith((*SUFFIXES, *TABLES)) for name in files):
            return Layout.FLAT, (
                f"score files lie directly under model {model}, and the models do not all have "
                "the same two or more subdirectories"
            )
    if any((first, *others)):
        return Layout.GENERATIONS, "no score file lies directly under a model"
    return Layout.FLAT, "no model has subdirectories"


def _holds(directory: str, path: str) -> bool:
    """Returns True if a path is, or lies below, the directory, with links followed."""
    inner, outer = os.path.realpath(path), os.path.realpath(directory)
    return inner == outer or inner.startswith(f"{outer}/")


def score_files(unit: Unit, suffixes: tuple[str, ...] = SUFFIXES) -> dict[str, str | None]:
    """Returns the score files of a unit at any depth, as paths below it, sorted.

    They have one of the suffixes; the value of each is None. A directory that cannot be read is
    among them, with the reason. One that several links lead to is read once.

    Raises:
        DataError: The unit is missing on the machine where this runs.
        OSError: A directory cannot be read for the moment.
    """
    root, faults = Place.at(unit.location), dict[str, str | None]()
    pending, seen = [""], set[str]()
    while pending:
        below = pending.pop()
        path = f"{unit.path}/{below}".rstrip("/")
        real = os.path.realpath(path)
        if real in seen:
            continue
        seen.add(real)
        try:
            directories, files = list_directory(root, path)
        except OSError as error:
            if not below:
                _refuse_missing(unit, error)
            faults[below] = lasting_fault(error)
            continue
        faults |= {f"{below}{name}": None for name in files if name.endswith(suffixes)}
        pending += [f"{below}{name}/" for name in directories]
    return dict(sorted(faults.items()))


def _refuse_missing(unit: Unit, error: OSError) -> None:
    if isinstance(error, FileNotFoundError | NotADirectoryError):
        raise DataError(
            f"{unit.path} is not there on {platform.node()}: with several machines the scores must "
            "lie on storage that all of them see, and must not be moved during the run"
        ) from error


def lasting_fault(error: OSError) -> str:
    """Returns the reason why a file or directory cannot be read.

    Raises:
        OSError: The error may pass.
    """
    lasting = error.errno in LASTING or isinstance(error, FileNotFoundError | PermissionError)
    if not lasting:
        raise error
    return f"cannot be read ({error.strerror or error})"


def list_directory(root: Place, path: str) -> _Listing:
    """Lists a directory without what its name hides."""
    if root.is_local:
        _, directories, files = next(os.walk(path, onerror=_raise))
    else:
        infos = root.filesystem.get_file_info(fs.FileSelector(path))
        directories = [info.base_name for info in infos if not info.is_file]
        files = [info.base_name for info in infos if info.is_file]
    directories, files = (
        sorted(name for name in names if not name.startswith(".")) for names in (directories, files)
    )
    return directories, files


def _raise(error: OSError) -> NoReturn:
    raise error
