"""Trained models as users name them: checkpoint files, runs, pipelines and sweeps."""

import logging
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from raylab.arc.checkpoints import CHECKPOINT_FILE, CHECKPOINTS
from raylab.arc.records import PipelineMetrics, TrainingMetrics
from raylab.arc.sweep import TrialFailure, trial_runs
from raylab.errors import RunError
from raylab.files import Place, places_of
from raylab.runs.run import METRICS, Run
from raylab.runs.run_record import RECORD, RunRecord

logger = logging.getLogger(__name__)

UNSAFE_IN_NAMES = re.compile(r'[\\/:*?"<>|\x00-\x1f]')


@dataclass(frozen=True)
class _Found:
    """A checkpoint, its name, and a longer name in case two models share the short one."""

    name: str
    longer: str
    uri: str


def find_models(given: Sequence[str], storage: str) -> dict[str, str]:
    """Returns the checkpoint file of every model, by its name in a score tree.

    Args:
        given: checkpoint files, and runs of `train`, `pipeline` (all its models) and `tune` (all
            its trials with a checkpoint), each a URI, a name under `storage` or a path.
        storage: the directory of runs.

    Raises:
        RunError: there is no such run or file, it holds no trained model, two models would have
            the same name, or a checkpoint is given twice.
    """
    found = [model for text in given for model in _models_at(_location(text, storage))]
    names = Counter(file_name(model.name).casefold() for model in found)
    named: dict[str, str] = {}
    for model in found:
        shared = names[file_name(model.name).casefold()] > 1
        name = file_name(model.longer if shared else model.name)
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
        f"(*{Path(CHECKPOINT_FILE).suffix}) or a run directory with a {RECORD}"
    )


def _is_checkpoint(place: Place) -> bool:
    return place.name.endswith(Path(CHECKPOINT_FILE).suffix)


def _models_at(place: Place) -> list[_Found]:
    if _is_checkpoint(place):
        return [_of_file(place)]
    run = Run.at(place)
    record = run.read_record(RunRecord)
    if record is None:
        raise RunError(f"{run} is neither a checkpoint nor a run: it has no {RECORD}")
    match record.job:
        case "train":
            return [_of_run(run)]
        case "pipeline":
            return _of_pipeline(run)
        case "tune":
            return _of_sweep(run)
        case job:
            raise RunError(f"{run} is a run of {job}, which trains no model")


def _of_file(file: Place) -> _Found:
    directory = file.parent
    if directory.parent.name == CHECKPOINTS:
        run = directory.parent.parent
        name = f"{run.name}-{directory.name}"
        return _Found(name, f"{run.parent.name}-{name}", str(file))
    return _Found(file.stem, f"{directory.name}-{file.stem}", str(file))


def _of_run(run: Run) -> _Found:
    best = _best_checkpoint(run)
    if best is None:
        raise RunError(f"{run} has no {METRICS}: no epoch of its training is finished yet")
    if not run.finished:
        logger.warning("%s is not finished: its best checkpoint so far is scored", run.uri)
    return _Found(run.name, _longer_name(run), best)


def _of_pipeline(run: Run) -> list[_Found]:
    metrics = run.read_record(PipelineMetrics)
    if metrics is None or not metrics.models:
        raise RunError(f"{run} has no trained model yet: no model is in its {METRICS}")
    return [_of_run(Run.at(run / name)) for name in metrics.models]


def _of_sweep(run: Run) -> list[_Found]:
    found: list[_Found] = []
    skipped: list[str] = []
    for trial in trial_runs(run):
        best = _best_checkpoint(trial)
        if best is None or (trial / TrialFailure.file).exists():
            skipped.append(trial.name)
            continue
        name = f"{run.name}-{trial.name}"
        found.append(_Found(name, f"{_longer_name(run)}-{trial.name}", best))
    if skipped:
        logger.warning(
            "%s: %d trials failed or have no epoch yet and are left out: %s",
            run,
            len(skipped),
            ", ".join(skipped),
        )
    if not found:
        raise RunError(f"{run} has no trained model yet: none of its trials has a {METRICS}")
    return found


def _longer_name(run: Run) -> str:
    return f"{run.parent.name}-{run.name}"


def _best_checkpoint(run: Run) -> str | None:
    """Returns the file of a run's best checkpoint; None before its first epoch is finished."""
    metrics = run.read_record(TrainingMetrics)
    return None if metrics is None else str(run / metrics.best.checkpoint)


def file_name(name: str) -> str:
    """Returns `name` as a file name that any filesystem takes and readers of trees do not skip."""
    return UNSAFE_IN_NAMES.sub("-", name).lstrip(".") or "-"
