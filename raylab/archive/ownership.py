"""The ownership of a run: only its owner sends calls for it.

An owner holds a lease in the archive and renews it. Another process takes the run over when the
owner ends, is known to be dead, or has not renewed its lease in time. The clocks of processes that
share an archive should agree within a few seconds.
"""

import logging
import os
import platform
import secrets
import shlex
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import psutil
from sqlalchemy import Connection, bindparam, delete, select, update

from raylab.archive.attempts import void_claims, void_other_claims
from raylab.archive.database import Database
from raylab.archive.tables import OWNERS
from raylab.errors import ArchiveError, OwnerError

# Statements are built once, because that takes longer than to execute them.
_OF_RUN = OWNERS.c.run_id == bindparam("of_run")
_MINE = _OF_RUN & (OWNERS.c.token == bindparam("of_token"))
_OWNER = select(OWNERS).where(_OF_RUN)
_RENEW = update(OWNERS).where(_MINE)
_END = delete(OWNERS).where(_MINE)

LEASE = timedelta(seconds=60)
"""Time for which an owner that shows no sign of life keeps its run."""
RENEWAL_SECONDS = 15.0
POLL_SECONDS = 1.0
"""Time between two attempts of a process that waits for the run."""
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
PID_NAMESPACE = "/proc/self/ns/pid"
LONGEST_COMMAND = 300
SAME_START_SECONDS = 1.0
"""Most by which two readings of one process's start differ."""

LOGGER = logging.getLogger(__name__)


@dataclass(frozen=True)
class ProcessName:
    """A process, as far as others need to find it.

    Attributes:
        host: name of its machine.
        machine: what its pid is unique in: a boot of the machine and a container of it; empty if
            that cannot be told.
        pid: its number there.
        started: its start, in seconds since the epoch; a pid is used again after some time.
        command: its command line.
    """

    host: str
    machine: str
    pid: int
    started: float
    command: str

    @classmethod
    def current(cls) -> Self:
        """Returns the name of this process."""
        return cls(
            platform.node(),
            _machine(),
            os.getpid(),
            psutil.Process().create_time(),
            shlex.join(sys.argv)[:LONGEST_COMMAND],
        )

    def is_dead(self) -> bool:
        """Returns True if it ran on this machine and is gone; False if that cannot be told."""
        if not self.machine or self.machine != _machine():
            return False
        try:
            process = psutil.Process(self.pid)
            if abs(process.create_time() - self.started) > SAME_START_SECONDS:
                return True
            return process.status() == psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return True
        except psutil.AccessDenied:
            return False

    def __str__(self) -> str:
        return f"{self.command} (process {self.pid} on {self.host})"


@dataclass(frozen=True)
class Holder:
    """The owner of a run, as another process sees it.

    Attributes:
        token: Name of this ownership.
        process: The process.
        since: Time at which it took the run, UTC.
        expires: Time from which another may take it, UTC.
    """

    token: str
    process: ProcessName
    since: datetime
    expires: datetime

    def __str__(self) -> str:
        since, until = (f"{time:%Y-%m-%d %H:%M:%S}" for time in (self.since, self.expires))
        return f"{self.process} since {since} UTC, at least until {until} UTC"


class Ownership:
    """The ownership of a run by this process; a context manager that holds it while in use.

    Made by `RunArchive.own`. A thread renews the lease in the meantime. The claims of a lost
    ownership are refused by the archive itself, so an owner that was suspended for too long sends
    no further call.

    Args:
        database: Database of an open archive.
        run_id: Number of the run.
        run: Name of the run.
        wait: Wait for another owner to end, instead of raising.
        token: Name of this ownership; None draws one.
        is_dead: Tells whether a process is known to be dead.

    Attributes:
        token: Name of this ownership, which its claims carry.
    """

    def __init__(
        self,
        database: Database,
        run_id: int,
        run: str,
        wait: bool = False,
        token: str | None = None,
        is_dead: Callable[[ProcessName], bool] = ProcessName.is_dead,
    ) -> None:
        self.token = token or secrets.token_hex(16)
        self._database = database
        self._clock = database.clock
        self._run_id = run_id
        self._run = run
        self._wait = wait
        self._is_dead = is_dead
        self._process = ProcessName.current()
        self._lost = False
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._keep, name=f"owner of {run}", daemon=True)

    def __enter__(self) -> Self:
        """Takes the run and keeps it.

        Raises:
            OwnerError: Another process owns it, and this one does not wait.
            ArchiveError: The archive fails.
        """
        said = False
        while (holder := self.take()) is not None:
            if not self._wait:
                raise OwnerError(
                    f"run {self._run} of archive {self._database.place} is worked on by {holder}: "
                    "wait until that ends, or give wait=true to go on after it"
                )
            if not said:
                LOGGER.warning("run %s: waiting for %s", self._run, holder)
                said = True
            self._clock.sleep(POLL_SECONDS)
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Ends the ownership; if the archive fails, the lease expires by itself."""
        self._over.set()
        self._thread.join()
        try:
            self.end()
        except ArchiveError as failure:
            LOGGER.warning("run %s stays owned until its lease expires: %s", self._run, failure)

    def take(self) -> Holder | None:
        """Takes the run if it is free, or its owner is dead; else returns the owner.

        Raises:
            ArchiveError: The archive fails.
        """
        holder = self._database.write(lambda connection: self._take(connection, None))
        if holder is not None and self._is_dead(holder.process):
            return self._database.write(lambda connection: self._take(connection, holder.token))
        return holder

    def renew(self) -> None:
        """Prolongs the lease.

        Raises:
            OwnerError: Another process has taken the run over.
            ArchiveError: The archive fails.
        """
        until = self._clock.now() + LEASE
        lease = {**self._mine, "expires": until}
        renewed = self._database.write(
            lambda connection: connection.execute(_RENEW, lease).rowcount
        )
        if renewed != 1:
            self._lost = True
        self.check()

    def check(self) -> None:
        """Does nothing while the run is this process's, as far as it knows.

        Raises:
            OwnerError: Another process has taken the run over.
        """
        if self._lost:
            raise lost_error(self._run, self._database.place)

    def end(self) -> None:
        """Gives the run back; does nothing if another process has it.

        What is still claimed then counts as paid, because nobody knows better.
        """

        def work(connection: Connection) -> None:
            connection.execute(_END, self._mine)
            void_claims(connection, self.token)

        self._database.write(work)

    @property
    def _mine(self) -> dict[str, Any]:
        return {"of_run": self._run_id, "of_token": self.token}

    def _take(self, connection: Connection, dead: str | None) -> Holder | None:
        """Takes the run in one statement; from `dead` even if its lease has not expired."""
        now = self._clock.now()
        values = {
            **vars(self._process),
            "token": self.token,
            "since": now,
            "expires": now + LEASE,
        }
        free = (OWNERS.c.expires <= now) | OWNERS.c.token.in_([self.token, dead or self.token])
        taking = self._database.dialect.upsert(OWNERS, values, free).returning(OWNERS.c.token)
        row = {"run_id": self._run_id, **values}
        if connection.execute(taking, row).first() is not None:
            void_other_claims(connection, self._run_id, self.token)
            return None
        found = connection.execute(_OWNER, {"of_run": self._run_id}).one()
        process = ProcessName(*(getattr(found, name) for name in vars(self._process)))
        return Holder(found.token, process, found.since, found.expires)

    def _keep(self) -> None:
        while not self._over.wait(RENEWAL_SECONDS):
            try:
                self.renew()
            except OwnerError as error:
                LOGGER.warning("%s", error)
                return
            except ArchiveError as error:
                LOGGER.warning("the lease of run %s was not renewed: %s", self._run, error)


def lost_error(run: str, place: str) -> OwnerError:
    """Returns the error of a process whose run another has taken over."""
    return OwnerError(
        f"run {run} of archive {place} was taken over by another process, because this one gave no "
        f"sign of life for {LEASE.total_seconds():g} s: no further call is sent; resume=true goes "
        "on when the other has ended"
    )


def _machine() -> str:
    try:
        return f"{BOOT_ID.read_text().strip()} {os.readlink(PID_NAMESPACE)}"
    except OSError:
        return ""
