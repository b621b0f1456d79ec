"""Reviewers' decisions that wait for the evaluator, one for each case of a run.

A decision is accepted when it is here and is archived when it is judged. Until then
it can be taken back; a report on a decision that was taken back is dropped.
"""

import json
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, Connection, delete, select, update

from raylab.archive.database import Database
from raylab.archive.queries import current_status, find_run
from raylab.archive.records import HUMAN, Body
from raylab.archive.review.leases import end_leases, require_lease
from raylab.archive.rows import AnyRow, canonical
from raylab.archive.tables import CASES, PENDING
from raylab.errors import LeaseError


@dataclass(frozen=True)
class PendingDecision:
    """A decision that waits for the evaluator.

    Attributes:
        sequence: place of its case in the run.
        token: name of this submission; one after a cancellation has another.
        reviewer: name of the reviewer.
        submitted: time of the submission, UTC.
        body: the decision as JSON values.
        tries: attempts to have it judged that failed.
        problem: reason why the last one failed; empty if none did.
        due: time of the next attempt, UTC.
    """

    sequence: int
    token: str
    reviewer: str
    submitted: datetime
    body: Body
    tries: int
    problem: str
    due: datetime


class PendingDecisions:
    """The decisions of a run that wait for the evaluator; made by `RunArchive.pending`."""

    def __init__(self, database: Database, run: str) -> None:
        """Uses the database of an open archive."""
        self._database = database
        self._run = run

    def submit(self, decision: PendingDecision, leased: bool = True) -> PendingDecision:
        """Accepts a decision, which ends the lease on its case.

        Args:
            decision: The decision.
            leased: Require that the case is open and the reviewer holds its lease.

        Returns:
            The decision that waits on this case now: this one, or one that did before.

        Raises:
            LeaseError: The case is settled, or the lease is not the reviewer's. Nothing is
                written.
        """
        row: dict[str, Any] = {**vars(decision), "body": canonical(decision.body)}

        def work(connection: Connection) -> PendingDecision:
            run = self._find(connection, lock=True)
            there = connection.execute(select(PENDING).where(_on(run, decision.sequence))).first()
            if there is not None:
                return _decision(there)
            if leased:
                _require_open(connection, run, decision.sequence)
                require_lease(connection, run.id, decision.sequence, decision.reviewer)
            end_leases(connection, run.id, decision.sequence)
            connection.execute(PENDING.insert(), {**row, "run_id": run.id})
            return decision

        return self._database.write(work)

    def all(self) -> list[PendingDecision]:
        """Returns the decisions that wait, the earliest first."""

        def work(connection: Connection) -> list[PendingDecision]:
            of_run = PENDING.c.run_id == self._find(connection).id
            order = (PENDING.c.submitted, PENDING.c.sequence)
            rows = connection.execute(select(PENDING).where(of_run).order_by(*order))
            return [_decision(row) for row in rows]

        return self._database.read(work)

    def on(self, case: int) -> PendingDecision | None:
        """Returns the decision that waits on a case; None if there is none."""

        def work(connection: Connection) -> PendingDecision | None:
            run = self._find(connection)
            row = connection.execute(select(PENDING).where(_on(run, case))).first()
            return None if row is None else _decision(row)

        return self._database.read(work)

    def cancel(self, case: int, reviewer: str) -> bool:
        """Takes a reviewer's decision back; returns False if none of theirs waits on the case."""

        def work(connection: Connection) -> bool:
            mine = _on(self._find(connection, lock=True), case) & (PENDING.c.reviewer == reviewer)
            return connection.execute(delete(PENDING).where(mine)).rowcount > 0

        return self._database.write(work)

    def postpone(self, token: str, problem: str, tries: int, due: datetime) -> None:
        """Notes why a decision could not be judged; does nothing if it waits no more."""
        values = {"problem": problem, "tries": tries, "due": due}
        statement = update(PENDING).where(PENDING.c.token == token).values(**values)
        self._database.write(lambda connection: connection.execute(statement))

    def _find(self, connection: Connection, lock: bool = False) -> AnyRow:
        return find_run(connection, self._database.place, self._run, lock)


def take_pending(connection: Connection, run_id: int, token: str) -> bool:
    """Removes a decision that is judged; returns False if it was taken back before."""
    this = (PENDING.c.run_id == run_id) & (PENDING.c.token == token)
    return connection.execute(delete(PENDING).where(this)).rowcount > 0


def _require_open(connection: Connection, run: AnyRow, case: int) -> None:
    this = (CASES.c.run_id == run.id) & (CASES.c.sequence == case)
    if connection.scalar(select(current_status()).where(this)) != HUMAN:
        raise LeaseError(f"case {case} does not wait any more: your text is kept")


def _on(run: AnyRow, case: int) -> ColumnElement[bool]:
    return (PENDING.c.run_id == run.id) & (PENDING.c.sequence == case)


def _decision(row: AnyRow) -> PendingDecision:
    columns = {name: getattr(row, name) for name in PendingDecision.__dataclass_fields__}
    return PendingDecision(**{**columns, "body": json.loads(row.body)})
