"""The inputs of a training, which are read and checked before it starts."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from raylab.arc.config.jobs import TrainConfig
from raylab.arc.config.models import CustomConfig, ModelConfig
from raylab.arc.config.sections import DataConfig, TrainingConfig
from raylab.arc.data.split import Sides, load_sides
from raylab.core.config.base import JobConfig
from raylab.core.errors import RunError
from raylab.core.runs.run import Run

if TYPE_CHECKING:
    from raylab.arc.checkpoints import Checkpoint


@dataclass(frozen=True)
class Inputs:
    """The inputs of a training."""

    config: TrainConfig
    """Its configuration, with the sizes and the file of its start checkpoint."""
    sides: Sides
    """Its pairs, by side of the split."""
    start: "Checkpoint | None"
    """The weights that it starts from; None for new ones."""


def read_inputs(config: TrainConfig) -> Inputs:
    """Reads the tasks and the checkpoint of a training, so that unusable input fails early.

    Raises:
        DataError: The tasks or their split cannot be used.
        CheckpointError: The checkpoint of `config.init_from` cannot be used, or is of another
            model.
        RunError: The run of `config` cannot be started or resumed.
        ConfigError: A model class of `config` cannot be used.
    """
    start = None
    if config.init_from is not None:
        # A training from new weights needs no torch before it starts.
        from raylab.arc.checkpoints import load_weights, read_checkpoint
        from raylab.arc.models import build_model
        from raylab.arc.trained_models import find_models

        uris = list(find_models([config.init_from], config.storage).values())
        if len(uris) > 1:
            raise RunError(
                f"init_from={config.init_from} has {len(uris)} models: name the run of one of them"
            )
        start, own = read_checkpoint(uris[0]), config.model
        if start.model.architecture == own.architecture:
            # Sizes that the configuration itself sets stay; it is an error if they differ.
            sizes = start.model.sizes().items()
            sizes = {key: value for key, value in sizes if key not in own.model_fields_set}
            own = type(own).model_validate({**own.model_dump(), **sizes})
        load_weights(build_model(own), own, start)
        config = config.model_copy(update={"model": own, "init_from": uris[0]})
    Run.check(config)
    check_classes([config.model], config.training)
    return Inputs(config, load_sides(config.data), start)


def read_sides(config: JobConfig, data: DataConfig) -> Sides:
    """Loads and splits the tasks `data` of a job."""
    Run.check(config)
    return load_sides(data)


def check_classes(models: Sequence[ModelConfig], training: TrainingConfig) -> None:
    """Tries a model of each custom class, and builds its optimiser."""
    for model in models:
        if isinstance(model, CustomConfig):
            from raylab.arc.models.custom import try_custom
            from raylab.arc.optimisation import build_optimiser

            build_optimiser(try_custom(model), training, fused=False)
