"""One run in an archive: its cases, the decisions on them, and what it cost."""

from collections.abc import Iterator, Mapping, Sequence

from sqlalchemy import ColumnElement, Connection, func, select, update

from raylab.archive.database import Database
from raylab.archive.ledger import Ledger, Sums
from raylab.archive.ownership import Ownership
from raylab.archive.queries import (
    LOOKED_UP,
    append_records,
    case_page,
    cases_named,
    chunks,
    current_status,
    decision_page,
    find_run,
    stream,
    with_decisions,
)
from raylab.archive.records import (
    DECISION,
    HUMAN,
    CaseRow,
    CurrentCase,
    RunCost,
    RunRow,
    StoredCase,
    StoredDecision,
)
from raylab.archive.reviews import RunReviews
from raylab.archive.rows import AnyRow, from_row
from raylab.archive.tables import CASES, DECISIONS, PROMPTS, RUNS
from raylab.config.llm import Budget
from raylab.errors import ArchiveError

BATCH = 100

Prompts = Mapping[str, tuple[str, str, str]]
"""Prompts by hash: name, version, text."""


class RunArchive:
    """A run in an open archive; made by `raylab.archive.store.Archive.run`.

    Nothing is read before a method is called. Each method raises `ArchiveError` if the archive
    fails or has no such run.

    Attributes:
        name: Name of the run.
    """

    def __init__(self, database: Database, name: str) -> None:
        """Uses the database of an open archive."""
        self.name = name
        self._database = database

    def row(self) -> RunRow:
        """Returns the run's current row in the archive."""
        return self._database.read(lambda connection: from_row(RunRow, self._find(connection)))

    def finish(self) -> None:
        """Marks the run as finished; a second call does nothing."""

        def work(connection: Connection) -> None:
            unfinished = (RUNS.c.id == self._find(connection).id) & RUNS.c.finished.is_(None)
            finished = self._database.clock.now()
            connection.execute(update(RUNS).where(unfinished).values(finished=finished))

        self._database.write(work)

    def reopen(self) -> None:
        """Marks the run as unfinished."""

        def work(connection: Connection) -> None:
            mine = RUNS.c.id == self._find(connection).id
            connection.execute(update(RUNS).where(mine).values(finished=None))

        self._database.write(work)

    def add_prompts(self, prompts: Prompts) -> None:
        """Stores prompts by their hash; those that the archive has stay unchanged."""
        rows = [
            {"hash": key, "name": name, "version": version, "text": content}
            for key, (name, version, content) in sorted(prompts.items())
        ]
        if rows:
            new = self._database.dialect.insert_new(PROMPTS)
            self._database.write(lambda connection: connection.execute(new, rows))

    def add_cases(self, rows: Sequence[CaseRow]) -> None:
        """Appends cases to the run.

        A case that the run already has stays unchanged, even if the new body differs: a case that
        is repeated after a lost answer has other times and may have other replies.

        Raises:
            ArchiveError: The run has one of the cases with another description. Nothing is
                written.
        """
        created = self._database.clock.now()

        def work(connection: Connection) -> None:
            run = self._find(connection, lock=True)
            named = cases_named(connection, run, [row.case for row in rows])
            there = {row.case: row.description_hash for row in named}
            new: list[CaseRow] = []
            for row in rows:
                if row.case in there:
                    self._refuse_other_description(row, there[row.case])
                    continue
                there[row.case] = row.description_hash
                new.append(row)
            append_records(connection, CASES, run, new, created)

        if rows:
            self._database.write(work)

    def statuses(self, cases: Sequence[str]) -> dict[str, str]:
        """Returns the statuses at the end of the run, of the given cases that it has."""
        return {row.case: row.status for row in self._named(cases)}

    def description_hashes(self, cases: Sequence[str]) -> dict[str, str]:
        """Returns the SHA-256 of the descriptions of the given cases that the run has."""
        return {row.case: row.description_hash for row in self._named(cases)}

    def ids(self) -> Iterator[str]:
        """Yields the ids of all cases, in the order in which they were archived."""
        mine, after = CASES.c.run_id == self._found().id, 0
        columns = select(CASES.c.sequence, CASES.c.case)
        while True:
            later = columns.where(mine, CASES.c.sequence > after)
            page = later.order_by(CASES.c.sequence).limit(LOOKED_UP)
            rows = self._database.read(lambda connection, page=page: connection.execute(page).all())
            if not rows:
                return
            yield from (row.case for row in rows)
            after = rows[-1].sequence

    def sequences(self, cases: Sequence[str]) -> dict[str, int]:
        """Returns the sequences of the given cases that the run has."""
        return {row.case: row.sequence for row in self._named(cases)}

    def counts(self, now: bool = False) -> dict[str, int]:
        """Returns the number of cases by status.

        Args:
            now: Count by current status, with later decisions, instead of the run's own.
        """

        def work(connection: Connection) -> dict[str, int]:
            status = current_status() if now else CASES.c.status
            of_run = CASES.c.run_id == self._find(connection).id
            inner = select(status.label("status")).where(of_run).subquery()
            counted = select(inner.c.status, func.count()).group_by(inner.c.status)
            return {status: count for status, count in connection.execute(counted)}

        return self._database.read(work)

    def cases(self, status: str | None = None, batch: int = BATCH) -> Iterator[StoredCase]:
        """Yields the cases without later decisions, in the order in which they were archived.

        Cases added in the meantime are included; memory holds one batch.

        Args:
            status: Only cases with this status at the end of the run.
            batch: Cases read at once.
        """
        run = self._found()
        condition = CASES.c.status == status if status is not None else None

        def page(after: int) -> list[StoredCase]:
            return self._database.read(
                lambda connection: case_page(connection, run, after, batch, condition)
            )

        return stream(page)

    def case(self, case: str) -> StoredCase | None:
        """Returns a case without later decisions; None if the run has no case of this id."""

        def work(connection: Connection) -> StoredCase | None:
            condition = CASES.c.case == case
            found = case_page(connection, self._find(connection), None, 1, condition)
            return found[0] if found else None

        return self._database.read(work)

    def current_cases(
        self, status: str | None = None, batch: int = BATCH, until: int | None = None
    ) -> Iterator[CurrentCase]:
        """Yields the cases with later decisions on them, in the order of `cases`.

        Args:
            status: Only cases with this current status.
            batch: Cases read at once.
            until: Only records up to this sequence, to exclude those added in the meantime.
        """
        run = self._found()
        conditions: list[ColumnElement[bool]] = []
        if status is not None:
            conditions.append(current_status(until) == status)
        if until is not None:
            conditions.append(CASES.c.sequence <= until)

        def work(connection: Connection, after: int) -> list[CurrentCase]:
            found = case_page(connection, run, after, batch, *conditions)
            return with_decisions(connection, run, found, until)

        def page(after: int) -> list[CurrentCase]:
            return self._database.read(lambda connection: work(connection, after))

        return stream(page)

    def open_cases(self, batch: int = BATCH) -> Iterator[CurrentCase]:
        """Yields the cases that currently wait for a person."""
        return self.current_cases(HUMAN, batch)

    def cases_at(self, sequences: Sequence[int]) -> list[CurrentCase]:
        """Returns the cases of these sequences, in order; skips other records."""

        def work(connection: Connection) -> list[CurrentCase]:
            run = self._find(connection)
            found: list[StoredCase] = []
            for some in chunks(sorted(set(sequences))):
                condition = CASES.c.sequence.in_(some)
                found += case_page(connection, run, None, len(some), condition)
            return with_decisions(connection, run, found)

        return self._database.read(work)

    def decisions(
        self, case: str | None = None, kind: str = DECISION, batch: int = BATCH
    ) -> Iterator[StoredDecision]:
        """Yields the decisions of a kind, on all cases or one, in the order of their archiving."""
        run = self._found()
        condition = DECISIONS.c.kind == kind
        if case is not None:
            condition &= DECISIONS.c.case == case

        def page(after: int) -> list[StoredDecision]:
            return self._database.read(
                lambda connection: decision_page(connection, run, after, batch, condition)
            )

        return stream(page)

    def own(self, wait: bool = False, token: str | None = None) -> Ownership:
        """Returns the ownership of the run, a context manager that holds it while in use.

        Args:
            wait: Wait for another owner to end, instead of raising `OwnerError`.
            token: Name of the ownership; None draws one.
        """
        return Ownership(self._database, self._found(), wait, token)

    def ledger(self, owner: str, budget: Budget) -> Ledger:
        """Returns the ledger of the run as the owner of this token writes it, within a budget."""
        return Ledger(self._database, self._found().id, owner, budget)

    def reviews(self) -> RunReviews:
        """Returns the work of people on the run: queues, leases, decisions and the audit."""
        return RunReviews(self._database, self.name, self._found().id)

    def cost(self) -> RunCost:
        """Returns what the run has paid, and what it may have paid.

        Calls answered from the archive were paid by the run that sent them.
        """
        sums = Sums.from_row(self._found())
        return RunCost(sums.billed, sums.uncertain + sums.held)

    def _named(self, cases: Sequence[str]) -> list[AnyRow]:
        return self._database.read(
            lambda connection: list(cases_named(connection, self._find(connection), cases))
        )

    def _found(self) -> AnyRow:
        return self._database.read(self._find)

    def _find(self, connection: Connection, lock: bool = False) -> AnyRow:
        return find_run(connection, self._database.place, self.name, lock)

    def _refuse_other_description(self, row: CaseRow, description_hash: str) -> None:
        if row.description_hash != description_hash:
            raise ArchiveError(
                f"run {self.name} of archive {self._database.place} has case {row.case!r} with "
                "another description: give each case of a run its own id and keep its description; "
                "for changed descriptions choose another name="
            )
