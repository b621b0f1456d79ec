"""An annotation run and its archive: found by name, and proven to belong together."""

import contextlib
from collections.abc import Generator
from contextlib import contextmanager

from pydantic import ValidationError

from raylab.annotation.outcome import PROTOCOL
from raylab.archive.run import RunArchive
from raylab.archive.store import Archive
from raylab.codebook import Codebook
from raylab.config.jobs import AnnotateConfig, ReportConfig, ReviewConfig
from raylab.config.schema import problems_of
from raylab.errors import ArchiveError, ConfigError, RaylabError, RunError
from raylab.files import Place
from raylab.runs.run import Run
from raylab.runs.run_record import ArchiveNote, RunRecord, identity_of

ARCHIVE = "archive.db"


def find_annotation_run(storage: str, name: str, archive: str | None) -> tuple[Run, AnnotateConfig]:
    """Finds an annotation run and its configuration.

    Args:
        storage: Current location of the run.
        name: Name of the run.
        archive: Current location of its archive; None if it did not move.

    Raises:
        RunError: There is no annotation run with this name, or its record cannot be used.
    """
    run = Run.at(Place.at(storage) / name)
    record = run.read_record(RunRecord)
    if record is None or record.job != AnnotateConfig.job:
        raise RunError(f"{run} is no annotation run: check name= and storage=")
    moved = {"storage": storage} | ({} if archive is None else {"archive": archive})
    try:
        return run, AnnotateConfig.of_record(record.config, **moved)
    except ValidationError as error:
        problem = problems_of(AnnotateConfig, error.errors(include_url=False))[0]
        raise RunError(
            f"the record of run {run} has a configuration that this raylab cannot use: {problem}; "
            "use the raylab that made it"
        ) from error


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
    """Opens the archive of a run while in use; notes in the record what it holds when it is closed.

    Args:
        run: The run, with its record.
        location: Location of the archive.
        start: Let the archive lack the run, or make it, if the run was never archived.

    Raises:
        ArchiveError: The archive cannot be opened, is not that of the run, or holds fewer cases
            than the record notes.
    """
    starts = start and run.record.archive is None
    with Archive.open(location, create=starts) as archive:
        if not starts:
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
    """Starts or goes on with a run in its archive, and notes that and where the archive is.

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
    if config.archive is not None and config.archive != record.config.get("archive"):
        record = record.move(config.archive)
    run.write_record(record.note_archive(_noted(run, archive)))
    return archived


def _note(run: Run, archive: Archive) -> None:
    """Notes the number of cases of a run that was started in the archive."""
    record = run.record
    if record.archive is not None and record.archive != (note := _noted(run, archive)):
        run.write_record(record.note_archive(note))


def _noted(run: Run, archive: Archive) -> ArchiveNote:
    cases = sum(archive.run(run.name).counts().values())
    return ArchiveNote(id=archive.id, cases=cases)


def _require(run: Run, archive: Archive) -> None:
    """Refuses an archive that does not hold the run with all cases that the record notes."""
    way_out = (
        "leave archive= out for the one in the run's record, give the place to which that was "
        "moved, or restore it from a copy"
    )
    try:
        row = archive.run(run.name).row()
    except ArchiveError as error:
        raise ArchiveError(f"{error}: {way_out}") from error
    before, now = run.record.archive, _noted(run, archive)
    if row.uid != run.id or (before is not None and before.id != now.id):
        raise ArchiveError(
            f"archive {archive.place} has another run of the name {run.name}: {way_out}"
        )
    if before is not None and now.cases < before.cases:
        raise ArchiveError(
            f"archive {archive.place} holds {now.cases} cases of run {run.name}, which had "
            f"{before.cases} before: {way_out}"
        )
