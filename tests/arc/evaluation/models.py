"""Two small trained models, and the evaluation of them."""

from pathlib import Path
from typing import Any

import pytorch_lightning as pl

from raylab.arc.config.jobs import EvaluateConfig, TrainConfig
from raylab.arc.config.models import EncoderDecoderConfig
from raylab.arc.config.sections import DataConfig, Precision, ScoringConfig, TrainingConfig
from raylab.arc.data.split import load_sides
from raylab.arc.training.loop import Experiment, build_trainer
from raylab.core.runs.run import Run
from raylab.core.runs.run_record import RunRecord
from tests.arc.measured import training_metrics

DATA = DataConfig(every=40)
"""Ten tasks of ARC-AGI-1: seven to train on, one to validate on, two to test on."""
CHECKPOINT = "checkpoints/epoch-0001/checkpoint.ckpt"


def train_small(run: Run, data: DataConfig = DATA, seed: int = 307) -> None:
    """A training run as `fit` leaves it, without Ray."""
    config = TrainConfig(
        model=EncoderDecoderConfig(d_model=16, d_ff=32, heads=2, decoder_layers=1),
        data=data,
        training=TrainingConfig(epochs=1, seed=seed, precision=Precision.FLOAT32),
    )
    experiment = Experiment(config, load_sides(config.data))
    trainer: pl.Trainer = build_trainer(config.training, accelerator="cpu")
    trainer.fit(experiment.module, datamodule=experiment)
    trainer.save_checkpoint(Path(run.path) / CHECKPOINT, weights_only=False)
    run.write_record(training_metrics())
    run.write_record(RunRecord.start(config, run.name).finish())


def train_two(storage: Path) -> Path:
    """Trains `one` and `two`, of the same tasks."""
    train_small(Run.at(f"{storage}/one"))
    train_small(Run.at(f"{storage}/two"), seed=1)
    return storage


def evaluation(storage: Path, name: str, **changes: Any) -> EvaluateConfig:
    fields: dict[str, Any] = {
        "models": ("one", "two"),
        "generations": ("published", 1),
        "data": DATA,
        "storage": str(storage),
        "name": name,
        # Models as small as these solve nothing, so that their solve rates are all alike.
        "scoring": ScoringConfig(metric="cell_accuracy"),
    }
    return EvaluateConfig(**(fields | changes))
