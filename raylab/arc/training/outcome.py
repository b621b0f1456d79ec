"""The end of a training: the test of its best checkpoint, its page and its main figures."""

from typing import Any

from raylab.arc.checkpoints import read_checkpoint
from raylab.arc.config.jobs import TrainConfig
from raylab.arc.data.sides import Sides
from raylab.arc.device import use_share
from raylab.arc.pages.models import summary_table
from raylab.arc.pages.training import training_page
from raylab.arc.records import HeldOut, TrainingMetrics
from raylab.arc.scoring.held_out import measure_test
from raylab.core.config.base import ClusterConfig
from raylab.core.log import log_line
from raylab.core.page.page import PAGE, write_page
from raylab.core.page.table import print_tables
from raylab.core.runs.run import Run
from raylab.core.workers import Workers


def with_test(
    config: TrainConfig, run: Run, metrics: TrainingMetrics, sides: Any, workers: Workers
) -> TrainingMetrics:
    """Returns a training's metrics with those on the test side, measured and written once.

    The checkpoint that the training started from, if any, is tested on the same pairs. `sides` may
    be what `workers.put` returned for them.
    """
    if metrics.test is not None:
        return metrics
    checkpoints = {"test": str(run / metrics.best.checkpoint)}
    if config.init_from is not None:
        checkpoints["before"] = config.init_from
    for checkpoint in checkpoints.values():
        log_line(f"testing {checkpoint}", training=run.name, checkpoint=checkpoint)
    calls = {key: (config, sides, uri, workers.share) for key, uri in checkpoints.items()}
    tested = metrics.model_copy(update=dict(workers.run(measure_checkpoint, calls)))
    run.write_record(tested)
    return tested


def measure_checkpoint(
    config: TrainConfig, sides: Sides, checkpoint: str, share: ClusterConfig
) -> HeldOut:
    """Returns the figures of the checkpoint at a URI on the test side."""
    return measure_test(config, sides, read_checkpoint(checkpoint), use_share(share))


def report_training(config: TrainConfig, run: Run, metrics: TrainingMetrics) -> None:
    """Writes the page of a tested training, finishes its run, and prints its figures."""
    best, models = metrics.best, {config.model.architecture: metrics}
    record = run.record.finish()
    write_page(run, training_page(run.uri, record, config, models))
    run.write_record(record)
    print_tables(
        summary_table(models),
        models={config.model.architecture: best.model_dump(mode="json")},
        reported=metrics.result.model_dump(mode="json"),
        before=None if metrics.before is None else metrics.before.model_dump(mode="json"),
    )
    checkpoint = str(run / best.checkpoint)
    log_line(
        f"run {run}\nbest checkpoint {checkpoint}\nreport {run / PAGE}",
        uri=run.uri,
        checkpoint=checkpoint,
    )
