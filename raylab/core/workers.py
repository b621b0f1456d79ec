"""Work in parts: done in this process, or by `raylab.core.on_ray.workers.RayWorkers`.

A part is a call of a function with arguments and a result that can be pickled.
"""

from collections.abc import Callable, Generator, Hashable, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar

from raylab.core.config.base import ClusterConfig

Key = TypeVar("Key", bound=Hashable)
R = TypeVar("R")


class Workers:
    """The processes that make calls: this one, one call after the other; a subclass has others.

    Attributes:
        share: CPUs and GPU that each call may use.
        places: Number of calls at the same time, at least 1.
    """

    places = 1

    def __init__(self, share: ClusterConfig) -> None:
        """Takes the CPUs and GPU that calls may use."""
        self.share = share

    def put(self, value: Any) -> Any:
        """Returns a reference to a value, to use as an argument of many calls."""
        return value

    def run(
        self, function: Callable[..., R], calls: Mapping[Key, Sequence[Any]]
    ) -> Generator[tuple[Key, R]]:
        """Yields the keys of calls with their results as they end.

        A call whose storage or process fails is repeated up to `share.max_failures` times. Closing
        the generator ends running calls.

        Raises:
            RaylabError: A call raised it, or was lost.
            OSError: A call raised it each time.
        """
        for key, arguments in calls.items():
            yield key, self._call(function, arguments)

    def _call(self, function: Callable[..., R], arguments: Sequence[Any]) -> R:
        # As Ray repeats a task whose storage failed; the last failure is raised.
        for _ in range(self.share.max_failures):
            try:
                return function(*arguments)
            except OSError:
                continue
        return function(*arguments)


_listener: ContextVar[Callable[[float], object] | None] = ContextVar("listener", default=None)


def advance(share: float) -> None:
    """Reports the share of the running call that is done, in [0, 1], within this process."""
    if (listen := _listener.get()) is not None:
        listen(share)


@contextmanager
def listening(listen: Callable[[float], object]) -> Generator[None]:
    """Passes the shares that calls in this process report to `listen`, while in use."""
    token = _listener.set(listen)
    try:
        yield
    finally:
        _listener.reset(token)
