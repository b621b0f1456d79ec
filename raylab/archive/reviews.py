"""The work of people on a run: cases that wait for them, leases, decisions, and the audit.

The two kinds of decisions lie in one table. Those of kind `DECISION` settle the cases that the run
left open; those of kind `AUDIT` draw settled cases and classify them anew. A case waits while its
latest row of a kind has the status `HUMAN`. Every change locks the run, so that any number of
processes may serve reviewers.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeVar

from sqlalchemy import (
    ColumnElement,
    Connection,
    Executable,
    Integer,
    Table,
    bindparam,
    delete,
    func,
    or_,
    select,
    update,
)

from raylab.archive.database import Database
from raylab.archive.queries import append_records, cases_named, find_run
from raylab.archive.records import (
    AUDIT,
    DECISION,
    DRAW,
    HUMAN,
    UNCONFIRMED,
    Body,
    DecisionRow,
    Lease,
    StoredCase,
    StoredDecision,
)
from raylab.archive.rows import AnyRow, canonical, digest, seal, unseal
from raylab.archive.tables import CASES, DECISIONS, LEASES, RUNS
from raylab.errors import ArchiveError, LeaseError

T = TypeVar("T")


@dataclass(frozen=True)
class ReviewedCase:
    """A case with what people have done on it.

    Attributes:
        case: the case.
        decisions: the decisions on it, or its draw and codes if it is drawn for the audit.
        lease: the reviewer who works on it; None if nobody does.
    """

    case: StoredCase
    decisions: tuple[StoredDecision, ...]
    lease: Lease | None

    @property
    def queue(self) -> str:
        """The kind of decision that it takes: `AUDIT` if it is drawn, else `DECISION`."""
        return self.decisions[-1].kind if self.decisions else DECISION

    @property
    def status(self) -> str:
        """The status by the latest decision, or else that of the run."""
        return self.decisions[-1].status if self.decisions else self.case.status


class RunReviews:
    """The reviews of a run; made by `RunArchive.reviews`, once for all threads of a process.

    Callers supply the times; their clocks should agree within a few seconds.
    """

    def __init__(self, database: Database, run: str, run_id: int) -> None:
        """Uses the database of an open archive."""
        self._database, self._run, self._run_id = database, run, run_id
        # SQLite lets writers poll for their turn, which wastes most of the time of many threads.
        self._turn = threading.Lock()
        self._leasing = database.dialect.upsert(LEASES)

    def waiting(self, kind: str) -> list[int]:
        """Returns the sequences of the cases that wait for people.

        Args:
            kind: `DECISION` for open cases, in the order of the run; `AUDIT` for drawn ones, in
                pseudo-random order, so that those coded first are a random sample too.
        """
        rows = self._rows(_WAITING[kind])
        if kind == AUDIT:
            rows.sort(key=lambda row: digest(row.case))
        return [row[0] for row in rows]

    def count_drawn(self) -> int:
        """Returns the number of cases that are drawn for the audit."""
        return len(self._rows(_DRAWN))

    def leases(self, now: datetime) -> dict[int, Lease]:
        """Returns the unexpired leases, by the sequence of their case."""
        return {
            row.sequence: Lease(row.reviewer, row.expires) for row in self._rows(_HELD, now=now)
        }

    def look(self, sequence: int, now: datetime) -> ReviewedCase | None:
        """Returns a case with the decisions on it; None if the run has none at this place."""
        place = {"run": self._run_id, "sequence": sequence, "now": now}

        def work(connection: Connection) -> ReviewedCase | None:
            row = connection.execute(_CASE, place).first()
            if row is None:
                return None
            case = unseal(StoredCase, row, run=self._run)
            decisions = [
                unseal(StoredDecision, one, run=self._run)
                for one in connection.execute(_ON_CASE, {**place, "case": case.case})
            ]
            drawn = [one for one in decisions if one.kind == AUDIT]
            held = connection.execute(_HELD_AT, place).first()
            lease = None if held is None else Lease(held.reviewer, held.expires)
            return ReviewedCase(case, tuple(drawn or decisions), lease)

        return self._database.read(work)

    def take(
        self,
        cases: Sequence[int] | None,
        reviewer: str,
        now: datetime,
        until: datetime,
        after: int = 0,
    ) -> int | None:
        """Takes or renews the lease on the first case that waits and is free.

        Args:
            cases: Sequences of the cases, the preferred ones first; None for all open cases in the
                order of the run, those that follow `after` first and without `after`.
            reviewer: Name of the reviewer.
            now: Current time; leases that expire by then are free.
            until: Expiry of the new lease.
            after: Sequence of a case.

        Returns:
            The sequence of the case; None if there is none.
        """
        values = {"run": self._run_id, "reviewer": reviewer, "now": now, "after": after}

        def work(connection: Connection) -> int | None:
            connection.execute(_LOCK, values)
            if cases is None:
                case = connection.scalar(_NEXT, values)
            else:
                others = set(connection.scalars(_HELD_BY_OTHERS, values))
                free = (case for case in cases if case not in others)
                waiting = (connection.scalar(_WAITS_AT, {**values, "sequence": at}) for at in free)
                case = next(filter(None, waiting), None)
            if case is not None:
                row = {"run_id": self._run_id, "sequence": case}
                connection.execute(self._leasing, {**row, "reviewer": reviewer, "expires": until})
            return case

        return self._write(work)

    def give_back(self, case: int, reviewer: str) -> None:
        """Ends the reviewer's lease on a case; does nothing if the reviewer holds none."""
        mine = {"run": self._run_id, "sequence": case, "reviewer": reviewer}
        self._write(lambda connection: connection.execute(_GIVE_BACK, mine))

    def add(self, row: DecisionRow, *, after: int | None = None, leased: bool = False) -> None:
        """Archives a decision or an audit's code, which ends the lease on its case.

        One that equals the latest of its kind on the case, its body and time included, changes
        nothing.

        Args:
            row: The decision.
            after: Require that the latest one of its kind on the case is at this sequence; 0 if
                there is none.
            leased: Require that the case waits and that the reviewer holds its lease.

        Raises:
            ArchiveError: The run has no such case.
            LeaseError: A requirement is not met. Nothing is written.
        """
        created = self._database.clock.now()

        def work(connection: Connection) -> None:
            run = find_run(connection, self._database.place, self._run, lock=True)
            case = next(cases_named(connection, run, [row.case]), None)
            if case is None:
                raise ArchiveError(
                    f"run {self._run} of archive {self._database.place} has no case {row.case!r} "
                    "to decide on: check the id and the run"
                )
            last = self._last(connection, row.case, row.kind)
            if last is not None and _are_equal(last, row):
                return
            if after is not None and after != (last.sequence if last else 0):
                raise LeaseError(f"a later decision on case {row.case} followed: reload the page")
            if leased:
                self._require(connection, case, last, row)
            append_records(connection, DECISIONS, run, [row], created)
            connection.execute(_END_LEASE, {"run": run.id, "sequence": case.sequence})

        self._write(work)

    def confirm(self, sequence: int, row: DecisionRow) -> bool:
        """Completes a decision by the evaluator's report on it.

        Args:
            sequence: Place of the decision.
            row: The decision with the report and the status that follows from it.

        Returns:
            False if the decision waits no more: it was taken back, or is judged already. Nothing
            is written then.
        """

        def work(connection: Connection) -> bool:
            connection.execute(_LOCK, {"run": self._run_id})
            last = self._last(connection, row.case, DECISION)
            if last is None or (last.sequence, last.status) != (sequence, UNCONFIRMED):
                return False
            place = {"run": self._run_id, "place": sequence}
            values = seal(row, sequence=sequence, created=last.created)
            connection.execute(_COMPLETE.values(values), place)
            return True

        return self._write(work)

    def made_by(
        self, reviewer: str, kind: str, most: int
    ) -> Iterator[tuple[int, StoredDecision, bool]]:
        """Yields the latest decisions of a reviewer, the last one first.

        Yields:
            The sequence of the case, the decision, and whether it is the latest on the case.
        """
        for row in self._rows(_MADE_BY, reviewer=reviewer, kind=kind, most=most):
            yield row.place, unseal(StoredDecision, row, run=self._run), bool(row.latest)

    def draw(self, cases: Sequence[str], body: Body) -> int:
        """Draws cases for the audit; returns the number of those that were not drawn before.

        Args:
            cases: Ids of cases of the run.
            body: What they were drawn by.

        Raises:
            ArchiveError: The archive fails.
        """
        created = self._database.clock.now()

        def work(connection: Connection) -> int:
            run = find_run(connection, self._database.place, self._run, lock=True)
            there = {row.case for row in connection.execute(_DRAWN, {"run": run.id})}
            new = [
                DecisionRow(case, DRAW, "", HUMAN, body, AUDIT)
                for case in dict.fromkeys(cases)
                if case not in there
            ]
            append_records(connection, DECISIONS, run, new, created)
            return len(new)

        return self._write(work)

    def _rows(self, statement: Executable, **values: Any) -> list[AnyRow]:
        bound = {"run": self._run_id, **values}
        return self._database.read(lambda connection: list(connection.execute(statement, bound)))

    def _write(self, work: Callable[[Connection], T]) -> T:
        with self._turn:
            return self._database.write(work)

    def _last(self, connection: Connection, case: str, kind: str) -> AnyRow | None:
        rows = connection.execute(_ON_CASE, {"run": self._run_id, "case": case})
        return next((row for row in reversed(rows.all()) if row.kind == kind), None)

    def _require(
        self, connection: Connection, case: AnyRow, last: AnyRow | None, row: DecisionRow
    ) -> None:
        status = last.status if last else case.status if row.kind == DECISION else ""
        if status != HUMAN:
            raise LeaseError(f"case {row.case} does not wait any more: your text stays here")
        place = {"run": self._run_id, "sequence": case.sequence}
        lease = connection.execute(_LEASE_AT, place).first()
        if lease is None or lease.reviewer != row.reviewer:
            raise LeaseError(
                f"{lease.reviewer if lease else 'nobody'} works on case {row.case} now: your text "
                "stays, and can be sent when the case is given back"
            )


def _are_equal(stored: AnyRow, row: DecisionRow) -> bool:
    said = (row.action, row.reviewer, canonical(row.body))
    return (stored.action, stored.reviewer, stored.body) == said


def _of(table: Table) -> ColumnElement[bool]:
    return table.c.run_id == bindparam("run")


def _waits(kind: str) -> ColumnElement[bool]:
    """Returns whether a case waits for people; each condition reads few cases by an index."""
    on_it = (DECISIONS.c.run_id == CASES.c.run_id) & (DECISIONS.c.case == CASES.c.case)
    latest = (
        select(DECISIONS.c.status)
        .where(on_it, DECISIONS.c.kind == kind)
        .order_by(DECISIONS.c.sequence.desc())
        .limit(1)
        .scalar_subquery()
    )
    if kind == DECISION:
        return (CASES.c.status == HUMAN) & (func.coalesce(latest, HUMAN) == HUMAN)
    return CASES.c.case.in_(_DRAWN) & (latest == HUMAN)


def _next() -> Executable:
    """Returns the query of the next open case that is free; it reads no more cases than needed."""
    held = select(LEASES.c.sequence).where(
        LEASES.c.run_id == CASES.c.run_id, LEASES.c.sequence == CASES.c.sequence, _BY_OTHERS
    )
    free = select(CASES.c.sequence).where(_of(CASES), _waits(DECISION), ~held.exists())
    first = free.order_by(CASES.c.sequence).limit(1)
    after, before = CASES.c.sequence > bindparam("after"), CASES.c.sequence < bindparam("after")
    turn = (first.where(place).scalar_subquery() for place in (after, before))
    return select(func.coalesce(*turn))


def _made_by() -> Executable:
    later = DECISIONS.alias()
    followed = select(later.c.sequence).where(
        later.c.run_id == DECISIONS.c.run_id,
        later.c.case == DECISIONS.c.case,
        later.c.kind == DECISIONS.c.kind,
        later.c.sequence > DECISIONS.c.sequence,
    )
    same = (CASES.c.run_id == DECISIONS.c.run_id) & (CASES.c.case == DECISIONS.c.case)
    return (
        select(DECISIONS, CASES.c.sequence.label("place"), (~followed.exists()).label("latest"))
        .join(CASES, same)
        .where(_of(DECISIONS), DECISIONS.c.kind == bindparam("kind"))
        .where(DECISIONS.c.reviewer == bindparam("reviewer"))
        .order_by(DECISIONS.c.sequence.desc())
        .limit(bindparam("most", type_=Integer))
    )


# Statements are built once, because that takes longer than to execute them.
_AT_CASE = CASES.c.sequence == bindparam("sequence")
_AT_LEASE = LEASES.c.sequence == bindparam("sequence")
_LOCK = select(RUNS.c.id).where(RUNS.c.id == bindparam("run")).with_for_update()
_DRAWN = select(DECISIONS.c.case).where(
    _of(DECISIONS), DECISIONS.c.kind == AUDIT, DECISIONS.c.action == DRAW
)
_WAITING = {
    kind: select(CASES.c.sequence, *columns)
    .where(_of(CASES), _waits(kind))
    .order_by(CASES.c.sequence)
    for kind, columns in ((DECISION, ()), (AUDIT, (CASES.c.case,)))
}
_WAITS_AT = select(CASES.c.sequence).where(
    _of(CASES), _AT_CASE, or_(_waits(DECISION), _waits(AUDIT))
)
_CASE = select(CASES).where(_of(CASES), _AT_CASE)
_ON_CASE = (
    select(DECISIONS)
    .where(_of(DECISIONS), DECISIONS.c.case == bindparam("case"))
    .order_by(DECISIONS.c.sequence)
)
_HELD = select(LEASES).where(_of(LEASES), LEASES.c.expires > bindparam("now"))
_BY_OTHERS = (LEASES.c.expires > bindparam("now")) & (LEASES.c.reviewer != bindparam("reviewer"))
_HELD_BY_OTHERS = select(LEASES.c.sequence).where(_of(LEASES), _BY_OTHERS)
_LEASE_AT = select(LEASES).where(_of(LEASES), _AT_LEASE)
_HELD_AT = _LEASE_AT.where(LEASES.c.expires > bindparam("now"))
_END_LEASE = delete(LEASES).where(_of(LEASES), _AT_LEASE)
_GIVE_BACK = _END_LEASE.where(LEASES.c.reviewer == bindparam("reviewer"))
_COMPLETE = update(DECISIONS).where(_of(DECISIONS), DECISIONS.c.sequence == bindparam("place"))
_NEXT = _next()
_MADE_BY = _made_by()
