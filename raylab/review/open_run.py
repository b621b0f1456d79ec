"""The annotation run that a configuration names, opened for its reviewers."""

from collections.abc import Generator
from contextlib import contextmanager
from datetime import timedelta

from raylab.annotation.human.audit_sample import draw_audit
from raylab.annotation.human.reviews import Reviews
from raylab.annotation.run import archive_location, find_annotation_run, open_archive
from raylab.archive.store import Archive
from raylab.config.jobs import AnnotateConfig, ReviewConfig
from raylab.llm.embedded import embedded_if_used
from raylab.log import log_line
from raylab.runs.run import Run
from raylab.taxonomies import choose_codebook


@contextmanager
def open_run(config: ReviewConfig) -> Generator[tuple[AnnotateConfig, Run, Archive]]:
    """Opens the archive of a run while in use; yields the run's configuration, run and archive.

    Raises:
        RunError: There is no annotation run of this name.
        ArchiveError: Its archive cannot be opened, or is not the one it was archived in.
        ConfigError: The configuration does not tell where its archive is.
    """
    assert config.name is not None
    run, made = find_annotation_run(config.storage, config.name, config.archive)
    with open_archive(run, archive_location(made)) as archive:
        yield made, run, archive


@contextmanager
def open_reviews(config: ReviewConfig) -> Generator[Reviews]:
    """Opens the cases of a run for reviewers while in use, and draws the audit that is asked for.

    Raises:
        RunError: There is no annotation run of this name.
        ArchiveError: Its archive cannot be opened, or does not have it.
        ConfigError: The configuration does not tell where its archive is.
        DataError: The file of distances cannot be used.
    """
    lease = timedelta(minutes=config.lease_minutes)
    with open_run(config) as (made, run, archive), embedded_if_used(made.llm) as embedded:
        codebook = choose_codebook(made.protocol)
        if config.audit is not None:
            drawn = draw_audit(archive.run(run.name), config.audit, made.protocol.seed)
            log_line(f"{drawn} decided cases are drawn for the audit", drawn=drawn)
        yield Reviews(run.name, made, archive, codebook, lease, embedded)
