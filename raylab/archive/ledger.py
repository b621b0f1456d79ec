"""The ledger of a run: which calls were paid, are in flight, or may have been billed.

A call has one row for all runs of an archive: *sent* while the attempt of a claim is in flight,
*answered* for ever after. The primary key makes it impossible to send equal calls at once. A run's
row holds sums: billed by answers, uncertain (may have been billed), and held by the claims in
flight. A claim is granted to the owner of the run alone, within its budget; the run's row is locked
meanwhile. Only the end of a claim that is there changes the sums, so a write may be repeated.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Self, TypeVar

from sqlalchemy import Connection, bindparam, delete, select, update

from raylab.archive.database import Database
from raylab.archive.dialects import DatabaseDialect
from raylab.archive.queries import chunks
from raylab.archive.records import CallRow, CallState, Cost, RunCost
from raylab.archive.rows import AnyRow, lock_number, seal, unseal
from raylab.archive.tables import CALLS, RUNS
from raylab.config.llm import Budget

T = TypeVar("T")

ROUNDING = 1 + 1e-9
"""Factor by which sums of floating-point prices may exceed a budget of money."""
HELD = ("held_prompt_tokens", "held_completion_tokens", "held_cost")

# Statements are built once, because that takes longer than to execute them.
_LOCKED_RUN = select(RUNS).where(RUNS.c.id == bindparam("of_run")).with_for_update()
_SET_SUMS = update(RUNS).where(RUNS.c.id == bindparam("of_run"))
_KEYS = CALLS.c.key.in_(bindparam("keys", expanding=True))
_STATES = select(
    *(CALLS.c[name] for name in ("key", "state", "claim", "run_id", "owner", *HELD))
).where(_KEYS)
_ANSWERED = select(CALLS).where(_KEYS)
_CLAIMED = CALLS.c.state == CallState.SENT
_THIS_CLAIM = _CLAIMED & (CALLS.c.key == bindparam("of_key"))
_ANSWER = update(CALLS).where(_THIS_CLAIM)
_DROP = delete(CALLS).where(_THIS_CLAIM)
_DROP_CLAIMS = delete(CALLS).where(_CLAIMED, CALLS.c.run_id == bindparam("of_run"))
_DROP_OF_CLAIMANT = _DROP_CLAIMS.where(
    CALLS.c.owner == bindparam("of_owner"), CALLS.c.claimant == bindparam("of_claimant")
).returning(*(CALLS.c[name] for name in HELD))


@dataclass(frozen=True)
class ClaimRow:
    """A claim to send an attempt at a call.

    Attributes:
        key: Key of the call.
        claim: Name of the claim, unique in an archive.
        prompt_tokens: Most tokens that the request may count.
        completion_tokens: Most tokens that the reply may count.
        cost: Price of both; None without a price.
    """

    key: str
    claim: str
    prompt_tokens: int
    completion_tokens: int
    cost: float | None

    @property
    def most(self) -> Cost:
        """The most that the attempt may cost."""
        return Cost.of_attempt(self.prompt_tokens, self.completion_tokens, self.cost)


@dataclass(frozen=True)
class AnswerRow:
    """An answered call, which ends its claim; without tokens it may cost what its claim holds.

    Attributes:
        call: The call.
        claim: Name of its claim.
    """

    call: CallRow
    claim: str

    @property
    def billed(self) -> Cost:
        """What the call cost."""
        call = self.call
        return Cost.of_attempt(call.prompt_tokens, call.completion_tokens, call.cost)


@dataclass(frozen=True)
class EndRow:
    """The end of a claim without an answer.

    Attributes:
        key: Key of the call.
        claim: Name of the claim.
        paid: True if the attempt may be billed; what the claim holds is uncertain then.
    """

    key: str
    claim: str
    paid: bool


CallOperation = ClaimRow | AnswerRow | EndRow


@dataclass(frozen=True)
class Overspent:
    """The reason of a claim that the budget does not cover, whatever the calls in flight cost.

    Attributes:
        cost: What the run has spent, without the calls in flight.
    """

    cost: RunCost


@dataclass(frozen=True)
class CallResults:
    """Results of operations.

    Attributes:
        refused: Claims that were not granted, by name: with the call where it is answered already,
            with `Overspent`, and with None while an equal call is in flight, or while calls in
            flight hold the rest of the budget.
        lost: Names of claims that were refused because the run has another owner, and of claims
            that others ended, whose answers are not stored.
    """

    refused: Mapping[str, CallRow | Overspent | None]
    lost: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Sums:
    """The sums in the row of a run.

    Attributes:
        billed: Of answers.
        uncertain: Of attempts that may have been billed, at the most that they may cost.
        held: Of the claims in flight, likewise.
    """

    billed: Cost
    uncertain: Cost
    held: Cost

    @classmethod
    def from_row(cls, run: AnyRow) -> Self:
        """Returns the sums in a row."""
        return cls(
            *(
                Cost(*(getattr(run, f"{part.name}_{one.name}") for one in fields(Cost)))
                for part in fields(cls)
            )
        )

    @property
    def spent(self) -> Cost:
        """What is or may be spent, without the claims in flight."""
        return self.billed + self.uncertain

    def columns(self) -> dict[str, Any]:
        """Returns the columns of the row."""
        return {
            f"{part}_{name}": value
            for part, cost in vars(self).items()
            for name, value in vars(cost).items()
        }

    def hold(self, most: Cost) -> Self:
        """Returns the sums after a claim."""
        return replace(self, held=self.held + most)

    def release(self, held: Cost) -> Self:
        """Returns the sums after a claim that cost nothing."""
        return replace(self, held=self.held - held)

    def doubt(self, held: Cost) -> Self:
        """Returns the sums after a claim that may have cost what it held."""
        return replace(self.release(held), uncertain=self.uncertain + held)

    def bill(self, held: Cost, billed: Cost) -> Self:
        """Returns the sums after a claim that was answered."""
        return replace(self.release(held), billed=self.billed + billed)


class Ledger:
    """The ledger of a run as its owner writes it; made by `RunArchive.ledger`."""

    def __init__(self, database: Database, run_id: int, owner: str, budget: Budget) -> None:
        """Uses the database of an open archive; `owner` is the token of the ownership."""
        self._database = database
        self._run_id = run_id
        self._owner = owner
        self._budget = budget
        self._new_calls = database.dialect.insert_new(CALLS, CALLS.c.key)

    def write(self, operations: Sequence[CallOperation], claimant: str = "") -> CallResults:
        """Does all operations, or none, in one transaction; may be repeated.

        Args:
            operations: Claims, answers and ends. Claims are granted after all else.
            claimant: Name of the process that has the claims.

        Raises:
            ValueError: A time has no zone.
            ArchiveError: The archive fails.
        """
        answers = [(one, seal(one.call)) for one in _those(operations, AnswerRow)]
        ends = _those(operations, EndRow)
        ended = {end.claim for end in ends}
        claims = [claim for claim in _those(operations, ClaimRow) if claim.claim not in ended]
        # Writers that insert the same keys in different orders would deadlock.
        claims.sort(key=lambda claim: claim.key)

        def work(connection: Connection) -> CallResults:
            run = _lock_run(connection, self._run_id)
            before = Sums.from_row(run)
            sums, lost = self._end(connection, before, answers, ends)
            refused: dict[str, CallRow | Overspent | None] = {}
            if claims and run.owner != self._owner:
                lost |= {claim.claim for claim in claims}
            elif claims:
                sums, refused = self._claim(connection, sums, claims, claimant)
            if sums != before:
                _set_sums(connection, self._run_id, sums)
            return CallResults(refused, frozenset(lost))

        return self._database.write(work)

    def void(self, claimant: str) -> None:
        """Ends the claims of a process that is gone; what they held is uncertain."""
        its = {"of_run": self._run_id, "of_owner": self._owner, "of_claimant": claimant}

        def work(connection: Connection) -> None:
            sums = Sums.from_row(_lock_run(connection, self._run_id))
            for row in connection.execute(_DROP_OF_CLAIMANT, its):
                sums = sums.doubt(_held_by(row))
            _set_sums(connection, self._run_id, sums)

        self._database.write(work)

    def _end(
        self,
        connection: Connection,
        sums: Sums,
        answers: Sequence[tuple[AnswerRow, dict[str, Any]]],
        ends: Sequence[EndRow],
    ) -> tuple[Sums, set[str]]:
        """Ends claims; returns the sums after that, and the claims that others ended."""
        keys = [answer.call.key for answer, _ in answers] + [end.key for end in ends]
        rows, lost = _states(connection, keys), set[str]()
        stored: list[dict[str, Any]] = []
        late: list[dict[str, Any]] = []
        for answer, sealed in answers:
            row = rows.get(answer.call.key)
            if row is None:
                # Whoever ended the claim has counted what it held.
                late.append({**sealed, **self._claimed(answer.claim), "state": CallState.ANSWERED})
            elif row.claim != answer.claim:
                lost.add(answer.claim)
            elif row.state == CallState.SENT:
                held, billed = _held_by(row), answer.billed
                sums = sums.bill(held, billed) if billed.tokens else sums.doubt(held)
                stored.append({"of_key": row.key, **sealed, "state": CallState.ANSWERED})
        dropped: list[str] = []
        for end in ends:
            row = rows.get(end.key)
            if row is not None and (row.claim, row.state) == (end.claim, CallState.SENT):
                held = _held_by(row)
                sums = sums.doubt(held) if end.paid else sums.release(held)
                dropped.append(end.key)
        _execute(connection, _ANSWER, stored)
        _execute(connection, self._new_calls, sorted(late, key=lambda row: row["key"]))
        _execute(connection, _DROP, [{"of_key": key} for key in dropped])
        return sums, lost

    def _claim(
        self, connection: Connection, sums: Sums, claims: Sequence[ClaimRow], claimant: str
    ) -> tuple[Sums, dict[str, CallRow | Overspent | None]]:
        """Grants what is neither answered nor in flight nor beyond the budget."""
        rows = self._look_up(connection, [claim.key for claim in claims])
        answers = _answers(connection, rows)
        refused: dict[str, CallRow | Overspent | None] = {}
        new: dict[str, ClaimRow] = {}
        for claim in claims:
            if claim.key in answers:
                refused[claim.claim] = answers[claim.key]
            elif claim.key in new:
                refused[claim.claim] = None
            elif claim.key in rows:
                if rows[claim.key].claim != claim.claim:
                    refused[claim.claim] = None
            elif not self._covers(sums.spent + claim.most):
                refused[claim.claim] = Overspent(RunCost(sums.billed, sums.uncertain))
            elif not self._covers(sums.spent + sums.held + claim.most):
                refused[claim.claim] = None
            else:
                sums = sums.hold(claim.most)
                new[claim.key] = claim
        sent = [self._row(claim, claimant) for claim in new.values()]
        granted = set(connection.scalars(self._new_calls, sent)) if sent else set[str]()
        for key in new.keys() - granted:
            # Another run has claimed it since it was looked up.
            sums = sums.release(new[key].most)
            refused[new[key].claim] = None
        return sums, refused

    def _look_up(self, connection: Connection, keys: Sequence[str]) -> dict[str, AnyRow]:
        """Returns the rows of calls, after the claims of runs without an owner are ended."""
        rows = _states(connection, keys)
        in_flight = [row for row in rows.values() if row.state == CallState.SENT]
        others = {(row.run_id, row.owner) for row in in_flight if row.run_id != self._run_id}
        dialect = self._database.dialect
        dead = [one for one in sorted(others) if not _is_owned(connection, dialect, one[0])]
        for run_id, owner in dead:
            leave_run(connection, run_id, owner)
        return _states(connection, keys) if dead else rows

    def _covers(self, cost: Cost) -> bool:
        tokens, money = self._budget.tokens, self._budget.money
        return (tokens is None or cost.tokens <= tokens) and (
            money is None or cost.money <= money * ROUNDING
        )

    def _row(self, claim: ClaimRow, claimant: str) -> dict[str, Any]:
        return {
            **self._claimed(claim.claim),
            "key": claim.key,
            "state": CallState.SENT,
            "claimant": claimant,
            "held_prompt_tokens": claim.prompt_tokens,
            "held_completion_tokens": claim.completion_tokens,
            "held_cost": claim.cost,
        }

    def _claimed(self, claim: str) -> dict[str, Any]:
        """Returns the columns of a claim that holds nothing."""
        return {
            "run_id": self._run_id,
            "owner": self._owner,
            "claim": claim,
            "claimant": "",
            "held_prompt_tokens": 0,
            "held_completion_tokens": 0,
            "held_cost": 0.0,
        }


def take_run(connection: Connection, run_id: int, owner: str, holder: str) -> None:
    """Gives a run to an owner, and ends the claims of former ones; what they held is uncertain."""
    _drop_claims(connection, _lock_run(connection, run_id), owner=owner, holder=holder)


def leave_run(connection: Connection, run_id: int, owner: str) -> None:
    """Takes a run from an owner, and ends its claims; does nothing if the run has another one."""
    run = _lock_run(connection, run_id)
    if run.owner == owner:
        _drop_claims(connection, run, owner=None, holder="")


def _drop_claims(connection: Connection, run: AnyRow, **owner: str | None) -> None:
    sums = Sums.from_row(run)
    connection.execute(_DROP_CLAIMS, {"of_run": run.id})
    _set_sums(connection, run.id, sums.doubt(sums.held), **owner)


def _is_owned(connection: Connection, dialect: DatabaseDialect, run_id: int) -> bool:
    """Returns whether the owner of a run lives."""
    run = connection.execute(select(RUNS).where(RUNS.c.id == run_id)).one()
    return dialect.is_locked(connection, lock_number(run))


def _those(operations: Iterable[CallOperation], kind: type[T]) -> list[T]:
    return [one for one in operations if isinstance(one, kind)]


def _lock_run(connection: Connection, run_id: int) -> AnyRow:
    return connection.execute(_LOCKED_RUN, {"of_run": run_id}).one()


def _set_sums(connection: Connection, run_id: int, sums: Sums, **more: str | None) -> None:
    connection.execute(_SET_SUMS, {"of_run": run_id, **sums.columns(), **more})


def _states(connection: Connection, keys: Sequence[str]) -> dict[str, AnyRow]:
    return {
        row.key: row for some in chunks(keys) for row in connection.execute(_STATES, {"keys": some})
    }


def _answers(connection: Connection, rows: Mapping[str, AnyRow]) -> dict[str, CallRow]:
    """Returns the answered calls among some."""
    answered = [key for key, row in rows.items() if row.state == CallState.ANSWERED]
    return {
        row.key: unseal(CallRow, row)
        for some in chunks(answered)
        for row in connection.execute(_ANSWERED, {"keys": some})
    }


def _held_by(row: AnyRow) -> Cost:
    return Cost.of_attempt(*(getattr(row, name) for name in HELD))


def _execute(connection: Connection, statement: Any, rows: Sequence[dict[str, Any]]) -> None:
    if rows:
        connection.execute(statement, rows)
