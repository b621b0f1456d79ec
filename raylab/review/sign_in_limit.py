"""A limit on wrong tokens, by address and over all."""

import ipaddress
import threading
import time
from collections import deque
from collections.abc import Callable

SECONDS = 60.0
PER_ADDRESS = 5
"""Tokens of one address that are looked at within `SECONDS`."""
OVERALL = 50
"""Tokens within `SECONDS` above which each address has one."""
REMEMBERED = 1000
NETWORK_V6 = 64
"""Bits of an IPv6 address that tell one household from another."""


class SignInLimit:
    """The attempts of the last minute that have not given the right token.

    Beyond `PER_ADDRESS` attempts no further token of an address is looked at. After `OVERALL`
    attempts from anywhere every address has one, so whoever knows the token is let in, and whoever
    guesses with many addresses guesses once with each.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """Uses a clock of monotonic seconds."""
        self._clock = clock
        self._lock = threading.Lock()
        self._attempts: deque[tuple[float, str]] = deque(maxlen=REMEMBERED)

    def count(self, address: str) -> float:
        """Counts an attempt; returns the seconds after which it is admitted, 0 if it is now.

        An attempt that is not admitted does not count.
        """
        network, now = _network(address), self._clock()
        with self._lock:
            while self._attempts and self._attempts[0][0] + SECONDS <= now:
                self._attempts.popleft()
            own = [at for at, of in self._attempts if of == network]
            most = PER_ADDRESS if len(self._attempts) < OVERALL else 1
            if len(own) >= most:
                return own[-most] + SECONDS - now
            self._attempts.append((now, network))
            return 0.0

    def forget(self, address: str) -> None:
        """Forgets the attempts of an address that has given the right token."""
        network = _network(address)
        with self._lock:
            left = [one for one in self._attempts if one[1] != network]
            self._attempts = deque(left, REMEMBERED)


def _network(address: str) -> str:
    try:
        given = ipaddress.ip_address(address)
    except ValueError:
        return address
    if isinstance(given, ipaddress.IPv4Address):
        return address
    if given.ipv4_mapped is not None:
        return str(given.ipv4_mapped)
    return str(ipaddress.IPv6Network((int(given), NETWORK_V6), strict=False))
