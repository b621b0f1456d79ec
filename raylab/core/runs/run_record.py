"""The record of a run: its configuration, environment and times."""

import hashlib
import json
import os
import platform
import secrets
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, ClassVar, Self

import raylab
from raylab.core.config.base import JobConfig
from raylab.core.runs.records import Part, Record

RECORD = "record.json"
IDENTITY_EXCLUDES = (
    "storage",
    "name",
    "resume",
    "log",
    "cluster",
    "concurrent",
    "archive",
    "actors",
    "llm.endpoints.*.limits",
    "llm.budget",
    "llm.prices",
    "llm.lane",
    "llm.after_batch",
    "llm.annotators.*.lane",
    "llm.evaluator.lane",
    "llm.adjudicator.lane",
    "export",
    "tracking",
    "dry_run",
    "scoring.model_classes",
)
"""Paths of the keys that may change between starts of one run; `*` is any name.

They set where it runs, how fast, at what price and what it may import, but not what it does.
"""
EXCLUDED_PATHS = [path.split(".") for path in IDENTITY_EXCLUDES]
PACKAGES = ("raylab", "ray", "torch", "pytorch-lightning", "numpy", "genai-prices")
CHECKOUT = Path(raylab.__file__).parents[1]
HASH_DIGITS = 10
GIT_SECONDS = 10


class Checkout(Part):
    """The git checkout that raylab ran from; dirty with uncommitted changes."""

    commit: str
    dirty: bool


class Resumption(Part):
    """A later start of a run, with its time in UTC in ISO 8601."""

    time: str
    argv: tuple[str, ...]


class ArchiveNote(Part):
    """The id of a run's archive, and the number of the run's cases in it when last closed."""

    id: str
    cases: int


class RunRecord(Record):
    """The content of `record.json`; times are UTC in ISO 8601."""

    file: ClassVar[str] = RECORD
    version: ClassVar[int] = 6

    id: str
    """22 hexadecimal digits, unique even among runs of one name; ids sort by the first start."""
    job: str
    name: str
    config: Mapping[str, Any]
    """Resolved configuration as JSON values, which the job's configuration class validates."""
    config_hash: str
    """Hash of the configuration without `IDENTITY_EXCLUDES`."""
    argv: tuple[str, ...]
    """Command line of the first start."""
    started: str
    resumed: tuple[Resumption, ...] = ()
    finished: str | None = None
    """Time when the whole run finished; None until then."""
    versions: Mapping[str, str | None]
    """Versions of Python and of packages; None for one that is absent."""
    git: Checkout | None
    """None if raylab did not run from a checkout."""
    host: str
    cpus: int | None
    executable: str
    """The Python interpreter."""
    archive: ArchiveNote | None = None
    notices: tuple[str, ...] = ()
    """Sentences on the input that belong in every report of the run."""
    input: str | None = None
    """SHA-256 of the input files whose cases the run has once it is finished, and no others."""

    @classmethod
    def start(cls, config: JobConfig, name: str) -> Self:
        """Returns the record of a run of `config` that starts now on this machine."""
        return cls(
            id=f"{time.time_ns() // 1_000_000:012x}{secrets.token_hex(5)}",
            job=config.job,
            name=name,
            config=config.model_dump(mode="json"),
            config_hash=config_hash(config),
            argv=tuple(sys.argv),
            started=_now(),
            versions={"python": platform.python_version()} | {p: _version(p) for p in PACKAGES},
            git=_checkout(),
            host=platform.node(),
            cpus=os.cpu_count(),
            executable=sys.executable,
        )

    @property
    def identity(self) -> dict[str, Any]:
        """The configuration without the keys that may change between starts of the run."""
        return _identity(self.config, EXCLUDED_PATHS)

    def grown(self, config: JobConfig) -> Self:
        """Returns the record, unfinished, with what `config` adds to the work of the run."""
        grown = config.grown(self.config)
        if grown == self.config:
            return self
        update = {"config": grown, "config_hash": config_hash(config), "finished": None}
        return self.model_copy(update=update)

    def resume(self) -> Self:
        """Returns the record with another start, at the present time."""
        again = Resumption(time=_now(), argv=tuple(sys.argv))
        return self.model_copy(update={"resumed": (*self.resumed, again)})

    def finish(self) -> Self:
        """Returns the record of the run, finished at the present time unless it was before."""
        return self.model_copy(update={"finished": self.finished or _now()})


def identity_of(config: JobConfig) -> dict[str, Any]:
    """Returns the configuration without the keys in `IDENTITY_EXCLUDES`."""
    return _identity(config.model_dump(mode="json"), EXCLUDED_PATHS)


def config_hash(config: JobConfig) -> str:
    """Returns a short hash of `identity_of(config)`, as hexadecimal digits."""
    identity = identity_of(config)
    text = json.dumps(identity, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:HASH_DIGITS]


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _identity(config: Mapping[str, Any], excluded: Sequence[Sequence[str]]) -> dict[str, Any]:
    kept: dict[str, Any] = {}
    for key, value in config.items():
        # An empty rest of a path excludes the key itself.
        below = [path[1:] for path in excluded if path[0] in ("*", key)]
        if all(below):
            kept[key] = _identity(value, below) if isinstance(value, dict) else value
            if isinstance(value, list) and (each := [p[1:] for p in below if p[0] == "*"]):
                kept[key] = [_identity(section, each) for section in value]
    return kept


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _checkout() -> Checkout | None:
    """Returns the commit of the checkout that raylab runs from; None outside of one."""
    if not (CHECKOUT / ".git").exists():
        return None
    try:
        return Checkout(commit=_git("rev-parse", "HEAD"), dirty=_git("status", "--porcelain") != "")
    except (OSError, subprocess.SubprocessError):
        return None


def _git(*arguments: str) -> str:
    command = ["git", "-C", str(CHECKOUT), *arguments]
    return subprocess.run(
        command, capture_output=True, text=True, check=True, timeout=GIT_SECONDS
    ).stdout.strip()
