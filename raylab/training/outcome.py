"""The end of a training: its test, its page and its tables."""

from collections.abc import Callable

from raylab.arc.records import HeldOut, TrainingMetrics
from raylab.config.jobs import TrainConfig
from raylab.log import log_line, log_tables
from raylab.report.page import PAGE, write_page
from raylab.report.pipeline_page import PipelineReport, render_pipeline
from raylab.report.tables import comparison_table, fine_tuning_table, group_table
from raylab.runs.run import Run


def with_test(
    config: TrainConfig, run: Run, metrics: TrainingMetrics, measure: Callable[[str], HeldOut]
) -> TrainingMetrics:
    """Returns a training's metrics with those on the test side; measures and writes them once.

    The checkpoint that the training started from, if any, is tested on the same pairs.

    Args:
        config: Configuration of the training.
        run: Its run.
        metrics: Its metrics; its best checkpoint is tested.
        measure: Returns the figures of the checkpoint at a URI on the test side.

    Raises:
        RaylabError: A checkpoint or the data cannot be used, or the run cannot be written.
    """
    if metrics.test is not None:
        return metrics

    def measured(checkpoint: str) -> HeldOut:
        log_line(f"testing {checkpoint}", training=run.name, checkpoint=checkpoint)
        return measure(checkpoint)

    tested = metrics.model_copy(
        update={
            "test": measured(str(run / metrics.best.checkpoint)),
            "before": None if config.init_from is None else measured(config.init_from),
        }
    )
    run.write_record(tested)
    return tested


def report_training(config: TrainConfig, run: Run, metrics: TrainingMetrics) -> None:
    """Writes the page of a training, and prints its tables."""
    best, models = metrics.best, {config.model.architecture: metrics}
    page = PipelineReport(run.uri, run.record, config, models)
    write_page(run, render_pipeline(page))
    tuned = [] if metrics.before is None else [fine_tuning_table(metrics)]
    log_tables(
        comparison_table(models),
        group_table(metrics.reported),
        *tuned,
        models={config.model.architecture: best.model_dump(mode="json")},
        reported=metrics.reported.model_dump(mode="json"),
        before=None if metrics.before is None else metrics.before.model_dump(mode="json"),
    )
    checkpoint = str(run / best.checkpoint)
    log_line(
        f"run {run}\nbest checkpoint {checkpoint}\nreport {run / PAGE}",
        uri=run.uri,
        checkpoint=checkpoint,
    )
