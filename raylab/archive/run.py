"""One run in an archive: its cases, the decisions on them, and what it cost."""

import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime

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
    last_decision,
    refused_by,
    stream,
    with_decisions,
)
from raylab.archive.records import (
    HUMAN,
    CaseRow,
    CurrentCase,
    DecisionRow,
    Lease,
    RunCost,
    RunRow,
    StoredCase,
    StoredDecision,
)
from raylab.archive.review.audits import RunAudit
from raylab.archive.review.leases import ReviewLeases, drop_draft, is_open, set_lease
from raylab.archive.review.pending import PendingDecisions, take_pending
from raylab.archive.review.sessions import ReviewSessions
from raylab.archive.rows import AnyRow, canonical, from_row, unseal
from raylab.archive.tables import CASES, DECISIONS, PROMPTS, RUNS
from raylab.config.llm import Budget
from raylab.errors import ArchiveError, LeaseError

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

    def add_decision(
        self,
        row: DecisionRow,
        *,
        judged: str | None = None,
        lease_until: datetime | None = None,
        after: int | None = None,
    ) -> bool:
        """Appends a decision on a case of the run.

        A decision that equals an existing one, including its body and time, changes nothing. One
        that settles the case drops the reviewer's draft.

        Args:
            row: The decision.
            judged: Token of the pending decision that this one was; it waits no more.
            lease_until: Leave the case to the reviewer until then if the decision does not settle
                it.
            after: Require that the latest decision on the case is the one at this sequence.

        Returns:
            False if the pending decision was taken back before; nothing is written then.

        Raises:
            ArchiveError: The run has no such case.
            LeaseError: A later decision followed. Nothing is written.
        """
        created = self._database.clock.now()

        def work(connection: Connection) -> bool:
            run = self._find(connection, lock=True)
            case = next(cases_named(connection, run, [row.case]), None)
            if case is None:
                raise ArchiveError(
                    f"run {self.name} of archive {self._database.place} has no case {row.case!r} "
                    "to decide on: check the id and the run"
                )
            if self._has_decision(connection, run, row):
                return True
            if after is not None and after != last_decision(connection, run, row.case):
                raise LeaseError(f"a later decision on case {row.case} followed: reload the page")
            if judged is not None and not take_pending(connection, run.id, judged):
                return False
            if row.status != HUMAN:
                drop_draft(connection, run.id, case.sequence, row.reviewer)
            elif lease_until is not None:
                lease = Lease(row.reviewer, lease_until)
                set_lease(connection, self._database.dialect, run.id, case.sequence, lease)
            append_records(connection, DECISIONS, run, [row], created)
            return True

        return self._database.write(work)

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

    def waiting(self) -> list[int]:
        """Returns the sequences of the cases that currently wait for a person, in order."""

        def work(connection: Connection) -> list[int]:
            of_run = CASES.c.run_id == self._find(connection).id
            statement = select(CASES.c.sequence).where(of_run & (current_status() == HUMAN))
            return list(connection.scalars(statement.order_by(CASES.c.sequence)))

        return self._database.read(work)

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

    def decisions(self, case: str | None = None, batch: int = BATCH) -> Iterator[StoredDecision]:
        """Yields the decisions, or those on one case, in the order in which they were archived."""
        run = self._found()
        condition = DECISIONS.c.case == case if case is not None else None

        def page(after: int) -> list[StoredDecision]:
            return self._database.read(
                lambda connection: decision_page(connection, run, after, batch, condition)
            )

        return stream(page)

    def refused(self, reviewer: str) -> list[StoredDecision]:
        """Returns the decisions of a reviewer that left their case open, and stand."""

        def work(connection: Connection) -> list[StoredDecision]:
            run = self._find(connection)
            rows = connection.execute(refused_by(run, reviewer))
            return [unseal(StoredDecision, row, run=run.name) for row in rows]

        return self._database.read(work)

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

    def leases(self) -> ReviewLeases:
        """Returns the leases and drafts of reviewers on the open cases of the run."""
        return ReviewLeases(self._database, self._found().id, is_open(), CASES.c.sequence)

    def audit(self) -> RunAudit:
        """Returns the audit of the run's decided cases."""
        return RunAudit(self._database, self.name)

    def pending(self) -> PendingDecisions:
        """Returns the decisions of the run that wait for the evaluator."""
        return PendingDecisions(self._database, self.name)

    def sessions(self) -> ReviewSessions:
        """Returns the sessions of the run's reviewers."""
        return ReviewSessions(self._database, self._found().id)

    def cost(self) -> RunCost:
        """Returns what the run has paid, and what it may have paid.

        Calls answered from the archive were paid by the run that sent them.
        """
        sums = Sums.from_row(self._found())
        return RunCost(sums.billed, sums.uncertain + sums.held)

    def _has_decision(self, connection: Connection, run: AnyRow, row: DecisionRow) -> bool:
        on_it = (DECISIONS.c.run_id == run.id) & (DECISIONS.c.case == row.case)
        stored = connection.execute(select(DECISIONS).where(on_it, DECISIONS.c.kind == row.kind))
        new = {**vars(row), "body": json.loads(canonical(row.body))}
        decisions = (unseal(StoredDecision, one, run=run.name) for one in stored)
        return any(new == {name: getattr(one, name) for name in new} for one in decisions)

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
