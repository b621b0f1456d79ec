"""An annotation run and its archive: found by name, and proven to belong together."""

import contextlib
from collections.abc import Generator
from contextlib import contextmanager

from raylab.annotation.heads import HEADS, note_head, noted_heads
from raylab.annotation.outcome import PROTOCOL
from raylab.archive.records import ChainHead
from raylab.archive.run import RunArchive
from raylab.archive.store import Archive
from raylab.codebook import Codebook
from raylab.config.jobs import AnnotateConfig, ReportConfig, ReviewConfig
from raylab.errors import ArchiveError, ConfigError, DataError, RaylabError, RunError
from raylab.files import Place
from raylab.runs.run import Run
from raylab.runs.run_record import RunRecord, identity_of

ARCHIVE = "archive.db"


def find_annotation_run(storage: str, name: str, archive: str | None) -> tuple[Run, AnnotateConfig]:
    """Finds an annotation run and its configuration.

    Args:
        storage: Current location of the run.
        name: Name of the run.
        archive: Current location of its archive; None if it did not move.

    Raises:
        RunError: There is no annotation run with this name.
    """
    run = Run.at(Place.at(storage) / name)
    record = run.read_record(RunRecord)
    if record is None or record.job != AnnotateConfig.job:
        raise RunError(f"{run} is no annotation run: check name= and storage=")
    moved = {"storage": storage} | ({} if archive is None else {"archive": archive})
    return run, AnnotateConfig.of_record(record.config, **moved)


def check_reviewed(config: ReviewConfig) -> None:
    """Checks that the run to review is there; on a cluster, its head looks.

    Raises:
        RunError: There is no annotation run with this name.
    """
    if not config.cluster.joined and config.name is not None:
        find_annotation_run(config.storage, config.name, config.archive)


def archive_location(config: AnnotateConfig | ReportConfig, record: RunRecord | None = None) -> str:
    """Returns the location of the archive: as configured or recorded, or a file in the storage.

    Args:
        config: Configuration of the command.
        record: Record of the run that the command goes on with.

    Raises:
        ConfigError: The storage is remote and no archive is configured.
    """
    if config.archive is not None:
        return config.archive
    if record is not None and isinstance(recorded := record.config.get("archive"), str):
        return recorded
    storage = Place.at(config.storage)
    if not storage.is_local:
        raise ConfigError(
            f"runs are in {config.storage}, where no SQLite file can be: give archive=, a local "
            "file or the URL of a PostgreSQL database"
        )
    return f"{storage.path}/{ARCHIVE}"


@contextmanager
def open_archive(run: Run, location: str, start: bool = False) -> Generator[Archive]:
    """Opens the archive of a run while in use; notes the head of the run when it is closed.

    Args:
        run: The run, with its record.
        location: Location of the archive.
        start: Let the archive lack the run, or make it, if the run was never archived.

    Raises:
        ArchiveError: The archive cannot be opened, is not that of the run, or does not hold what
            was noted beside the run.
    """
    archived = not start or not run.record.notes_heads or (run / HEADS).exists()
    with Archive.open(location, create=not archived) as archive:
        if archived:
            _require(run, archive)
        try:
            yield archive
        except BaseException:
            # The error that ends the run counts more than one of noting.
            with contextlib.suppress(RaylabError):
                _note(run, archive)
            raise
        _note(run, archive)


def start_archived(
    config: AnnotateConfig, codebook: Codebook, run: Run, archive: Archive
) -> RunArchive:
    """Starts or goes on with a run in its archive, and notes its head and where the archive is.

    Raises:
        ArchiveError: The archive fails, or has another run of the name.
    """
    record = run.record
    versions = {**record.versions, "protocol": PROTOCOL, "taxonomy": codebook.version}
    archived = archive.start_run(run.name, identity_of(config), versions, run.id)
    archived.add_prompts(
        {
            prompt_hash: (prompt.name, prompt.version, prompt.text)
            for prompt_hash, prompt in codebook.prompt_catalogue().items()
        }
    )
    note_head(run, archived)
    if config.archive is not None and config.archive != record.config.get("archive"):
        run.write_record(record.move(config.archive))
    return archived


def _note(run: Run, archive: Archive) -> None:
    """Notes the head of a run that is known to be that of the archive."""
    if (run / HEADS).exists():
        note_head(run, archive.run(run.name))


def known_heads(run: Run) -> list[ChainHead]:
    """Returns the heads that are known of a run: those noted beside it, or that of its report.

    Raises:
        ArchiveError: The noted heads cannot be used.
    """
    heads = noted_heads(run)
    if heads:
        return heads
    # Its statistics import scipy, which takes a second that no mistake needs to wait for.
    from raylab.annotation.report import AnnotationReport

    try:
        report = run.read_record(AnnotationReport)
    except (DataError, RunError):
        return []
    if report is None or report.archive.head_hash is None:
        return []
    return [ChainHead(report.archive.records, report.archive.head_hash)]


def _require(run: Run, archive: Archive) -> None:
    """Refuses an archive that does not hold the run, with all that is known of it."""
    way_out = (
        "leave archive= out for the one in the run's record, give the place to which that was "
        "moved, or restore it from a copy"
    )
    archived = archive.run(run.name)
    try:
        row = archived.row()
    except ArchiveError as error:
        raise ArchiveError(f"{error}: {way_out}") from error
    if row.uid is not None and row.uid != run.id:
        raise ArchiveError(
            f"archive {archive.place} has another run of the name {run.name}: {way_out}"
        )
    if missing := archived.missing(known_heads(run)):
        raise ArchiveError(
            f"archive {archive.place} lacks what run {run.name} held before ({missing[-1].record}"
            f" {missing[-1].detail}): {way_out}"
        )
