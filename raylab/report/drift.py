"""The command that compares the runs of an archive over time."""

import logging

from raylab.annotation.run import archive_location
from raylab.annotation.statistics.drift import Drift, compare_runs
from raylab.archive.store import Archive
from raylab.config.annotation import ProtocolConfig
from raylab.config.jobs import ReportConfig
from raylab.log import log_line
from raylab.report.annotation import drift_tables
from raylab.report.annotation_run import archived_run
from raylab.report.table import print_tables
from raylab.runs.run import Run
from raylab.taxonomies import choose_codebook


def report_drift(config: ReportConfig) -> None:
    """Compares all runs of an archive over time, on the cases that they share.

    Raises:
        ArchiveError: The archive cannot be read, or was changed.
        ConfigError: Runs are in remote storage and no archive is named.
    """
    codebook = choose_codebook(ProtocolConfig())
    location = archive_location(config)
    with Archive.open(location, create=False) as archive:
        drift = compare_runs(archived_run(archive, row, codebook) for row in archive.runs())
    storage = Run.at(config.storage)
    storage.write_record(drift)
    _print(drift)
    log_line(f"{storage / Drift.file}", uri=str(storage / Drift.file))


def _print(drift: Drift) -> None:
    print_tables(*drift_tables(drift), **drift.model_dump(mode="json", include={"comparisons"}))
    for note in drift.notes:
        log_line(f"note: {note}")
    for alarm in drift.alarms:
        log_line(f"alarm: {alarm}", logging.WARNING)
