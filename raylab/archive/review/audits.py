"""Audits: decided cases drawn for people to classify anew, and their codes, in the run's chain.

A case is drawn once. Then a person codes it, and may take the code back; the latest entry holds.
"""

from collections.abc import Iterator, Sequence

from sqlalchemy import ColumnElement, Connection, func, select

from raylab.archive.chain import canonical, digest
from raylab.archive.database import Database
from raylab.archive.queries import (
    append_records,
    audit_page,
    cases_named,
    chunks,
    find_run,
    stream,
)
from raylab.archive.records import CODE, DRAW, AuditEntry, Body, StoredAuditEntry
from raylab.archive.review.leases import ReviewLeases, drop_draft, end_leases, require_lease
from raylab.archive.rows import AnyRow, NewRecord, new_record, stored_audit_entry
from raylab.archive.tables import AUDITS, CASES
from raylab.errors import ArchiveError, LeaseError

BATCH = 500


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
        content, created = canonical(body), self._database.clock.now()

        def work(connection: Connection) -> int:
            run = self._find(connection, lock=True)
            if missing := set(cases) - {row.case for row in cases_named(connection, run, cases)}:
                raise ArchiveError(f"run {self._run} has no case {min(missing)!r} to draw")
            there = self._drawn(connection, run, cases)
            records: list[NewRecord] = []
            sequence, last = run.head_sequence, run.head_hash
            for case in dict.fromkeys(cases):
                if digest(case) not in there:
                    sequence += 1
                    entry = AuditEntry(case, DRAW, "", body)
                    records.append(new_record("audit", entry, content, last, sequence, created))
                    last = records[-1].hash
            append_records(connection, AUDITS, run.id, records)
            return len(records)

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
        content, created = canonical(entry.body), self._database.clock.now()

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
            place = run.head_hash, run.head_sequence + 1
            record = new_record("audit", entry, content, *place, created)
            append_records(connection, AUDITS, run.id, [record])
            end_leases(connection, run.id, case.sequence)
            drop_draft(connection, run.id, case.sequence, entry.reviewer)

        self._database.write(work)

    def entries(self) -> Iterator[StoredAuditEntry]:
        """Yields all entries in the order in which they were archived."""
        run = self._database.read(self._find)

        def page(after: int) -> list[StoredAuditEntry]:
            return self._database.read(lambda connection: audit_page(connection, run, after, BATCH))

        return stream(page)

    def last(self, case: str) -> StoredAuditEntry | None:
        """Returns the latest entry on a case; None if it was not drawn."""

        def work(connection: Connection) -> StoredAuditEntry | None:
            row = self._last(connection, self._find(connection), case)
            return None if row is None else stored_audit_entry(self._run, row)

        return self._database.read(work)

    def coded_by(self, reviewer: str, most: int) -> list[StoredAuditEntry]:
        """Returns the latest codes of a reviewer that hold, the last one first."""
        later = AUDITS.alias()
        followed = select(later.c.sequence).where(
            later.c.run_id == AUDITS.c.run_id,
            later.c.case_key == AUDITS.c.case_key,
            later.c.sequence > AUDITS.c.sequence,
        )

        def work(connection: Connection) -> list[StoredAuditEntry]:
            mine = (AUDITS.c.run_id == self._find(connection).id) & (AUDITS.c.reviewer == reviewer)
            holds = (AUDITS.c.action == CODE) & ~followed.exists()
            rows = select(AUDITS).where(mine, holds).order_by(AUDITS.c.sequence.desc()).limit(most)
            return [stored_audit_entry(self._run, row) for row in connection.execute(rows)]

        return self._database.read(work)

    def drawn(self) -> int:
        """Returns the number of drawn cases."""

        def work(connection: Connection) -> int:
            of_run = (AUDITS.c.run_id == self._find(connection).id) & (AUDITS.c.action == DRAW)
            return connection.scalar(select(func.count()).select_from(AUDITS).where(of_run)) or 0

        return self._database.read(work)

    def waiting(self) -> list[int]:
        """Returns the sequences of the drawn cases without a code, in an order like random.

        So those that are coded first are a random sample too.
        """

        def work(connection: Connection) -> list[int]:
            of_run = CASES.c.run_id == self._find(connection).id
            statement = select(CASES.c.sequence).where(of_run, _waits())
            return list(connection.scalars(statement.order_by(CASES.c.case_key)))

        return self._database.read(work)

    def leases(self) -> ReviewLeases:
        """Returns the leases and drafts on the drawn cases without a code."""
        run = self._database.read(self._find)
        return ReviewLeases(self._database, run.id, _waits(), CASES.c.case_key)

    def _find(self, connection: Connection, lock: bool = False) -> AnyRow:
        return find_run(connection, self._database.place, self._run, lock)

    def _drawn(self, connection: Connection, run: AnyRow, cases: Sequence[str]) -> set[str]:
        """Returns the keys of those of some cases that are drawn."""
        drawn = select(AUDITS.c.case_key).where(AUDITS.c.run_id == run.id, AUDITS.c.action == DRAW)
        return {
            key
            for some in chunks([digest(case) for case in cases])
            for key in connection.scalars(drawn.where(AUDITS.c.case_key.in_(some)))
        }

    def _last(self, connection: Connection, run: AnyRow, case: str) -> AnyRow | None:
        on_it = (AUDITS.c.run_id == run.id) & (AUDITS.c.case_key == digest(case))
        latest = select(AUDITS).where(on_it).order_by(AUDITS.c.sequence.desc()).limit(1)
        return connection.execute(latest).first()


def _waits() -> ColumnElement[bool]:
    """Returns whether a case is drawn and has no code."""
    on_it = (AUDITS.c.run_id == CASES.c.run_id) & (AUDITS.c.case_key == CASES.c.case_key)
    last = select(AUDITS.c.action).where(on_it).order_by(AUDITS.c.sequence.desc()).limit(1)
    return func.coalesce(last.scalar_subquery(), CODE) != CODE
