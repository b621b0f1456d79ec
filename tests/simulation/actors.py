"""Objects in processes of their own, called as Ray's actors are: late, and over their deaths."""

import asyncio
from collections.abc import Callable
from typing import Any

from tests.simulation.scheduler import PROCESS, Crashed, Process, running_as
from tests.simulation.world import Group, World

RESTART_SECONDS = 2.0


class ActorDied(Exception):
    """The process of an actor died during a call."""


class Actor:
    """An actor of synchronous methods; a call that its death interrupts is repeated."""

    def __init__(self, world: World, group: Group, name: str, make: Callable[[], Any]) -> None:
        self._world, self._group, self._name, self._make = world, group, name, make
        self._process: Process | None = None
        self._object: Any = None

    async def call(self, method: str, *args: Any) -> Any:
        """Calls a method; see `max_task_retries=-1` of Ray."""
        while True:
            await self._world.pass_time()
            try:
                process, target = self._running()
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

    def _running(self) -> tuple[Process, Any]:
        """Returns the process and the object, started again if they died.

        Raises:
            Crashed: It died as it started, or will not start again.
        """
        if self._process is None or not self._process.alive:
            if not self._group.driver.alive:
                raise Crashed
            self._process = self._world.start_actor(self._group, self._name)
            with running_as(self._process):
                self._object = self._make()
        return self._process, self._object


async def run_in(world: World, process: Process, make: Callable[[], Any]) -> Any:
    """Runs a coroutine in another process and returns its result.

    Raises:
        ActorDied: The process died before it answered.
    """
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
