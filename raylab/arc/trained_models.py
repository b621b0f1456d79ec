"""Trained models as users name them: checkpoint files, runs, pipelines and sweeps."""

import logging
import re
from collections.abc import Sequence
from pathlib import Path

from raylab.arc.checkpoints import CHECKPOINT_FILE, CHECKPOINTS
from raylab.arc.records import PipelineMetrics, TrainingMetrics
from raylab.arc.sweep import TrialFailure, trial_runs
from raylab.core.errors import RunError
from raylab.core.runs.run import Run, find_named

LOGGER = logging.getLogger(__name__)
SUFFIX = Path(CHECKPOINT_FILE).suffix
UNSAFE_IN_NAMES = re.compile(r'[\\/:*?"<>|\x00-\x1f]')


def find_models(names: Sequence[str], storage: str) -> dict[str, str]:
    """Returns the checkpoint file of every model, by its name in a score tree.

    The `names` are checkpoint files, and runs of `train`, `pipeline` (all its models) and `tune`
    (all its trials with a checkpoint), each a URI, a name under `storage` or a path. A model has
    the name of its run; in a pipeline or a sweep that of the run and its own.

    Raises:
        RunError: There is no such run or file, it holds no trained model, or two models have the
            same name.
    """
    models: dict[str, str] = {}
    for text in names:
        place = find_named(text, storage, SUFFIX)
        folder = place.parent
        if not place.name.endswith(SUFFIX):
            named = _models_of(Run.at(place))
        elif folder.parent.name == CHECKPOINTS:
            named = {f"{folder.parent.parent.name}-{folder.name}": str(place)}
        else:
            named = {file_name(place.stem): str(place)}
        for name, uri in named.items():
            for other in models:
                # Some file systems take names that differ in case alone for one.
                if other.casefold() == name.casefold():
                    raise RunError(
                        f"{models[other]} and {uri} would both be called {name} in the score "
                        "tree: name each model once, or rename a run directory"
                    )
            models[name] = uri
    return models


def _models_of(run: Run) -> dict[str, str]:
    match run.record.job:
        case "train":
            trainings = {run.name: run}
        case "pipeline":
            metrics = run.read_record(PipelineMetrics)
            names = metrics.models if metrics else ()
            trainings = {f"{run.name}-{name}": Run.at(run / name) for name in names}
        case "tune":
            trainings = {f"{run.name}-{trial.name}": trial for trial in trial_runs(run)}
        case job:
            raise RunError(f"{run} is a run of {job}, which trains no model")
    models: dict[str, str] = {}
    skipped: list[str] = []
    for name, training in trainings.items():
        metrics = training.read_record(TrainingMetrics)
        if metrics is None or (training / TrialFailure.file).exists():
            skipped.append(training.name)
        else:
            models[name] = str(training / metrics.best.checkpoint)
    if not models:
        raise RunError(f"{run} has no trained model yet: no epoch of a training is finished")
    if not run.is_finished:
        LOGGER.warning("%s is not finished: its best checkpoint so far is taken", run)
    if skipped:
        names = ", ".join(skipped)
        LOGGER.warning("%s: trainings that failed or have no epoch are left out: %s", run, names)
    return models


def file_name(name: str) -> str:
    """Returns `name` as a file name that any filesystem takes and readers of trees do not skip."""
    return UNSAFE_IN_NAMES.sub("-", name).lstrip(".") or "-"
