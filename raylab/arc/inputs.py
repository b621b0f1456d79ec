"""What a training reads before it starts."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from raylab.arc.data.parts import Parts, load_parts
from raylab.config.jobs import BenchmarkConfig, PipelineConfig, TrainConfig, TuneConfig
from raylab.config.models import CustomConfig, ModelConfig
from raylab.errors import CheckpointError
from raylab.files import Place
from raylab.runs.run import Run

if TYPE_CHECKING:
    from raylab.arc.checkpoints import Checkpoint
    from raylab.arc.data.sides import Sides


@dataclass(frozen=True)
class Inputs:
    """The inputs of a training.

    Attributes:
        sides: Its pairs, by side of the split.
        start: The weights that it starts from; None for new ones.
    """

    sides: "Sides"
    start: "Checkpoint | None"


def read_inputs(config: TrainConfig) -> Inputs:
    """Reads the tasks and the checkpoint of a training; what cannot be used is told soon.

    Raises:
        DataError: The tasks or their split cannot be used.
        CheckpointError: The checkpoint of `config.init_from` cannot be used, or is of another
            model.
        RunError: The run of `config` cannot be started or gone on with.
        ConfigError: A model class of `config` cannot be used.
    """
    Run.planned(config, config.job)
    _check_classes([config.model])
    parts = load_parts(config.data)
    start = read_start(config)
    return Inputs(_sides_of(parts), start)


def read_sides(config: TrainConfig | TuneConfig | PipelineConfig | BenchmarkConfig) -> "Sides":
    """Loads and splits the tasks of a job.

    Raises:
        DataError: The tasks or their split cannot be used.
        RunError: The run of `config` cannot be started or gone on with.
    """
    Run.planned(config, config.job)
    if isinstance(config, PipelineConfig):
        _check_classes(config.models)
    return _sides_of(load_parts(config.data))


def _check_classes(models: Sequence[ModelConfig]) -> None:
    """Makes a model of each class of the user's own."""
    for model in models:
        if isinstance(model, CustomConfig):
            from raylab.arc.models.custom import custom

            custom(model)


def _sides_of(parts: Parts) -> "Sides":
    # Torch takes seconds to import, and errors in the data are found without it.
    from raylab.arc.data.sides import sides_of

    return sides_of(parts)


def read_start(config: TrainConfig) -> "Checkpoint | None":
    """Reads the checkpoint that a training starts from, and checks that it fits the model.

    Raises:
        CheckpointError: It cannot be used, or is of another model.
    """
    if config.init_from is None:
        return None
    if not (place := Place.at(config.init_from)).exists():
        raise CheckpointError(f"init_from={place} does not exist: name a checkpoint or a run")
    from raylab.arc.checkpoints import load_weights
    from raylab.arc.models.base import build_model
    from raylab.arc.trained_models import fetch_checkpoint

    checkpoint = fetch_checkpoint(config.init_from)
    load_weights(build_model(config.model), config.model, checkpoint)
    return checkpoint
