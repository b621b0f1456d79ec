"""Draws from a search space, and the configurations of their trainings."""

import json
import math
import random
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import optuna
from optuna.trial import TrialState

from raylab.arc.config.jobs import TrainConfig, TuneConfig
from raylab.arc.config.search import Search, SearchSpace, nest
from raylab.arc.grid_metrics import mode_of
from raylab.arc.sweep import ARCHITECTURE, Drawn

REDRAWS = 10
"""Draws of the sampler for a trial, after which any remaining configuration is taken."""


class Draws:
    """The configurations that a sweep tries, each only once; their scores guide TPE.

    Each architecture is drawn once before the sampler chooses among them.
    """

    def __init__(self, config: TuneConfig) -> None:
        self._config, self._space = config, config.space
        direction = "maximize" if mode_of(config.monitor) == "max" else "minimize"
        # TPE learns which keys go with which architecture.
        samplers = optuna.samplers
        kind = samplers.TPESampler if config.search is Search.TPE else samplers.RandomSampler
        self._study = optuna.create_study(sampler=kind(seed=config.seed), direction=direction)
        self._random = random.Random(config.seed)
        self._trials: dict[str, optuna.Trial] = {}
        self._drawn: set[str] = set()
        if config.search is not Search.GRID:
            # Chance could leave an architecture out of a short sweep.
            for architecture in self._space.model:
                self._study.enqueue_trial({ARCHITECTURE: architecture})

    def draw(self, name: str) -> Drawn | None:
        """Returns a configuration for the trial `name`; None if all have been drawn."""
        for trial in self._ask():
            architecture = trial.suggest_categorical(ARCHITECTURE, list(self._space.model))
            drawn: Drawn = {ARCHITECTURE: architecture}
            for key, domain in self._space.domains(architecture).items():
                if domain.integer is not None:
                    drawn[key] = trial.suggest_int(key, *domain.integer)
                elif domain.values is not None:
                    drawn[key] = trial.suggest_categorical(key, domain.values)
                else:
                    log = domain.log_uniform is not None
                    drawn[key] = trial.suggest_float(key, *domain.bounds, log=log)
            # As text, because 1 and true are equal in Python.
            if (key := json.dumps(drawn)) not in self._drawn:
                self._drawn.add(key)
                self._trials[name] = trial
                return drawn
            self._study.tell(trial, state=TrialState.FAIL)
        return None

    def tell(self, name: str, score: float | None) -> None:
        """Records the score of a trial that ended; None if it has none."""
        state = TrialState.FAIL if score is None else TrialState.COMPLETE
        if trial := self._trials.pop(name, None):
            self._study.tell(trial, score, state=state)

    def _ask(self) -> Iterator[optuna.Trial]:
        """Yields draws of the sampler, then the remaining configurations."""
        if self._config.search is not Search.GRID:
            for _ in range(REDRAWS):
                yield self._study.ask()
        size, done = self._space.size, len(self._drawn)
        rest: Iterable[Drawn] = ()
        if size is None:
            # What is left to draw is continuous: any draw of such an architecture is new.
            endless = [name for name in self._space.model if self._space.count(name) is None]
            rest = ({ARCHITECTURE: architecture} for architecture in endless)
        elif done < size:
            start = done if self._config.search is Search.GRID else self._random.randrange(size)
            rest = (combination(self._space, (start + at) % size) for at in range(size))
        for fixed in rest:
            self._study.enqueue_trial(fixed)
            yield self._study.ask()


def combination(space: SearchSpace, index: int) -> Drawn:
    """Returns configuration `index`, from 0, of a finite space; the first keys vary fastest."""
    for architecture in space.model:
        count = space.count(architecture) or 0
        if index < count:
            drawn: Drawn = {ARCHITECTURE: architecture}
            for name, domain in space.domains(architecture).items():
                values = domain.values or ()
                index, place = divmod(index, len(values))
                drawn[name] = values[place]
            return drawn
        index -= count
    raise IndexError


REDUCTION_FACTOR = 3
"""Of this many trials, one continues from a rung to the next."""


def rungs(config: TuneConfig) -> tuple[int, ...]:
    """Returns the epochs, before the last one, after which trials that fell behind are stopped.

    The first rung is `grace_epochs`, and each further one `REDUCTION_FACTOR` times the one before
    (Li et al. 2020, arXiv 1810.05934).
    """
    epochs = config.training.epochs
    # In a given time, trials are in different phases of their schedules at equal epochs.
    if epochs is None or config.training.max_minutes is not None:
        return ()
    first = config.grace_epochs
    # At a multiple of every `restart_epochs` in the space, the cosines of all trials end.
    if config.training.judge_at_restarts and "cosine_restarts" in _values(config, "schedule"):
        cycle = math.lcm(*map(int, _values(config, "restart_epochs")))
        first = -(-first // cycle) * cycle
    stops: list[int] = []
    while first < epochs:
        stops.append(first)
        first *= REDUCTION_FACTOR
    return tuple(stops)


def trial_config(config: TuneConfig, drawn: Drawn, *, storage: str, name: str) -> TrainConfig:
    """Returns the training run of a trial, unless the drawn values are not valid together."""
    architecture = str(drawn[ARCHITECTURE])
    training = config.training.model_copy(update={"monitor": config.monitor}).model_dump()
    return TrainConfig.model_validate(
        {
            "storage": storage,
            "name": name,
            "resume": True,
            "model": nest(_below(drawn, architecture)) | {ARCHITECTURE: architecture},
            "data": config.data,
            "training": training | _below(drawn, "training"),
            "cluster": config.cluster,
            "tracking": config.tracking,
        }
    )


def _values(config: TuneConfig, key: str) -> Sequence[Any]:
    """Returns all values that a trial may have of a discrete `training` key."""
    domain = config.space.training.get(key)
    return [getattr(config.training, key)] if domain is None else domain.values or ()


def _below(drawn: Drawn, section: str) -> dict[str, Any]:
    prefix = f"{section}."
    return {
        key.removeprefix(prefix): value for key, value in drawn.items() if key.startswith(prefix)
    }
