"""Score trees: the models and generations below a root.

A tree is `root/<model>/<generation>/**` or `root/<model>/**`, of `.json` and `.eval` logs. Names
that start with a dot are skipped. A unit is one generation of a model, or a model without
generations.
"""

import os
import posixpath
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

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

    @property
    def is_prior(self) -> bool:
        """True if it belongs to an earlier benchmark."""
        return self.tree > 0


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


@dataclass(frozen=True)
class _Model:
    name: str
    path: str
    directories: tuple[str, ...]
    """Names of the subdirectories."""
    files: int
    """Score files directly under the model."""


def scores_root(config: QualityConfig) -> str:
    """Returns the root that `config` names, or that of its `run_id` below BASE_ARTIFACTS_DIR.

    Raises:
        ConfigError: Neither is set, or the variable holds no path or URI.
    """
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


def configured_trees(config: QualityConfig) -> list[ScoreTree]:
    """Finds the trees that `config` names: that of the benchmark, then those of its priors.

    Raises:
        DataError: A root is missing or holds no models, or a model holds no generations.
        ConfigError: No root is configured, a reference dataset has no directory, or no filesystem
            opens a URI.
    """
    return find_trees(scores_root(config), list(_prior_locations(config)), config.layout)


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
    return [_find_tree(place, i, locations, layout) for i, place in enumerate(locations)]


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
    """Returns the layout that `auto` stands for, with the reason."""
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
    """Returns the path of a location; None if it is on another filesystem."""
    other = Place.at(location)
    return other.path if other.filesystem.equals(filesystem) else None


def _holds(directory: str, path: str) -> bool:
    """Returns True if a path is, or lies below, the directory, with links followed."""
    inner, outer = os.path.realpath(path), os.path.realpath(directory)
    return inner == outer or inner.startswith(f"{outer}/")


def _list(filesystem: fs.FileSystem, path: str, location: str) -> tuple[tuple[str, ...], int]:
    """Returns the names of the subdirectories, and the number of score files beside them."""
    try:
        if isinstance(filesystem, fs.LocalFileSystem):
            with os.scandir(path) as entries:
                seen = [(entry.name, _is_directory(entry)) for entry in entries]
        else:
            infos = filesystem.get_file_info(fs.FileSelector(path))
            seen = [(info.base_name, info.type == fs.FileType.Directory) for info in infos]
    except (FileNotFoundError, NotADirectoryError) as error:
        raise DataError(
            f"{location} is no directory of scores: {path} is missing or a file; correct "
            "quality_eval_cfg.scores_root_dir or prior_datasets, or target_data and "
            "reference_datasets"
        ) from error
    except OSError as error:
        raise DataError(f"{location} cannot be listed: {error}") from error
    directories = sorted(name for name, is_directory in seen if is_directory and is_visible(name))
    files = [n for n, is_directory in seen if not is_directory and is_visible(n)]
    return tuple(directories), sum(name.endswith(SUFFIXES) for name in files)


def _is_directory(entry: "os.DirEntry[str]") -> bool:
    try:
        return entry.is_dir()
    except OSError:
        # Such as a link to itself, which is left out with its reason when the unit is read.
        return False


def is_visible(name: str) -> bool:
    """Returns True unless the name is that of a hidden file or directory."""
    return not name.startswith(".")
