"""Trained models as users name them: checkpoint files, runs, pipelines and sweeps."""

import logging
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from raylab.arc.checkpoints import CHECKPOINT_FILE, CHECKPOINTS
from raylab.arc.records import PipelineMetrics, TrainingMetrics
from raylab.arc.sweep import TrialFailure, trial_runs
from raylab.errors import RunError
from raylab.files import Place, places_of
from raylab.runs.run import Run, runs_in
from raylab.runs.run_record import RECORD, RunRecord

LOGGER = logging.getLogger(__name__)
SUFFIX = Path(CHECKPOINT_FILE).suffix
UNSAFE_IN_NAMES = re.compile(r'[\\/:*?"<>|\x00-\x1f]')


class _Model(NamedTuple):
    """A checkpoint, its name, and the directory that tells it from another of the same name."""

    name: str
    above: str
    uri: str


def find_models(names: Sequence[str], storage: str) -> dict[str, str]:
    """Returns the checkpoint file of every model, by its name in a score tree.

    Args:
        names: checkpoint files, and runs of `train`, `pipeline` (all its models) and `tune` (all
            its trials with a checkpoint), each a URI, a name under `storage` or a path.
        storage: the directory of runs.

    Raises:
        RunError: there is no such run or file, it holds no trained model, two models would have
            the same name, or a checkpoint is given twice.
    """
    models = [model for text in names for model in _models_at(_location(text, storage))]
    counts = Counter(file_name(model.name).casefold() for model in models)
    named: dict[str, str] = {}
    for model in models:
        is_shared = counts[file_name(model.name).casefold()] > 1
        name = file_name(f"{model.above}-{model.name}" if is_shared else model.name)
        for other, uri in named.items():
            if uri == model.uri:
                raise RunError(f"the checkpoint {uri} is given twice: name it once in models=")
            if other.casefold() == name.casefold():
                raise RunError(
                    f"{uri} and {model.uri} would both be called {name} in the score tree: "
                    "score them in runs of their own, or rename a run directory"
                )
        named[name] = model.uri
    return named


def _location(text: str, storage: str) -> Place:
    if "://" in text:
        return Place.at(text)
    places = places_of(text, storage)
    for place in places:
        if (place if _is_checkpoint(place) else place / RECORD).exists():
            return place
    raise RunError(
        f"no model {text}: neither {' nor '.join(map(str, places))} is a checkpoint "
        f"(*{SUFFIX}) or a run directory with a {RECORD}; {runs_in(storage)}"
    )


def _is_checkpoint(place: Place) -> bool:
    return place.name.endswith(SUFFIX)


def _models_at(place: Place) -> list[_Model]:
    if not _is_checkpoint(place):
        return _models_of(Run.at(place))
    directory = place.parent
    if directory.parent.name == CHECKPOINTS:
        run = directory.parent.parent
        return [_Model(f"{run.name}-{directory.name}", run.parent.name, str(place))]
    return [_Model(place.stem, directory.name, str(place))]


def _models_of(run: Run) -> list[_Model]:
    models: list[_Model] = []
    skipped: list[str] = []
    for name, own in _trainings_of(run).items():
        metrics = own.read_record(TrainingMetrics)
        if metrics is None or (own / TrialFailure.file).exists():
            skipped.append(own.name)
            continue
        above = (own if name == own.name else run).parent.name
        models.append(_Model(name, above, str(own / metrics.best.checkpoint)))
    if not models:
        raise RunError(f"{run} has no trained model yet: no epoch of a training is finished")
    if not run.is_finished:
        LOGGER.warning("%s is not finished: its best checkpoint so far is taken", run)
    if skipped:
        LOGGER.warning(
            "%s: %d trainings failed or have no epoch yet and are left out: %s",
            run,
            len(skipped),
            ", ".join(skipped),
        )
    return models


def _trainings_of(run: Run) -> dict[str, Run]:
    """Returns the training runs of a run, by the names of their models."""
    record = run.read_record(RunRecord)
    match record and record.job:
        case "train":
            return {run.name: run}
        case "pipeline":
            metrics = run.read_record(PipelineMetrics)
            return {name: Run.at(run / name) for name in (metrics.models if metrics else ())}
        case "tune":
            return {f"{run.name}-{trial.name}": trial for trial in trial_runs(run)}
        case None:
            raise RunError(f"{run} is neither a checkpoint nor a run: it has no {RECORD}")
        case job:
            raise RunError(f"{run} is a run of {job}, which trains no model")


def file_name(name: str) -> str:
    """Returns `name` as a file name that any filesystem takes and readers of trees do not skip."""
    return UNSAFE_IN_NAMES.sub("-", name).lstrip(".") or "-"
