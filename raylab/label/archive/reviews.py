"""The work of people on a run in its archive: decisions, audit, leases, and the cases that wait.

A lease keeps a case for one reviewer until it expires. What decisions mean together is said by
`raylab.label.judgement`. Every change locks the run, so that any number of processes may serve
reviewers.
"""

import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from datetime import datetime
from itertools import islice
from threading import Lock
from typing import Any

from sqlalchemy import ColumnElement, Connection, Table, delete, func, select, update
from sqlalchemy import case as case_when

from raylab.core.errors import LeaseError
from raylab.label.archive.database import Database
from raylab.label.archive.records import CaseHead, CaseRow, CurrentCase, Lease
from raylab.label.archive.tables import (
    CASES,
    DECISIONS,
    LEASES,
    AnyRow,
    append,
    digest,
    find_heads,
    find_run,
    seal,
    unseal,
)
from raylab.label.judgement import (
    AUDIT,
    DECISION,
    DRAW,
    HUMAN,
    UNCONFIRMED,
    UNDO,
    Decision,
    Standing,
    standing,
)

CONFIRMED_SECONDS, MAX_UNCONFIRMED = 2.0, 5000
"""Time between two looks for decisions that the evaluator has judged, and the most that are looked
at: the first are judged first."""
_SHORT = ("sequence", "case", "kind", "action", "reviewer", "status")
"""The columns of a decision without its body."""
_SAME_CASE = (CASES.c.run_id == DECISIONS.c.run_id) & (CASES.c.case == DECISIONS.c.case)
_HEADS = select(*(CASES.c[name] for name in CaseHead._fields))


class RunReviews:
    """The reviews of a run; made by `RunArchive.reviews`.

    Callers supply the times; their clocks should agree within a few seconds. Each method raises
    `ArchiveError` if the archive fails.
    """

    def __init__(self, database: Database, run: AnyRow) -> None:
        """Uses the database of an open archive, and the row of the run."""
        self._database, self._run = database, run

    def changes(
        self, after: int, unconfirmed: Collection[int] = ()
    ) -> tuple[list[int], list[tuple[int, Decision]]]:
        """Returns what the archive got since a record of the run, in one snapshot.

        First the sequences of the cases that the run left to people, then the decisions in order,
        each with the sequence of its case. The body of a decision says only whether the evaluator
        reported, which tells a refusal from a lone judgement.

        Args:
            after: Sequence of the last record that is known; 0 for all.
            unconfirmed: Sequences of further decisions: those that the evaluator had not judged.
        """
        sequence, status = DECISIONS.c.sequence, DECISIONS.c.status
        open_cases = select(CASES.c.sequence).where(self._mine(CASES), CASES.c.status == HUMAN)
        # Bodies are large, and only those of cases that wait say more than the status.
        body = case_when((status == HUMAN, DECISIONS.c.body)).label("body")
        place = CASES.c.sequence.label("place")
        short = select(place, *(DECISIONS.c[name] for name in _SHORT), body)
        made = short.join(CASES, _SAME_CASE).where(self._mine(DECISIONS))
        new = made.where((sequence > after) | sequence.in_([*unconfirmed])).order_by(sequence)

        def work(connection: Connection) -> tuple[list[int], list[tuple[int, Decision]]]:
            decisions = list[tuple[int, Decision]]()
            for row in connection.execute(new):
                report = {"confirmation": bool(row.body and row.body.get("confirmation"))}
                columns = {name: getattr(row, name) for name in _SHORT}
                decisions.append((row.place, Decision(**columns, body=report)))
            left = connection.scalars(open_cases.where(CASES.c.sequence > after))
            return [*left], decisions

        return self._database.read(work)

    def leases(self, now: datetime) -> dict[int, Lease]:
        """Returns the unexpired leases, by the sequence of their case."""
        return self._database.read(lambda connection: self._leases(connection, now))

    def look(self, sequence: int, now: datetime) -> tuple[CurrentCase, Lease | None] | None:
        """Returns a case and who works on it; None if the run has none at this place."""
        case_here = select(CASES).where(self._mine(CASES), CASES.c.sequence == sequence)

        def work(connection: Connection) -> tuple[CurrentCase, Lease | None] | None:
            row = connection.execute(case_here).first()
            if row is None:
                return None
            case = unseal(CaseRow, row)
            lease = self._leases(connection, now, LEASES.c.sequence == sequence).get(sequence)
            return CurrentCase(case, tuple(self._on_case(connection, case.case))), lease

        return self._database.read(work)

    def take(
        self, cases: Sequence[int], reviewer: str, now: datetime, until: datetime
    ) -> int | None:
        """Takes or renews the lease on the first case that waits for the reviewer and is free.

        Returns the sequence of the case, or None if there is none.

        Args:
            cases: Sequences of the cases, the preferred ones first.
            now: Current time; leases that expire by then are free.
            until: Expiry of the new lease.
        """
        lease, at = {"reviewer": reviewer, "expires": until}, CASES.c.sequence
        taking = self._database.dialect.insert(LEASES).on_conflict_do_update(
            index_elements=["run_id", "sequence"], set_=lease
        )

        def work(connection: Connection) -> int | None:
            self._lock(connection)
            leases = self._leases(connection, now)
            others = {place for place, own in leases.items() if own.reviewer != reviewer}
            for place in cases:
                if place in others:
                    continue
                head = connection.execute(_HEADS.where(self._mine(CASES), at == place)).first()
                if head and self._standing(connection, CaseHead(*head)).waits_for(reviewer):
                    connection.execute(taking, {"run_id": self._run.id, "sequence": place, **lease})
                    return place
            return None

        return self._database.write(work)

    def give_back(self, case: int, reviewer: str) -> None:
        """Ends the reviewer's lease on a case; does nothing if the reviewer holds none."""
        mine = delete(LEASES).where(self._mine(LEASES), LEASES.c.sequence == case)
        ended = mine.where(LEASES.c.reviewer == reviewer)
        self._database.write(lambda connection: connection.execute(ended))

    def add(self, decision: Decision, *, after: int | None = None, leased: bool = False) -> None:
        """Archives a decision on a case of the run, which ends its lease.

        Adding the same decision (same body, same time) twice has no effect.

        Args:
            after: Require that the latest one on the case is at this sequence; 0 if there is none.
            leased: Require that the case waits and that the reviewer holds its lease.

        Raises:
            LeaseError: A requirement is not met, or the reviewer's judgement stands on the case and
                the decision does not withdraw it. Nothing is written.
        """
        now, case = self._database.now(), decision.case
        said = decision.action, decision.reviewer, decision.body

        def work(connection: Connection) -> None:
            run = self._lock(connection)
            head = find_heads(connection, run, [case])[case]
            stands = self._standing(connection, head)
            last = stands.last
            # First, because whoever lost the answer meets a case that has changed by this.
            if last is not None and (last.action, last.reviewer, last.body) == said:
                return
            if decision.action != UNDO and stands.has_judged(decision.reviewer):
                raise LeaseError(f"you have judged case {case}: it waits for somebody else")
            if after is not None and after != (last.sequence if last else 0):
                raise LeaseError(f"a later decision on case {case} followed: reload the page")
            lease = delete(LEASES).where(self._mine(LEASES), LEASES.c.sequence == head.sequence)
            holder = connection.scalar(lease.returning(LEASES.c.reviewer))
            if leased and not (stands.waits and stands.queue == decision.kind):
                raise LeaseError(f"case {case} does not wait any more: your text stays here")
            if leased and holder != decision.reviewer:
                raise LeaseError(
                    f"{holder or 'nobody'} works on case {case} now: your text stays, and can be "
                    "sent when the case is given back"
                )
            append(connection, run, [decision], now)

        self._database.write(work)

    def confirm(self, sequence: int, decision: Decision) -> bool:
        """Completes a decision by the evaluator's report and the status that follows from it.

        Returns False, and writes nothing, if the decision waits no more: it was taken back, or is
        judged already.
        """

        def work(connection: Connection) -> bool:
            self._lock(connection)
            last = standing(self._on_case(connection, decision.case), HUMAN).last
            if last is None or (last.sequence, last.status) != (sequence, UNCONFIRMED):
                return False
            judged = seal(replace(decision, sequence=sequence, created=last.created))
            here = (self._mine(DECISIONS)) & (DECISIONS.c.sequence == sequence)
            connection.execute(update(DECISIONS).where(here).values(judged))
            return True

        return self._database.write(work)

    def made_by(self, reviewer: str, kind: str, most: int) -> Iterator[tuple[int, Decision, bool]]:
        """Yields the latest decisions of a reviewer, the last one first.

        Each comes with the sequence of its case, and whether it is the latest on the case.
        """
        made, later = DECISIONS.c, DECISIONS.alias().c
        same = (later.run_id == made.run_id) & (later.case == made.case) & (later.kind == kind)
        last = select(func.max(later.sequence)).where(same).scalar_subquery()
        own = (
            select(DECISIONS, CASES.c.sequence.label("place"), last.label("last"))
            .join(CASES, _SAME_CASE)
            .where(self._mine(DECISIONS), made.kind == kind, made.reviewer == reviewer)
            .order_by(made.sequence.desc())
            .limit(most)
        )
        for row in self._database.rows(own):
            decision = unseal(Decision, row)
            yield row.place, decision, row.last == decision.sequence

    def draw(self, cases: Sequence[str], body: dict[str, Any]) -> int:
        """Draws cases for the audit; returns the number of those that were not drawn before."""
        now = self._database.now()
        before = select(DECISIONS.c.case).where(self._mine(DECISIONS), DECISIONS.c.action == DRAW)

        def work(connection: Connection) -> int:
            run = self._lock(connection)
            new = dict.fromkeys(cases)
            for case in connection.scalars(before):
                new.pop(case, None)
            drawn = [Decision(case, DRAW, "", HUMAN, body, AUDIT) for case in new]
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

    def _on_case(self, connection: Connection, case: str) -> list[Decision]:
        """Returns the decisions on a case, in order."""
        on_it = select(DECISIONS).where(self._mine(DECISIONS), DECISIONS.c.case == case)
        ordered = on_it.order_by(DECISIONS.c.sequence)
        return [unseal(Decision, row) for row in connection.execute(ordered)]

    def _standing(self, connection: Connection, head: CaseHead) -> Standing[Decision]:
        return standing(self._on_case(connection, head.case), head.status)


class Queue:
    """The cases of a run that wait for people, in memory; any thread may ask.

    A question costs as much as the archive got since the last one, however many cases wait. Any
    number of processes may write to the archive.

    Attributes:
        seen: Sequence of the last record of the run that is known.
    """

    def __init__(self, archived: RunReviews, people: int = 1) -> None:
        """Reads nothing before it is asked; `people` judge each case independently."""
        self._archived, self._people, self._turn = archived, people, Lock()
        self.seen, self._looked = 0, 0.0
        # The open cases, and the decisions on cases by their sequence.
        self._open: set[int] = set()
        self._made: dict[int, dict[int, Decision]] = {}
        self._unconfirmed: dict[int, None] = {}
        self._standings: dict[str, dict[int, Standing[Decision]]] = {DECISION: {}, AUDIT: {}}
        # The cases of a queue that wait, with their key in its order.
        self._waiting: dict[str, dict[int, Any]] = {DECISION: {}, AUDIT: {}}

    def look(self, queue: str) -> tuple[list[int], dict[int, Standing[Decision]]]:
        """Returns what waits in order, and the standing of all cases of the queue, by sequence.

        Args:
            queue: `DECISION` for open cases, in the order of the run; `AUDIT` for drawn ones, in
                pseudo-random order, so that those coded first are a random sample too.
        """
        with self._turn:
            now, judged = time.monotonic(), ()
            # What the evaluator has judged changes in place, so it is not among the new records.
            if now - self._looked > CONFIRMED_SECONDS:
                self._looked, judged = now, tuple(islice(self._unconfirmed, MAX_UNCONFIRMED))
            left, made = self._archived.changes(self.seen, judged)
            self._open |= {*left}
            for place, decision in made:
                self._made.setdefault(place, {})[decision.sequence] = decision
            for place in dict.fromkeys([*left, *(place for place, _ in made)]):
                self._place(place)
            self.seen = max([self.seen, *left, *(decision.sequence for _, decision in made)])
            waiting = self._waiting[queue]
            return sorted(waiting, key=waiting.__getitem__), dict(self._standings[queue])

    def _place(self, place: int) -> None:
        """Puts a case where it belongs by what was done on it."""
        made = [*self._made.get(place, {}).values()]
        stands = standing(made, HUMAN if place in self._open else "", self._people)
        queue = stands.queue
        if queue == DECISION and place not in self._open:
            return
        self._standings[queue][place] = stands
        if stands.waits:
            self._waiting[queue][place] = digest(made[0].case) if queue == AUDIT else place
        else:
            self._waiting[queue].pop(place, None)
        for decision in stands.decisions:
            self._unconfirmed.pop(decision.sequence, None)
        if stands.last is not None and stands.status == UNCONFIRMED:
            self._unconfirmed[stands.last.sequence] = None
