"""The time, sleep and chance that an archive depends on."""

import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime


def utc_now() -> datetime:
    """Returns the time in UTC."""
    return datetime.now(UTC)


@dataclass(frozen=True)
class Clock:
    """The clocks of an archive; a simulation replaces them.

    Attributes:
        now: time of day in UTC.
        monotonic: seconds that only rise.
        sleep: waits for some seconds.
        draw: uniform in [0, 1).
    """

    now: Callable[[], datetime] = utc_now
    monotonic: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    draw: Callable[[], float] = random.random
