"""Files and batches of the simulated endpoint, in the place of `raylab.llm.batches.BatchApi`."""

import asyncio
import json
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from random import Random
from types import SimpleNamespace
from typing import Any, TypeVar

import httpx2
from openai import APIStatusError

from raylab.llm.wire import BYTES_PER_TOKEN
from tests.simulation.scheduler import PROCESS
from tests.simulation.server import MAX_TOKENS, UNPAID, Answer, Attempt, Fate, completion_of
from tests.simulation.world import World

T = TypeVar("T")
LATE = 40.0
"""Most seconds for which a request is on its way, also after the death of its sender."""
LONGEST = 300.0
ENDS = (
    "completed",
    "completed",
    "completed",
    "completed",
    "expired",
    "failed",
    "limit",
    "forgotten",
)


@dataclass
class SimulatedBatch:
    """A batch at the server, with the purchases that it is."""

    id: str
    file: str
    attempts: list[tuple[Attempt, bytes]]
    end: str
    time: float
    rows: list[bytes] = field(default_factory=list[bytes])
    wrong: list[bytes] = field(default_factory=list[bytes])
    is_over: bool = False


class Batches:
    """The batches of a world's endpoint."""

    def __init__(self, random: Random) -> None:
        self._random, self._numbers = random, count()
        self.files: dict[str, bytes] = {}
        self.batches: dict[str, SimulatedBatch] = {}

    async def close(self) -> None: ...

    async def upload(self, name: str, content: bytes) -> str:
        def work() -> str:
            id = f"file-{next(self._numbers)}"
            self.files[id] = content
            return id

        return await self._request(work)

    async def create(self, file: str, id: str) -> str:
        process = PROCESS.get()

        def work() -> str:
            if file not in self.files:
                raise _status(400)
            server_id = f"batch-{next(self._numbers)}"
            lines = self.files[file].splitlines()
            end = self._random.choice(ENDS) if self._is_bad() else "completed"
            time = World.current.loop.time() + self._random.random() * LONGEST
            attempts = [(self._buy(line, process), line) for line in lines]
            self.batches[server_id] = SimulatedBatch(server_id, file, attempts, end, time)
            return server_id

        return await self._request(work)

    async def find(self, file: str) -> str | None:
        def work() -> str | None:
            return next((one.id for one in self.batches.values() if one.file == file), None)

        return await self._request(work)

    async def retrieve(self, server_id: str) -> Any:
        return await self._request(lambda: self._look(server_id))

    async def cancel(self, server_id: str) -> None: ...

    async def delete(self, file: str) -> None:
        def work() -> None:
            if self.files.pop(file, None) is None:
                raise _status(404)

        await self._request(work)

    async def read(self, file: str) -> bytes:
        content = await self._request(lambda: self.files[file])
        return content[: len(content) // 2] if self._is_bad() else content

    def _is_bad(self) -> bool:
        weather = World.current.server.weather
        return bool(weather.faults) and self._random.random() < weather.share / 2

    async def _request(self, work: Callable[[], T]) -> T:
        """Does some work at the server, even if the sender dies meanwhile."""
        world, answered = World.current, asyncio.get_running_loop().create_future()
        bad = self._random.choice(("before", "lost", "429", "500")) if self._is_bad() else ""
        if bad == "before":
            raise httpx2.ReadError("broken")
        if bad.isdigit():
            raise _status(int(bad))

        def arrive() -> None:
            try:
                result = work()
            except Exception as error:
                if not answered.done():
                    answered.set_exception(error)
            else:
                if not answered.done():
                    answered.set_result(result)

        seconds = self._random.choice((0.0, 0.0, self._random.random() * LATE))
        world.loop.call_in(world.loop.observer, seconds, arrive)
        if bad == "lost":
            await asyncio.sleep(self._random.random() * LATE)
            answered.cancel()
            raise httpx2.ReadError("broken")
        return await answered

    def _buy(self, line: bytes, process: Any) -> Attempt:
        server, row = World.current.server, json.loads(line)
        content = json.dumps(row["body"], separators=(",", ":")).encode()
        attempt = Attempt(
            row["custom_id"],
            process.name.partition(".")[0],
            process,
            len(server.attempts) + 1,
            server.weather.draw(self._random),
            math.ceil(len(content) / BYTES_PER_TOKEN) + MAX_TOKENS,
            0,
            Fate.IN_BATCH,
            in_batch=True,
        )
        server.attempts.append(attempt)
        World.current.check_purchase(attempt)
        return attempt

    def _look(self, server_id: str) -> Any:
        batch = self.batches[server_id]
        if World.current.loop.time() < batch.time:
            return SimpleNamespace(id=server_id, status="in_progress")
        if not batch.is_over:
            batch.is_over = True
            self._finish(batch)
        if batch.end == "forgotten":
            raise _status(404)
        status = "failed" if batch.end == "limit" else batch.end
        error = {
            "code": "c",
            "message": "full: a limit" if batch.end == "limit" else "bad",
            "line": 1,
        }
        if batch.end == "limit":
            error["line"] = None
        names = ("output_file_id", "error_file_id")
        files = dict(zip(names, (f"{server_id}-o", f"{server_id}-e"), strict=True))
        counts = SimpleNamespace(completed=len(batch.rows), failed=len(batch.wrong))
        errors = SimpleNamespace(data=[SimpleNamespace(**error)])
        return SimpleNamespace(
            id=server_id, status=status, request_counts=counts, errors=errors, **files
        )

    def _finish(self, batch: SimulatedBatch) -> None:
        """Answers the calls of a batch, as far as it comes, and bills the answers."""
        number = len(batch.attempts)
        if batch.end in ("failed", "limit"):
            number = 0
        elif batch.end == "expired":
            number = self._random.randrange(number + 1)
        for place, (attempt, line) in enumerate(batch.attempts):
            if place >= number:
                attempt.fate = Fate.FAILED
                attempt.refused = True
                continue
            status, body = self._answer(attempt, line)
            row = {"custom_id": attempt.key, "response": {"status_code": status, "body": body}}
            (batch.rows if status == 200 else batch.wrong).append(json.dumps(row).encode())
            if batch.end == "forgotten":
                # Nobody is told what it cost.
                attempt.fate, attempt.refused = Fate.LOST, False
        self.files[f"{batch.id}-o"] = b"\n".join(batch.rows)
        self.files[f"{batch.id}-e"] = b"\n".join(batch.wrong)

    def _answer(self, attempt: Attempt, line: bytes) -> tuple[int, Any]:
        if attempt.answer in UNPAID:
            attempt.fate, attempt.refused = Fate.FAILED, True
            return 500, {"error": {"message": "not now"}}
        used = attempt.estimate - MAX_TOKENS - self._random.randrange(3), 1
        attempt.billed = sum(used)
        if attempt.answer is Answer.NO_COMPLETION:
            # It was paid, and holds no answer: the call is bought again.
            attempt.fate = Fate.LOST
            return 200, {}
        content = json.dumps(json.loads(line)["body"]).encode()
        return 200, json.loads(completion_of(self._random, content, attempt.answer, used))


def batches_of(world: World) -> Batches:
    """Returns the batches of a world's endpoint."""
    if world.batches is None:
        world.batches = Batches(world.random)
    return world.batches


def _status(code: int) -> APIStatusError:
    request = httpx2.Request("POST", "http://server/v1")
    body = b'{"error": {"message": "scripted"}}'
    return APIStatusError(
        "", response=httpx2.Response(code, content=body, request=request), body=None
    )
