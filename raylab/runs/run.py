"""A run directory on any filesystem that pyarrow opens: one directory, one record, no overwriting.

`<storage>/<run name>/record.json` says what made everything beside it. Every JSON file is written
whole or not at all.
"""

import hashlib
import json
import logging
import math
import os
import platform
import secrets
import subprocess
import sys
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import cached_property
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, TypeVar, cast

import raylab
from raylab.config.base import JobConfig
from raylab.config.schema import differences
from raylab.errors import RunError
from raylab.files import Place
from raylab.log import bind_run
from raylab.runs.records import VERSION_KEY, Record

RECORD = "record.json"
METRICS = "metrics.json"
QUALITY = "quality.json"
REPORT = "report.json"
SCORES = "scores"
TRIALS = "trials"
IDENTITY_EXCLUDES = {
    "storage",
    "name",
    "resume",
    "log",
    "cluster",
    "concurrent",
    "archive",
    "actors",
    "limits",
    "budget",
    "prices",
    "export",
    "drift",
}
"""Keys, at any depth, that a configuration may change without becoming another run.

They say where it runs, how fast and at what price, not what it does.
"""
PACKAGES = ("raylab", "ray", "torch", "pytorch-lightning", "numpy")
CHECKOUT = Path(raylab.__file__).parents[1]
HASH_DIGITS = 10
RAY_WORKING_DIRECTORY = "/working_dir_files/_ray_pkg_"
"""Part of the path of every working directory that Ray unpacks for a submitted job."""
GIT_SECONDS = 10

LOGGER = logging.getLogger(__name__)

Json = dict[str, Any]
R = TypeVar("R", bound=Record)


class Run(Place):
    """A run directory, whose name is that of the run."""

    @classmethod
    def open(cls, config: JobConfig, job: str) -> "Run":
        """Starts the run of `config`, or with `config.resume` goes on with it.

        Args:
            config: Resolved configuration; its name, or one derived from it, names the directory.
            job: Kind of job, which the record keeps.

        Raises:
            RunError: The name is used, or the run to resume is of another configuration, or the
                storage cannot be written.
            DataError: The storage cannot be read.
            ConfigError: No filesystem opens the storage.
        """
        name = config.name or f"{job}-{config_hash(config)}"
        run = cls.at(Place.at(config.storage) / name)
        if run.in_working_directory:
            LOGGER.warning(
                "run %s lies in Ray's copy of the working directory and is deleted with it: give "
                "storage= an absolute path or a URI",
                run,
            )
        record = run.read_json(RECORD)
        if record is None:
            run._refuse_strange_content()
            run.write_json(RECORD, _new_record(config, job, name))
        elif config.resume:
            run._resume(record, config, job)
        else:
            raise RunError(
                f"run {run} exists, started {record.get('started')}: go on with it by "
                "resume=true, choose another name=, or remove the directory"
            )
        bind_run(run.name, run.id)
        return run

    @cached_property
    def id(self) -> str | None:
        """What tells this run from all others, also of its name; None where there is no record.

        22 hexadecimal digits, which sort by the time of the first start. Runs of before ids existed
        get one when they are resumed.
        """
        return (self.read_json(RECORD) or {}).get("id")

    @property
    def in_working_directory(self) -> bool:
        """Whether it lies in the copy of the working directory that a submitted job runs in."""
        return self.is_local and RAY_WORKING_DIRECTORY in self.path

    def read_json(self, name: str) -> Json | None:
        """The object in a JSON file, or None if there is no such file.

        Raises:
            RunError: The file is no JSON object.
            DataError: It cannot be read.
        """
        file = self / name
        if not file.exists():
            return None
        try:
            value: object = json.loads(file.read())
        except ValueError as error:
            raise RunError(_corrupt(file, str(error))) from error
        if not isinstance(value, dict):
            raise RunError(_corrupt(file, "it holds no object"))
        return cast(Json, value)

    def read_record(self, kind: type[R], name: str | None = None) -> R | None:
        """The record of a kind, or None if there is none that this raylab can read.

        A record of another version that cannot be migrated counts as absent, with a warning.

        Args:
            kind: Of the record.
            name: Relative name of its file; None takes the kind's own.

        Raises:
            RunError: The file is no such record.
            DataError: It cannot be read.
        """
        name = name or kind.file
        content = self.read_json(name)
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
        """Writes a record whole or not at all, under its kind's name unless another is given.

        Raises:
            RunError: The file cannot be written.
        """
        self.write_json(name or record.file, record.content())

    def write_json(self, name: str, value: Mapping[str, Any]) -> None:
        """Writes a JSON file whole or not at all; NaN and infinity become null.

        Args:
            name: Relative name, with `/` between directories; these are made.
            value: What to write, of dicts, lists, strings, numbers, booleans and None.

        Raises:
            TypeError: The value holds something else.
            RunError: The file cannot be written.
        """
        text = json.dumps(_without_non_finite(value), indent=2, allow_nan=False)
        self.write_bytes(name, text.encode() + b"\n")

    def write_bytes(self, name: str, content: bytes) -> None:
        """Writes a file whole or not at all; `/` in the name parts directories, which are made.

        Raises:
            RunError: The file cannot be written.
        """
        (self / name).write(content)

    @property
    def finished(self) -> bool:
        """Whether all of the run is done."""
        return bool((self.read_json(RECORD) or {}).get("finished"))

    def finish(self) -> None:
        """Notes in the record that all of the run is done."""
        self.write_json(RECORD, {**(self.read_json(RECORD) or {}), "finished": _now()})

    def _refuse_strange_content(self) -> None:
        if names := self.names():
            listed = ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
            raise RunError(
                f"run {self} has no {RECORD} but holds {listed}, so it cannot be told what "
                "made them: choose another name=, or remove the directory"
            )

    def _resume(self, record: Json, config: JobConfig, job: str) -> None:
        if record.get("job") != job:
            raise RunError(
                f"run {self} is of job {record.get('job')}, not {job}: choose another name="
            )
        had = {k: v for k, v in record.get("config", {}).items() if k not in config.moved}
        if differing := differences(_identity(had), identity_of(config)):
            raise RunError(
                f"run {self} is of another configuration:{differing}\n"
                "set these as the run has them, or choose another name="
            )
        entry = {"time": _now(), "argv": sys.argv}
        resumed = [*record.get("resumed", []), entry]
        self.write_json(RECORD, {"id": _new_id(), **record, "resumed": resumed})


def identity_of(config: JobConfig) -> Json:
    """What a configuration does, without where, how fast and at what price."""
    return _identity(_dump(config))


def config_hash(config: JobConfig) -> str:
    """Short hash of what a configuration does, the same for every place and name it runs under."""
    identity = identity_of(config)
    text = json.dumps(identity, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:HASH_DIGITS]


def _dump(config: JobConfig) -> Json:
    return config.model_dump(mode="json")


def _identity(config: Json) -> Json:
    return {
        key: _identity(cast(Json, value)) if isinstance(value, dict) else value
        for key, value in config.items()
        if key not in IDENTITY_EXCLUDES
    }


def _new_record(config: JobConfig, job: str, name: str) -> Json:
    return {
        "id": _new_id(),
        "job": job,
        "name": name,
        "config": _dump(config),
        "config_hash": config_hash(config),
        "argv": sys.argv,
        "started": _now(),
        "resumed": [],
        "finished": None,
        "versions": {"python": platform.python_version()} | {p: _version(p) for p in PACKAGES},
        "git": _git(),
        "host": platform.node(),
        "cpus": os.cpu_count(),
        "executable": sys.executable,
    }


def _new_id() -> str:
    """Milliseconds of now and 40 random bits, like a UUID 7 as short as Inspect's ids."""
    return f"{time.time_ns() // 1_000_000:012x}{secrets.token_hex(5)}"


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _git() -> Json | None:
    """Commit of the checkout raylab runs from and whether it has changes; None outside of one."""
    if not (CHECKOUT / ".git").exists():
        return None
    commit, changes = _git_output("rev-parse", "HEAD"), _git_output("status", "--porcelain")
    return None if commit is None else {"commit": commit, "dirty": changes != ""}


def _git_output(*arguments: str) -> str | None:
    command = ["git", "-C", str(CHECKOUT), *arguments]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=True, timeout=GIT_SECONDS
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


def _corrupt(file: Place, reason: str) -> str:
    return f"{file} is not valid JSON ({reason}): restore the file, or remove the run directory"


def _without_non_finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        mapping = cast(Mapping[str, Any], value)
        return {key: _without_non_finite(item) for key, item in mapping.items()}
    if isinstance(value, list | tuple):
        return [_without_non_finite(item) for item in cast(list[Any], value)]
    return value
