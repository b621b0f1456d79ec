"""Work beside the main thread, whose failures are retried or reported."""

import logging
import threading
from collections.abc import Callable, Generator, Mapping
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from typing import Generic, TypeVar

LOGGER = logging.getLogger(__name__)

T = TypeVar("T")


@contextmanager
def running(work: Callable[[], object], stop: Callable[[], object]) -> Generator[None]:
    """Runs `work` in a thread while the block runs, and waits for its end.

    Args:
        work: Function of the thread; returns soon after `stop` is called.
        stop: Makes `work` return.

    Raises:
        Exception: The error of `work`; only a warning if the block has an error of its own.
    """
    ended: Future[None] = Future()

    def run() -> None:
        try:
            work()
        except BaseException as error:
            ended.set_exception(error)
        else:
            ended.set_result(None)

    # A thread of an executor would keep the process alive if `stop` fails.
    threading.Thread(target=run, daemon=True).start()
    try:
        yield
    except BaseException:
        stop()
        if error := ended.exception():
            LOGGER.warning("%s", error)
        raise
    stop()
    ended.result()


class Listeners(Generic[T]):
    """Named functions that get the state of some work, even if some of them fail.

    A state includes all earlier ones, so the next call makes up for a failed one.
    """

    def __init__(self, listeners: Mapping[str, Callable[[T], object]]) -> None:
        """Takes the functions in the order of their calls, by their names in warnings."""
        self._listeners = listeners
        self._failed: dict[str, T] = {}
        self._warned: set[str] = set()

    def tell(self, state: T) -> None:
        """Calls every function; the first failure of each is a warning."""
        for name, listen in self._listeners.items():
            try:
                listen(state)
            except Exception as error:
                self._failed[name] = state
                if name not in self._warned:
                    self._warned.add(name)
                    LOGGER.warning("%s: %s; it is tried again", name, error)
            else:
                self._failed.pop(name, None)

    def finish(self) -> None:
        """Repeats each listener's last call if it failed; raises an error of these calls."""
        with ExitStack() as repeated:
            for name, state in self._failed.items():
                repeated.callback(self._listeners[name], state)
