"""An event loop with virtual time that runs simulated processes in a seeded order.

Every callback belongs to a process: the one whose task scheduled it. Within a process callbacks run
in the order in which they became ready, as in asyncio; the random source chooses which process runs
next. When nothing is ready, time jumps to the next timer. A process that is killed runs no further
line, not even of a `finally`.
"""

import asyncio
import heapq
import itertools
from asyncio import events
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from contextlib import contextmanager, suppress
from contextvars import Context, ContextVar, copy_context
from dataclasses import dataclass, field
from random import Random
from typing import Any, TypeVar

T = TypeVar("T")

MAX_STEPS = 50_000


class Crashed(BaseException):
    """The process that runs this is dead; raylab does not catch it."""


class Stuck(Exception):
    """The simulation cannot end: nothing is ready and no timer runs, or it runs without end."""


@dataclass(eq=False, repr=False)
class Process:
    """A simulated process. No callback of it runs before `frozen_until`.

    Its watchers are called when it is killed.
    """

    name: str
    alive: bool = True
    frozen_until: float = 0.0
    watchers: list[Callable[[], None]] = field(default_factory=list[Callable[[], None]])
    ready: deque[asyncio.Handle] = field(default_factory=deque[asyncio.Handle])
    tasks: list[asyncio.Task[Any]] = field(default_factory=list[asyncio.Task[Any]])

    def __repr__(self) -> str:
        return self.name


PROCESS: ContextVar[Process] = ContextVar("process")
"""The process that runs now."""


class Scheduler(asyncio.BaseEventLoop):
    """The event loop; see the module."""

    def __init__(self, random: Random, stepped: Callable[[Process], None]) -> None:
        """`stepped` is called with a process before each of its callbacks, and may kill it."""
        super().__init__()
        self.observer = Process("observer")
        """The process of the simulation itself, which is never killed."""
        self.errors: list[BaseException] = []
        """Errors that no task awaited."""
        self._random = random
        self._stepped = stepped
        self._time = 0.0
        self._steps = 0
        self._numbers = itertools.count()
        self._timers: list[tuple[float, int, asyncio.Handle]] = []
        self._runnable: list[Process] = []
        self._processes: list[Process] = [self.observer]
        self._over = False

    def time(self) -> float:
        return self._time

    def create_task(
        self, coro: Coroutine[Any, Any, T] | Generator[Any, None, T], **options: Any
    ) -> "asyncio.Task[T]":
        context = options.get("context")
        process = PROCESS.get() if context is None else context[PROCESS]
        task = super().create_task(coro, **options)
        process.tasks.append(task)
        return task

    def _call_soon(
        self, callback: Callable[..., object], args: Any, context: Context | None
    ) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self, context)
        self._enqueue(handle)
        return handle

    # Nothing else runs in a thread.
    call_soon_threadsafe = asyncio.BaseEventLoop.call_soon

    def call_at(
        self,
        when: float,
        callback: Callable[..., object],
        *args: Any,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        handle = asyncio.TimerHandle(when, callback, args, self, context)
        heapq.heappush(self._timers, (when, next(self._numbers), handle))
        return handle

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if not self._over and not isinstance(error, Crashed):
            self.errors.append(error or RuntimeError(context["message"]))

    def process(self, name: str) -> Process:
        """Starts a process."""
        process = Process(name)
        self._processes.append(process)
        return process

    def spawn(self, process: Process, coro: Coroutine[Any, Any, T]) -> "asyncio.Task[T]":
        """Starts a task in a process."""
        context = copy_context()
        context.run(PROCESS.set, process)
        return self.create_task(coro, context=context)

    def call_in(self, process: Process, delay: float, callback: Callable[..., object]) -> None:
        """Calls a function in a process after some seconds."""
        context = copy_context()
        context.run(PROCESS.set, process)
        self.call_later(delay, callback, context=context)

    def kill(self, process: Process) -> None:
        """Ends a process between two of its lines."""
        if process.alive:
            process.alive = False
            process.ready.clear()
            for watcher in process.watchers:
                watcher()

    def freeze(self, process: Process, seconds: float) -> None:
        """Stops a process for some seconds, as a suspended laptop does."""
        process.frozen_until = max(process.frozen_until, self._time + seconds)
        waiting, process.ready = process.ready, deque()
        for handle in waiting:
            self._delay(handle, process)

    def run(self, main: Coroutine[Any, Any, T]) -> T:
        """Runs a coroutine in the observer until it ends; `Stuck` if it cannot."""
        events._set_running_loop(self)
        try:
            task = self.spawn(self.observer, main)
            while not task.done():
                self._step()
            return task.result()
        finally:
            self._over = True
            events._set_running_loop(None)
            # With all processes dead, what still waits has no effect when it is closed.
            for process in self._processes:
                process.alive = False
            waiting: list[Any] = [task for process in self._processes for task in process.tasks]
            for task in waiting:
                if not task.done():
                    task._log_destroy_pending = False
                    # A `finally` may await, or its effect be refused.
                    with suppress(BaseException):
                        task.get_coro().close()
            self.close()

    def _step(self) -> None:
        self._steps += 1
        if self._steps > MAX_STEPS:
            raise Stuck(f"no end after {MAX_STEPS:,} steps, at {self._time:.0f} s")
        while not self._runnable:
            # Time passes until the next timer.
            if not self._timers:
                raise Stuck(f"nothing is left to run at {self._time:.0f} s")
            when, _, handle = heapq.heappop(self._timers)
            if not handle.cancelled() and _process_of(handle).alive:
                self._time = max(self._time, when)
                self._enqueue(handle)
        several = len(self._runnable) > 1
        number = int(self._random.random() * len(self._runnable)) if several else 0
        process = self._runnable[number]
        if process.ready:
            self._stepped(process)
        if process.ready:
            handle = process.ready.popleft()
            if not handle.cancelled():
                handle._run()
        if not process.ready:
            self._runnable.remove(process)

    def _enqueue(self, handle: asyncio.Handle) -> None:
        process = _process_of(handle)
        if not process.alive or self._over:
            return
        if process.frozen_until > self._time:
            self._delay(handle, process)
            return
        if not process.ready and process not in self._runnable:
            self._runnable.append(process)
        process.ready.append(handle)

    def _delay(self, handle: asyncio.Handle, process: Process) -> None:
        heapq.heappush(self._timers, (process.frozen_until, next(self._numbers), handle))


def _process_of(handle: asyncio.Handle) -> Process:
    return handle._context[PROCESS]


@contextmanager
def running_as(process: Process) -> Generator[None]:
    """Runs a block as another process does that answers a call at once."""
    token = PROCESS.set(process)
    try:
        yield
    finally:
        PROCESS.reset(token)
