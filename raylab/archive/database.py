"""The database of an archive: its transactions, and its failures as errors.

Every transaction is retried for a given time while the database is locked, restarting or not
reachable. All work in a transaction must therefore be repeatable: the connection may be lost after
the commit and before its acknowledgement.
"""

import logging
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from raylab.archive.dialects import Lock, Options, dialect_of, first_line
from raylab.archive.tables import ForeignContentError
from raylab.errors import ArchiveError

FIRST_PAUSE_SECONDS = 0.05
LONGEST_PAUSE_SECONDS = 2.0
LOCK_SECONDS = 5.0
"""Longest wait of one attempt for another writer."""

LOGGER = logging.getLogger(__name__)

T = TypeVar("T")


def utc_now() -> datetime:
    """Returns the time in UTC."""
    return datetime.now(UTC)


@dataclass(frozen=True)
class Clock:
    """The clocks of an archive; a simulation replaces them.

    Attributes:
        now: time of day in UTC.
        monotonic: seconds that only rise.
        sleep: waits for some seconds.
        draw: uniform in [0, 1).
    """

    now: Callable[[], datetime] = utc_now
    monotonic: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    draw: Callable[[], float] = random.random


class Database:
    """Transactions on a database; any thread may use them.

    Attributes:
        dialect: Kind and location of the database.
        place: The file or URL, without secrets.
        clock: Its clocks.
    """

    def __init__(self, location: str | Path, patience: float, clock: Clock | None = None) -> None:
        """Reads the location; nothing is opened.

        Args:
            location: Path of a file, or URL; `~` is the home directory.
            patience: Longest time in seconds for which a transaction is retried.
            clock: Clocks; None takes the system's.

        Raises:
            ArchiveError: The location is invalid or carries a password.
        """
        self.dialect = dialect_of(str(location))
        self.place = self.dialect.place
        self.clock = clock or Clock()
        self._patience = patience
        self._engine = self.dialect.create_engine(min(LOCK_SECONDS, patience))
        self._was_reached = False
        self._closed = False

    def __repr__(self) -> str:
        """Returns the type and the place."""
        return f"Database({self.place!r})"

    def close(self) -> None:
        """Closes all connections; a second call does nothing."""
        self._closed = True
        self._engine.dispose()

    def prepare(self) -> None:
        """Checks that the database can hold an archive, and applies its permanent settings.

        Raises:
            ArchiveError: The database cannot hold an archive, or fails.
        """
        self._persist(self.dialect.prepare, self.dialect.preparing, None)

    def read(self, work: Callable[[Connection], T], patience: float | None = None) -> T:
        """Returns the result of work that only reads, on one snapshot of the database.

        Args:
            work: The work; it may run more than once.
            patience: Seconds to retry for, instead of the database's own.

        Raises:
            ArchiveError: The database fails, does not answer in time, or has content that raylab
                did not write.
        """
        return self._persist(work, self.dialect.reading, patience)

    def write(self, work: Callable[[Connection], T]) -> T:
        """Does work atomically and durably; returns its result.

        Args:
            work: The work; it may run more than once, even after it has taken effect.

        Raises:
            ArchiveError: The database fails, or does not answer in time.
        """
        return self._persist(work, self.dialect.writing, None)

    def try_lock(self, number: int) -> Lock | None:
        """Takes a lock that the system releases when this process ends; None if it is taken.

        Raises:
            ArchiveError: The lock cannot be looked at.
        """
        try:
            return self.dialect.try_lock(self._engine, number)
        except DBAPIError as error:
            raise self.dialect.failure(error, "") from error

    def _persist(
        self, work: Callable[[Connection], T], options: Options, patience: float | None
    ) -> T:
        limit = self._patience if patience is None else patience
        deadline = self.clock.monotonic() + limit
        pause = FIRST_PAUSE_SECONDS
        while True:
            if self._closed:
                raise ArchiveError(f"archive {self.place} is closed")
            try:
                return self._once(work, options)
            except OverflowError as error:
                raise ArchiveError(
                    f"archive {self.place} holds integers of at most 64 bits ({error}): give "
                    "smaller ones, for example as seeds"
                ) from error
            except ForeignContentError as error:
                raise self.dialect.unreadable(str(error)) from error
            except DBAPIError as error:
                left = deadline - self.clock.monotonic()
                if not self.dialect.is_transient(error, self._was_reached):
                    raise self.dialect.failure(error, "") from error
                if left <= 0:
                    raise self.dialect.failure(error, f" for {limit:g} s") from error
                if pause == FIRST_PAUSE_SECONDS:
                    reason = first_line(error)
                    LOGGER.warning("archive %s: %s; trying again", self.place, reason)
            jitter = 0.5 + 0.5 * self.clock.draw()
            self.clock.sleep(min(pause * jitter, left))
            pause = min(2 * pause, LONGEST_PAUSE_SECONDS)

    def _once(self, work: Callable[[Connection], T], options: Options) -> T:
        with self._engine.connect() as connection:
            self._was_reached = True
            with connection.execution_options(**options).begin():
                return work(connection)
