"""The end of a training: its page and its main figures."""

from raylab.arc.records import TrainingMetrics
from raylab.config.jobs import TrainConfig
from raylab.log import log_line
from raylab.report.models import summary_table
from raylab.report.page import PAGE, write_page
from raylab.report.pipeline import pipeline_page
from raylab.report.table import print_tables
from raylab.runs.run import Run


def report_training(config: TrainConfig, run: Run, metrics: TrainingMetrics) -> None:
    """Writes the page of a tested training, which finishes its run, and prints its figures."""
    best, models = metrics.best, {config.model.architecture: metrics}
    record = run.record if run.is_finished else run.record.finish()
    page = pipeline_page(run.uri, record, config, models)
    write_page(run, page)
    run.write_record(record)
    print_tables(
        summary_table(models),
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
