"""Bugs to be planted in raylab; the simulation should find each."""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock, Mock, patch

from sqlalchemy import select, update

from raylab.label.archive import ledger, run
from raylab.label.archive.database import Database, Sqlite
from raylab.label.archive.ledger import CallOperation, CallResults, ClaimEnd, Ledger, Ownership
from raylab.label.archive.records import RunCost
from raylab.label.archive.tables import ANSWERED, BATCHES, CALLS, SENT
from raylab.label.protocol.calls import CallJournal
from raylab.llm import wire
from raylab.llm.batches import BatchLane
from raylab.llm.chat import CallBatch, Cost, Reply
from raylab.llm.wire import Failure
from tests.simulation.server import Batches

PLANTS: dict[str, list[Any]] = defaultdict(list)
"""The patches that plant a bug, by its name."""


def plant(target: Any, name: str, stand_in: Any, bug: str) -> None:
    """Adds to a bug that something of raylab is replaced."""
    PLANTS[bug].append(patch.object(target, name, stand_in))


def wrong(target: Any, name: str, bug: str = "") -> Callable[[Callable[..., Any]], None]:
    """Adds to a bug, by default of the function's name, that a function is called in this way.

    The decorated function gets the real one before its arguments.
    """
    real = getattr(target, name)

    def add(make: Callable[..., Any]) -> None:
        def stand_in(*arguments: Any, **named: Any) -> Any:
            return make(real, *arguments, **named)

        plant(target, name, stand_in, bug or make.__name__.replace("_", " "))

    return add


def read_any_usage(usage: Any, _: object) -> dict[str, Any]:
    return usage or {"prompt_tokens": 0, "completion_tokens": 0}


plant(Ledger, "_claim", lambda _, __, cost, *___: (cost, {}), "calls are sent without a claim")
plant(Database, "try_lock", lambda *_: Mock(), "the lock of a run is ignored")
plant(ledger, "_is_owned", lambda *_: False, "claims of a living run are ended by another")
plant(RunCost, "hold", lambda cost, most: cost, "a claim holds nothing")
plant(Ledger, "_covers", lambda *_: True, "the budget is not looked at")
plant(run, "find_heads", lambda *_: {}, "cases are not deduplicated")
plant(Failure, "may_be_billed", False, "a timeout costs nothing")
plant(wire, "_read_usage", read_any_usage, "any usage is believed")
plant(Sqlite, "settings", ("PRAGMA synchronous = OFF",), "writes are not synced")


@wrong(CallJournal, "put")
async def a_reply_is_used_before_it_is_archived(real: Any, *arguments: Any) -> None:
    real(*arguments).add_done_callback(lambda stored: stored.exception())


@wrong(CallJournal, "put")
async def a_slot_is_free_before_its_reply_is_queued(real: Any, *arguments: Any) -> None:
    await asyncio.sleep(1.0)
    await real(*arguments)


@wrong(Ownership, "take")
def the_lock_of_a_run_ends_too_early(real: Any, ownership: Ownership) -> bool:
    taken = real(ownership)
    if ownership._release is not None:
        ownership._release()
    return taken


class _Any(str):
    """A text that equals every other."""

    __slots__ = ()
    __hash__ = str.__hash__

    def __eq__(self, other: object) -> bool:
        return True

    def __ne__(self, other: object) -> bool:
        return False


@wrong(Ledger, "__init__")
def a_former_owner_may_claim(real: Any, own: Ledger, *arguments: Any) -> None:
    real(own, *arguments)
    own._owner = _Any(own._owner)


NEVER_ENDS = "claims of the dead never end"
plant(Ledger, "void", lambda *_: None, NEVER_ENDS)


@wrong(ledger, "_give", NEVER_ENDS)
def give(
    _: Any, connection: Any, run: int, owner: str = "", holder: str = "", former: str = ""
) -> None:
    row = ledger._lock_run(connection, run)
    if former in ("", row.owner):
        ledger._set_cost(connection, run, ledger.cost_of(row), owner=owner, holder=holder)


@wrong(Ledger, "write")
def a_claim_ends_before_its_reply_is_stored(
    real: Any, own: Ledger, operations: Sequence[CallOperation], *more: Any
) -> CallResults:
    answers = (row for row in operations if isinstance(row, ClaimEnd) and row.call is not None)
    if ends := [ClaimEnd(row.claim) for row in answers]:
        real(own, ends)
    return real(own, operations, *more)


@wrong(Ledger, "_look_up")
def a_repeated_claim_is_refused(real: Any, *arguments: Any) -> dict[str, Any]:
    rows = real(*arguments).items()
    return {key: SimpleNamespace(**{**row._asdict(), "claim": ""}) for key, row in rows}


@wrong(RunCost, "settle")
def only_answers_are_counted(
    real: Any, cost: RunCost, held: Cost, uncertain: object = None, **billed: Cost
) -> RunCost:
    return real(cost, held, **billed)


NOT_LOOKED_UP = "archived calls are not looked up"
plant(CallJournal, "get", AsyncMock(return_value=None), NOT_LOOKED_UP)


@wrong(Ledger, "_look_up", NOT_LOOKED_UP)
def look_up_what_was_sent(real: Any, *arguments: Any) -> dict[str, Any]:
    return {key: row for key, row in real(*arguments).items() if row.state == SENT}


# Batches.

plant(
    BatchLane,
    "_look_for",
    BatchLane._free,
    "a batch that was not acknowledged is not looked for",
)
plant(
    Batches,
    "delete",
    AsyncMock(return_value=None),
    "a file is not deleted before its calls are free",
)


@wrong(ledger, "_end_claims")
def the_calls_of_a_batch_are_free_when_its_owner_is_dead(
    real: Any, connection: Any, run: Any, *process: str
) -> RunCost:
    in_flight = CALLS.c.state == SENT, CALLS.c.run_id == run.id
    connection.execute(update(CALLS).where(*in_flight).values(batch=None))
    return real(connection, run, *process)


@wrong(CallJournal, "note_batch")
async def the_file_of_a_batch_is_journalled_after_the_batch(
    real: Any, journal: CallJournal, batch: CallBatch, file: str, server_id: str | None = None
) -> bool:
    return server_id is None or await real(journal, batch, file, server_id)


@wrong(CallJournal, "end_batch")
async def the_answers_of_a_batch_are_used_and_not_archived(
    real: Any, journal: CallJournal, batch: CallBatch, ends: Mapping[str, Reply | bool]
) -> None:
    await real(journal, batch, dict.fromkeys(ends, True))


@wrong(ledger, "_end_claims")
def nobody_takes_over_the_batch_of_a_dead_process(
    real: Any, connection: Any, run: Any, *process: str
) -> RunCost:
    claimants = connection.execute(select(BATCHES.c.id, BATCHES.c.claimant)).all()
    cost = real(connection, run, *process)
    for batch, claimant in claimants:
        here = BATCHES.c.id == batch
        connection.execute(update(BATCHES).where(here).values(claimant=claimant))
    return cost


FREE_LOSSES = "answers that a batch lost cost nothing"


@wrong(BatchLane, "_read", FREE_LOSSES)
async def read(real: Any, lane: BatchLane, state: Any) -> Any:
    rows, _ = await real(lane, state)
    return rows, True


@wrong(BatchLane, "_poll", FREE_LOSSES)
async def poll(real: Any, lane: BatchLane, server_id: str) -> Any:
    names = ("request_counts", "output_file_id", "error_file_id")
    lost = SimpleNamespace(id="", status="expired", **dict.fromkeys(names))
    return await real(lane, server_id) or lost


@wrong(Ledger, "_look_up")
def a_call_in_a_batch_is_sent_live(real: Any, *arguments: Any) -> dict[str, Any]:
    rows = real(*arguments).items()
    return {key: row for key, row in rows if row.state == ANSWERED or not row.batch}
