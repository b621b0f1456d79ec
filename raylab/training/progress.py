"""What a training tells while it runs: its size, and signs of life."""

import time
from typing import Any, cast

import pytorch_lightning as pl

from raylab.arc.training import Experiment
from raylab.printable import duration
from raylab.training.listeners import Tell

SIGN_SECONDS = 0.5
"""Least time between two signs of life."""
FIRST_STEPS, FIRST_SECONDS = 5, 5.0
"""Steps and seconds, each at least, from which the time of a training is forecast."""


def announce(experiment: Experiment, trainer: pl.Trainer, tell: Tell) -> None:
    """Tells the size of a training that starts."""
    parameters = sum(parameter.numel() for parameter in experiment.module.parameters())
    train, val = experiment.data.train, experiment.data.val
    architecture = experiment.module.origin.model.architecture
    message = (
        f"{architecture}: {parameters:,} parameters, {len(train.pairs):,} "
        f"training pairs in {len(train):,} steps, {len(val.pairs):,} validation pairs, "
        f"{trainer.world_size} worker(s), {trainer.strategy.root_device.type}, "
        f"{trainer.precision}"
    )
    fields = {"parameters": parameters, "pairs": len(train.pairs), "steps": len(train)}
    tell(message, {**fields, "workers": trainer.world_size})


class Heartbeat(pl.Callback):
    """Callback that tells where a long epoch is and, in the first, how long all of them take."""

    def __init__(self, tell: Tell) -> None:
        """Tells where it is every `SIGN_SECONDS`, on the first worker."""
        self._tell = tell
        self._last_sign = time.monotonic()
        self._first_step: tuple[int, float] | None = None
        self._is_forecast = False

    def on_train_batch_end(
        self,
        trainer: pl.Trainer,
        pl_module: pl.LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
    ) -> None:
        """Tells the step and its loss if it is time, and once the time that is left."""
        if trainer.global_rank:
            return
        self._forecast(trainer, pl_module)
        if time.monotonic() < self._last_sign + SIGN_SECONDS:
            return
        self._last_sign = time.monotonic()
        epoch, step, loss = trainer.current_epoch + 1, batch_idx + 1, float(outputs["loss"])
        steps = trainer.num_training_batches
        message = f"  epoch {epoch}: {step} of {steps} steps, loss {loss:.4f}"
        whole = {"done": trainer.global_step, "total": cast("Any", pl_module).course.steps}
        self._tell(message, {"epoch": epoch, **whole, "loss": loss})

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Leaves the time that is left to the line of the epoch."""
        self._is_forecast = True

    def _forecast(self, trainer: pl.Trainer, module: Any) -> None:
        if self._is_forecast:
            return
        now, step = time.monotonic(), trainer.global_step
        if self._first_step is None:
            # It warms up and compiles, and does not count.
            self._first_step = step, now
            return
        before, start = self._first_step
        if step - before < FIRST_STEPS or now - start < FIRST_SECONDS:
            return
        self._is_forecast = True
        left = module.course.steps - step
        seconds = (now - start) / (step - before) * left
        message = f"  the {left:,} steps that are left take about {duration(seconds)} here"
        self._tell(f"{message}, without validation", {"steps": left, "eta_seconds": seconds})
