"""Reviewers' leases on the cases of a run, and the drafts of their decisions.

Neither is part of the run's chain. A lease is taken by one statement, so any number of processes
may serve reviewers. Callers supply the times; their clocks should agree within a few seconds.
"""

from datetime import datetime

from sqlalchemy import ColumnElement, Connection, Table, delete, or_, select

from raylab.archive.database import Database
from raylab.archive.records import Draft, Lease
from raylab.archive.tables import DRAFTS, LEASES
from raylab.errors import LeaseError


class ReviewLeases:
    """The leases and drafts on the cases of a run; made by `RunArchive.leases`."""

    def __init__(self, database: Database, run_id: int) -> None:
        """Uses the database of an open archive."""
        self._database = database
        self._run_id = run_id

    def take(self, case: int, reviewer: str, now: datetime, until: datetime) -> bool:
        """Takes a free or expired lease on a case, or renews the reviewer's own.

        Args:
            case: Sequence of the case in its run.
            reviewer: Name of the reviewer.
            now: Current time; leases that expire by then are free.
            until: Expiry of the new lease.

        Returns:
            True if the reviewer holds the lease now, False if another does.
        """
        values = {"reviewer": reviewer, "expires": until}
        free = (LEASES.c.expires <= now) | (LEASES.c.reviewer == reviewer)
        statement = self._database.dialect.upsert(LEASES, values, free).returning(LEASES.c.reviewer)
        row = {"run_id": self._run_id, "sequence": case, **values}
        return self._database.write(
            lambda connection: connection.execute(statement, row).first() is not None
        )

    def give_back(self, case: int, reviewer: str) -> None:
        """Ends the reviewer's lease on a case; does nothing if the reviewer holds none."""
        statement = delete(LEASES).where(_mine(LEASES, self._run_id, case, reviewer))
        self._database.write(lambda connection: connection.execute(statement))

    def leases(self, now: datetime) -> dict[int, Lease]:
        """Returns the unexpired leases, by the sequence of their case."""
        of_run = (LEASES.c.run_id == self._run_id) & (LEASES.c.expires > now)
        statement = select(LEASES).where(of_run)

        def work(connection: Connection) -> dict[int, Lease]:
            rows = connection.execute(statement)
            return {row.sequence: Lease(row.reviewer, row.expires) for row in rows}

        return self._database.read(work)

    def save(self, case: int, reviewer: str, draft: Draft) -> None:
        """Saves a reviewer's draft on a case in place of the previous one.

        A draft that arrives after a later one of the same page is dropped.
        """
        row = {"run_id": self._run_id, "sequence": case, "reviewer": reviewer, **vars(draft)}
        not_overtaken = (DRAFTS.c.page != draft.page) | (DRAFTS.c.edit <= draft.edit)
        statement = self._database.dialect.upsert(DRAFTS, vars(draft), not_overtaken)
        self._database.write(lambda connection: connection.execute(statement, row))

    def draft(self, case: int, reviewer: str) -> Draft | None:
        """Returns the reviewer's draft on a case; None if there is none."""
        columns = [DRAFTS.c[name] for name in Draft.__dataclass_fields__]
        statement = select(*columns).where(_mine(DRAFTS, self._run_id, case, reviewer))

        def work(connection: Connection) -> Draft | None:
            row = connection.execute(statement).first()
            return None if row is None else Draft(*row)

        return self._database.read(work)

    def drafted(self, reviewer: str) -> set[int]:
        """Returns the sequences of the cases on which a reviewer has a non-empty draft."""
        mine = (DRAFTS.c.run_id == self._run_id) & (DRAFTS.c.reviewer == reviewer)
        typed = or_(*(DRAFTS.c[name] != "" for name in ("choice", "code", "justification")))
        statement = select(DRAFTS.c.sequence).where(mine & typed)
        return self._database.read(lambda connection: set(connection.scalars(statement)))


def require_lease(connection: Connection, run_id: int, case: int, reviewer: str) -> None:
    """Locks the reviewer's lease until the transaction ends.

    Raises:
        LeaseError: The reviewer no longer holds the lease.
    """
    mine = select(LEASES).where(_mine(LEASES, run_id, case, reviewer)).with_for_update()
    if connection.execute(mine).first() is None:
        raise LeaseError(f"{reviewer} has no lease on case {case} any more: open it again")


def clear(connection: Connection, run_id: int, case: int, reviewer: str) -> None:
    """Ends the reviewer's lease on a settled case and drops the draft."""
    for table in (LEASES, DRAFTS):
        connection.execute(delete(table).where(_mine(table, run_id, case, reviewer)))


def _mine(table: Table, run_id: int, case: int, reviewer: str) -> ColumnElement[bool]:
    of_case = (table.c.run_id == run_id) & (table.c.sequence == case)
    return of_case & (table.c.reviewer == reviewer)
