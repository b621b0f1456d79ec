"""Reviewers' leases on the cases of a run, and the drafts of their decisions.

A lease is chosen and taken by one statement, which only sees cases that wait for a person, so any
number of processes may serve reviewers. Callers supply the times; their clocks should agree within
a few seconds.
"""

from collections.abc import Collection, Iterator
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, Connection, Table, delete, literal, or_, select, true

from raylab.archive.database import Database
from raylab.archive.dialects import DatabaseDialect
from raylab.archive.queries import chunks, current_status, lock_run
from raylab.archive.records import HUMAN, Draft, Lease
from raylab.archive.tables import CASES, DRAFTS, LEASES, PENDING
from raylab.errors import LeaseError


class ReviewLeases:
    """The leases and drafts on cases of a run; made by `RunArchive.leases` or `RunAudit.leases`."""

    def __init__(
        self,
        database: Database,
        run_id: int,
        waits: ColumnElement[bool],
        order: ColumnElement[Any],
    ) -> None:
        """Leases cases of an open archive.

        Args:
            database: Its database.
            run_id: Number of the run.
            waits: True for a row of the cases that waits for a person.
            order: Column of the cases by which the next one is chosen.
        """
        self._database = database
        self._run_id = run_id
        self._waits, self._order = waits, order

    def take(self, case: int, reviewer: str, now: datetime, until: datetime) -> bool:
        """Takes a free or expired lease on an open case, or renews the reviewer's own.

        Args:
            case: Sequence of the case in its run.
            reviewer: Name of the reviewer.
            now: Current time; leases that expire by then are free.
            until: Expiry of the new lease.

        Returns:
            True if the reviewer holds the lease now, False if another does, or if the case does
            not wait.
        """

        def work(connection: Connection) -> bool:
            lock_run(connection, self._run_id)
            this = CASES.c.sequence == case
            return self._take(connection, reviewer, now, until, this) is not None

        return self._database.write(work)

    def take_next(
        self,
        reviewer: str,
        now: datetime,
        until: datetime,
        after: int = 0,
        among: Collection[int] | None = None,
    ) -> int | None:
        """Takes the lease on the next case that waits and nobody else works on.

        Args:
            reviewer: Name of the reviewer.
            now: Current time; leases that expire by then are free.
            until: Expiry of the new lease.
            after: Sequence to start after; the first case follows the last, this one is left out.
            among: Only cases of these sequences; None for all.

        Returns:
            The sequence of the case; None if there is none.
        """

        def work(connection: Connection) -> int | None:
            lock_run(connection, self._run_id)
            taken = (
                self._take(connection, reviewer, now, until, some)
                for some in self._in_turn(connection, after, among)
            )
            return next((case for case in taken if case is not None), None)

        return self._database.write(work)

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

    def _take(
        self,
        connection: Connection,
        reviewer: str,
        now: datetime,
        until: datetime,
        which: ColumnElement[bool],
    ) -> int | None:
        """Takes the first case that is free for the reviewer, in one statement."""
        lease = (LEASES.c.run_id == CASES.c.run_id) & (LEASES.c.sequence == CASES.c.sequence)
        free = (LEASES.c.expires <= now) | (LEASES.c.reviewer == reviewer)
        values = {"reviewer": reviewer, "expires": until}
        first = (
            select(
                CASES.c.run_id,
                CASES.c.sequence,
                *(literal(value, LEASES.c[name].type) for name, value in values.items()),
            )
            .where(CASES.c.run_id == self._run_id, which, self._waits)
            .where(~select(LEASES.c.sequence).where(lease, ~free).exists())
            .order_by(self._order)
            .limit(1)
        )
        columns = ["run_id", "sequence", *values]
        taking = self._database.dialect.upsert(LEASES, values, free).from_select(columns, first)
        return connection.scalar(taking.returning(LEASES.c.sequence))

    def _in_turn(
        self, connection: Connection, after: int, among: Collection[int] | None
    ) -> Iterator[ColumnElement[bool]]:
        """Yields the conditions of the cases to choose from, the next ones first."""
        if among is None:
            this = (CASES.c.run_id == self._run_id) & (CASES.c.sequence == after)
            place = connection.scalar(select(self._order).where(this)) if after else None
            if place is None:
                yield CASES.c.sequence != after
                return
            yield self._order > place
            yield self._order < place
            return
        cases = sorted(among)
        later = [case for case in cases if case > after]
        for part in (later, [case for case in cases if case < after]):
            for some in chunks(part):
                yield CASES.c.sequence.in_(some)


def is_open() -> ColumnElement[bool]:
    """Returns whether a case waits for a person and has no decision under way."""
    place = (PENDING.c.run_id == CASES.c.run_id) & (PENDING.c.sequence == CASES.c.sequence)
    return (current_status() == HUMAN) & ~select(PENDING.c.sequence).where(place).exists()


def require_lease(connection: Connection, run_id: int, case: int, reviewer: str) -> None:
    """Checks that a reviewer holds the lease of a case.

    Raises:
        LeaseError: The reviewer does not.
    """
    mine = select(LEASES).where(_mine(LEASES, run_id, case, reviewer))
    if connection.execute(mine).first() is None:
        raise LeaseError(f"{reviewer} has no lease on case {case} any more: open it again")


def set_lease(
    connection: Connection, dialect: DatabaseDialect, run_id: int, case: int, lease: Lease
) -> None:
    """Gives the lease on a case to a reviewer, whoever held it."""
    statement = dialect.upsert(LEASES, vars(lease), true())
    connection.execute(statement, {"run_id": run_id, "sequence": case, **vars(lease)})


def end_leases(connection: Connection, run_id: int, case: int) -> None:
    """Ends the lease on a case, whoever holds it."""
    this = (LEASES.c.run_id == run_id) & (LEASES.c.sequence == case)
    connection.execute(delete(LEASES).where(this))


def drop_draft(connection: Connection, run_id: int, case: int, reviewer: str) -> None:
    """Drops a reviewer's draft on a case."""
    connection.execute(delete(DRAFTS).where(_mine(DRAFTS, run_id, case, reviewer)))


def _mine(table: Table, run_id: int, case: int, reviewer: str) -> ColumnElement[bool]:
    of_case = (table.c.run_id == run_id) & (table.c.sequence == case)
    return of_case & (table.c.reviewer == reviewer)
