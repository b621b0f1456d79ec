"""Audits: decided cases drawn for people to classify anew, and their codes.

A case is drawn once. Then a person codes it, and may take the code back; the latest entry holds.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from sqlalchemy import ColumnElement, Connection, Select, func, select

from raylab.archive.database import Database
from raylab.archive.queries import (
    append_records,
    cases_named,
    chunks,
    find_run,
    page_of,
    stream,
)
from raylab.archive.records import AUDIT, CODE, DRAW, AuditEntry, Body, StoredAuditEntry
from raylab.archive.review.leases import ReviewLeases, drop_draft, end_leases, require_lease
from raylab.archive.rows import AnyRow, unseal
from raylab.archive.tables import CASES, DECISIONS
from raylab.errors import ArchiveError, LeaseError

BATCH = 500
_IS_AUDIT = DECISIONS.c.kind == AUDIT


class RunAudit:
    """The audit of a run's decided cases; made by `RunArchive.audit`."""

    def __init__(self, database: Database, run: str) -> None:
        """Uses the database of an open archive."""
        self._database = database
        self._run = run

    def draw(self, cases: Sequence[str], body: Body) -> int:
        """Appends a draw of each case that is not drawn yet; returns their number.

        Args:
            cases: Ids of cases of the run.
            body: What they were drawn by.

        Raises:
            ArchiveError: The run lacks one of the cases. Nothing is written.
        """
        created = self._database.clock.now()

        def work(connection: Connection) -> int:
            run = self._find(connection, lock=True)
            if missing := set(cases) - {row.case for row in cases_named(connection, run, cases)}:
                raise ArchiveError(f"run {self._run} has no case {min(missing)!r} to draw")
            there = self._drawn(connection, run, cases)
            new = [
                AuditEntry(case, DRAW, "", body)
                for case in dict.fromkeys(cases)
                if case not in there
            ]
            append_records(connection, DECISIONS, run, new, created)
            return len(new)

        return self._database.write(work)

    def add(self, entry: AuditEntry, *, leased: bool = False, after: int | None = None) -> None:
        """Appends a code, or the end of one; either drops the reviewer's lease and draft.

        Args:
            entry: What a person says of a drawn case.
            leased: Require that the case has no code, and that the reviewer holds its lease.
            after: Require that the latest entry on the case is the one at this sequence.

        Raises:
            ArchiveError: The case was not drawn.
            LeaseError: A requirement is not met. Nothing is written.
        """
        created = self._database.clock.now()

        def work(connection: Connection) -> None:
            run = self._find(connection, lock=True)
            last = self._last(connection, run, entry.case)
            if last is None:
                raise ArchiveError(f"case {entry.case!r} of run {self._run} was not drawn")
            (case,) = cases_named(connection, run, [entry.case])
            if after is not None and after != last.sequence:
                raise LeaseError(f"case {entry.case} was coded anew: reload the page")
            if leased and last.action == CODE:
                raise LeaseError(f"case {entry.case} is coded already: your text is kept")
            if leased:
                require_lease(connection, run.id, case.sequence, entry.reviewer)
            append_records(connection, DECISIONS, run, [entry], created)
            end_leases(connection, run.id, case.sequence)
            drop_draft(connection, run.id, case.sequence, entry.reviewer)

        self._database.write(work)

    def entries(self) -> Iterator[StoredAuditEntry]:
        """Yields all entries in the order in which they were archived."""
        run = self._database.read(self._find)

        def page(after: int) -> list[StoredAuditEntry]:
            statement = page_of(DECISIONS, run.id, after, BATCH, _IS_AUDIT)
            return self._database.read(
                lambda connection: [self._stored(row) for row in connection.execute(statement)]
            )

        return stream(page)

    def last(self, case: str) -> StoredAuditEntry | None:
        """Returns the latest entry on a case; None if it was not drawn."""

        def work(connection: Connection) -> StoredAuditEntry | None:
            row = self._last(connection, self._find(connection), case)
            return None if row is None else self._stored(row)

        return self._database.read(work)

    def coded_by(self, reviewer: str, most: int) -> list[StoredAuditEntry]:
        """Returns the latest codes of a reviewer that hold, the last one first."""
        later = DECISIONS.alias()
        followed = select(later.c.sequence).where(
            later.c.run_id == DECISIONS.c.run_id,
            later.c.case == DECISIONS.c.case,
            later.c.kind == AUDIT,
            later.c.sequence > DECISIONS.c.sequence,
        )

        def work(connection: Connection) -> list[StoredAuditEntry]:
            of_run = DECISIONS.c.run_id == self._find(connection).id
            mine = of_run & (DECISIONS.c.reviewer == reviewer) & _IS_AUDIT
            holds = (DECISIONS.c.action == CODE) & ~followed.exists()
            latest = select(DECISIONS).where(mine, holds).order_by(DECISIONS.c.sequence.desc())
            rows = latest.limit(most)
            return [self._stored(row) for row in connection.execute(rows)]

        return self._database.read(work)

    def drawn(self) -> int:
        """Returns the number of drawn cases."""

        def work(connection: Connection) -> int:
            drawn = _drawn_of(self._find(connection))
            return connection.scalar(select(func.count()).select_from(drawn.subquery())) or 0

        return self._database.read(work)

    def waiting(self) -> list[int]:
        """Returns the sequences of the drawn cases without a code, in an order like random.

        So those that are coded first are a random sample too.
        """

        def work(connection: Connection) -> list[int]:
            of_run = CASES.c.run_id == self._find(connection).id
            statement = select(CASES.c.sequence).where(of_run, _waits())
            return list(connection.scalars(statement.order_by(CASES.c.sha256)))

        return self._database.read(work)

    def leases(self) -> ReviewLeases:
        """Returns the leases and drafts on the drawn cases without a code."""
        run = self._database.read(self._find)
        return ReviewLeases(self._database, run.id, _waits(), CASES.c.sha256)

    def _find(self, connection: Connection, lock: bool = False) -> AnyRow:
        return find_run(connection, self._database.place, self._run, lock)

    def _stored(self, row: AnyRow) -> StoredAuditEntry:
        return unseal(StoredAuditEntry, row, run=self._run)

    def _drawn(self, connection: Connection, run: AnyRow, cases: Sequence[str]) -> set[str]:
        """Returns those of some cases that are drawn."""
        drawn = _drawn_of(run)
        return {
            case
            for some in chunks(cases)
            for case in connection.scalars(drawn.where(DECISIONS.c.case.in_(some)))
        }

    def _last(self, connection: Connection, run: AnyRow, case: str) -> AnyRow | None:
        on_it = (DECISIONS.c.run_id == run.id) & (DECISIONS.c.case == case) & _IS_AUDIT
        latest = select(DECISIONS).where(on_it).order_by(DECISIONS.c.sequence.desc()).limit(1)
        return connection.execute(latest).first()


def _drawn_of(run: AnyRow) -> Select[Any]:
    of_run = (DECISIONS.c.run_id == run.id) & _IS_AUDIT
    return select(DECISIONS.c.case).where(of_run, DECISIONS.c.action == DRAW)


def _waits() -> ColumnElement[bool]:
    """Returns whether a case is drawn and has no code."""
    on_it = (DECISIONS.c.run_id == CASES.c.run_id) & (DECISIONS.c.case == CASES.c.case)
    latest = select(DECISIONS.c.action).where(on_it, _IS_AUDIT)
    last = latest.order_by(DECISIONS.c.sequence.desc()).limit(1)
    return func.coalesce(last.scalar_subquery(), CODE) != CODE
