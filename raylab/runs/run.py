"""Run directories on any filesystem that pyarrow opens: one run each, never overwritten.

`<storage>/<run name>/record.json` records the origin of all other files of the run. Every JSON file
is written whole or not at all.
"""

import errno
import fcntl
import json
import logging
import math
import os
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar, cast

from pydantic import ValidationError

from raylab.bounded import parse_json
from raylab.config.base import JobConfig
from raylab.config.schema import differences
from raylab.errors import DataError, OwnerError, RunError
from raylab.files import Place, is_temporary, make_directory, require_writable
from raylab.log import bind_run
from raylab.runs.records import VERSION_KEY, Record
from raylab.runs.run_record import RECORD, RunRecord, config_hash, identity_of
from raylab.working_directory import is_in_copy

METRICS = "metrics.json"
REPORT = "report.json"
SCORES = "scores"
TRIALS = "trials"
RECORD_BYTES = 1 << 25
"""Longest record that is read."""
NO_LOCKS = (errno.EBADF, errno.EINVAL, errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP)
"""What file systems answer that cannot lock a directory."""

LOGGER = logging.getLogger(__name__)

R = TypeVar("R", bound=Record)


class Run(Place):
    """A run directory; its name is the name of the run."""

    @classmethod
    def open(cls, config: JobConfig, job: str) -> "Run":
        """Starts the run of `config`, or continues it with `config.resume`.

        Args:
            config: Resolved configuration; its name, or one derived from it, names the directory.
            job: Kind of job, kept in the record.

        Raises:
            RunError: The name is taken, the run to resume is of another configuration, or the
                storage cannot be written.
            DataError: The storage cannot be read.
            ConfigError: No filesystem opens the storage.
        """
        run = cls.named(config, job)
        if run.in_working_directory:
            LOGGER.warning(
                "run %s lies in Ray's copy of the working directory and is deleted with it: give "
                "storage= an absolute path or a URI",
                run,
            )
        record = run._claim(config, job)
        if record is not None:
            run._refuse_other(record, config, job)
            run.write_record(record.resume())
        bind_run(run.name, run.id)
        return run

    @classmethod
    @contextmanager
    def alone(cls, config: JobConfig, job: str) -> Generator["Run"]:
        """Opens the run of `config` and keeps other processes from it while the block runs.

        The system lets others in when the process ends, however it ends. Object stores, and file
        systems without locks, keep nobody out.

        Raises:
            OwnerError: Another process has opened the run so.
            RunError, DataError, ConfigError: as `open`.
        """
        run = cls.named(config, job)
        with run._locked():
            yield cls.open(config, job)

    @classmethod
    def planned(cls, config: JobConfig, job: str) -> "Run":
        """Returns the run directory that `open` would take; writes nothing.

        Raises:
            RunError: The name is taken, the run to resume is of another configuration, or the
                storage is on this machine and cannot be written.
            DataError: The storage cannot be read.
            ConfigError: No filesystem opens the storage.
        """
        run = cls.named(config, job)
        record = run.read_record(RunRecord)
        if record is not None:
            run._refuse_other(record, config, job)
            return run
        run._refuse_strange_content()
        if run.is_local:
            require_writable(Path(run.path))
        return run

    @classmethod
    def named(cls, config: JobConfig, job: str) -> "Run":
        """Returns the run directory of `config`, which need not exist.

        Raises:
            ConfigError: No filesystem opens the storage.
        """
        return cls.at(Place.at(config.storage) / (config.name or f"{job}-{config_hash(config)}"))

    @cached_property
    def id(self) -> str | None:
        """The id in the record; None without a record, or for one from before ids."""
        record = self.read_record(RunRecord)
        return None if record is None else record.id

    @property
    def record(self) -> RunRecord:
        """The record, read from storage at each access.

        Raises:
            RunError: There is no record that this raylab can read.
            DataError: It cannot be read.
        """
        record = self.read_record(RunRecord)
        if record is None:
            raise RunError(f"{self} is no run that can be read: it has no {RECORD}")
        return record

    @property
    def in_working_directory(self) -> bool:
        """True if it lies in the copy of the working directory of a submitted job."""
        return self.is_local and is_in_copy(self.path)

    @property
    def finished(self) -> bool:
        """True if the whole run is done; False without a record."""
        record = self.read_record(RunRecord)
        return record is not None and record.finished is not None

    def finish(self) -> None:
        """Notes in the record that the whole run is done."""
        self.write_record(self.record.finish())

    def read_record(self, kind: type[R], name: str | None = None) -> R | None:
        """Reads the record of a kind; None if there is none that this raylab can read.

        A record of another version that cannot be migrated counts as absent, with a warning.

        Args:
            kind: Class of the record.
            name: Relative name of its file; None takes that of the kind.

        Raises:
            RunError: The file holds no valid record.
            DataError: It cannot be read.
        """
        name = name or kind.file
        content = self._read_json(name)
        if content is None:
            return None
        try:
            record = kind.of_content(content)
        except ValueError as error:
            raise RunError(
                f"{self / name} cannot be used: {error}: restore or remove it"
            ) from error
        if record is None:
            LOGGER.warning(
                "%s is of schema version %s, this raylab reads %s: it counts as absent",
                self / name,
                content.get(VERSION_KEY, "0"),
                kind.version,
            )
        return record

    def write_record(self, record: Record, name: str | None = None) -> None:
        """Writes a record whole or not at all; NaN and infinity become null.

        Args:
            record: Record to write.
            name: Relative name, with `/` between directories, which are created; None takes that of
                the kind.

        Raises:
            RunError: The file cannot be written.
        """
        self.write_bytes(name or record.file, _json(record))

    def write_bytes(self, name: str, content: bytes) -> None:
        """Writes a file whole or not at all, and creates the directories in its name.

        Raises:
            RunError: The file cannot be written.
        """
        (self / name).write(content)

    @contextmanager
    def _locked(self) -> Generator[None]:
        if not self.is_local:
            yield
            return
        try:
            make_directory(Path(self.path))
            directory = os.open(self.path, os.O_RDONLY)
        except OSError as error:
            raise RunError(f"{self} cannot be written: {error.strerror}") from error
        try:
            self._lock(directory)
            yield
        finally:
            os.close(directory)

    def _lock(self, directory: int) -> None:
        try:
            fcntl.flock(directory, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise OwnerError(
                f"run {self} is worked on by another process: wait until it ends, or stop it"
            ) from error
        except OSError as error:
            if error.errno not in NO_LOCKS:
                raise RunError(f"{self} cannot be locked: {error.strerror}") from error

    def _read_json(self, name: str) -> dict[str, Any] | None:
        file = self / name
        if not file.exists():
            return None
        content = file.read(RECORD_BYTES)
        try:
            value = parse_json(content, str(file))
        except DataError as error:
            raise RunError(_corrupt(str(error))) from error
        if not isinstance(value, dict):
            raise RunError(_corrupt(f"{file}: not valid JSON: it holds no object"))
        return cast("dict[str, Any]", value)

    def _claim(self, config: JobConfig, job: str) -> RunRecord | None:
        """Starts the run, or returns the record of the run that has its name already."""
        record = self.read_record(RunRecord)
        if record is not None:
            return record
        self._refuse_strange_content()
        new = RunRecord.of(config, job, self.name)
        if (self / RECORD).create(_json(new)):
            return None
        record = self.read_record(RunRecord)
        if record is None:
            raise RunError(
                f"run {self} has a {RECORD} of another schema version than this raylab reads: go "
                "on with the raylab that wrote it, choose another name=, or remove the directory"
            )
        # An object store may repeat a request whose answer was lost.
        return None if record.id == new.id else record

    def _refuse_strange_content(self) -> None:
        # A process that died while it wrote has left a hidden file.
        names = [name for name in self.names() if not is_temporary(name)]
        if names and RECORD not in names:
            listed = ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
            raise RunError(
                f"run {self} has no {RECORD} but holds {listed}, so it cannot be told what "
                "made them: choose another name=, or remove the directory"
            )

    def _refuse_other(self, record: RunRecord, config: JobConfig, job: str) -> None:
        """Refuses to go on with a run unless the configuration is its own and says so."""
        if not config.resume:
            raise RunError(
                f"run {self} exists, started {record.started}: go on with it by "
                "resume=true, choose another name=, or remove the directory"
            )
        if record.job != job:
            raise RunError(f"run {self} is of job {record.job}, not {job}: choose another name=")
        if differing := differences(_identity_as(record, type(config)), identity_of(config)):
            raise RunError(
                f"run {self} is of another configuration:{differing}\n"
                "set these as the run has them, or choose another name="
            )


def _identity_as(record: RunRecord, kind: type[JobConfig]) -> dict[str, Any]:
    """Returns the identity of a run, with today's defaults for keys that were added since."""
    try:
        return identity_of(kind.of_record(record.config))
    except ValidationError:
        return record.identity


def _json(record: Record) -> bytes:
    text = json.dumps(_without_non_finite(record.content()), indent=2, allow_nan=False)
    return text.encode() + b"\n"


def _corrupt(reason: str) -> str:
    return f"{reason}: restore the file, or remove the run directory"


def _without_non_finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        mapping = cast(Mapping[str, Any], value)
        return {key: _without_non_finite(item) for key, item in mapping.items()}
    if isinstance(value, list | tuple):
        return [_without_non_finite(item) for item in cast(list[Any], value)]
    return value
