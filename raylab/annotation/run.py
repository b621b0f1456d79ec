"""An annotation run that was made: its configuration and its archive, found by its name."""

from raylab.config.jobs import AnnotateConfig, ReportConfig
from raylab.errors import ConfigError, RunError
from raylab.files import Place
from raylab.runs.run import Run
from raylab.runs.run_record import RunRecord

ARCHIVE = "archive.db"


def recorded_run(storage: str, name: str, archive: str | None) -> tuple[Run, AnnotateConfig]:
    """A run and what it was made with.

    Args:
        storage: Where the run is now.
        name: Of the run.
        archive: Where its archive is now; None where it was.

    Raises:
        RunError: There is no annotation run of this name.
    """
    run = Run.at(Place.at(storage) / name)
    record = run.read_record(RunRecord)
    if record is None or record.job != AnnotateConfig.job:
        raise RunError(f"{run} is no annotation run: check name= and storage=")
    moved = {"storage": storage} | ({} if archive is None else {"archive": archive})
    return run, AnnotateConfig.of_record(record.config, **moved)


def archive_location(config: AnnotateConfig | ReportConfig) -> str:
    """Returns where the archive is: as configured, or a file in the storage.

    Raises:
        ConfigError: Runs are in remote storage, where no SQLite file can be.
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
