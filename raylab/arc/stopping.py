"""Early stopping that waits for the end of the cosine that a training is in."""

import pytorch_lightning as pl
from pytorch_lightning.callbacks import EarlyStopping

from raylab.config.arc import TrainingConfig
from raylab.grid_metrics import mode_of


class PatienceAtRestarts(EarlyStopping):
    """Early stopping after epochs without improvement, judged where a cosine of restarts ends.

    Within a cosine the learning rate is high first and low last: validations are worse after a
    restart and best at the end. Every epoch counts and may be the best; but a training that has
    used up its patience goes on to the end of its cosine, and an improvement on the way saves it.
    A schedule without restarts has its low rates at the end of the run, and is never stopped.
    """

    def __init__(self, monitor: str, patience: int, cycle: int) -> None:
        """Waits for `patience` validations without improvement, judged every `cycle` epochs."""
        super().__init__(
            monitor,
            mode=mode_of(monitor),
            patience=patience,
            # After validation, so that the checkpoint at the end of an epoch holds the count.
            check_on_train_epoch_end=False,
        )
        self.cycle = cycle

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Stops a training that was killed after the epoch that used up its patience."""
        if self.wait_count >= self.patience and not trainer.current_epoch % self.cycle:
            trainer.should_stop = True

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Counts the validation, and stops only at the end of a cycle."""
        stopped = trainer.should_stop
        super().on_validation_end(trainer, pl_module)
        if (trainer.current_epoch + 1) % self.cycle:
            trainer.should_stop = stopped


def early_stopping(training: TrainingConfig) -> list[EarlyStopping]:
    """Returns the callback that stops a training early, or none without `patience`."""
    if training.patience is None:
        return []
    return [PatienceAtRestarts(training.monitor, training.patience, training.judged_every)]
