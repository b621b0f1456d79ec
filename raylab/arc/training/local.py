"""Training in the process that calls: one worker, without Ray."""

import logging
import warnings

from lightning_fabric.plugins.environments.lightning import LightningEnvironment
from pytorch_lightning.utilities.exceptions import SIGTERMException

from raylab.arc.checkpoints import Checkpoint
from raylab.arc.config.jobs import TrainConfig
from raylab.arc.data.split import Sides
from raylab.arc.device import use_share
from raylab.arc.inputs import Inputs
from raylab.arc.records import TrainingMetrics
from raylab.arc.training.loop import Experiment, train_epochs
from raylab.arc.training.outcome import report_training, with_test
from raylab.arc.training.reporter import EpochListener, ended_metrics, reporting
from raylab.core.live import progress
from raylab.core.runs.run import Run
from raylab.core.workers import Workers


def train(inputs: Inputs) -> None:
    """Trains in this process, and prints the metrics."""
    config = inputs.config
    with Run.open_alone(config) as run:
        metrics = fit(config, run, inputs.sides, inputs.start)
        workers = Workers(config.cluster)
        report_training(config, run, with_test(config, run, metrics, inputs.sides, workers))


def fit(
    config: TrainConfig,
    run: Run,
    sides: Sides,
    start: Checkpoint | None = None,
    on_epoch: EpochListener | None = None,
    threads: int | None = None,
) -> TrainingMetrics:
    """Trains in this process; writes and returns the metrics of the run.

    A run without epochs left is not trained again. A run with checkpoints continues from the latest
    one. The run is not finished yet, because its best checkpoint is not tested.
    """
    if metrics := ended_metrics(config, run):
        return metrics
    device = use_share(config.cluster, threads)
    # Lightning's hints about devices and loaders are not for the user.
    logging.getLogger("pytorch_lightning").setLevel(logging.WARNING)
    warnings.filterwarnings("ignore", module="pytorch_lightning")
    experiment = Experiment(config, sides, start, run_id=run.id)
    with reporting(config.tracking, run, on_epoch) as reporter, progress():
        try:
            return train_epochs(
                run,
                experiment,
                reporter,
                accelerator=device.type,
                devices=1,
                # Else Lightning takes a batch system's variables for a request of many workers.
                plugins=[LightningEnvironment()],
            )
        except SystemExit as ended:
            # Lightning's exits on SIGTERM and SIGINT.
            interrupted = isinstance(ended.__context__, KeyboardInterrupt)
            if interrupted or isinstance(ended, SIGTERMException):
                raise KeyboardInterrupt from None
            raise
