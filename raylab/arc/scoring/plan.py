"""The plan of an evaluation: the checkpoints to score, the tasks that none has seen, and checks.

The scores are a tree of Inspect AI eval logs, `<subdir>/<model>/<generation>/<unit>.json`;
`<subdir>.json` beside it is the plan.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import compress
from typing import Any, ClassVar, Self

from pyarrow import fs
from pydantic import Field

from raylab.arc.checkpoints import Checkpoint, read_checkpoint, restore_model
from raylab.arc.config.jobs import EvaluateConfig
from raylab.arc.config.sections import WITHOUT_PATH, DataConfig, ScoringConfig
from raylab.arc.data.content import TaskSet, fingerprint_tasks
from raylab.arc.data.groups import group_tasks
from raylab.arc.data.sources import load_tasks
from raylab.arc.data.tasks import Task
from raylab.arc.models.custom import import_model_classes
from raylab.arc.trained_models import file_name, find_models
from raylab.core.config.base import AS_PUBLISHED, Generation
from raylab.core.errors import CheckpointError, ConfigError, DataError, RunError
from raylab.core.files import Place
from raylab.core.log import log_line
from raylab.core.runs.records import Record
from raylab.core.runs.run import SCORES, Run

ModelOnGeneration = tuple[str, str]
"""The names of a model and of a generation."""
Units = Mapping[str, tuple[str, ...]]
"""Ids of the tasks of each unit."""
SPECIALISTS = "specialists"
"""Directory of a run that holds `<model>/<generation>/<task>.pt`."""


class ScorePlan(Record):
    """The plan of a score tree, kept beside it as `<subdir>.json`; workers are handed it."""

    file: ClassVar[str] = f"{SCORES}.json"

    models: Mapping[str, str]
    """Checkpoint file of each model, with its size and the time of its last change."""
    generations: Mapping[str, DataConfig]
    scoring: ScoringConfig
    units: Units
    seen: frozenset[int] = Field(default=frozenset(), exclude=True)
    """Fingerprints of pairs that are not scored, with `data.split_by=pair`; read from the
    checkpoints each time and not kept in the file."""

    @property
    def unit_of_task(self) -> dict[str, str]:
        """The unit of each task that is scored."""
        return {task: unit for unit, tasks in self.units.items() for task in tasks}

    @property
    def pairs(self) -> list[ModelOnGeneration]:
        """Every model on every generation, the models of one generation together."""
        return [(model, generation) for generation in self.generations for model in self.models]

    @property
    def by_pair(self) -> bool:
        """True if seen pairs are left out instead of seen tasks."""
        return any(scores_by_pair(data, self.scoring) for data in self.generations.values())

    def tasks_in(self, generation: str) -> tuple[Task, ...]:
        """Returns the scored tasks of a generation, cached for the next call in this process.

        Pairs that were seen are demonstrations, and then all others are questions. Questions
        without an output are kept where tasks are posed as ARC Prize does.
        """
        # The tasks are already chosen, so none may be skipped.
        chosen = {"tasks": tuple(sorted(self.unit_of_task)), "every": 1}
        data = self.generations[generation].model_copy(update=chosen)
        unanswered = self.scoring.protocol == "arc" and not self.seen
        return _load_tasks(data.model_dump_json(), unanswered, self.seen)


# Calls of one generation follow each other, and the tasks of several would fill the memory.
@lru_cache(maxsize=1)
def _load_tasks(data: str, unanswered: bool, seen: frozenset[int]) -> tuple[Task, ...]:
    config = DataConfig.model_validate_json(data)
    return part_seen(load_tasks(config, unanswered=unanswered), seen)


def part_seen(tasks: Sequence[Task], seen: frozenset[int]) -> tuple[Task, ...]:
    """Returns tasks with their seen pairs as demonstrations and the others as questions.

    Tasks without a seen pair stay as they are; tasks with only seen pairs are left out.
    """
    if not seen:
        return tuple(tasks)
    parted: list[Task] = []
    contents = fingerprint_tasks(tasks)
    for task in tasks:
        old = [fingerprint in seen for fingerprint in contents[task.id]]
        if any(old):
            new = tuple(compress(task.pairs, [not flag for flag in old]))
            task = replace(task, demonstrations=tuple(compress(task.pairs, old)), questions=new)
        if not all(old):
            parted.append(task)
    return tuple(parted)


@dataclass(frozen=True)
class Scoring:
    """A plan and the run that its scores belong to.

    Attributes:
        plan: The models, generations and units to score.
        models: Checkpoint file of each model.
        tree: The run that holds the score tree.
        subdir: Directory of the score tree within the run.
        checkpoints: All checkpoints by model if planning had to read them, else none.
    """

    plan: ScorePlan
    models: Mapping[str, str]
    tree: Run
    subdir: str = SCORES
    checkpoints: Mapping[str, Checkpoint] = field(default_factory=dict[str, Checkpoint])

    def written(self) -> Self:
        """Returns the same, with the plan written beside the score tree unless it is there."""
        name = f"{self.subdir}.json"
        if not (self.tree / name).exists():
            self.tree.write_record(self.plan, name)
        return self


def unit_file(folder: str, pair: ModelOnGeneration, unit: str, suffix: str = "json") -> str:
    """Returns the name within the run of the file of a unit or a task in one of its folders."""
    return f"{folder}/{'/'.join(pair)}/{file_name(unit)}.{suffix}"


def read_models(checkpoints: Mapping[str, str], scoring: ScoringConfig) -> dict[str, Checkpoint]:
    """Reads the checkpoints at URIs by model, and builds each model once.

    A checkpoint that cannot be used is refused before any model is scored.
    """
    import_model_classes(scoring.model_classes)
    models = {name: read_checkpoint(uri) for name, uri in checkpoints.items()}
    for checkpoint in models.values():
        restore_model(checkpoint)
    return models


def generation_configs(
    generations: Sequence[Generation], data: DataConfig
) -> dict[str, DataConfig]:
    """Returns the data by generation: `published`, `seed-<n>` or the name of an archive."""
    configs: dict[str, DataConfig] = {}
    for generation in generations:
        name, changes = str(generation), dict[str, Any]()
        if isinstance(generation, int):
            name, changes = f"seed-{generation}", {"generation": generation}
        elif generation != AS_PUBLISHED:
            if data.source in WITHOUT_PATH:
                raise ConfigError(
                    f"generations: {generation} is the path of an archive, but "
                    f"data.source={data.source} reads no files: give seeds and {AS_PUBLISHED}, or "
                    "choose data=re_arc or data=arc_json"
                )
            archive = Place.at(generation)
            name = file_name(archive.name if archive.is_directory() else archive.stem)
            changes = {"path": generation}
        # The names are directories of the score tree.
        if name in configs:
            raise ConfigError(
                f"generations: {generation} and another are both called {name}: give it once, or "
                "rename an archive"
            )
        configs[name] = data.model_copy(update={"generation": None, **changes})
    return configs


def plan_evaluation(config: EvaluateConfig) -> Scoring:
    """Plans the scores of `config` and opens its run; an error leaves no run behind."""
    run = Run.check(config)
    models = find_models(config.models, config.storage)
    if config.scoring.protocol == "arc":
        if not scores_by_pair(config.data, config.scoring) and not any(
            task.questions for task in load_tasks(config.data, unanswered=True)
        ):
            raise DataError(
                f"no task of data.source={config.data.source} has a test input: score its pairs "
                "with scoring=pairs, or those that the model has not seen with data.split_by=pair"
            )
        training = config.scoring.test_time_training
        if training is not None and training.specialists is not None:
            place = Place.at(training.specialists) / SPECIALISTS
            for model in models:
                if not (place / model).files("**/*.pt"):
                    raise RunError(
                        f"{place} holds no specialist of model {model}, only of: "
                        f"{', '.join(place.names()) or 'none'}. Name a run that kept those of this "
                        "model in scoring.test_time_training.specialists, or leave it out and "
                        "train them"
                    )
    scoring = plan_scoring(models, config.generations, config.data, config.scoring, run)
    return open_run(scoring, config)


def open_run(scoring: Scoring, config: EvaluateConfig) -> Scoring:
    """Opens the run of a plan and writes the plan into it."""
    return replace(scoring, tree=Run.open(config)).written()


def plan_scoring(
    models: Mapping[str, str],
    generations: Sequence[Generation],
    data: DataConfig,
    scoring: ScoringConfig,
    tree: Run,
    subdir: str = SCORES,
    *,
    trained: bool = True,
) -> Scoring:
    """Plans the scores; writes nothing.

    All models are scored on the same tasks: those that none of them was trained on or chosen on
    (with `data.select_on_test` only trained on), or all with `scoring.include_seen`. With
    `data.split_by=pair` they are scored on all tasks, but only on the pairs that none of them has
    seen. A tree that was begun keeps its units. Without `trained`, the files of `models` are
    answers and no checkpoints.
    """
    datasets = generation_configs(generations, data)
    files: dict[str, str] = {}
    for model, uri in models.items():
        info = Place.at(uri).info()
        if info.type != fs.FileType.File:
            raise CheckpointError(f"no checkpoint at {uri}")
        # Size and age recognise a file that is not read.
        files[model] = f"{uri} of {info.size} bytes, changed {info.mtime}"
    before = tree.read_record(ScorePlan, f"{subdir}.json")
    begun = before.models if before else files
    for model in sorted({**begun, **files}):
        had, has = (own.get(model, "not among the models") for own in (begun, files))
        if had != has:
            raise RunError(
                f"{tree} was begun when {model} was {had}, and now it is {has}. Scores would mix, "
                "and a further model may have seen the scored tasks: choose another name="
            )
    # A tree that was begun names its units, but not the pairs that are left out.
    read = trained and (before is None or scores_by_pair(data, scoring))
    checkpoints = read_models(models, scoring) if read else {}
    plan = ScorePlan(
        models=files,
        generations=datasets,
        scoring=scoring,
        units=before.units if before else choose_units(checkpoints, data, scoring),
        seen=seen_pairs(checkpoints, data, scoring),
    )
    return Scoring(plan, models, tree, subdir, checkpoints)


def choose_units(
    checkpoints: Mapping[str, Checkpoint], data: DataConfig, scoring: ScoringConfig
) -> Units:
    """Chooses the tasks of `data` that no model has seen, or all, and logs their number."""
    by_pair, seen = scores_by_pair(data, scoring), TaskSet()
    posed = scoring.protocol == "arc" and not by_pair
    tasks = [task.answered for task in load_tasks(data, unanswered=posed)]
    if not scoring.include_seen:
        seen = _seen_tasks(checkpoints, data)
    if by_pair:
        new = part_seen(tasks, seen.pairs)
    else:
        contents = fingerprint_tasks(tasks)
        new = [task for task in tasks if not seen.holds(task.id, contents[task.id])]
    if not new:
        raise DataError(
            f"one of the models {', '.join(checkpoints)} was trained on or chosen on "
            f"{'each pair' if by_pair else 'each'} of the {len(tasks)} tasks of "
            f"data.source={data.source}: score them anyway with scoring.include_seen=true, or name "
            "others by data=, data.subset, data.path or data.tasks"
        )
    left_out = f"{len(tasks) - len(new)} that a model was trained on or chosen on are left out"
    if by_pair:
        left_out = "on the pairs that no model was trained on or chosen on; the tasks may be seen"
    elif scoring.include_seen or not checkpoints:
        left_out = "whether seen in training or not"
    kind = f"tasks of sides up to {data.max_side}" if data.max_side else "tasks"
    message = f"{len(new)} of {len(tasks)} {kind} are {'posed' if posed else 'scored'}, {left_out}"
    log_line(message, scored=len(new), tasks=len(tasks))
    others = sorted({task.id for task in tasks} - {task.id for task in new} - seen.ids)
    if others and not by_pair:
        log_line(f"seen under another id: {', '.join(others)}", seen=others)
    units: dict[str, list[str]] = {}
    for task, group in group_tasks(new, data.taxonomy).items():
        units.setdefault(task if scoring.unit == "task" else group, []).append(task)
    return {unit: tuple(units[unit]) for unit in sorted(units)}


def scores_by_pair(data: DataConfig, scoring: ScoringConfig) -> bool:
    """Returns True if seen pairs are left out instead of seen tasks."""
    return data.split_by == "pair" and not scoring.include_seen


def _seen_tasks(checkpoints: Mapping[str, Checkpoint], data: DataConfig) -> TaskSet:
    """Returns the tasks on which models trained and, unless `data.select_on_test`, were chosen."""
    seen = TaskSet()
    for checkpoint in checkpoints.values():
        seen |= checkpoint.seen.tasks(chosen=not data.select_on_test)
    return seen


def seen_pairs(
    checkpoints: Mapping[str, Checkpoint], data: DataConfig, scoring: ScoringConfig
) -> frozenset[int]:
    """Returns the fingerprints of the pairs to leave out, if seen pairs are left out."""
    by_pair = scores_by_pair(data, scoring)
    return _seen_tasks(checkpoints, data).pairs if by_pair else frozenset()
