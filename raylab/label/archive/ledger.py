"""The ledger of a run: its calls that were paid, are in flight, or may have been billed.

A call has one row, shared by all runs: *sent* while it is in flight, then *answered* for good. The
primary key makes it impossible to send equal calls at once. A run's row holds sums: billed by
answers, uncertain (may have been billed), and held by the claims in flight. A claim is granted only
to the owner of the run, within its budget; the run's row is locked meanwhile. Only the end of an
existing claim changes the sums, so a write may be repeated.

The claims of a batch outlive the owner, because the server works on. They end with the batch's row,
which any process may end that has its answers.

The owner of a run holds a lock that the system releases when its process ends, however it ends. Its
token is in the run's row, and every claim is checked against it.
"""

import logging
import os
import platform
import secrets
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Self

import msgspec
from sqlalchemy import Connection, and_, bindparam, delete, select, update

from raylab.core.errors import ArchiveError, OwnerError
from raylab.label.archive.database import Database, Release
from raylab.label.archive.records import CallRow, RunCost
from raylab.label.archive.tables import (
    ANSWERED,
    BATCHES,
    CALLS,
    RUNS,
    SENT,
    AnyRow,
    cost_of,
    digest,
    seal,
    unseal,
    utc_text,
)
from raylab.llm.chat import FREE, BatchCall, CallBatch, Claim, Cost
from raylab.llm.config import Budget, Price

ROUNDING = 1 + 1e-9
"""A budget of money times this bounds its sums of floating-point prices."""
MAX_COMMAND = 300

LOGGER = logging.getLogger(__name__)

# Statements are built once, because that takes longer than to execute them.
_LOCKED_RUN = select(RUNS).where(RUNS.c.id == bindparam("of_run")).with_for_update()
_SET_COST = update(RUNS).where(RUNS.c.id == bindparam("of_run"))
_CALLS = select(CALLS).where(CALLS.c.key.in_(bindparam("keys", expanding=True)))
_DROP = delete(CALLS).where(
    CALLS.c.state == SENT,
    CALLS.c.key == bindparam("of_key"),
    CALLS.c.claim == bindparam("of_claim"),
)


@dataclass(frozen=True)
class ClaimEnd:
    """The end of a claim.

    Attributes:
        call: the answered call; None without an answer. One without tokens may cost all that the
            claim held.
        paid: True if an attempt without an answer may be billed: its cost is uncertain.
    """

    claim: Claim
    call: CallRow | None = None
    paid: bool = False


CallOperation = Claim | ClaimEnd
Refusal = CallRow | RunCost | str | None
"""Why a claim was not granted. A call: this one is answered. A text: the batch that it is in. The
cost of the run: the budget does not cover the claim, whatever the calls in flight cost. None: an
equal call is in flight, or calls in flight hold the rest of the budget."""


@dataclass(frozen=True)
class CallResults:
    """Results of operations.

    Attributes:
        refused: Claims that were not granted, by name.
        lost: Names of claims that were refused because the run has another owner, and of claims
            that others have ended; an answer to such a claim is not stored.
    """

    refused: Mapping[str, Refusal]
    lost: frozenset[str] = frozenset()


class Ledger:
    """The ledger of a run as its owner writes it; made by `RunArchive.ledger`."""

    def __init__(self, database: Database, run_id: int, owner: str, budget: Budget) -> None:
        """Uses the database of an open archive; `owner` is the token of the ownership."""
        self._database = database
        self._run_id = run_id
        self._owner = owner
        self._budget = budget
        insert = database.dialect.insert(CALLS)
        self._claims = insert.on_conflict_do_nothing().returning(CALLS.c.key)
        self._answer = insert.on_conflict_do_update(
            index_elements=["key"],
            set_=dict(insert.excluded),
            where=(CALLS.c.state == SENT) & (CALLS.c.claim == insert.excluded.claim),
        )

    def write(
        self,
        operations: Sequence[CallOperation],
        claimant: str = "",
        batch: CallBatch | None = None,
    ) -> CallResults:
        """Does all operations, or none, in one transaction; may be repeated.

        Args:
            operations: Claims, answers and ends. Claims are granted after all else.
            claimant: Name of the process that has the claims.
            batch: The batch of the claims, which is written with those that are granted.
        """
        endings = [row for row in operations if isinstance(row, ClaimEnd)]
        # A claim may be given up before it is written.
        ended = {row.claim.id for row in endings if row.call is None}
        claims = [row for row in operations if isinstance(row, Claim) and row.id not in ended]
        # Writers that insert the same keys in different orders would deadlock.
        claims.sort(key=lambda claim: claim.key)

        def work(connection: Connection) -> CallResults:
            run = _lock_run(connection, self._run_id)
            cost, lost = self._end(connection, run, endings)
            refused: dict[str, Refusal] = {}
            if run.owner != self._owner:
                lost |= {claim.id for claim in claims}
            elif claims:
                cost, refused = self._claim(connection, cost, claims, claimant, batch)
            if cost != cost_of(run):
                _set_cost(connection, self._run_id, cost)
            return CallResults(refused, frozenset(lost))

        return self._database.write(work)

    def open_batch(self, batch: CallBatch, claimant: str) -> CallResults:
        """Claims the calls of a batch, and writes it with those that are granted, if any are."""
        return self.write([call.claim for call in batch.calls], claimant, batch)

    def void(self, claimant: str) -> None:
        """Ends the claims of a dead process; the tokens and money that they held are uncertain."""

        def work(connection: Connection) -> None:
            run = _lock_run(connection, self._run_id)
            _set_cost(connection, run.id, _end_claims(connection, run, self._owner, claimant))

        self._database.write(work)

    def find_batch(self, id: str) -> CallBatch | None:
        """Returns a batch of any run; None if it has ended."""
        for row in self._database.rows(select(BATCHES).where(BATCHES.c.id == id)):
            return CallBatch(
                row.id,
                row.base_url,
                row.created,
                msgspec.convert(row.calls, tuple[BatchCall, ...]),
                row.price and Price(**row.price),
                row.file,
                row.server_id,
                is_abandoned=row.claimant is None,
            )
        return None

    def note_batch(self, id: str, file: str, server_id: str | None) -> bool:
        """Writes the server's ids of a batch; returns False if it has ended, or has others."""

        def work(connection: Connection) -> bool:
            row = _lock_batch(connection, id)
            if row is None or row.file not in (None, file):
                return False
            if row.server_id not in (None, server_id):
                return server_id is None
            values = {"file": file, "server_id": server_id}
            connection.execute(update(BATCHES).where(BATCHES.c.id == id).values(**values))
            return True

        return self._database.write(work)

    def end_batch(self, batch: CallBatch, endings: Sequence[ClaimEnd]) -> None:
        """Ends a batch with its claims, unless it has ended or is another by now."""

        def work(connection: Connection) -> None:
            row = _lock_batch(connection, batch.id)
            if row is None or (row.file, row.server_id) != (batch.file, batch.server_id):
                return
            run = _lock_run(connection, row.run_id)
            cost, _ = self._end(connection, run, endings)
            connection.execute(delete(BATCHES).where(BATCHES.c.id == batch.id))
            _set_cost(connection, run.id, cost)

        self._database.write(work)

    def _end(
        self, connection: Connection, run: AnyRow, endings: Sequence[ClaimEnd]
    ) -> tuple[RunCost, set[str]]:
        """Ends claims of a run; returns its cost after that, and the claims that others ended."""
        cost, rows = cost_of(run), _find_calls(connection, [ending.claim.key for ending in endings])
        answers: list[dict[str, Any]] = []
        unanswered: list[dict[str, str]] = []
        lost: set[str] = set()
        for ending in endings:
            claim, call, row = ending.claim, ending.call, rows.get(ending.claim.key)
            # If the claim is gone, its cost was counted when it ended.
            if row is not None and (row.claim, row.state) == (claim.id, SENT):
                held = Cost(**row.held)
                if call is not None and call.cost.tokens:
                    cost = cost.settle(held, billed=call.cost)
                else:
                    is_free = call is None and not ending.paid
                    cost = cost.settle(held, uncertain=FREE if is_free else held)
            if call is None:
                unanswered.append({"of_key": claim.key, "of_claim": claim.id})
                continue
            answers.append(self._row(claim, ANSWERED, run.id, **seal(call)))
            if row is not None and row.claim != claim.id:
                lost.add(claim.id)
        if answers:
            connection.execute(self._answer, sorted(answers, key=lambda row: row["key"]))
        if unanswered:
            connection.execute(_DROP, unanswered)
        return cost, lost

    def _claim(
        self,
        connection: Connection,
        cost: RunCost,
        claims: Sequence[Claim],
        claimant: str,
        batch: CallBatch | None,
    ) -> tuple[RunCost, dict[str, Refusal]]:
        """Grants the claims that are neither answered nor in flight nor beyond the budget.

        Writes the batch with the calls that are granted.
        """
        rows = self._look_up(connection, [claim.key for claim in claims])
        refused: dict[str, Refusal] = {}
        new: dict[str, Claim] = {}
        for claim in claims:
            row = rows.get(claim.key)
            if row is not None and row.state == ANSWERED:
                refused[claim.id] = unseal(CallRow, row)
            elif row is not None:
                # A repeated write finds its own claims.
                if row.claim != claim.id:
                    refused[claim.id] = row.batch
            # Whatever the calls in flight cost, it is too much; else it may fit when they end.
            elif not self._covers(cost.spent + claim.most):
                refused[claim.id] = RunCost(cost.billed, cost.uncertain)
            elif claim.key in new or not self._covers(cost.spent + cost.held + claim.most):
                refused[claim.id] = None
            else:
                cost = cost.hold(claim.most)
                new[claim.key] = claim
        more = {"claimant": claimant, "batch": batch and batch.id}
        stored = [
            self._row(claim, SENT, self._run_id, held=vars(claim.most), **more)
            for claim in new.values()
        ]
        inserted = connection.scalars(self._claims, stored) if stored else ()
        # Other runs may have claimed some since they looked free.
        for key in new.keys() - {*inserted}:
            cost = cost.settle(new[key].most)
            refused[new[key].id] = None
        if batch is not None:
            granted = [asdict(call) for call in batch.calls if call.claim.id not in refused]
            columns = {name: getattr(batch, name) for name in ("id", "base_url", "created")}
            columns |= {"run_id": self._run_id, "claimant": claimant, "calls": granted}
            columns["price"] = batch.price and batch.price.model_dump()
            if granted:
                insert = self._database.dialect.insert(BATCHES)
                connection.execute(insert.on_conflict_do_nothing(), columns)
        return cost, refused

    def _look_up(self, connection: Connection, keys: Sequence[str]) -> dict[str, AnyRow]:
        """Returns the rows of calls, after the claims of runs without an owner are ended."""
        rows = _find_calls(connection, keys)
        in_flight = [row for row in rows.values() if row.state == SENT]
        others = {(row.run_id, row.owner) for row in in_flight if row.run_id != self._run_id}
        for run_id, owner in sorted(others):
            # The owner's process has ended: nobody waits for its answers any more.
            if not _is_owned(connection, self._database, run_id):
                _give(connection, run_id, former=owner)
        return _find_calls(connection, keys) if others else rows

    def _covers(self, cost: Cost) -> bool:
        tokens, money = self._budget.tokens, self._budget.money
        return (tokens is None or cost.tokens <= tokens) and (
            money is None or cost.money <= money * ROUNDING
        )

    def _row(self, claim: Claim, state: str, run_id: int, **columns: Any) -> dict[str, Any]:
        mine = {"run_id": run_id, "owner": self._owner, "claimant": "", "batch": None}
        return {**mine, "key": claim.key, "state": state, "claim": claim.id, **columns}


class Ownership:
    """The ownership of a run by this process; a context manager that holds it while in use.

    Attributes:
        token: Name of this ownership, which its claims carry.
    """

    def __init__(self, database: Database, run: AnyRow) -> None:
        """See `RunArchive.own`."""
        self.token = secrets.token_hex(16)
        self._database, self._run = database, run
        self._release: Release | None = None

    def __enter__(self) -> Self:
        """Takes the run; raises OwnerError if another process owns it."""
        if not self.take():
            holder = select(RUNS.c.holder).where(RUNS.c.id == self._run.id)
            name = self._database.rows(holder)[0].holder or "another process"
            raise OwnerError(
                f"run {self._run.name} of archive {self._database.place} is worked on by {name}: "
                "wait until that ends, or stop it"
            )
        return self

    def __exit__(self, *error: object) -> None:
        """Gives the run back; if the archive fails, the next owner ends the claims."""
        try:
            self.end()
        except ArchiveError as failure:
            LOGGER.warning("the claims of run %s were not ended: %s", self._run.name, failure)

    def take(self) -> bool:
        """Takes the run, and ends the claims of former owners; returns False if it is owned."""
        self._release = self._database.try_lock(_lock_number(self._run))
        if self._release is None:
            return False
        mine = self._run.id, self.token, _this_process()
        try:
            self._database.write(lambda connection: _give(connection, *mine))
        except BaseException:
            self._release()
            raise
        return True

    def end(self) -> None:
        """Gives the run back, even if the archive fails; attempts still claimed are uncertain."""
        run_id, token = self._run.id, self.token
        try:
            self._database.write(lambda connection: _give(connection, run_id, former=token))
        finally:
            if self._release is not None:
                self._release()


def _this_process() -> str:
    command = shlex.join(sys.argv)[:MAX_COMMAND]
    return f"{command} (process {os.getpid()} on {platform.node()})"


def _give(
    connection: Connection,
    run_id: int,
    owner: str | None = None,
    holder: str = "",
    former: str | None = None,
) -> None:
    """Gives a run to an owner or to nobody, and ends the claims on it, which become uncertain.

    With a `former` owner, it does nothing if the run has another one.
    """
    run = _lock_run(connection, run_id)
    if former in (None, run.owner):
        cost = _end_claims(connection, run)
        _set_cost(connection, run_id, cost, owner=owner, holder=holder)


def _end_claims(connection: Connection, run: AnyRow, *process: str) -> RunCost:
    """Ends the claims on a run, or of one process; returns the cost of the run after that.

    Their attempts may have been billed. The claims of batches stay, and the batches are abandoned.

    Args:
        process: The owner and the claimant of that process.
    """
    claims = and_(CALLS.c.state == SENT, CALLS.c.run_id == run.id, CALLS.c.batch.is_(None))
    batches = BATCHES.c.run_id == run.id
    if process:
        owner, claimant = process
        claims &= and_(CALLS.c.owner == owner, CALLS.c.claimant == claimant)
        batches &= BATCHES.c.claimant == claimant
    connection.execute(update(BATCHES).where(batches).values(claimant=None))
    cost = cost_of(run)
    for most in connection.scalars(delete(CALLS).where(claims).returning(CALLS.c.held)):
        cost = cost.settle(Cost(**most), uncertain=Cost(**most))
    return cost


def _lock_batch(connection: Connection, id: str) -> AnyRow | None:
    """Returns the row of a batch, without its calls, whose run is locked; None if it has ended."""
    head = select(BATCHES.c.run_id, BATCHES.c.file, BATCHES.c.server_id).where(BATCHES.c.id == id)
    row = connection.execute(head).first()
    if row is not None:
        # Its row names the run, and may end while the lock is waited for: it is read again.
        _lock_run(connection, row.run_id)
        row = connection.execute(head).first()
    return row


def _is_owned(connection: Connection, database: Database, run_id: int) -> bool:
    """Returns True if the owner of a run lives."""
    run = connection.execute(select(RUNS).where(RUNS.c.id == run_id)).one()
    return database.dialect.is_locked(connection, _lock_number(run))


def _lock_number(run: AnyRow) -> int:
    """Returns the number of the lock that the owner of a run holds."""
    # 60 bits are never negative, as a key of a server and in the name of a file.
    return int(digest(f"{run.name}\n{run.uid}\n{utc_text(run.started)}")[:15], 16)


def _lock_run(connection: Connection, run_id: int) -> AnyRow:
    return connection.execute(_LOCKED_RUN, {"of_run": run_id}).one()


def _set_cost(connection: Connection, run_id: int, cost: RunCost, **more: str | None) -> None:
    connection.execute(_SET_COST, {"of_run": run_id, "cost": asdict(cost), **more})


def _find_calls(connection: Connection, keys: Sequence[str]) -> dict[str, AnyRow]:
    return {row.key: row for row in connection.execute(_CALLS, {"keys": keys})}
