"""Work beside the main thread, whose failures are retried or reported."""

import logging
import threading
from collections.abc import Callable, Generator, Mapping
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Generic, ParamSpec, TypeVar

LOGGER = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")


def beside(work: Callable[[], T]) -> "Future[T]":
    """Starts `work` in a thread that does not keep the process alive; returns its result to be."""
    result: Future[T] = Future()

    def run() -> None:
        try:
            value = work()
        except BaseException as error:
            result.set_exception(error)
        else:
            result.set_result(value)

    threading.Thread(target=run, daemon=True).start()
    return result


@contextmanager
def running(work: Callable[[], object], stop: Callable[[], object]) -> Generator[None]:
    """Runs `work` in a thread while the block runs, and waits for its end.

    `stop` makes `work` return soon. An error of `work` is raised here, or is a warning if the block
    has an error of its own.
    """
    ended = beside(work)
    try:
        yield
    except BaseException:
        stop()
        if error := ended.exception():
            LOGGER.warning("%s", error)
        raise
    stop()
    ended.result()


class Listeners(Generic[P]):
    """Named functions that get the state of some work, even if some of them fail.

    A state includes all earlier ones, so the next call makes up for a failed one.
    """

    def __init__(self, listeners: Mapping[str, Callable[P, object]]) -> None:
        """Takes the functions in the order of their calls, by their names in warnings."""
        self._listeners = listeners
        self._failed: dict[str, Callable[[], object]] = {}
        self._warned: set[str] = set()

    def tell(self, *state: P.args, **more: P.kwargs) -> None:
        """Calls every function; the first failure of each is a warning."""
        for name, listen in self._listeners.items():
            call = partial(listen, *state, **more)
            try:
                call()
            # Whatever it is: a full disk or a bug of one listener must not end hours of work.
            except Exception as error:
                self._failed[name] = call
                if name not in self._warned:
                    self._warned.add(name)
                    LOGGER.warning("%s: %s; it is tried again", name, error)
            else:
                self._failed.pop(name, None)

    def finish(self) -> None:
        """Repeats each listener's last call if it failed; raises an error of these calls."""
        # The stack calls all of them, also after one that fails again.
        with ExitStack() as repeated:
            for call in self._failed.values():
                repeated.callback(call)
