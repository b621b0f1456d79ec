"""The edges of raylab that the simulation replaces: network, disk, clocks and the list of cases."""

import logging
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from types import SimpleNamespace
from typing import Any, TypeVar
from unittest.mock import patch

from sqlalchemy import Connection, Engine

from raylab.label.archive import database as database_module
from raylab.label.archive import ledger as ledger_module
from raylab.label.archive.database import Database, Sqlite
from raylab.label.archive.ledger import CallOperation, CallResults, Ledger
from raylab.label.protocol import calls as calls_module
from raylab.llm import batches as batches_module
from raylab.llm import connection as connection_module
from raylab.llm.chat import ChatRequest, Claim, Reply
from raylab.llm.client import Client
from tests.simulation.scheduler import PROCESS
from tests.simulation.server import CALL, Call, Fate
from tests.simulation.world import World

T = TypeVar("T")

_engines: dict[str, Engine] = {}


@contextmanager
def simulated() -> Generator[None]:
    """Replaces the edges; inside, raylab works in `World.current` only."""
    logging.disable()
    with ExitStack() as stack:
        for target, name, stand_in in _replacements():
            stack.enter_context(patch.object(target, name, stand_in))
        yield
    logging.disable(logging.NOTSET)
    for engine in _engines.values():
        engine.dispose()
    _engines.clear()


def _replacements() -> Iterator[tuple[Any, str, Any]]:
    yield database_module, "_create_engine", _engine_of(database_module._create_engine)
    yield Database, "_once", _once
    yield Database, "close", lambda database: None
    yield connection_module, "Transport", lambda *_, **__: World.current.server
    yield batches_module, "BatchApi", lambda *_: World.current.batches
    yield Sqlite, "try_lock", lambda dialect, engine, number: World.current.try_lock(number)
    yield Sqlite, "is_locked", lambda dialect, _, number: World.current.is_locked(number)
    yield Ledger, "write", _claims_of(Ledger.write)
    yield Client, "complete", _watched(Client.complete)
    yield ledger_module, "_this_process", lambda: PROCESS.get().name
    archives = SimpleNamespace(open=lambda *_, **__: World.current.open_archive())
    yield calls_module, "Archive", archives
    tokens = SimpleNamespace(token_hex=lambda _: f"{World.current.random.getrandbits(128):032x}")
    yield calls_module, "secrets", tokens
    yield ledger_module, "secrets", tokens
    yield batches_module, "secrets", tokens


def _once(database: Database, work: Callable[[Connection], T], begin: str) -> T:
    """Does what `Database._once` does, with the crashes of the world around it.

    The connection stays open and reads begin no transaction, which is a third faster; nothing else
    runs meanwhile.
    """
    results: list[T] = []
    writes = begin == database.dialect.writing

    def whole() -> bool:
        connection = World.current.connect(database._engine)
        driver: Any = connection.connection.driver_connection
        if not writes:
            results.append(work(connection))
            return False
        driver.execute(begin)
        try:
            results.append(work(connection))
        except BaseException:
            driver.rollback()
            raise
        driver.commit()
        return World.current.is_durable

    World.current.transact(writes, whole)
    return results[0]


def _engine_of(real: Any) -> Callable[..., Engine]:
    """Returns a function that keeps one engine a file, because it compiles every statement."""

    def engine(dialect: Sqlite) -> Engine:
        if dialect.place not in _engines:
            _engines[dialect.place] = real(dialect)
        return _engines[dialect.place]

    return engine


def _claims_of(real: Any) -> Callable[..., Any]:
    """Returns `Ledger.write` that tells the world which claims were granted."""

    def write(ledger: Ledger, operations: Sequence[CallOperation], *more: Any) -> CallResults:
        results: CallResults = real(ledger, operations, *more)
        claims = [each for each in operations if isinstance(each, Claim)]
        refused = results.lost | results.refused.keys()
        granted = [claim.key for claim in claims if claim.id not in refused]
        World.current.note_claims(PROCESS.get().name.partition(".")[0], granted)
        return results

    return write


def _watched(real: Any) -> Callable[..., Any]:
    """Returns `Client.complete` that tells the world what became of each call."""

    async def complete(
        client: Client, request: ChatRequest, description_hash: str, role: str
    ) -> Reply:
        call = Call(request.key, PROCESS.get().name.partition(".")[0])
        CALL.set(call)
        reply = await real(client, request, description_hash, role)
        for attempt in call.attempts:
            if attempt.fate in (Fate.ANSWERED, Fate.LOST):
                attempt.fate = Fate.SETTLED
        World.current.settled.add(request.key)
        return reply

    return complete
