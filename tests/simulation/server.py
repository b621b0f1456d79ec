"""A simulated endpoint: it answers, refuses, fails, bills, and remembers what was bought."""

import asyncio
import json
import math
from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from enum import StrEnum
from random import Random
from typing import Any

import httpx2

from raylab.llm.connection import HttpResponse
from raylab.llm.wire import BYTES_PER_TOKEN
from tests.simulation.scheduler import PROCESS, Process

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
    """One attempt at a call.

    Attributes:
        key: key of the request.
        run: run that sent it.
        process: process that sent it.
        number: its place in the order in which attempts came.
        answer: how the server treats it.
        estimate: the most tokens that it may cost.
        billed: the tokens that it costs.
        fate: what became of it.
        refused: True if the client was told that it costs nothing.
        in_batch: True if it was bought in a batch.
    """

    key: str
    run: str
    process: Process
    number: int
    answer: Answer
    estimate: int
    billed: int
    fate: Fate = Fate.IN_FLIGHT
    refused: bool = False
    in_batch: bool = False

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
    """The server, in the place of `raylab.llm.connection.Transport`.

    Attributes:
        attempts: all attempts, in the order in which they came.
        weather: what happens to attempts from now on.
    """

    def __init__(self, random: Random, arrived: Any) -> None:
        self.attempts: list[Attempt] = []
        self.weather = Weather()
        self._random = random
        self._arrived = arrived

    async def post(self, content: bytes) -> HttpResponse:
        """Answers an attempt; see `raylab.llm.connection.Transport`."""
        attempt = self._receive(content)
        try:
            response = await self._answer(attempt, content)
        except BaseException:
            if attempt.fate is Fate.IN_FLIGHT:
                attempt.fate = Fate.FAILED
            raise
        if response[0] >= 300:
            attempt.fate, attempt.refused = Fate.FAILED, True
        elif attempt.answer not in WITH_COMPLETION:
            attempt.fate = Fate.FAILED
        elif attempt.fate is Fate.IN_FLIGHT:
            attempt.fate = Fate.ANSWERED
        return response

    async def close(self) -> None: ...

    def _receive(self, content: bytes) -> Attempt:
        call = CALL.get()
        answer = self.weather.draw(self._random)
        prompt = math.ceil(len(content) / BYTES_PER_TOKEN)
        used = prompt - self._random.randrange(3), self._random.randrange(1, MAX_TOKENS + 1)
        attempt = Attempt(
            call.key,
            call.run,
            PROCESS.get(),
            len(self.attempts) + 1,
            answer,
            prompt + MAX_TOKENS,
            0 if answer in UNPAID else sum(used),
        )
        call.attempts.append(attempt)
        self.attempts.append(attempt)
        self._arrived(attempt)
        self._usage = used
        return attempt

    async def _answer(self, attempt: Attempt, content: bytes) -> HttpResponse:
        random, usage = self._random, self._usage
        seconds = TIMEOUT + 1 if attempt.answer is Answer.SLOW else random.random() * 3
        if random.random() < 0.05:
            # Not far from the client's timeout.
            seconds = max(seconds, TIMEOUT + random.choice((-0.001, 0.0, 0.001)))
        await asyncio.sleep(seconds)
        match attempt.answer:
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
            case answer:
                return (200, {}, completion_of(random, content, answer, usage))


def completion_of(random: Random, content: bytes, answer: Answer, used: tuple[int, int]) -> bytes:
    """Returns the body of an answer to a request."""
    return _completion(_text(random, content, answer), _usage(random, answer, used))


def _completion(text: str, usage: Mapping[str, Any] | None) -> bytes:
    choice = {"message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
    body: dict[str, Any] = {"model": "simulated", "choices": [choice]}
    if usage is not None:
        body["usage"] = usage
    return json.dumps(body).encode()


def _usage(random: Random, answer: Answer, used: tuple[int, int]) -> Mapping[str, Any] | None:
    prompt, reply = used
    if answer is Answer.NO_USAGE:
        return random.choice((None, {}, {"completion_tokens": reply}, {"prompt_tokens": prompt}))
    if answer is Answer.ABSURD_USAGE:
        absurd = random.choice(ABSURD)
        prompt, reply = random.choice(((absurd, reply), (prompt, absurd), (absurd, absurd)))
    return {"prompt_tokens": prompt, "completion_tokens": reply}


def _text(random: Random, content: bytes, answer: Answer) -> str:
    """Returns a reply to the request, by the model that is asked."""
    if answer is Answer.GARBAGE:
        return random.choice(("", "I cannot say", "{}", "{"))
    match json.loads(content)["model"]:
        case "gamma":
            score, verdict = random.choice(((90, "PASS"), (90, "PASS"), (20, "FAIL")))
            return json.dumps({"summary": "s", "issues": [], "score": score, "verdict": verdict})
        case "delta":
            return json.dumps({"rationale": "w", "choice": "synthesis", "label": "nut"})
        case _:
            fruit = random.choice(("stone", "stone", "stone", "stone", "berry"))
            return json.dumps({"rationale": "w", "label": fruit})
