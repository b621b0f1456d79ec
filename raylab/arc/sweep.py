"""The records of a sweep: its trials by rank, and the failures."""

import math
import re
from collections.abc import Iterable
from typing import ClassVar

from pydantic import Field

from raylab.arc.records import HeldOut, TrainingMetrics
from raylab.config.base import Scalar
from raylab.config.jobs import TrainConfig, TuneConfig
from raylab.config.schema import flat
from raylab.config.search import SearchSpace
from raylab.grid_metrics import VALIDATION, RuleMetrics, merit
from raylab.runs.records import Part, Record
from raylab.runs.run import METRICS, TRIALS, Run
from raylab.runs.run_record import RunRecord

ARCHITECTURE = "architecture"
NAME_CHARACTERS = 100
"""Most characters of what was searched in the name of a run."""

Drawn = dict[str, Scalar]
"""The values that a search drew: `architecture`, `<architecture>.<key>` and `training.<key>`."""


def describe(drawn: Drawn) -> str:
    """Returns a draw on one line: the architecture, then its keys, numbers to three digits."""
    keys = [key for key in drawn if key != ARCHITECTURE]
    values = [f"{key.rpartition('.')[2]}={_short(drawn[key])}" for key in keys]
    return " ".join([str(drawn[ARCHITECTURE]), *values])


def name_trial(trial: str, drawn: Drawn, space: SearchSpace) -> str:
    """Returns the name of a trial's run: the id that Ray Tune gives it, and what was searched."""
    words = re.sub(r"[^A-Za-z0-9._]+", "-", describe(space.searched(drawn)))
    return f"{trial}-{words[:NAME_CHARACTERS]}"


def best_yaml(config: TrainConfig) -> str:
    """Returns the `best.yaml` of a trial: what is trained, but not where and under which name."""
    # Who reads what sweeps left has no use for Hydra.
    from raylab.config.compose import as_yaml

    return as_yaml(config, exclude={"storage", "name", "resume", "log", "cluster", "tracking"})


class TrialFailure(Record):
    """The reason why a trial could not be trained."""

    file: ClassVar[str] = "failure.json"

    kind: str
    """Name of the error."""
    message: str


class Trained(Part):
    """The result of training a trial."""

    score: float
    """The best value of what was monitored."""
    epoch: int
    """The epoch with that value."""
    cell_accuracy: float
    """Cell accuracy at the same epoch."""
    solve_rate: float | None = None
    """Free-running solve rate at the same epoch; None if it was not measured."""
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
    """The values of what was searched; None if the trial was not begun."""
    trained: Trained | None
    """The result; None if it failed or finished no epoch."""
    failure: str | None
    """The reason why it failed; None if it did not."""

    @property
    def description(self) -> str:
        """The drawn values on one line."""
        return describe(self.drawn) if self.drawn else "-"


class SweepMetrics(Record):
    """The trials of a sweep, in its `metrics.json`."""

    file: ClassVar[str] = METRICS

    version: ClassVar[int] = 3

    trials: tuple[Trial, ...]
    """Best first, failed ones last."""
    rules: RuleMetrics = Field(default={})
    """Metrics of the rules that learn nothing on the validation tasks."""
    test: HeldOut | None = None
    """Figures of the best trial, and of no other, on the test tasks; None if there is none."""


def trial_runs(run: Run) -> list[Run]:
    """Returns the training runs of a sweep, by name."""
    trials = run / TRIALS
    return [Run.at(trials / name) for name in trials.names()]


def rank_trials(
    config: TuneConfig, run: Run, ids: Iterable[str]
) -> tuple[SweepMetrics, dict[str, TrainingMetrics]]:
    """Returns the trials `ids`, best first and failed ones last, and the metrics of the trained.

    Cell accuracy breaks ties, which are common in short sweeps.

    Raises:
        RunError: A file of a trial cannot be used.
        DataError: A file cannot be read.
    """
    monitor, wanted = config.training.monitor, set(ids)
    trials: list[Trial] = []
    trained: dict[str, TrainingMetrics] = {}
    for own in trial_runs(run):
        if own.name.partition("-")[0] not in wanted:
            continue
        record, failure = own.read_record(RunRecord), own.read_record(TrialFailure)
        metrics = own.read_record(TrainingMetrics) if failure is None else None
        trial = Trial(
            trial=own.name,
            drawn=record and _drawn(config.space, record),
            trained=metrics and _trained(own, metrics, monitor),
            failure=failure and failure.message,
        )
        trials.append(trial)
        if metrics:
            trained[own.name] = metrics

    def rank(trial: Trial) -> tuple[float, ...]:
        best = trial.trained
        return (-merit(monitor, best.score), -best.cell_accuracy) if best else (math.inf,)

    # All trials validate on the same tasks.
    rules = next((metrics.rules for metrics in trained.values()), {})
    return SweepMetrics(trials=tuple(sorted(trials, key=rank)), rules=rules), trained


def sweep_figures(metrics: SweepMetrics, monitor: str) -> dict[str, float]:
    """Returns the main figures of a sweep by name: of its best trial, and how many there are."""
    best = metrics.trials[0].trained if metrics.trials else None
    figures = {"trials": float(len(metrics.trials))}
    if best is not None:
        figures[monitor] = best.score
    if metrics.test is not None:
        figures |= {f"test_{name}": value for name, value in metrics.test.metrics.items()}
    return figures


def _trained(run: Run, metrics: TrainingMetrics, monitor: str) -> Trained:
    best = metrics.best
    return Trained(
        score=best.validation[monitor.removeprefix(VALIDATION)],
        epoch=best.epoch,
        cell_accuracy=best.validation["cell_accuracy"],
        solve_rate=best.validation.get("solve_rate"),
        epochs=metrics.last.epoch,
        parameters=metrics.parameters,
        checkpoint=str(run / best.checkpoint),
    )


def _drawn(space: SearchSpace, record: RunRecord) -> Drawn:
    """Returns the searched values of a trial, as recorded in its configuration."""
    config = TrainConfig.model_validate(record.config)
    architecture = config.model.architecture
    model, training = (
        flat(part.model_dump(mode="json")) for part in (config.model, config.training)
    )
    drawn = {
        ARCHITECTURE: architecture,
        **{f"{architecture}.{key}": model[key] for key in space.model[architecture]},
        **{f"training.{key}": training[key] for key in space.training},
    }
    return space.searched(drawn)


def _short(value: Scalar) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)
