"""Bugs to be planted in raylab, each of which the simulation should find."""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from unittest.mock import patch

from sqlalchemy import Connection, delete, event

from raylab.annotation.calls import CallCache, call_row
from raylab.archive import attempts, ownership, queries, run
from raylab.archive.attempts import AnswerRow, CallOperation, CallResults, EndRow, RunCalls
from raylab.archive.dialects import SqliteDialect
from raylab.archive.ownership import Ownership
from raylab.archive.records import RunCost
from raylab.archive.rows import AnyRow
from raylab.archive.tables import CALLS, OWNERS
from raylab.llm import wire
from raylab.llm.chat import ChatRequest, Claim, Reply
from raylab.llm.client import Client
from raylab.llm.rate_limits import Permit, RateLimiter
from raylab.llm.wire import Completion, Failure

Patches = Iterator[Any]
PLANTS: dict[str, Callable[[], Patches]] = {}
"""The bugs by name; each yields the patches that plant it."""


def _plant(make: Callable[[], Patches]) -> Callable[[], Patches]:
    PLANTS[make.__name__.replace("_", " ")] = make
    return make


@_plant
def calls_are_sent_without_a_claim() -> Patches:
    yield patch.object(RunCalls, "_claim", lambda *_: {})


@_plant
def a_reply_is_used_before_it_is_archived() -> Patches:
    async def put(
        cache: CallCache,
        request: ChatRequest,
        reply: Reply,
        description_hash: str,
        role: str,
        claim: Claim,
    ) -> None:
        row = call_row(cache._run, request, reply, description_hash, role)
        cache._operations.leave(AnswerRow(row, claim.id))
        cache._remember(description_hash, reply)

    yield patch.object(CallCache, "put", put)


@_plant
def a_slot_is_free_before_its_reply_is_queued() -> Patches:
    real = CallCache.put

    async def put(*arguments: Any) -> None:
        await asyncio.sleep(1.0)
        await real(*arguments)

    yield patch.object(CallCache, "put", put)


@_plant
def a_lease_is_ignored() -> Patches:
    real = Ownership.take

    def take(owner: Ownership) -> object:
        of_run = OWNERS.c.run_id == owner._run_id
        owner._database.write(lambda connection: connection.execute(delete(OWNERS).where(of_run)))
        return real(owner)

    yield patch.object(Ownership, "take", take)


@_plant
def the_heartbeat_stops() -> Patches:
    yield patch.object(Ownership, "renew", lambda owner: None)


@_plant
def a_former_owner_may_claim() -> Patches:
    yield patch.object(RunCalls, "_is_owner", lambda *_: True)


@_plant
def claims_of_the_dead_never_end() -> Patches:
    yield patch.object(RunCalls, "void", lambda *_: None)
    yield patch.object(attempts, "_void_dead", lambda *_: None)
    yield patch.object(ownership, "void_claims", lambda *_: None)
    yield patch.object(ownership, "void_other_claims", lambda *_: None)


@_plant
def a_reservation_is_released_too_early() -> Patches:
    real = RateLimiter.reserve

    def reserve(limiter: RateLimiter, endpoint: str, tokens: int, cost: float) -> Permit:
        permit = real(limiter, endpoint, tokens, cost)
        limiter._release(permit.number)
        return permit

    yield patch.object(RateLimiter, "reserve", reserve)


@_plant
def a_claim_ends_before_its_reply_is_stored() -> Patches:
    real = RunCalls.write

    def write(
        calls: RunCalls, operations: Sequence[CallOperation], claimant: str = ""
    ) -> CallResults:
        ends = [EndRow(one.claim, False) for one in operations if isinstance(one, AnswerRow)]
        if ends:
            real(calls, ends, claimant)
        return real(calls, operations, claimant)

    yield patch.object(RunCalls, "write", write)


@_plant
def cases_are_not_deduplicated() -> Patches:
    yield patch.object(run, "cases_named", lambda *_: [])


@_plant
def only_kept_calls_are_counted() -> Patches:
    def cost_of(connection: Connection, row: AnyRow, in_flight: bool) -> RunCost:
        kept = queries._sums(CALLS).where(CALLS.c.run == row.name)
        return RunCost(*connection.execute(kept).one())

    yield patch.object(run, "cost_of", cost_of)


@_plant
def a_timeout_costs_nothing() -> Patches:
    yield patch.object(Failure, "billed", False)


@_plant
def any_usage_is_believed() -> Patches:
    def believe(client: Client, connection: object, call: object, told: Completion) -> Completion:
        return told

    yield patch.object(Client, "_believe", believe)
    yield patch.object(wire, "_is_count", lambda value: isinstance(value, int))


@_plant
def archived_calls_are_not_looked_up() -> Patches:
    yield patch.object(CallCache, "_remember", lambda *_: None)
    yield patch.object(attempts, "_answered", lambda *_: {})


@_plant
def writes_are_not_synced() -> Patches:
    real = SqliteDialect.create_engine

    def create_engine(dialect: SqliteDialect, lock_seconds: float) -> Any:
        engine = real(dialect, lock_seconds)
        event.listen(engine, "connect", lambda one, _: one.execute("PRAGMA synchronous = OFF"))
        return engine

    yield patch.object(SqliteDialect, "create_engine", create_engine)
