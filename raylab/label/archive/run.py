"""One run in an archive: its cases, the decisions on them, and its cost."""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from sqlalchemy import ColumnElement, Connection, Select, func, select, true

from raylab.core.errors import ArchiveError
from raylab.label.archive.database import Database
from raylab.label.archive.ledger import Ledger, Ownership
from raylab.label.archive.records import CaseHead, CaseRow, CurrentCase, RunCost, RunRow
from raylab.label.archive.reviews import RunReviews
from raylab.label.archive.tables import (
    CASES,
    DECISIONS,
    PROMPTS,
    AnyRow,
    append,
    cost_of,
    find_heads,
    find_run,
    run_row,
    unseal,
)
from raylab.label.judgement import DECISION, Decision
from raylab.llm.config import Budget

BATCH = 100
"""Records read at once."""


class RunArchive:
    """A run in an open archive; made by `raylab.label.archive.store.Archive.run`.

    Nothing is read before a method is called. Each method raises `ArchiveError` if the archive
    fails or has no such run.
    """

    def __init__(self, database: Database, name: str) -> None:
        """Uses the database of an open archive."""
        self.name = name
        self._database = database

    def row(self) -> RunRow:
        """Returns the run's current row in the archive."""
        return run_row(self._row())

    def add_prompts(self, prompts: Mapping[str, tuple[str, str, str]]) -> None:
        """Stores the name, version and text of prompts by their hash, once."""
        # In one order, because writers that insert the same keys in different ones would deadlock.
        rows = [
            {"hash": key, "name": name, "version": version, "text": content}
            for key, (name, version, content) in sorted(prompts.items())
        ]
        new = self._database.dialect.insert(PROMPTS).on_conflict_do_nothing()
        self._database.write(lambda connection: connection.execute(new, rows))

    def add_cases(self, rows: Sequence[CaseRow]) -> None:
        """Appends cases to the run.

        A case that the run already has stays unchanged, even if the new body differs: a case that
        is repeated after a lost answer has other times and may have other replies.

        Raises:
            ArchiveError: The run has one of the cases with another description. Nothing is
                written.
        """
        now = self._database.now()

        def work(connection: Connection) -> None:
            run = self._find(connection, lock=True)
            heads = find_heads(connection, run, [row.case for row in rows])
            new: dict[str, CaseRow] = {}
            for row in rows:
                there = heads.get(row.case) or new.setdefault(row.case, row)
                if there.description_hash != row.description_hash:
                    raise ArchiveError(
                        f"run {self.name} of archive {self._database.place} has case {row.case!r} "
                        "with another description: give each case of a run its own id and keep "
                        "its description; for changed descriptions choose another name="
                    )
            append(connection, run, list(new.values()), now)

        self._database.write(work)

    def find_heads(self, cases: Sequence[str]) -> dict[str, CaseHead]:
        """Returns place, status and description of those cases that the run has, by id."""
        return self._database.read(
            lambda connection: find_heads(connection, self._find(connection), cases)
        )

    def ids(self) -> list[str]:
        """Returns the ids of all cases, in the order in which they were archived."""
        mine = select(CASES.c.case).where(CASES.c.run_id == self._row().id)
        return [row.case for row in self._database.rows(mine.order_by(CASES.c.sequence))]

    def counts(self, now: bool = False) -> dict[str, int]:
        """Returns the number of cases by status.

        Args:
            now: Count by current status, with later decisions, instead of the run's own.
        """
        status = (_current_status() if now else CASES.c.status).label("status")
        each = select(status).where(CASES.c.run_id == self._row().id).subquery()
        numbers = select(each.c.status, func.count()).group_by(each.c.status)
        return {status: count for status, count in self._database.rows(numbers)}

    def cases(
        self,
        status: str | None = None,
        *,
        places: Sequence[int] | None = None,
        until: int | None = None,
    ) -> Iterator[CurrentCase]:
        """Yields the cases with the decisions on them, in the order in which they were archived.

        Cases added in the meantime are included; memory holds one batch.

        Args:
            status: Only cases with this current status.
            places: Only cases of these sequences.
            until: Only cases and decisions up to this sequence.
        """
        run = self._row()
        ordered = select(CASES).where(CASES.c.run_id == run.id).order_by(CASES.c.sequence)
        of_run = DECISIONS.c.run_id == run.id, DECISIONS.c.kind == DECISION
        decided, early = select(DECISIONS).where(*of_run).order_by(DECISIONS.c.sequence), true()
        if until is not None:
            early = DECISIONS.c.sequence <= until
            ordered = ordered.where(CASES.c.sequence <= until)
        if status is not None:
            ordered = ordered.where(_current_status(early) == status)
        batches = [true()]
        if places is not None:
            wanted = sorted(set(places))
            groups = (wanted[start : start + BATCH] for start in range(0, len(wanted), BATCH))
            batches = [CASES.c.sequence.in_(group) for group in groups]

        # A batch is one snapshot.
        def read(page: Select[Any], connection: Connection) -> list[CurrentCase]:
            rows = connection.execute(page).all()
            decisions: dict[str, list[Decision]] = {row.case: [] for row in rows}
            on_them = DECISIONS.c.case.in_(list(decisions))
            for row in connection.execute(decided.where(early, on_them)):
                decisions[row.case].append(unseal(Decision, row))
            return [CurrentCase(unseal(CaseRow, row), tuple(decisions[row.case])) for row in rows]

        for batch in batches:
            after, is_whole = 0, False
            while not is_whole:
                page = ordered.where(batch, CASES.c.sequence > after).limit(BATCH)
                cases = self._database.read(partial(read, page))
                yield from cases
                is_whole = len(cases) < BATCH
                after = cases[-1].case.sequence if cases else 0

    def decisions(self, kind: str = DECISION) -> list[Decision]:
        """Returns the decisions of a kind, in the order of their archiving."""
        mine = DECISIONS.c.run_id == self._row().id, DECISIONS.c.kind == kind
        ordered = select(DECISIONS).where(*mine).order_by(DECISIONS.c.sequence)
        return self._database.read(
            lambda connection: [unseal(Decision, row) for row in connection.execute(ordered)]
        )

    def own(self) -> Ownership:
        """Returns the ownership of the run, a context manager that holds it while in use."""
        return Ownership(self._database, self._row())

    def ledger(self, owner: str, budget: Budget) -> Ledger:
        """Returns the ledger of the run as the owner of this token writes it, within a budget."""
        return Ledger(self._database, self._row().id, owner, budget)

    def reviews(self) -> RunReviews:
        """Returns the work of people on the run: queues, leases, decisions and the audit."""
        return RunReviews(self._database, self._row())

    def cost(self) -> RunCost:
        """Returns the cost of the run; calls in flight count as uncertain.

        Calls answered from the archive were paid by the run that sent them.
        """
        cost = cost_of(self._row())
        return RunCost(cost.billed, cost.uncertain + cost.held)

    def _row(self) -> AnyRow:
        return self._database.read(self._find)

    def _find(self, connection: Connection, lock: bool = False) -> AnyRow:
        return find_run(connection, self._database.place, self.name, lock)


def _current_status(*where: ColumnElement[bool]) -> Any:
    """Returns the status of a case in SQL: that of the latest decision on it, or the run's own."""
    on_it = (DECISIONS.c.run_id == CASES.c.run_id) & (DECISIONS.c.case == CASES.c.case)
    statuses = select(DECISIONS.c.status).where(on_it, DECISIONS.c.kind == DECISION, *where)
    latest = statuses.order_by(DECISIONS.c.sequence.desc()).limit(1).scalar_subquery()
    return func.coalesce(latest, CASES.c.status)
