"""The plan of an evaluation: the tasks and checkpoints to score, and the checks on them.

The scores are a tree of Inspect AI eval logs, `<subdir>/<model>/<generation>/<unit>.json`;
`<subdir>.json` beside it is the plan.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Self

from pyarrow import fs

from raylab.arc.checkpoints import Checkpoint, read_checkpoint, restored
from raylab.arc.data.content import contents_of
from raylab.arc.data.sources import load_tasks
from raylab.arc.models.custom import import_model_classes
from raylab.arc.scoring.units import (
    Units,
    choose_units,
    scores_by_pair,
    seen_pairs,
)
from raylab.arc.trained_models import file_name, find_models
from raylab.config.arc import WITHOUT_PATH, DataConfig, ScoringConfig
from raylab.config.base import AS_PUBLISHED, Generation
from raylab.config.jobs import EvaluateConfig
from raylab.errors import CheckpointError, ConfigError, RunError
from raylab.files import Place
from raylab.runs.records import Part, Record
from raylab.runs.run import SCORES, Run

ModelOnGeneration = tuple[str, str]
"""The names of a model and of a generation."""
SPLIT_KEYS = ("split", "test_fraction", "val_fraction", "split_seed", "select_on_test")


class CheckpointFile(Part):
    """The identity of a checkpoint file, compared without reading it."""

    checkpoint: str
    """Its URI."""
    bytes: int | None
    modified: str | None
    """Time of the last change in ISO 8601; None if the filesystem does not record it."""

    @classmethod
    def at(cls, uri: str) -> Self:
        """Returns the file at a URI.

        Raises:
            CheckpointError: There is no file.
            DataError: The filesystem cannot be read.
        """
        info = Place.at(uri).info()
        if info.type != fs.FileType.File:
            raise CheckpointError(f"no checkpoint at {uri}")
        modified = None if info.mtime is None else info.mtime.isoformat()
        return cls(checkpoint=uri, bytes=info.size, modified=modified)

    def __str__(self) -> str:
        """Returns the file and its age."""
        return f"{self.checkpoint}, changed {self.modified}"


class ScorePlan(Record):
    """The plan of a score tree, kept beside it as `<subdir>.json`."""

    file: ClassVar[str] = f"{SCORES}.json"

    models: Mapping[str, CheckpointFile]
    generations: Mapping[str, DataConfig]
    scoring: ScoringConfig
    units: Units

    @property
    def tasks(self) -> frozenset[str]:
        """Ids of all tasks that are scored."""
        return frozenset(task for tasks in self.units.values() for task in tasks)

    @property
    def pairs(self) -> list[ModelOnGeneration]:
        """Every model on every generation, the models of one generation together."""
        return [(model, generation) for generation in self.generations for model in self.models]


@dataclass(frozen=True)
class Scoring:
    """A plan and the run that its scores belong to.

    Attributes:
        plan: The models, generations and units to score.
        tree: The run that holds the score tree.
        subdir: Directory of the score tree within the run.
        checkpoints: The checkpoints that planning had to read, by model.
        seen: Fingerprints of pairs that are not scored; empty unless `data.split_by=pair`.
    """

    plan: ScorePlan
    tree: Run
    subdir: str
    checkpoints: Mapping[str, Checkpoint]
    seen: frozenset[int] = frozenset()

    @property
    def by_pair(self) -> bool:
        """True if what was seen is left out by pair and not by task."""
        return any(scores_by_pair(of, self.plan.scoring) for of in self.plan.generations.values())

    def file(self, pair: ModelOnGeneration, unit: str) -> str:
        """Returns the name of a score file within the run."""
        return f"{self.subdir}/{'/'.join(pair)}/{file_name(unit)}.json"

    def data(self, generation: str, units: Iterable[str]) -> DataConfig:
        """Returns the data configuration of some units in a generation."""
        tasks = sorted(task for unit in units for task in self.plan.units[unit])
        # The tasks are already chosen, so none may be skipped.
        chosen = {"tasks": tuple(tasks), "every": 1}
        return self.plan.generations[generation].model_copy(update=chosen)

    def unit_of_task(self, units: Iterable[str]) -> dict[str, str]:
        """Returns the unit of each task of some units."""
        return {task: unit for unit in units for task in self.plan.units[unit]}

    def written(self) -> Self:
        """Returns the same, with the plan written beside the score tree.

        Raises:
            RunError: It cannot be written.
        """
        name = f"{self.subdir}.json"
        if self.plan != self.tree.read_record(ScorePlan, name):
            self.tree.write_record(self.plan, name)
        return self


def read_models(checkpoints: Mapping[str, str], scoring: ScoringConfig) -> dict[str, Checkpoint]:
    """Reads the checkpoints at URIs by model, and makes each model once.

    So none is refused after others were scored.

    Raises:
        CheckpointError: One cannot be used, or is of a class that `scoring` does not name.
        ConfigError: A class that `scoring` names cannot be imported.
    """
    import_model_classes(scoring.model_classes)
    models = {name: read_checkpoint(uri) for name, uri in checkpoints.items()}
    for checkpoint in models.values():
        restored(checkpoint)
    return models


def generation_configs(
    generations: Sequence[Generation], data: DataConfig
) -> dict[str, DataConfig]:
    """Returns the data by generation: `published`, `seed-<n>` or the name of an archive.

    Raises:
        ConfigError: An archive is given for a source without files, or two have the same name.
    """
    data = _unsplit(data)
    configs: dict[str, DataConfig] = {}
    for generation in generations:
        name, config = _generation(generation, data)
        if name in configs:
            raise ConfigError(
                f"generations: {generation} and another are both called {name}: give it once, or "
                "rename an archive"
            )
        configs[name] = config
    return configs


def plan_evaluation(config: EvaluateConfig) -> Scoring:
    """Plans the scores of `config`, and then opens its run; a mistake leaves no run.

    Raises:
        RunError: A model or the run cannot be used, or its scores are of other settings.
        DataError: The tasks cannot be used, or none is left to score.
        CheckpointError: A checkpoint cannot be used.
        ConfigError: The generations cannot be used.
    """
    run = Run.planned(config, config.job)
    models = find_models(config.models, config.storage)
    scoring = plan_scoring(models, config.generations, config.data, config.scoring, run)
    return opened(scoring, config)


def opened(scoring: Scoring, config: EvaluateConfig) -> Scoring:
    """Opens the run of a plan that was only made so far, and writes the plan.

    Raises:
        RunError: The run cannot be used.
    """
    return replace(scoring, tree=Run.open(config, config.job)).written()


def plan_scoring(
    models: Mapping[str, str],
    generations: Sequence[Generation],
    data: DataConfig,
    scoring: ScoringConfig,
    tree: Run,
    subdir: str = SCORES,
) -> Scoring:
    """Plans the scores; writes nothing.

    All models are scored on the same tasks: those that none of them was trained on or chosen on,
    or all with `scoring.include_seen`; with `data.select_on_test` also those that one was chosen
    on. With `data.split_by=pair` they are scored on all tasks instead, and there on the pairs that
    none of them has seen. A tree that was begun keeps its units. Models may be added to it if they
    have seen none of its tasks, and none with `data.split_by=pair`.

    Args:
        models: Checkpoint file of each model, a path or URI, by its name in the tree.
        generations: As in `EvaluateConfig`.
        data: The tasks.
        scoring: The unit of a file and the metric that is its accuracy.
        tree: The run that the scores belong to.
        subdir: Directory of the tree within the run.

    Raises:
        DataError: The tasks cannot be used, or none is left to score.
        CheckpointError: A checkpoint cannot be used.
        RunError: The tree holds scores of other checkpoints or settings.
        ConfigError: The generations cannot be used.
    """
    name = f"{subdir}.json"
    datasets = generation_configs(generations, data)
    files = {model: CheckpointFile.at(uri) for model, uri in models.items()}
    before = tree.read_record(ScorePlan, name)
    added = sorted(models.keys() - (before.models.keys() if before else ()))
    read = models if scores_by_pair(data, scoring) else added
    checkpoints = read_models({model: models[model] for model in read}, scoring)
    seen = seen_pairs(checkpoints, data, scoring)
    if before is None:
        units = choose_units(checkpoints, data, scoring)
    else:
        units = before.units
        _refuse_other_settings(tree, name, before, datasets, scoring)
        _refuse_other_checkpoints(tree, before, files)
        if scores_by_pair(data, scoring):
            _refuse_further_models(tree, name, added)
        elif not scoring.include_seen:
            _refuse_seen(tree, checkpoints, before.tasks, data)
    plan = ScorePlan(models=files, generations=datasets, scoring=scoring, units=units)
    return Scoring(plan, tree, subdir, checkpoints, seen)


def _unsplit(data: DataConfig) -> DataConfig:
    """Returns the data without its split, which is a matter of training and not of scoring."""
    defaults = {key: DataConfig.model_fields[key].default for key in SPLIT_KEYS}
    return data.model_copy(update=defaults)


def _generation(generation: Generation, data: DataConfig) -> tuple[str, DataConfig]:
    """Returns the name and the data of a generation, whatever `data.generation` was trained on."""
    if isinstance(generation, int):
        return f"seed-{generation}", data.model_copy(update={"generation": generation})
    data = data.model_copy(update={"generation": None})
    if generation == AS_PUBLISHED:
        return AS_PUBLISHED, data
    if data.source in WITHOUT_PATH:
        raise ConfigError(
            f"generations: {generation} is the path of an archive, but data.source={data.source} "
            f"reads no files: give seeds and {AS_PUBLISHED}, or choose data=re_arc or data=arc_json"
        )
    archive = Place.at(generation)
    name = archive.name if archive.is_directory() else archive.stem
    return file_name(name), data.model_copy(update={"path": generation})


def _refuse_other_settings(
    tree: Run,
    name: str,
    before: ScorePlan,
    generations: Mapping[str, DataConfig],
    scoring: ScoringConfig,
) -> None:
    unsplit = {name: _unsplit(data) for name, data in before.generations.items()}
    earlier, wanted = (
        settings.model_copy(update={"model_classes": ()}) for settings in (before.scoring, scoring)
    )
    for key, had, now in (
        ("generations", unsplit, generations),
        ("scoring", earlier, wanted),
    ):
        if had != now:
            raise RunError(
                f"{tree / name} is of other {key}: {_plain(had)}, now {_plain(now)}; set them "
                "back, or choose another name="
            )


def _plain(settings: ScoringConfig | Mapping[str, DataConfig]) -> object:
    if isinstance(settings, ScoringConfig):
        return settings.model_dump(mode="json")
    return {name: data.model_dump(mode="json") for name, data in settings.items()}


def _refuse_other_checkpoints(
    tree: Run, before: ScorePlan, files: Mapping[str, CheckpointFile]
) -> None:
    for model, had in before.models.items():
        now = files.get(model)
        if now != had:
            raise RunError(
                f"{tree} holds scores of model {model} from {had}, and now it is "
                f"{now or 'not among the models'}: its scores would mix, so choose another name="
            )


def _refuse_further_models(tree: Run, name: str, added: Sequence[str]) -> None:
    if added:
        raise RunError(
            f"{tree / name} scores the pairs that its models have not seen, and further models "
            f"({', '.join(added)}) may have seen some: score them under another name="
        )


def _refuse_seen(
    tree: Run, checkpoints: Mapping[str, Checkpoint], scored: frozenset[str], data: DataConfig
) -> None:
    if not checkpoints:
        return
    chosen = data.model_copy(update={"tasks": tuple(sorted(scored)), "every": 1})
    contents = contents_of(load_tasks(chosen))
    for model, checkpoint in checkpoints.items():
        before = checkpoint.seen.tasks(chosen=not data.select_on_test)
        seen = [task for task, pairs in contents.items() if before.holds(task, pairs)]
        if seen:
            raise RunError(
                f"model {model} has seen {len(seen)} of the {len(scored)} tasks that "
                f"{tree} scores, such as {seen[0]}: score it under another name="
            )
