"""The calls of a run: claimed before they are sent, and counted by what they may have cost.

A claim is the right to send one attempt at a call. While it lasts no other process that shares the
archive, of this run or of another, is granted the same call. An attempt leaves a row behind
whenever it may have cost something that the kept calls do not show.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Connection, bindparam, delete, select, update

from raylab.archive.database import Database
from raylab.archive.queries import chunks
from raylab.archive.records import AttemptState, CallRow
from raylab.archive.rows import seal, unseal
from raylab.archive.tables import ATTEMPTS, CALLS, OWNERS

# Statements are built once, because that takes longer than to execute them.
_OWNER = select(OWNERS.c.token).where(
    OWNERS.c.run_id == bindparam("run"), OWNERS.c.token == bindparam("owner")
)
_KEYS = bindparam("keys", expanding=True)
_ANSWERED = select(CALLS).where(CALLS.c.key.in_(_KEYS))
_IN_FLIGHT = select(ATTEMPTS.c.key, ATTEMPTS.c.id).where(
    ATTEMPTS.c.key.in_(_KEYS), ATTEMPTS.c.state == AttemptState.SENT
)
_END = delete(ATTEMPTS).where(ATTEMPTS.c.id == bindparam("claim"))
_PAY = update(ATTEMPTS).where(ATTEMPTS.c.id == bindparam("claim"))
_KEEP = _PAY.values(state=AttemptState.UNKNOWN)
_VOID = (
    update(ATTEMPTS).where(ATTEMPTS.c.state == AttemptState.SENT).values(state=AttemptState.UNKNOWN)
)
_VOID_OF_OWNER = _VOID.where(ATTEMPTS.c.owner == bindparam("of_owner"))
_VOID_OF_CLAIMANT = _VOID_OF_OWNER.where(ATTEMPTS.c.claimant == bindparam("of_claimant"))
_VOID_OF_OTHERS = _VOID.where(
    ATTEMPTS.c.run_id == bindparam("of_run"), ATTEMPTS.c.owner != bindparam("new_owner")
)
# An owner whose lease ran out is still granted claims until another takes the run.
_HAS_OWNER = (
    select(OWNERS.c.token)
    .where(OWNERS.c.run_id == ATTEMPTS.c.run_id, OWNERS.c.token == ATTEMPTS.c.owner)
    .exists()
)
_VOID_DEAD = _VOID.where(
    ATTEMPTS.c.key.in_(_KEYS), (ATTEMPTS.c.expires <= bindparam("now")) | ~_HAS_OWNER
)


@dataclass(frozen=True)
class ClaimRow:
    """A claim to send an attempt.

    Attributes:
        id: unique in an archive.
        key: key of the call.
        endpoint: address of the server; empty for the embedded model.
        model: model as requested.
        prompt_tokens: most tokens that the request may count.
        completion_tokens: most tokens that the reply may count.
        cost: price of both; None without a price.
        seconds: time after which the attempt has ended, whatever became of it.
    """

    id: str
    key: str
    endpoint: str
    model: str
    prompt_tokens: int
    completion_tokens: int
    cost: float | None
    seconds: float


@dataclass(frozen=True)
class AnswerRow:
    """An answered call; storing it ends its claim.

    Attributes:
        call: the call; one without tokens keeps the reservation of its claim.
        claim: id of its claim.
    """

    call: CallRow
    claim: str


@dataclass(frozen=True)
class EndRow:
    """The end of a claim without an answer.

    Attributes:
        claim: its id.
        paid: True if the server may count the attempt, whose reservation is then kept.
    """

    claim: str
    paid: bool


CallOperation = ClaimRow | AnswerRow | EndRow


@dataclass(frozen=True)
class CallResults:
    """Results of operations.

    Attributes:
        refused: claims that were not granted, by id: with the call where it is answered already,
            with None while another attempt at it is in flight.
        lost: True if the run has another owner, so that no claim was granted.
    """

    refused: Mapping[str, CallRow | None]
    lost: bool = False


class RunCalls:
    """The calls of a run as its owner makes them; made by `RunArchive.calls`."""

    def __init__(self, database: Database, run_id: int, owner: str) -> None:
        """Uses the database of an open archive; `owner` is the token of the ownership."""
        self._database = database
        self._run_id = run_id
        self._owner = owner
        self._new_claims = database.dialect.insert_new(ATTEMPTS)

    def write(self, operations: Sequence[CallOperation], claimant: str = "") -> CallResults:
        """Does all operations, or none, in one transaction; may be repeated.

        Args:
            operations: Claims, answers and ends. Claims are granted after all else.
            claimant: Name of the process that has the claims.

        Raises:
            ValueError: A time has no zone.
        """
        answers = [one for one in operations if isinstance(one, AnswerRow)]
        ends = [one for one in operations if isinstance(one, EndRow)]
        claims = sorted(
            (one for one in operations if isinstance(one, ClaimRow)), key=lambda one: one.key
        )
        calls = [seal(answer.call) for answer in answers]

        def work(connection: Connection) -> CallResults:
            if answers:
                new = add_calls(connection, self._database, calls)
                _settle(connection, answers, new)
            _end(connection, [end.claim for end in ends if not end.paid])
            _keep(connection, [end.claim for end in ends if end.paid])
            if not claims:
                return CallResults({})
            if not self._is_owner(connection):
                return CallResults({}, lost=True)
            return CallResults(self._claim(connection, claims, claimant))

        return self._database.write(work)

    def void(self, claimant: str) -> None:
        """Voids what a process that is gone had claimed; its cost stays counted."""
        of_it = {"of_owner": self._owner, "of_claimant": claimant}
        self._database.write(lambda connection: connection.execute(_VOID_OF_CLAIMANT, of_it))

    def _is_owner(self, connection: Connection) -> bool:
        mine = {"run": self._run_id, "owner": self._owner}
        return connection.execute(_OWNER, mine).first() is not None

    def _claim(
        self, connection: Connection, claims: Sequence[ClaimRow], claimant: str
    ) -> dict[str, CallRow | None]:
        """Grants what is neither answered nor in flight; returns the others."""
        now = self._database.clock.now()
        if left := self._insert(connection, claims, claimant, now):
            _void_dead(connection, [one.key for one in left], now)
            left = self._insert(connection, left, claimant, now)
        answered = _answered(connection, [claim.key for claim in claims])
        _end(connection, [claim.id for claim in claims if claim.key in answered])
        refused: dict[str, CallRow | None] = {claim.id: None for claim in left}
        return refused | {c.id: answered[c.key] for c in claims if c.key in answered}

    def _insert(
        self, connection: Connection, claims: Sequence[ClaimRow], claimant: str, now: datetime
    ) -> list[ClaimRow]:
        """Inserts the claims that are free; returns the others."""
        rows = [self._row(one, claimant, now) for one in claims]
        result = connection.execute(self._new_claims, rows)
        if result.rowcount == len(claims):
            return []
        in_flight = _in_flight(connection, claims)
        return [claim for claim in claims if in_flight.get(claim.key) != claim.id]

    def _row(self, claim: ClaimRow, claimant: str, now: datetime) -> dict[str, Any]:
        return {
            **{name: value for name, value in vars(claim).items() if name != "seconds"},
            "expires": now + timedelta(seconds=claim.seconds),
            "run_id": self._run_id,
            "owner": self._owner,
            "claimant": claimant,
            "started": now,
            "state": AttemptState.SENT,
        }


def add_calls(
    connection: Connection, database: Database, calls: Sequence[dict[str, Any]]
) -> set[str]:
    """Stores completed calls, given by their columns; existing calls stay unchanged.

    Returns the keys of the others.
    """
    # Writers that insert the same keys in different orders would deadlock.
    columns = sorted(calls, key=lambda call: call["key"])
    return set(connection.scalars(database.dialect.insert_new(CALLS, CALLS.c.key), columns))


def void_claims(connection: Connection, owner: str) -> None:
    """Voids what an owner had claimed; its cost stays counted."""
    connection.execute(_VOID_OF_OWNER, {"of_owner": owner})


def void_other_claims(connection: Connection, run_id: int, owner: str) -> None:
    """Voids what former owners of a run had claimed; its cost stays counted."""
    connection.execute(_VOID_OF_OTHERS, {"of_run": run_id, "new_owner": owner})


def _void_dead(connection: Connection, keys: Sequence[str], now: datetime) -> None:
    """Voids claims of these calls that have ended, or whose run has another owner by now."""
    for some in chunks(keys):
        connection.execute(_VOID_DEAD, {"keys": some, "now": now})


def _settle(connection: Connection, answers: Sequence[AnswerRow], new: set[str]) -> None:
    """Ends the claims of answers; keeps what is paid beyond the calls that are `new`."""
    uncounted = [a.claim for a in answers if not a.call.prompt_tokens + a.call.completion_tokens]
    _keep(connection, uncounted)
    counted = [answer for answer in answers if answer.claim not in uncounted]
    _end(connection, [answer.claim for answer in counted if answer.call.key in new])
    again = [answer for answer in counted if answer.call.key not in new]
    if again:
        connection.execute(_PAY, [_paid(answer) for answer in again])


def _paid(answer: AnswerRow) -> dict[str, Any]:
    return {
        "claim": answer.claim,
        "prompt_tokens": answer.call.prompt_tokens,
        "completion_tokens": answer.call.completion_tokens,
        "cost": answer.call.cost,
        "state": AttemptState.PAID,
    }


def _in_flight(connection: Connection, claims: Sequence[ClaimRow]) -> dict[str, str]:
    """Returns the ids of the attempts in flight at these calls, by key."""
    return {
        row.key: row.id
        for some in chunks([claim.key for claim in claims])
        for row in connection.execute(_IN_FLIGHT, {"keys": some})
    }


def _answered(connection: Connection, keys: Sequence[str]) -> dict[str, CallRow]:
    return {
        row.key: unseal(CallRow, row)
        for some in chunks(keys)
        for row in connection.execute(_ANSWERED, {"keys": some})
    }


def _end(connection: Connection, claims: Sequence[str]) -> None:
    if claims:
        connection.execute(_END, [{"claim": claim} for claim in claims])


def _keep(connection: Connection, claims: Sequence[str]) -> None:
    if claims:
        connection.execute(_KEEP, [{"claim": claim} for claim in claims])
