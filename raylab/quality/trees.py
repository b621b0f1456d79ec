"""Score trees: the files below a root that hold scores, by model and generation.

A tree is `root/<model>/<generation>/**` or `root/<model>/**` with Inspect logs, or a file or
directory of logs and tables that name their models themselves. Hidden names are skipped.
"""

import errno
import io
import os
import platform
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import BinaryIO, NamedTuple, NoReturn, cast

from pyarrow import fs

from raylab.config.jobs import QualityConfig
from raylab.config.quality import Layout
from raylab.errors import ConfigError, DataError
from raylab.files import Place
from raylab.runs.eval_logs import SUFFIXES as LOGS

BASE_VARIABLE = "BASE_ARTIFACTS_DIR"
NOVELTY = "novelty"
"""The metric that reads earlier benchmarks."""
TABLES = (".csv", ".jsonl", ".parquet")
"""Endings of tables, and of samples that other tools than Inspect write."""
SUFFIXES = (*LOGS, *TABLES)
HARNESS_NAME = re.compile(r"samples_(?P<task>.+)_(?P<time>\d{4}-\d\d-\d\dT[\d.-]+)\.jsonl")
"""Names of the samples of lm-evaluation-harness."""
EVER_ENDING = "_samples.jsonl"
"""Ending of the samples of Every Eval Ever."""
OTHER_FILES = frozenset({"eval-set.json", "listing.json", "logs.json"})
"""Files that Inspect leaves beside logs."""
LISTING_THREADS = 16
LASTING = frozenset(
    {errno.EACCES, errno.EPERM, errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG}
)
"""Errors that concern one file or directory and stay; others may pass."""

_Listing = tuple[list[str], list[str]]
"""Names of the directories and of the files in a directory."""


class DirectoryError(DataError):
    """A listed directory of scores is missing on the machine that reads its files."""


class Source(NamedTuple):
    """A file that may hold scores."""

    top: Place
    """The directory of its model and generation."""
    name: str
    """Its path below that directory."""
    model: str = ""
    """Empty where the file names its models itself."""
    generation: str = ""
    """Empty where the tree has no generations."""

    @property
    def place(self) -> Place:
        """The file."""
        return self.top / self.name

    @property
    def is_log(self) -> bool:
        """True for Inspect logs, False for tables and the samples of other tools."""
        return self.name.endswith(LOGS)


@dataclass(frozen=True)
class ScoreTree:
    """The files of a score tree.

    Attributes:
        location: Its root, as configured.
        layout: `GENERATIONS`, `FLAT` or `NAMED`.
        reason: The reason for this layout.
        models: Names of the directories of models; none in a `NAMED` tree.
        sources: Its files, by model and generation; files beside the models name theirs.
        faults: Directories that cannot be read, with the reasons.
        beside: Number of logs directly under a model with generations, which are ignored.
    """

    location: str
    layout: Layout
    reason: str
    models: tuple[str, ...]
    sources: tuple[Source, ...]
    faults: tuple[tuple[Source, str], ...] = ()
    beside: int = 0

    @property
    def logs(self) -> list[Source]:
        """The logs in directories of models."""
        return [source for source in self.sources if source.model and source.is_log]


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
    """Finds the tree of a benchmark, then those of its priors, each as `find_tree` does."""
    locations = [root, *priors]
    return [
        find_tree(location, [*locations[:number], *locations[number + 1 :]], layout)
        for number, location in enumerate(locations)
    ]


def find_tree(location: str, others: Sequence[str] = (), layout: Layout = Layout.AUTO) -> ScoreTree:
    """Finds the files of a tree.

    A root without directories whose files may be logs or tables is `NAMED`, and so is, by `AUTO`,
    a tree where a model's directory holds tables but no logs.

    Args:
        location: Path or URI with one directory per model, or of logs and tables.
        others: Roots of other trees; a directory that is or contains one is not taken for a model.
        layout: Layout of the tree; `AUTO` decides.

    Raises:
        DataError: The root is missing or holds no models, or a model holds no generations.
        ConfigError: No filesystem opens a URI.
    """
    root = Place.at(location)
    if root.info().is_file and root.name.endswith(SUFFIXES):
        file = Source(root.parent, root.name)
        return ScoreTree(location, Layout.NAMED, "it is a file", (), (file,))
    models, files = _list_models(location, others)
    beside_models = list(_name_sources(root, files))
    if not models and not beside_models:
        raise DataError(
            f"{location} holds no model directories: expected {location}/<model>/<generation>/"
            "*.json or, without generations, <model>/*.json; give the directory above the models, "
            "or a directory of logs or tables that name their models"
        )
    chosen, reason = layout, "as configured"
    if not models:
        chosen, reason = Layout.NAMED, "it has no directories of models"
    elif layout is Layout.AUTO:
        chosen, reason = _decide(models)
    units = [Source(root, "", model) for model in models]
    beside = 0
    if chosen is Layout.GENERATIONS:
        _require_generations(location, models)
        units = [unit._replace(generation=name) for unit in units for name in models[unit.model][0]]
        beside = sum(name.endswith(LOGS) for _, files in models.values() for name in files)
    sources, faults = _list_units(units)
    if layout is Layout.AUTO and (model := _model_of_tables(sources)):
        reason = f"{model} holds no logs but samples or tables, which name their models"
        chosen, beside = Layout.NAMED, 0
    if chosen is Layout.NAMED:
        models, sources = {}, [source._replace(model="", generation="") for source in sources]
    return ScoreTree(
        location,
        chosen,
        reason,
        tuple(models),
        (*beside_models, *sources),
        tuple(faults),
        beside,
    )


def _list_models(location: str, others: Sequence[str]) -> tuple[dict[str, _Listing], list[str]]:
    """Returns the models of a tree by name, and the names of the files beside them.

    Directories that hold one of the other roots are no models.
    """
    root = Place.at(location)
    near = [p.path for p in map(Place.at, others) if p.filesystem.equals(root.filesystem)]

    def list_model(name: str) -> _Listing:
        try:
            return list_directory(root / name if name else root)
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


def _holds(directory: str, path: str) -> bool:
    """Returns True if a path is, or lies below, the directory, with links followed."""
    inner, outer = os.path.realpath(path), os.path.realpath(directory)
    return inner == outer or inner.startswith(f"{outer}/")


def _decide(models: Mapping[str, _Listing]) -> tuple[Layout, str]:
    """Returns the layout that `auto` stands for, with the reason."""
    first, *others = (directories for directories, _ in models.values())
    if len(first) >= 2 and all(directories == first for directories in others):
        return Layout.GENERATIONS, f"every model has the same {len(first)} subdirectories"
    for model, (_, files) in models.items():
        if any(name.endswith(SUFFIXES) for name in files):
            return Layout.FLAT, (
                f"score files lie directly under model {model}, and the models do not all have "
                "the same two or more subdirectories"
            )
    if all((first, *others)):
        return Layout.GENERATIONS, "no score file lies directly under a model"
    return Layout.FLAT, "a model has no subdirectories"


def _require_generations(location: str, models: Mapping[str, _Listing]) -> None:
    for model, (generations, _) in models.items():
        if not generations:
            raise DataError(
                f"model {model} of {location} has no generation directories: add them, remove "
                "the model, or set layout=flat for a tree without generations"
            )


def _list_units(units: Iterable[Source]) -> tuple[list[Source], list[tuple[Source, str]]]:
    """Returns the files below directories of models, and the directories that cannot be read."""
    sources, faults = list[Source](), list[tuple[Source, str]]()
    tops = [
        unit._replace(top=unit.top / "/".join(filter(None, (unit.model, unit.generation))))
        for unit in units
    ]
    with ThreadPoolExecutor(LISTING_THREADS) as pool:
        for unit, (names, lost) in zip(tops, pool.map(_walk, tops), strict=True):
            sources += _name_sources(unit.top, names, unit.model, unit.generation)
            faults += [(unit._replace(name=name), reason) for name, reason in lost.items()]
    return sources, faults


def _walk(unit: Source) -> tuple[list[str], dict[str, str]]:
    """Returns the paths of the files below a directory, sorted, and why others cannot be read.

    The path of a directory ends with a slash. One that several links lead to is read once.

    Raises:
        OSError: A directory cannot be read for the moment.
    """
    paths, faults = list[str](), dict[str, str]()
    pending, seen = [""], set[str]()
    while pending:
        below = pending.pop()
        place = unit.top / below.rstrip("/") if below else unit.top
        real = os.path.realpath(place.path)
        if real in seen:
            continue
        seen.add(real)
        try:
            directories, files = list_directory(place)
        except OSError as error:
            faults[below] = lasting_fault(error)
            continue
        paths += [f"{below}{name}" for name in files]
        pending += [f"{below}{name}/" for name in directories]
    return sorted(paths), faults


def _name_sources(
    top: Place, names: Sequence[str], model: str = "", generation: str = ""
) -> Iterator[Source]:
    """Yields the files that may hold scores, without those that are read with another one."""
    beside = {name.removesuffix(EVER_ENDING) for name in names if name.endswith(EVER_ENDING)}
    times = {
        (os.path.dirname(name), match["time"])
        for name in names
        if (match := HARNESS_NAME.fullmatch(os.path.basename(name)))
    }
    for name in names:
        stem, suffix = os.path.splitext(name)
        run = os.path.dirname(name), stem.rpartition("_")[2]
        is_beside = suffix == ".json" and (stem in beside or run in times)
        is_other = is_beside or os.path.basename(name) in OTHER_FILES
        if name.endswith(SUFFIXES) and not is_other:
            yield Source(top, name, model, generation)


def _model_of_tables(sources: Iterable[Source]) -> str:
    """Returns a model whose directory has tables and no logs; empty if there is none."""
    has_logs: dict[str, bool] = {}
    for source in sources:
        has_logs[source.model] = has_logs.get(source.model, False) or source.is_log
    return next((model for model, logs in has_logs.items() if not logs), "")


def open_source(source: Source, buffer: int) -> BinaryIO:
    """Opens a file; on other storage than a local disk `buffer` bytes are read at once.

    Raises:
        DataError: It is no file, or its directory is missing on this machine.
        OSError: It cannot be opened.
    """
    place = source.place
    if not place.is_local:
        file = place.filesystem.open_input_file(place.path)
        return cast(BinaryIO, io.BufferedReader(cast(io.RawIOBase, file), buffer))
    if os.path.isfile(place.path):
        return open(place.path, "rb")
    if not os.path.isdir(source.top.path):
        raise DirectoryError(
            f"{source.top} is missing on {platform.node()}: with several machines the scores must "
            "lie on storage that all of them see, and must not be moved during the run"
        )
    raise DataError("no file, or a link to nothing")


def lasting_fault(error: OSError) -> str:
    """Returns the reason why a file or directory cannot be read.

    Raises:
        OSError: The error may pass.
    """
    lasting = error.errno in LASTING or isinstance(error, FileNotFoundError | PermissionError)
    if not lasting:
        raise error
    return f"cannot be read ({error.strerror or error})"


def list_directory(place: Place) -> _Listing:
    """Lists a directory without hidden names."""
    if place.is_local:
        _, directories, files = next(os.walk(place.path, onerror=_raise))
    else:
        infos = place.filesystem.get_file_info(fs.FileSelector(place.path))
        directories = [info.base_name for info in infos if not info.is_file]
        files = [info.base_name for info in infos if info.is_file]
    directories, files = (
        sorted(name for name in names if not name.startswith(".")) for names in (directories, files)
    )
    return directories, files


def _raise(error: OSError) -> NoReturn:
    raise error
