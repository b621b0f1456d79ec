"""One session of an annotation run: what `raylab.label.on_ray.annotate` does, without Ray."""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any

from raylab.core.config.base import AS_PUBLISHED
from raylab.core.errors import DeadlineError, OwnerError, RaylabError
from raylab.label.archive.records import CaseRow
from raylab.label.config.jobs import AnnotateConfig
from raylab.label.protocol.calls import ArchiveClient, RunWriter
from raylab.label.protocol.run import open_cases
from raylab.label.protocol.settings import protocol_settings
from raylab.label.protocol.worker import Chunk, Tally, Worker, chunks_of
from raylab.llm.config import Budget
from raylab.llm.limits import RateLimiter, RateLimiterClient, Share, limited_endpoints
from tests.label.protocol.fruits import FRUITS
from tests.simulation.scheduler import PROCESS, Crashed, Process, running_as
from tests.simulation.server import MAX_TOKENS, TIMEOUT
from tests.simulation.world import Group, RunPlan, World

CHUNK = 2
POLL_SECONDS = 10.0
DEADLINE = 90.0
RESTART_SECONDS = 2.0


class ActorDied(Exception):
    """The process of an actor died during a call."""


class Actor:
    """An actor of synchronous methods, called as Ray's are.

    A call that its death interrupts is repeated; see `max_task_retries=-1` of Ray.
    """

    def __init__(self, world: World, group: Group, name: str, make: Callable[[], Any]) -> None:
        self._world, self._group, self._name, self._make = world, group, name, make
        self._process: Process | None = None
        self._object: Any = None

    async def call(self, method: str, *args: Any) -> Any:
        """Calls a method of the object, which is started again if its process has died."""
        while True:
            await self._world.pass_time()
            try:
                if self._process is None or not self._process.alive:
                    if not self._group.driver.alive:
                        raise Crashed
                    self._process = self._world.start_actor(self._group, self._name)
                    with running_as(self._process):
                        self._object = self._make()
                process, target = self._process, self._object
                if (frozen := process.frozen_until - self._world.loop.time()) > 0:
                    await asyncio.sleep(frozen)
                    continue
                with running_as(process):
                    result = getattr(target, method)(*args)
            except Crashed:
                if not PROCESS.get().alive:
                    raise
                await asyncio.sleep(RESTART_SECONDS)
                continue
            await self._world.pass_time()
            if process.alive:
                return result


async def run_in(world: World, process: Process, make: Callable[[], Any]) -> Any:
    """Runs a coroutine in another process and returns its result; `ActorDied` if that dies."""
    caller = PROCESS.get()
    answered = asyncio.get_running_loop().create_future()

    def answer(error: BaseException | None, result: Any) -> None:
        if answered.done():
            return
        if error is None:
            answered.set_result(result)
        else:
            answered.set_exception(error)

    def died() -> None:
        lost = ActorDied(process.name)
        world.loop.call_in(caller, world.random.random(), lambda: answer(lost, None))

    async def work() -> None:
        result, error = None, None
        try:
            result = await make()
        except Exception as caught:
            error = caught
        delay = world.random.random() * 0.1
        world.loop.call_in(caller, delay, lambda: answer(error, result))

    if not process.alive:
        raise ActorDied(process.name)
    process.watchers.append(died)
    world.loop.spawn(process, work())
    return await answered


@lru_cache
def config_of(
    budget: int | None, concurrency: int, requests_per_minute: int | None, lane: str
) -> AnnotateConfig:
    """Returns the configuration of a run."""
    limits = {
        "concurrency": concurrency,
        "requests_per_minute": requests_per_minute,
        "timeout": TIMEOUT,
        "deadline": DEADLINE,
    }
    chats = [
        {"model": model, "max_tokens": MAX_TOKENS} for model in ("alpha", "beta", "gamma", "delta")
    ]
    llm: dict[str, Any] = {
        "annotators": chats[:2],
        "evaluator": chats[2],
        "adjudicator": chats[3],
        "endpoints": {"default": {"base_url": "http://server/v1", "limits": limits}},
        "budget": {"tokens": budget},
        "lane": lane,
    }
    return AnnotateConfig.model_validate({"llm": llm, "storage": "/nowhere"})


class Writer(RunWriter):
    """The writer of the archive, which tells the world what it has acknowledged."""

    def __init__(self, world: World, run: str, owner: str, budget: Budget) -> None:
        super().__init__("", run, owner, budget)
        self._world, self._name = world, run

    def add_cases(self, rows: Sequence[CaseRow]) -> None:
        super().add_cases(rows)
        self._world.archived |= {(self._name, row.case) for row in rows}


class Session:
    """A session of a run, from the command to its end."""

    def __init__(self, world: World, plan: RunPlan, name: str, wait: bool = False) -> None:
        self._world, self._plan, self._wait = world, plan, wait
        lane = "batch" if world.random.random() < plan.batches else "standard"
        self._config = config_of(plan.budget, plan.concurrency, plan.requests_per_minute, lane)
        self._group = world.start_group(name)
        self._token = ""
        llm = self._config.llm
        self._writer = Actor(
            world,
            self._group,
            "writer",
            lambda: Writer(world, plan.name, self._token, llm.budget),
        )
        self._limiter = Actor(
            world, self._group, "limiter", lambda: RateLimiter(llm.limits, world.loop.time)
        )
        self._chunks: deque[Chunk] = deque()
        self._workers: dict[int, tuple[Process, Worker]] = {}
        self._halt: RaylabError | None = None
        self._left = 0

    async def run(self) -> None:
        """Runs the session from outside.

        Raises:
            ActorDied: It was killed.
            OwnerError: Another session has the run.
            RaylabError: The run stopped.
        """
        await run_in(self._world, self._group.driver, self._main)

    async def _main(self) -> None:
        world, plan = self._world, self._plan
        archive = world.open_archive()
        await world.pass_time()
        archive.start_run(plan.name, {}, {})
        await world.pass_time()
        ownership = archive.run(plan.name).own()
        self._token = ownership.token
        # See `Ownership.__enter__`, which would block the simulation.
        while not ownership.take():
            if not self._wait:
                raise OwnerError(f"run {plan.name} is worked on")
            await asyncio.sleep(POLL_SECONDS)
        world.note_owner(plan.name, self._group)
        try:
            rows = ((AS_PUBLISHED, replace(case)) for case in plan.cases)
            cases = open_cases(rows, archive.run(plan.name))
            self._chunks.extend(chunks_of(cases, CHUNK))
            await asyncio.gather(*(self._keep_busy(number) for number in range(plan.workers)))
        finally:
            for actor in self._group.actors:
                world.loop.kill(actor)
            ownership.end()
            self._group.ended = True
        if self._halt is not None:
            raise self._halt
        if self._left:
            raise DeadlineError(f"{self._left} cases stay open")

    async def _keep_busy(self, number: int) -> None:
        """Gives chunks to a worker, which is started again when it dies."""
        while self._chunks and self._halt is None:
            chunk = self._chunks.popleft()
            process, worker = self._worker(number)
            annotating = partial(worker.annotate, chunk)
            try:
                tally: Tally = await run_in(self._world, process, annotating)
            except ActorDied:
                self._chunks.append(chunk)
                await self._writer.call("void_claims", f"annotator-{number}")
                continue
            self._left += len(tally.open_cases)
            if tally.halt is not None and self._halt is None:
                self._halt = tally.halt
                for _, other in self._workers.values():
                    other.stop()

    def _worker(self, number: int) -> tuple[Process, Worker]:
        if number not in self._workers or not self._workers[number][0].alive:
            world, plan = self._world, self._plan
            process = world.start_actor(self._group, f"worker{number}")
            limited = limited_endpoints(self._config.llm)
            worker = Worker(
                self._config.llm,
                protocol_settings(self._config, plan.name, FRUITS),
                plan.name,
                ArchiveClient(self._writer.call, f"annotator-{number}"),
                RateLimiterClient(self._limiter.call) if limited else None,
                timing=world.timing(),
                share=Share(number, plan.workers),
            )
            self._workers[number] = process, worker
        return self._workers[number]
