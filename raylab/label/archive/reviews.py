"""The work of people on a run: cases that wait for them, leases, decisions, and the audit.

The two kinds of decisions lie in one table. Those of kind `DECISION` settle the cases that the run
left open; those of kind `AUDIT` draw settled cases and classify them anew. A case waits while its
latest row of a kind has the status `HUMAN`, but not for those whose judgement of it stands. Every
change locks the run, so that any number of processes may serve reviewers.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from datetime import datetime
from functools import cached_property
from typing import Any, NamedTuple

from sqlalchemy import (
    ColumnElement,
    Connection,
    Select,
    Table,
    delete,
    func,
    or_,
    select,
    update,
)

from raylab.core.errors import LeaseError
from raylab.label.archive.database import Database
from raylab.label.archive.records import (
    AUDIT,
    DECISION,
    DRAW,
    HUMAN,
    UNCONFIRMED,
    UNDO,
    Body,
    CaseRow,
    CurrentCase,
    DecisionRow,
    Lease,
    person,
    standing_judgements,
)
from raylab.label.archive.tables import (
    CASES,
    DECISIONS,
    LEASES,
    AnyRow,
    append,
    find_heads,
    find_run,
    latest_status,
    seal,
    unseal,
)

_SAME_CASE = (CASES.c.run_id == DECISIONS.c.run_id) & (CASES.c.case == DECISIONS.c.case)


class Act(NamedTuple):
    """A decision, judgement, withdrawal or draw, in short."""

    sequence: int
    case: str
    kind: str
    action: str
    reviewer: str
    status: str


class ReviewChanges(NamedTuple):
    """What an archive got since a record of a run.

    Attributes:
        open: The cases that the run left to people, by sequence.
        acts: Those on its cases, in order.
        drawn: The sequences of the cases among them that were drawn for the audit, by id.
    """

    open: dict[int, str]
    acts: list[Act]
    drawn: dict[str, int]


class RunReviews:
    """The reviews of a run; made by `RunArchive.reviews`.

    Callers supply the times; their clocks should agree within a few seconds. Each method raises
    `ArchiveError` if the archive fails.
    """

    def __init__(self, database: Database, run: AnyRow) -> None:
        """Uses the database of an open archive, and the row of the run."""
        self._database, self._run = database, run

    def changes(self, after: int, unconfirmed: Collection[int] = ()) -> ReviewChanges:
        """Returns what the archive got since a record of the run, in one snapshot.

        Args:
            after: Sequence of the last record that is known; 0 for all.
            unconfirmed: Sequences of the decisions that the evaluator had not judged.
        """
        cases = select(CASES.c.sequence, CASES.c.case).where(self._mine(CASES))
        left = cases.where(CASES.c.status == HUMAN, CASES.c.sequence > after)
        drawn = cases.where(CASES.c.case.in_(self._drawn().where(DECISIONS.c.sequence > after)))
        acts = select(*(DECISIONS.c[name] for name in Act._fields)).where(self._mine(DECISIONS))
        new = acts.where(DECISIONS.c.sequence > after).order_by(DECISIONS.c.sequence)
        judged = acts.where(DECISIONS.c.sequence.in_([*unconfirmed]))

        def work(connection: Connection) -> ReviewChanges:
            rows = [row for each in (judged, new) for row in connection.execute(each)]
            return ReviewChanges(
                open={row.sequence: row.case for row in connection.execute(left)},
                acts=[Act(*row) for row in rows],
                drawn={row.case: row.sequence for row in connection.execute(drawn)},
            )

        return self._database.read(work)

    def count_drawn(self) -> int:
        """Returns the number of cases that are drawn for the audit."""
        return len(self._database.rows(self._drawn()))

    def leases(self, now: datetime) -> dict[int, Lease]:
        """Returns the unexpired leases, by the sequence of their case."""
        return self._database.read(lambda connection: self._leases(connection, now))

    def look(self, sequence: int, now: datetime) -> CurrentCase | None:
        """Returns a case as a reviewer sees it; None if the run has none at this place."""
        case_here = select(CASES).where(self._mine(CASES), CASES.c.sequence == sequence)

        def work(connection: Connection) -> CurrentCase | None:
            row = connection.execute(case_here).first()
            if row is None:
                return None
            case = unseal(CaseRow, row)
            decisions = [
                unseal(DecisionRow, decision)
                for decision in connection.execute(self._on_case(case.case))
            ]
            drawn = [decision for decision in decisions if decision.kind == AUDIT]
            lease = self._leases(connection, now, LEASES.c.sequence == sequence).get(sequence)
            return CurrentCase(case, tuple(drawn or decisions), lease=lease)

        return self._database.read(work)

    def take(
        self,
        cases: Sequence[int],
        reviewer: str,
        now: datetime,
        until: datetime,
    ) -> int | None:
        """Takes or renews the lease on the first case that waits for the reviewer and is free.

        Returns the sequence of the case, or None if there is none.

        Args:
            cases: Sequences of the cases, the preferred ones first.
            now: Current time; leases that expire by then are free.
            until: Expiry of the new lease.
        """
        lease = {"reviewer": reviewer, "expires": until}
        taking = self._database.dialect.insert(LEASES).on_conflict_do_update(
            index_elements=["run_id", "sequence"], set_=lease
        )

        def work(connection: Connection) -> int | None:
            self._lock(connection)
            leases = self._leases(connection, now)
            others = {place for place, own in leases.items() if own.reviewer != reviewer}
            for case in cases:
                if case not in others and self._waits_for(connection, case, reviewer):
                    connection.execute(taking, {"run_id": self._run.id, "sequence": case, **lease})
                    return case
            return None

        return self._database.write(work)

    def give_back(self, case: int, reviewer: str) -> None:
        """Ends the reviewer's lease on a case; does nothing if the reviewer holds none."""
        mine = delete(LEASES).where(self._mine(LEASES), LEASES.c.sequence == case)
        ended = mine.where(LEASES.c.reviewer == reviewer)
        self._database.write(lambda connection: connection.execute(ended))

    def add(self, row: DecisionRow, *, after: int | None = None, leased: bool = False) -> None:
        """Archives a decision or an audit's code on a case of the run, which ends its lease.

        One that equals the latest of its kind on the case, its body and time included, changes
        nothing.

        Args:
            after: Require that the latest one of its kind on the case is at this sequence; 0 if
                there is none.
            leased: Require that the case waits and that the reviewer holds its lease.

        Raises:
            LeaseError: A requirement is not met, or the reviewer's judgement stands on the case and
                the row does not withdraw it. Nothing is written.
        """
        now, said = self._database.now(), (row.action, row.reviewer, row.body)

        def work(connection: Connection) -> None:
            run = self._lock(connection)
            case = find_heads(connection, run, [row.case])[row.case]
            rows = self._on_kind(connection, row.case, row.kind)
            last = rows[-1] if rows else None
            if last is not None and (last.action, last.reviewer, last.body) == said:
                return
            if row.action != UNDO and person(row.reviewer) in standing_judgements(rows):
                raise LeaseError(f"you have judged case {row.case}: it waits for somebody else")
            if after is not None and after != (last.sequence if last else 0):
                raise LeaseError(f"a later decision on case {row.case} followed: reload the page")
            lease = delete(LEASES).where(self._mine(LEASES), LEASES.c.sequence == case.sequence)
            holder = connection.scalar(lease.returning(LEASES.c.reviewer))
            if leased:
                status = last.status if last else case.status if row.kind == DECISION else ""
                if status != HUMAN:
                    raise LeaseError(
                        f"case {row.case} does not wait any more: your text stays here"
                    )
                if holder != row.reviewer:
                    raise LeaseError(
                        f"{holder or 'nobody'} works on case {row.case} now: your text stays, and "
                        "can be sent when the case is given back"
                    )
            append(connection, run, [row], now)

        self._database.write(work)

    def confirm(self, sequence: int, row: DecisionRow) -> bool:
        """Completes a decision by the evaluator's report and the status that follows from it.

        Returns False, and writes nothing, if the decision waits no more: it was taken back, or is
        judged already.
        """

        def work(connection: Connection) -> bool:
            self._lock(connection)
            last = self._on_kind(connection, row.case, DECISION)[-1]
            if (last.sequence, last.status) != (sequence, UNCONFIRMED):
                return False
            judged = seal(replace(row, sequence=sequence, created=last.created))
            here = (self._mine(DECISIONS)) & (DECISIONS.c.sequence == sequence)
            connection.execute(update(DECISIONS).where(here).values(judged))
            return True

        return self._database.write(work)

    def made_by(
        self, reviewer: str, kind: str, most: int
    ) -> Iterator[tuple[int, DecisionRow, bool]]:
        """Yields the latest decisions of a reviewer, the last one first.

        Each comes with the sequence of its case, and whether it is the latest on the case.
        """
        # The place of the latest decision of the kind on the case of a decision.
        later = DECISIONS.alias()
        same = (later.c.run_id == DECISIONS.c.run_id) & (later.c.case == DECISIONS.c.case)
        last = select(func.max(later.c.sequence)).where(same, later.c.kind == kind)
        statement = (
            select(
                DECISIONS,
                CASES.c.sequence.label("place"),
                last.scalar_subquery().label("last"),
            )
            .join(CASES, _SAME_CASE)
            .where(self._mine(DECISIONS), DECISIONS.c.kind == kind)
            .where(DECISIONS.c.reviewer == reviewer)
            .order_by(DECISIONS.c.sequence.desc())
            .limit(most)
        )
        for row in self._database.rows(statement):
            decision = unseal(DecisionRow, row)
            yield row.place, decision, row.last == decision.sequence

    def draw(self, cases: Sequence[str], body: Body) -> int:
        """Draws cases for the audit; returns the number of those that were not drawn before."""
        now = self._database.now()

        def work(connection: Connection) -> int:
            run = self._lock(connection)
            new = dict.fromkeys(cases)
            for case in connection.scalars(self._drawn()):
                new.pop(case, None)
            drawn = [DecisionRow(case, DRAW, "", HUMAN, body, AUDIT) for case in new]
            append(connection, run, drawn, now)
            return len(drawn)

        return self._database.write(work)

    def _lock(self, connection: Connection) -> AnyRow:
        return find_run(connection, self._database.place, self._run.name, lock=True)

    def _mine(self, table: Table) -> ColumnElement[bool]:
        return table.c.run_id == self._run.id

    def _leases(
        self, connection: Connection, now: datetime, *where: ColumnElement[bool]
    ) -> dict[int, Lease]:
        held = select(LEASES).where(self._mine(LEASES), LEASES.c.expires > now, *where)
        return {row.sequence: Lease(row.reviewer, row.expires) for row in connection.execute(held)}

    def _drawn(self) -> Select[str]:
        """Returns the query of the cases that are drawn."""
        of_audit = (DECISIONS.c.kind == AUDIT) & (DECISIONS.c.action == DRAW)
        return select(DECISIONS.c.case).where(self._mine(DECISIONS), of_audit)

    def _on_case(self, case: str) -> Select[Any]:
        """Returns the query of the decisions on a case, in order."""
        on_it = select(DECISIONS).where(self._mine(DECISIONS), DECISIONS.c.case == case)
        return on_it.order_by(DECISIONS.c.sequence)

    def _on_kind(self, connection: Connection, case: str, kind: str) -> list[AnyRow]:
        return [row for row in connection.execute(self._on_case(case)) if row.kind == kind]

    def _waits_for(self, connection: Connection, place: int, reviewer: str) -> bool:
        """Returns whether a case waits, and the reviewer has not judged it."""
        here = select(CASES.c.case).where(self._mine(CASES), CASES.c.sequence == place)
        case = connection.scalar(here.where(or_(*self._waits.values())))
        if case is None:
            return False
        return person(reviewer) not in standing_judgements(connection.execute(self._on_case(case)))

    @cached_property
    def _waits(self) -> dict[str, ColumnElement[bool]]:
        """The condition that a case waits for people, by kind; each reads few cases by an index."""
        decided = func.coalesce(latest_status(DECISION), HUMAN)
        drawn = CASES.c.case.in_(self._drawn())
        return {
            DECISION: (CASES.c.status == HUMAN) & (decided == HUMAN),
            AUDIT: drawn & (latest_status(AUDIT) == HUMAN),
        }
