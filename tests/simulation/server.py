"""A simulated endpoint: it answers, refuses, fails, bills, and remembers what was bought."""

import asyncio
import json
import math
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import count
from random import Random
from types import SimpleNamespace
from typing import Any, TypeVar

import httpx2
from openai import APIStatusError

from raylab.llm.connection import HttpResponse
from raylab.llm.wire import BYTES_PER_TOKEN
from tests.simulation.scheduler import PROCESS, Process, Scheduler

T = TypeVar("T")
MAX_TOKENS = 20
TIMEOUT = 10.0
NOT_NOW = b'{"error": {"message": "not now"}}'


class Answer(StrEnum):
    """A way in which the server treats an attempt."""

    OK = "ok"
    NO_USAGE = "no usage"
    ABSURD_USAGE = "absurd usage"
    GARBAGE = "garbage"
    """A completion whose text cannot be read."""
    NO_COMPLETION = "no completion"
    """HTTP 200 with something else."""
    BUSY = "429"
    BUSY_UNTIL = "429 with retry-after"
    ERROR = "500"
    SLOW = "slow"
    """Counted and answered after the client has given up."""
    BROKEN_BEFORE = "broken before"
    BROKEN_AFTER = "broken after"
    """Counted, then the connection breaks."""


WITH_COMPLETION = (Answer.OK, Answer.NO_USAGE, Answer.ABSURD_USAGE, Answer.GARBAGE)
UNPAID = (Answer.BUSY, Answer.BUSY_UNTIL, Answer.ERROR, Answer.BROKEN_BEFORE)
FAULTS = tuple(answer for answer in Answer if answer is not Answer.OK)
ABSURD = (10**19, -(10**6), 10**300, 1e19, -1, 2**63, 10**12)


class Fate(StrEnum):
    """What became of an attempt, as the process that sent it knows."""

    IN_FLIGHT = "in flight"
    ANSWERED = "answered"
    """A completion has arrived, and was not returned to the caller yet."""
    SETTLED = "settled"
    """The reply was returned to the caller: it is durable."""
    FAILED = "failed"
    IN_BATCH = "in a batch"
    """Bought in a batch, which outlives its sender: it is never bought again."""
    LOST = "lost"
    """The process died, or lost its run, before the reply was returned."""


@dataclass
class Attempt:
    """One attempt at a call, in the order of `number`."""

    key: str
    run: str
    process: Process
    number: int
    answer: Answer
    estimate: int
    """The most tokens that it may cost."""
    billed: int
    fate: Fate = Fate.IN_FLIGHT
    refused: bool = False
    """True if the client was told that it costs nothing."""

    def __str__(self) -> str:
        return f"#{self.number} {self.key[:6]} of {self.process}: {self.answer}, {self.fate}"


@dataclass
class Weather:
    """The faults that occur, and their share of all attempts."""

    faults: tuple[Answer, ...] = ()
    share: float = 0.0

    def draw(self, random: Random) -> Answer:
        if self.faults and random.random() < self.share:
            return random.choice(self.faults)
        return Answer.OK


@dataclass
class Call:
    """The call that a task makes; attempts at it find it here."""

    key: str
    run: str
    attempts: list[Attempt] = field(default_factory=list[Attempt])


CALL: ContextVar[Call] = ContextVar("call")


class Server:
    """The server, in the place of `raylab.llm.connection.Transport`."""

    def __init__(self, random: Random, arrived: Callable[[Attempt], None]) -> None:
        self.attempts: list[Attempt] = []
        self.weather = Weather()
        """What happens to attempts from now on."""
        self._random = random
        self._arrived = arrived

    def receive(self, attempt: Attempt) -> None:
        """Notes what was bought."""
        self.attempts.append(attempt)
        self._arrived(attempt)

    async def post(self, content: bytes) -> HttpResponse:
        """Answers an attempt; see `raylab.llm.connection.Transport`."""
        call, answer = CALL.get(), self.weather.draw(self._random)
        prompt = math.ceil(len(content) / BYTES_PER_TOKEN)
        used = prompt - self._random.randrange(3), self._random.randrange(1, MAX_TOKENS + 1)
        billed = 0 if answer in UNPAID else sum(used)
        number, most = len(self.attempts) + 1, prompt + MAX_TOKENS
        attempt = Attempt(call.key, call.run, PROCESS.get(), number, answer, most, billed)
        call.attempts.append(attempt)
        self.receive(attempt)
        try:
            response = await self._answer(answer, content, used)
        except BaseException:
            if attempt.fate is Fate.IN_FLIGHT:
                attempt.fate = Fate.FAILED
            raise
        if response[0] >= 300:
            attempt.fate, attempt.refused = Fate.FAILED, True
        elif answer not in WITH_COMPLETION:
            attempt.fate = Fate.FAILED
        elif attempt.fate is Fate.IN_FLIGHT:
            attempt.fate = Fate.ANSWERED
        return response

    async def close(self) -> None: ...

    async def _answer(self, answer: Answer, content: bytes, used: tuple[int, int]) -> HttpResponse:
        random = self._random
        seconds = TIMEOUT + 1 if answer is Answer.SLOW else random.random() * 3
        if random.random() < 0.05:
            # Not far from the client's timeout.
            seconds = max(seconds, TIMEOUT + random.choice((-0.001, 0.0, 0.001)))
        await asyncio.sleep(seconds)
        match answer:
            case Answer.BUSY:
                return (429, {}, NOT_NOW)
            case Answer.BUSY_UNTIL:
                return (429, {"retry-after": str(random.randrange(30))}, NOT_NOW)
            case Answer.ERROR:
                return (500, {}, NOT_NOW)
            case Answer.BROKEN_BEFORE | Answer.BROKEN_AFTER:
                raise httpx2.ReadError("broken")
            case Answer.NO_COMPLETION:
                return (200, {}, b"<html>")
            case _:
                return (200, {}, completion_of(random, content, answer, used))


def completion_of(random: Random, content: bytes, answer: Answer, used: tuple[int, int]) -> bytes:
    """Returns the body of an answer to a request, by the model that is asked."""
    prompt, reply = used
    if answer is Answer.GARBAGE:
        text = random.choice(("", "I cannot say", "{}", "{"))
    else:
        said: dict[str, Any] = {"rationale": "w"}
        match json.loads(content)["model"]:
            case "gamma":
                score, verdict = random.choice(((90, "PASS"), (90, "PASS"), (20, "FAIL")))
                said = {"summary": "s", "issues": [], "score": score, "verdict": verdict}
            case "delta":
                said |= {"choice": "synthesis", "label": "nut"}
            case _:
                said["label"] = random.choice(("stone", "stone", "stone", "stone", "berry"))
        text = json.dumps(said)
    if answer is Answer.ABSURD_USAGE:
        absurd = random.choice(ABSURD)
        prompt, reply = random.choice(((absurd, reply), (prompt, absurd), (absurd, absurd)))
    usage: dict[str, Any] | None = {"prompt_tokens": prompt, "completion_tokens": reply}
    if answer is Answer.NO_USAGE:
        usage = random.choice((None, {}, {"completion_tokens": reply}, {"prompt_tokens": prompt}))
    choice = {"message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
    body = {"model": "simulated", "choices": [choice]}
    return json.dumps(body if usage is None else {**body, "usage": usage}).encode()


LATE = 40.0
"""Most seconds for which a request is on its way, also after the death of its sender."""
LONGEST = 300.0
ENDS = (*["completed"] * 4, "expired", "failed", "limit", "forgotten")


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
    """Files and batches of the server, in the place of `raylab.llm.batches.BatchApi`."""

    def __init__(self, random: Random, server: Server, loop: Scheduler) -> None:
        self._random, self._server, self._loop, self._numbers = random, server, loop, count()
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
            time = self._loop.time() + self._random.random() * LONGEST
            attempts = [(self._buy(line, process), line) for line in lines]
            self.batches[server_id] = SimulatedBatch(server_id, file, attempts, end, time)
            return server_id

        return await self._request(work)

    async def find(self, file: str) -> str | None:
        def work() -> str | None:
            return next((batch.id for batch in self.batches.values() if batch.file == file), None)

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
        weather = self._server.weather
        return bool(weather.faults) and self._random.random() < weather.share / 2

    async def _request(self, work: Callable[[], T]) -> T:
        """Does some work at the server, even if the sender dies meanwhile."""
        answered = self._loop.create_future()
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
        self._loop.call_in(self._loop.observer, seconds, arrive)
        if bad == "lost":
            await asyncio.sleep(self._random.random() * LATE)
            answered.cancel()
            raise httpx2.ReadError("broken")
        return await answered

    def _buy(self, line: bytes, process: Process) -> Attempt:
        server, row = self._server, json.loads(line)
        answer = server.weather.draw(self._random)
        content = json.dumps(row["body"], separators=(",", ":")).encode()
        most = math.ceil(len(content) / BYTES_PER_TOKEN) + MAX_TOKENS
        run, number = process.name.partition(".")[0], len(server.attempts) + 1
        attempt = Attempt(
            row["custom_id"], run, process, number, answer, most, 0, fate=Fate.IN_BATCH
        )
        server.receive(attempt)
        return attempt

    def _look(self, server_id: str) -> Any:
        batch = self.batches[server_id]
        if self._loop.time() < batch.time:
            return SimpleNamespace(id=server_id, status="in_progress")
        if not batch.is_over:
            batch.is_over = True
            self._finish(batch)
        if batch.end == "forgotten":
            raise _status(404)
        is_full = batch.end == "limit"
        error = SimpleNamespace(
            code="c", message="full: a limit" if is_full else "bad", line=None if is_full else 1
        )
        return SimpleNamespace(
            id=server_id,
            status="failed" if is_full else batch.end,
            request_counts=SimpleNamespace(completed=len(batch.rows), failed=len(batch.wrong)),
            errors=SimpleNamespace(data=[error]),
            output_file_id=f"{server_id}-o",
            error_file_id=f"{server_id}-e",
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


def _status(code: int) -> APIStatusError:
    request = httpx2.Request("POST", "http://server/v1")
    body = b'{"error": {"message": "scripted"}}'
    return APIStatusError(
        "", response=httpx2.Response(code, content=body, request=request), body=None
    )
