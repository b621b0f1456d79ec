"""The command that compares the runs of an archive over time."""

import logging
from collections.abc import Iterator

from raylab.annotation.heads import HEADS, noted_heads
from raylab.annotation.run import archive_location, find_annotation_run
from raylab.annotation.statistics.canaries import packaged_canary
from raylab.annotation.statistics.drift import Drift, compare_runs
from raylab.archive.records import ChainProblem, Fault
from raylab.archive.store import Archive
from raylab.config.annotation import ProtocolConfig
from raylab.config.jobs import ReportConfig
from raylab.files import Place
from raylab.log import log_line, log_tables
from raylab.report.annotation import drift_tables
from raylab.report.annotation_run import count_archived, outcomes_of, refuse_problems
from raylab.runs.run import Run
from raylab.taxonomies import choose_codebook


def report_drift(config: ReportConfig) -> None:
    """Verifies an archive and compares all its runs over time, on the packaged gold cases.

    Raises:
        ArchiveError: The archive cannot be read, was changed, or lacks what was noted beside a run
            of the storage.
        ConfigError: Runs are in remote storage and no archive is named.
    """
    codebook = choose_codebook(ProtocolConfig())
    canary = packaged_canary(codebook)
    location = archive_location(config)
    with Archive.open(location, create=False) as archive:
        refuse_problems(
            [*archive.verify(), *_noted_problems(config.storage, location, archive)],
            f"archive {archive.place}",
        )
        drift = compare_runs(
            count_archived(row, outcomes_of(archive, row.name, codebook), canary, codebook)
            for row in archive.runs()
        )
    storage = Run.at(config.storage)
    storage.write_record(drift)
    _print(drift)
    log_line(f"{storage / Drift.file}", uri=str(storage / Drift.file))


def _noted_problems(storage: str, location: str, archive: Archive) -> Iterator[ChainProblem]:
    """Yields a problem for each noted head of the storage's runs that the archive lacks."""
    uids = {row.name: row.uid for row in archive.runs()}
    for name in Place.at(storage).names():
        if not (Place.at(storage) / name / HEADS).exists():
            continue
        run, made = find_annotation_run(storage, name, None)
        if uids.get(name) == run.id:
            yield from archive.run(name).missing(noted_heads(run))
        elif archive_location(made) == location:
            yield ChainProblem(
                name, 0, "the run itself", Fault.MISSING, f"{run} is of this archive"
            )


def _print(drift: Drift) -> None:
    log_tables(*drift_tables(drift), **drift.model_dump(mode="json", include={"comparisons"}))
    for alarm in drift.alarms:
        log_line(f"alarm: {alarm}", logging.WARNING)
