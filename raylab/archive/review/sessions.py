"""Reviewers' sessions with the page, kept where every process that serves it finds them."""

from datetime import datetime

from sqlalchemy import Connection, delete, select

from raylab.archive.database import Database
from raylab.archive.tables import SESSIONS


class ReviewSessions:
    """The sessions of a run's reviewers; made by `RunArchive.sessions`.

    A session is found by a key that cannot be turned back into the browser's cookie.
    """

    def __init__(self, database: Database, run_id: int) -> None:
        """Uses the database of an open archive."""
        self._database = database
        self._run_id = run_id

    def begin(self, key: str, reviewer: str, now: datetime, until: datetime) -> None:
        """Begins a session, and forgets those that have expired.

        Args:
            key: Name of the session, 64 characters that nobody can guess.
            reviewer: Name of the reviewer.
            now: Current time.
            until: Expiry of the session.
        """
        row = {"key": key, "run_id": self._run_id, "reviewer": reviewer, "expires": until}

        def work(connection: Connection) -> None:
            connection.execute(delete(SESSIONS).where(SESSIONS.c.expires <= now))
            connection.execute(self._database.dialect.insert_new(SESSIONS), row)

        self._database.write(work)

    def reviewer(self, key: str, now: datetime) -> str | None:
        """Returns the reviewer of a session; None if it does not exist, has ended or expired."""
        this = (SESSIONS.c.key == key) & (SESSIONS.c.run_id == self._run_id)
        statement = select(SESSIONS.c.reviewer).where(this, SESSIONS.c.expires > now)
        return self._database.read(lambda connection: connection.scalar(statement))

    def end(self, key: str) -> None:
        """Ends a session; does nothing if there is none."""
        statement = delete(SESSIONS).where(SESSIONS.c.key == key)
        self._database.write(lambda connection: connection.execute(statement))
