"""The ownership of a run: only its owner sends calls for it.

An owner holds a lock that the system releases when its process ends, however it ends, and has
its token in the run's row, which every claim is checked against.
"""

import logging
import os
import platform
import secrets
import shlex
import sys
from types import TracebackType
from typing import Self

from sqlalchemy import select

from raylab.archive.database import Database
from raylab.archive.dialects import Lock
from raylab.archive.ledger import leave_run, take_run
from raylab.archive.rows import AnyRow, lock_number
from raylab.archive.tables import RUNS
from raylab.errors import ArchiveError, OwnerError

POLL_SECONDS = 1.0
"""Time between two attempts of a process that waits for the run."""
LONGEST_COMMAND = 300

LOGGER = logging.getLogger(__name__)


class Ownership:
    """The ownership of a run by this process; a context manager that holds it while in use.

    Made by `RunArchive.own`.

    Args:
        database: Database of an open archive.
        run: Row of the run.
        wait: Wait for another owner to end, instead of raising.
        token: Name of this ownership; None draws one.

    Attributes:
        token: Name of this ownership, which its claims carry.
    """

    def __init__(
        self, database: Database, run: AnyRow, wait: bool = False, token: str | None = None
    ) -> None:
        self.token = token or secrets.token_hex(16)
        self._database = database
        self._run = run
        self._wait = wait
        self._lock: Lock | None = None

    def __enter__(self) -> Self:
        """Takes the run.

        Raises:
            OwnerError: Another process owns it, and this one does not wait.
            ArchiveError: The archive fails.
        """
        said = False
        while not self.take():
            if not self._wait:
                raise OwnerError(
                    f"run {self._run.name} of archive {self._database.place} is worked on by "
                    f"{self._holder()}: wait until that ends, or give wait=true to go on after it"
                )
            if not said:
                LOGGER.warning("run %s: waiting for %s", self._run.name, self._holder())
                said = True
            self._database.clock.sleep(POLL_SECONDS)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Gives the run back; if the archive fails, the next owner ends the claims."""
        try:
            self.end()
        except ArchiveError as failure:
            LOGGER.warning("the claims of run %s were not ended: %s", self._run.name, failure)

    def take(self) -> bool:
        """Takes the run, and ends the claims of former owners; returns False if it is owned.

        Raises:
            ArchiveError: The archive fails.
        """
        self._lock = self._database.try_lock(lock_number(self._run))
        if self._lock is None:
            return False
        try:
            mine = (self._run.id, self.token, _this_process())
            self._database.write(lambda connection: take_run(connection, *mine))
        except BaseException:
            self._lock.release()
            raise
        return True

    def end(self) -> None:
        """Gives the run back. What is still claimed may be billed, because nobody knows better.

        Raises:
            ArchiveError: The archive fails; the run is free all the same.
        """
        try:
            mine = (self._run.id, self.token)
            self._database.write(lambda connection: leave_run(connection, *mine))
        finally:
            if self._lock is not None:
                self._lock.release()

    def _holder(self) -> str:
        holder = select(RUNS.c.holder).where(RUNS.c.id == self._run.id)
        found = self._database.read(lambda connection: connection.scalar(holder))
        return found or "another process"


def _this_process() -> str:
    command = shlex.join(sys.argv)[:LONGEST_COMMAND]
    return f"{command} (process {os.getpid()} on {platform.node()})"
