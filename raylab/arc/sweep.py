"""The records of a sweep: its trials by rank, and the failures."""

import json
import math
import re
from collections.abc import Iterable
from typing import ClassVar

from pydantic import Field

from raylab.arc.config.jobs import TrainConfig, TuneConfig
from raylab.arc.config.search import CLASS, SearchSpace
from raylab.arc.grid_metrics import LOSS, VALIDATION, BaselineMetrics, merit
from raylab.arc.records import HeldOut, TrainingMetrics
from raylab.core.config.base import Scalar
from raylab.core.config.schema import flatten
from raylab.core.runs.records import Part, Record
from raylab.core.runs.run import METRICS, TRIALS, Run
from raylab.core.runs.run_record import RunRecord

ARCHITECTURE = "architecture"
NAME_CHARACTERS = 100
"""Most characters of the searched values in the name of a run."""

Drawn = dict[str, Scalar]
"""The drawn values: `architecture`, `<architecture>.<key>` and `training.<key>`."""


def describe(drawn: Drawn) -> str:
    """Returns a draw on one line: the architecture or your own class, then its keys."""
    keys = [key for key in drawn if key not in (ARCHITECTURE, CLASS)]
    values = [f"{key.rpartition('.')[2]}={show_value(drawn[key])}" for key in keys]
    model = str(drawn.get(CLASS, drawn[ARCHITECTURE])).rpartition(":")[2]
    return " ".join([model, *values])


def show_value(value: Scalar) -> str:
    """Returns a value as on the command line, a number with three digits."""
    if isinstance(value, float):
        return f"{value:.3g}"
    return value if isinstance(value, str) else json.dumps(value)


def name_trial(trial: str, drawn: Drawn, space: SearchSpace) -> str:
    """Returns the name of a trial's run: its id in Ray Tune and the searched values."""
    words = re.sub(r"[^A-Za-z0-9._]+", "-", describe(space.drop_constants(drawn)))
    return f"{trial}-{words[:NAME_CHARACTERS]}"


def best_yaml(config: TrainConfig) -> str:
    """Returns the `best.yaml` of a trial: its configuration without storage, name and cluster."""
    # Readers of sweeps must not import Hydra.
    from raylab.core.config.compose import as_yaml

    return as_yaml(config, exclude={"storage", "name", "resume", "log", "cluster", "tracking"})


class TrialFailure(Record):
    """The reason why a trial could not be trained."""

    file: ClassVar[str] = "failure.json"

    message: str


class Trained(Part):
    """The result of training a trial."""

    score: float
    """The best value of the monitored metric."""
    epoch: int
    """The epoch with that value."""
    loss: float
    """Validation loss at the same epoch; of equal scores, the one with the lowest loss is first."""
    grids: int
    """Validation grids that the score is measured on."""
    solve_rate: float
    """Free-running solve rate at the same epoch."""
    teacher_forced: bool
    """As in `TrainingMetrics`."""
    epochs: int
    """Epochs trained."""
    parameters: int
    checkpoint: str
    """The checkpoint file of the best epoch."""


class Trial(Part):
    """A trial of a sweep."""

    trial: str
    """Name of its run, below the sweep's trials."""
    drawn: Drawn | None
    """The searched values; None if the trial did not start."""
    trained: Trained | None
    """The result; None if it failed or finished no epoch."""
    failure: str | None
    """The reason why it failed; None for other trials."""

    @property
    def id(self) -> str:
        """Its id in Ray Tune, with which its name begins."""
        return self.trial.partition("-")[0]

    @property
    def description(self) -> str:
        """The drawn values on one line."""
        return describe(self.drawn) if self.drawn else "-"


class SweepMetrics(Record):
    """The trials of a sweep, in its `metrics.json`."""

    file: ClassVar[str] = METRICS

    version: ClassVar[int] = 4

    trials: tuple[Trial, ...]
    """Best first, failed ones last."""
    baselines: BaselineMetrics = Field(default={})
    """Metrics of the baselines on the validation tasks."""
    test: HeldOut | None = None
    """Figures of the best trial on the test tasks."""

    def rank(self, place: int) -> int:
        """Returns the rank, from 1, of a trained trial by its place; equal scores share one."""
        scores = [trial.trained.score for trial in self.trials if trial.trained]
        return 1 + scores.index(scores[place])


def trial_runs(run: Run) -> list[Run]:
    """Returns the training runs of a sweep, by name."""
    trials = run / TRIALS
    return [Run.at(trials / name) for name in trials.names()]


def rank_trials(
    config: TuneConfig, run: Run, ids: Iterable[str]
) -> tuple[SweepMetrics, dict[str, TrainingMetrics]]:
    """Returns the trials by rank, failed ones last, and the metrics of those that were trained.

    The lowest loss breaks ties, which are common in short sweeps.
    """
    monitor, wanted = config.monitor, set(ids)
    trials: list[Trial] = []
    trained: dict[str, TrainingMetrics] = {}
    for own in trial_runs(run):
        # Tune knows nothing of a run that a killed sweep left behind.
        if own.name.partition("-")[0] not in wanted:
            continue
        record, failure = own.read_record(RunRecord), own.read_record(TrialFailure)
        metrics = own.read_record(TrainingMetrics) if failure is None else None
        result = None
        if metrics:
            trained[own.name], best = metrics, metrics.best
            result = Trained(
                score=best.validation[monitor.removeprefix(VALIDATION)],
                epoch=best.epoch,
                loss=best.validation[LOSS],
                grids=sum(group.grids for group in best.groups.values()),
                solve_rate=best.validation["solve_rate"],
                teacher_forced=metrics.teacher_forced,
                epochs=metrics.last.epoch,
                parameters=metrics.parameters,
                checkpoint=str(own / best.checkpoint),
            )
        drawn = None
        if record:
            recorded = flatten(TrainConfig.model_validate(record.config).model_dump(mode="json"))
            architecture = recorded["model.architecture"]
            drawn = {ARCHITECTURE: architecture}
            for key in config.space.model[architecture]:
                drawn[f"{architecture}.{key}"] = recorded[f"model.{key}"]
            for key in (f"training.{name}" for name in config.space.training):
                drawn[key] = recorded[key]
            drawn = config.space.drop_constants(drawn)
        trials.append(
            Trial(trial=own.name, drawn=drawn, trained=result, failure=failure and failure.message)
        )

    def rank(trial: Trial) -> tuple[float, ...]:
        best = trial.trained
        return (-merit(monitor, best.score), best.loss) if best else (math.inf,)

    # All trials validate on the same tasks.
    baselines = next((metrics.baselines for metrics in trained.values()), {})
    return SweepMetrics(trials=tuple(sorted(trials, key=rank)), baselines=baselines), trained
