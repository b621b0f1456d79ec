"""Bugs to be planted in raylab, each of which the simulation should find."""

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
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
from tests.simulation.batches import Batches

Patches = Iterator[Any]
PLANTS: dict[str, Callable[[], Patches]] = {}
"""The bugs by name; each yields the patches that plant it."""


def _plant(make: Callable[[], Patches]) -> Callable[[], Patches]:
    PLANTS[make.__name__.replace("_", " ")] = make
    return make


@_plant
def calls_are_sent_without_a_claim() -> Patches:
    yield patch.object(Ledger, "_claim", lambda _, connection, cost, *__: (cost, {}))


@_plant
def a_reply_is_used_before_it_is_archived() -> Patches:
    real = CallJournal.put

    async def put(*arguments: Any) -> None:
        real(*arguments).add_done_callback(lambda stored: stored.exception())

    yield patch.object(CallJournal, "put", put)


@_plant
def a_slot_is_free_before_its_reply_is_queued() -> Patches:
    real = CallJournal.put

    async def put(*arguments: Any) -> None:
        await asyncio.sleep(1.0)
        await real(*arguments)

    yield patch.object(CallJournal, "put", put)


@_plant
def the_lock_of_a_run_is_ignored() -> Patches:
    yield patch.object(Database, "try_lock", lambda *_: Mock())


@_plant
def the_lock_of_a_run_ends_too_early() -> Patches:
    real = Ownership.take

    def take(ownership: Ownership) -> bool:
        taken = real(ownership)
        if ownership._release is not None:
            ownership._release()
        return taken

    yield patch.object(Ownership, "take", take)


class _Any(str):
    """A text that equals every other."""

    __slots__ = ()
    __hash__ = str.__hash__

    def __eq__(self, other: object) -> bool:
        return True

    def __ne__(self, other: object) -> bool:
        return False


@_plant
def a_former_owner_may_claim() -> Patches:
    real = Ledger.__init__

    def make(one: Ledger, *arguments: Any) -> None:
        real(one, *arguments)
        one._owner = _Any(one._owner)

    yield patch.object(Ledger, "__init__", make)


@_plant
def claims_of_the_dead_never_end() -> Patches:
    def keep(
        connection: Any, run: int, owner: str = "", holder: str = "", former: str = ""
    ) -> None:
        row = ledger._lock_run(connection, run)
        if former in ("", row.owner):
            ledger._set_cost(connection, run, ledger.cost_of(row), owner=owner, holder=holder)

    yield patch.object(Ledger, "void", lambda *_: None)
    yield patch.object(ledger, "_give", keep)


@_plant
def claims_of_a_living_run_are_ended_by_another() -> Patches:
    yield patch.object(ledger, "_is_owned", lambda *_: False)


@_plant
def a_claim_holds_nothing() -> Patches:
    yield patch.object(RunCost, "hold", lambda cost, most: cost)


@_plant
def the_budget_is_not_looked_at() -> Patches:
    yield patch.object(Ledger, "_covers", lambda *_: True)


@_plant
def a_claim_ends_before_its_reply_is_stored() -> Patches:
    real = Ledger.write

    def write(one: Ledger, operations: Sequence[CallOperation], *more: Any) -> CallResults:
        answers = (row for row in operations if isinstance(row, ClaimEnd) and row.call is not None)
        ends = [ClaimEnd(row.claim) for row in answers]
        if ends:
            real(one, ends)
        return real(one, operations, *more)

    yield patch.object(Ledger, "write", write)


def _with_claims(claim: str, rows: dict[str, Any]) -> dict[str, Any]:
    return {key: SimpleNamespace(**{**row._asdict(), "claim": claim}) for key, row in rows.items()}


@_plant
def a_repeated_claim_is_refused() -> Patches:
    real = Ledger._look_up
    yield patch.object(Ledger, "_look_up", lambda *given: _with_claims("", real(*given)))


@_plant
def cases_are_not_deduplicated() -> Patches:
    yield patch.object(run, "find_heads", lambda *_: {})


@_plant
def only_answers_are_counted() -> Patches:
    real = RunCost.settle

    def settle(cost: RunCost, held: Cost, uncertain: object = None, **billed: Cost) -> RunCost:
        return real(cost, held, **billed)

    yield patch.object(RunCost, "settle", settle)


@_plant
def a_timeout_costs_nothing() -> Patches:
    yield patch.object(Failure, "may_be_billed", False)


@_plant
def any_usage_is_believed() -> Patches:
    def believe(usage: Any, _: object) -> dict[str, Any]:
        return usage or {"prompt_tokens": 0, "completion_tokens": 0}

    yield patch.object(wire, "_read_usage", believe)


@_plant
def archived_calls_are_not_looked_up() -> Patches:
    yield patch.object(CallJournal, "get", AsyncMock(return_value=None))
    real = Ledger._look_up

    def look_up(*given: Any) -> dict[str, Any]:
        return {key: row for key, row in real(*given).items() if row.state == SENT}

    yield patch.object(Ledger, "_look_up", look_up)


@_plant
def writes_are_not_synced() -> Patches:
    yield patch.object(Sqlite, "settings", ("PRAGMA synchronous = OFF",))


# Batches.


@_plant
def the_calls_of_a_batch_are_free_when_its_owner_is_dead() -> Patches:
    real = ledger._end_claims

    def end(connection: Any, run: Any, *process: str) -> RunCost:
        in_flight = CALLS.c.state == SENT, CALLS.c.run_id == run.id
        connection.execute(update(CALLS).where(*in_flight).values(batch=None))
        return real(connection, run, *process)

    yield patch.object(ledger, "_end_claims", end)


@_plant
def the_file_of_a_batch_is_journalled_after_the_batch() -> Patches:
    real = CallJournal.note_batch

    async def note(
        one: CallJournal, batch: CallBatch, file: str, server_id: str | None = None
    ) -> bool:
        return server_id is None or await real(one, batch, file, server_id)

    yield patch.object(CallJournal, "note_batch", note)


@_plant
def a_batch_that_was_not_acknowledged_is_not_looked_for() -> Patches:
    yield patch.object(BatchLane, "_look_for", BatchLane._free)


@_plant
def a_file_is_not_deleted_before_its_calls_are_free() -> Patches:
    yield patch.object(Batches, "delete", AsyncMock(return_value=None))


@_plant
def the_answers_of_a_batch_are_used_and_not_archived() -> Patches:
    real = CallJournal.end_batch

    async def end(one: CallJournal, batch: CallBatch, ends: Mapping[str, Reply | bool]) -> None:
        await real(one, batch, dict.fromkeys(ends, True))

    yield patch.object(CallJournal, "end_batch", end)


@_plant
def nobody_takes_over_the_batch_of_a_dead_process() -> Patches:
    real = ledger._end_claims

    def end(connection: Any, run: Any, *process: str) -> RunCost:
        claimants = connection.execute(select(BATCHES.c.id, BATCHES.c.claimant)).all()
        cost = real(connection, run, *process)
        for batch, claimant in claimants:
            here = BATCHES.c.id == batch
            connection.execute(update(BATCHES).where(here).values(claimant=claimant))
        return cost

    yield patch.object(ledger, "_end_claims", end)


@_plant
def answers_that_a_batch_lost_cost_nothing() -> Patches:
    real = BatchLane._read

    async def read(one: BatchLane, state: Any) -> Any:
        rows, _ = await real(one, state)
        return rows, True

    yield patch.object(BatchLane, "_read", read)
    poll = BatchLane._poll

    async def forget(one: BatchLane, server_id: str) -> Any:
        state = await poll(one, server_id)
        lost = SimpleNamespace(
            id="", status="expired", request_counts=None, output_file_id=None, error_file_id=None
        )
        return state or lost

    yield patch.object(BatchLane, "_poll", forget)


@_plant
def a_call_in_a_batch_is_sent_live() -> Patches:
    real = Ledger._look_up

    def look_up(*given: Any) -> dict[str, Any]:
        rows = real(*given)
        return {key: row for key, row in rows.items() if row.state == ANSWERED or not row.batch}

    yield patch.object(Ledger, "_look_up", look_up)
