"""An existing annotation run: its configuration and its archive, found by name."""

from raylab.config.jobs import AnnotateConfig, ReportConfig
from raylab.errors import ConfigError, RunError
from raylab.files import Place
from raylab.runs.run import Run
from raylab.runs.run_record import RunRecord

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


def archive_location(config: AnnotateConfig | ReportConfig) -> str:
    """Returns the location of the archive: as configured, or a file in the storage.

    Raises:
        ConfigError: The storage is remote and no archive is configured.
    """
    if config.archive is not None:
        return config.archive
    storage = Place.at(config.storage)
    if not storage.is_local:
        raise ConfigError(
            f"runs are in {config.storage}, where no SQLite file can be: give archive=, a local "
            "file or the URL of a PostgreSQL database"
        )
    return f"{storage.path}/{ARCHIVE}"
