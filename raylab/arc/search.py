"""Draws from a search space, and the training runs made of them."""

import math
from collections.abc import Sequence
from typing import Any

import optuna

from raylab.arc.sweep import ARCHITECTURE, Drawn
from raylab.config.base import Scalar
from raylab.config.jobs import TrainConfig, TuneConfig
from raylab.config.models import MODEL_CONFIGS
from raylab.config.search import Domain, Search, SearchSpace, nested


def draw(space: SearchSpace, trial: optuna.trial.BaseTrial) -> Drawn:
    """Draws an architecture, its own keys and the training keys from `trial`."""
    architecture = str(trial.suggest_categorical(ARCHITECTURE, list(space.model)))
    drawn: Drawn = {ARCHITECTURE: architecture}
    for name, domain in _domains(space, architecture).items():
        drawn[name] = _suggest(trial, name, domain)
    return drawn


def first_points(space: SearchSpace) -> list[Drawn]:
    """Returns the fixed part of the first draws, so that each architecture is tried once."""
    return [{ARCHITECTURE: architecture} for architecture in space.model]


def sampler(search: Search, seed: int) -> optuna.samplers.BaseSampler:
    """Returns the sampler of `search`; TPE learns which keys go with which architecture."""
    if search is Search.TPE:
        return optuna.samplers.TPESampler(seed=seed)
    return optuna.samplers.RandomSampler(seed=seed)


def rungs(config: TuneConfig) -> tuple[int, ...]:
    """Returns the epochs after which trials that fell behind are stopped, before the last epoch.

    The first rung is `grace_epochs`. With `training.judge_at_restarts` it is the next epoch where a
    cosine ends whatever `restart_epochs` a trial has drawn, which is a multiple of them all. Each
    further rung is `reduction_factor` times the one before (Li et al. 2020, arXiv 1810.05934), so
    that cosines end there too. Without restarts all trials are in the same phase at equal epochs.
    """
    first = config.grace_epochs
    if config.training.judge_at_restarts and "cosine_restarts" in _values(config, "schedule"):
        cycle = math.lcm(*map(int, _values(config, "restart_epochs")))
        first = -(-first // cycle) * cycle
    found: list[int] = []
    while first < config.training.epochs:
        found.append(first)
        first *= config.reduction_factor
    return tuple(found)


def trial_config(config: TuneConfig, drawn: Drawn, *, storage: str, name: str) -> TrainConfig:
    """Returns the training run of a trial.

    Raises:
        pydantic.ValidationError: the drawn values are not valid together.
    """
    architecture = str(drawn[ARCHITECTURE])
    model = nested(_below(drawn, architecture))
    training = config.training.model_dump() | _below(drawn, "training")
    return TrainConfig.model_validate(
        {
            "storage": storage,
            "name": name,
            "resume": True,
            "model": MODEL_CONFIGS[architecture].model_validate(model),
            "data": config.data,
            "training": training,
            "cluster": config.cluster,
        }
    )


def _values(config: TuneConfig, key: str) -> Sequence[Any]:
    """Returns all values of the `training` key, a choice or whole number, that a trial may have."""
    domain = config.space.training.get(key)
    if domain is None:
        return [getattr(config.training, key)]
    if domain.choice is not None:
        return domain.choice
    low, high = domain.bounds
    return range(int(low), int(high) + 1)


def _domains(space: SearchSpace, architecture: str) -> dict[str, Domain]:
    model = {f"{architecture}.{key}": domain for key, domain in space.model[architecture].items()}
    return model | {f"training.{key}": domain for key, domain in space.training.items()}


def _suggest(trial: optuna.trial.BaseTrial, name: str, domain: Domain) -> Scalar:
    if domain.choice is not None:
        return trial.suggest_categorical(name, domain.choice)
    if domain.integer is not None:
        return trial.suggest_int(name, *domain.integer)
    return trial.suggest_float(name, *domain.bounds, log=domain.log_uniform is not None)


def _below(drawn: Drawn, section: str) -> dict[str, Any]:
    prefix = f"{section}."
    return {
        key.removeprefix(prefix): value for key, value in drawn.items() if key.startswith(prefix)
    }
