"""Access to endpoints: early checks, and the removal of keys from the text of servers."""

import os
import re
import socket
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from urllib.parse import quote, urlsplit
from urllib.request import getproxies

from pydantic import SecretStr

from raylab.core.errors import ConfigError, EndpointError
from raylab.llm.config import Endpoint, Service

LOOK_SECONDS = 2.0
"""Longest wait for a connection; after that an endpoint counts as reachable."""
MIN_PIECE = 12
"""Shortest piece of a key that is removed, in characters. It is longer than the words of answers,
so that a key made of such words spoils none. A shorter key is no secret."""
BLANK = "***"
WORD = re.compile(r"[\w%+/=.~-]+")
"""A word that may be a key or hold one."""


@dataclass(frozen=True)
class EndpointAccess:
    """Address and key of an endpoint; the key is empty if it needs none."""

    base_url: str
    api_key: SecretStr


def require_endpoints(llm: Service, has_answered: Callable[[str], bool]) -> None:
    """Refuses endpoints in use whose key is not set, or which this machine cannot reach.

    It tries a connection and sends nothing. With a proxy in the environment it does not try.

    Args:
        has_answered: Tells whether the archive has answers from an address. Such an address may be
            out of reach, because the archive may answer all calls.

    Raises:
        ConfigError: A key is not in the environment, or no header can hold it.
        EndpointError: The host of an address does not exist, or refuses connections.
    """
    for name, endpoint in llm.used_endpoints.items():
        find_key(name, endpoint)
    for name, endpoint in llm.used_endpoints.items():
        address = endpoint.base_url
        if address is None or getproxies():
            continue
        url, reason = urlsplit(address), None
        port = url.port or {"http": 80, "https": 443}[url.scheme]
        try:
            socket.create_connection((str(url.hostname), port), timeout=LOOK_SECONDS).close()
        except (socket.gaierror, ConnectionRefusedError) as error:
            reason = f"{error.strerror} ({url.hostname}, port {port})"
        except OSError:
            # It may only be slow.
            pass
        if reason is not None and not has_answered(address):
            raise EndpointError(
                f"endpoint {name} ({address}) cannot be reached from here: {reason}; "
                f"start it, or correct llm.endpoints.{name}.base_url"
            )


def access_to(name: str, endpoint: Endpoint, embedded: EndpointAccess | None) -> EndpointAccess:
    """Returns the address of an endpoint, or of the embedded model, and its key."""
    if endpoint.base_url is not None:
        return EndpointAccess(endpoint.base_url, find_key(name, endpoint))
    assert embedded is not None, "the embedded model was not started"
    return embedded


def find_key(name: str, endpoint: Endpoint) -> SecretStr:
    """Returns the key of an endpoint, empty if it takes none."""
    variable = endpoint.api_key_env
    if endpoint.base_url is None or variable is None:
        return SecretStr("")
    key = os.environ.get(variable, "").strip()
    if not key:
        raise ConfigError(
            f"endpoint {name} takes its key from the environment variable {variable}, which is "
            "not set: export it where the job runs, or name another in api_key_env"
        )
    if not (key.isascii() and key.isprintable()):
        raise ConfigError(
            f"{variable} holds characters that no HTTP header can hold: export it again"
        )
    return SecretStr(key)


class Redactor:
    """A function that removes keys, plain or percent-encoded, from the text of servers.

    It blanks each word with the first `MIN_PIECE` characters of a key, or twice as many in a row.
    """

    def __init__(self, keys: Iterable[str]) -> None:
        """Takes the keys; empty and short ones are passed over."""
        self._blocks = {
            form[start : start + MIN_PIECE]
            for key in keys
            for form in (key, quote(key, safe=""))
            for start in range(0, len(form) - MIN_PIECE + 1, MIN_PIECE)
        }

    def __call__(self, text: str) -> str:
        """Returns the text with `BLANK` for each word that holds a piece of a key."""
        # Almost no answer holds a key, and this look is cheaper than the replacement.
        if not self._is_in(text):
            return text
        text = WORD.sub(lambda word: BLANK if self._is_in(word[0]) else word[0], text)
        # A key may also hold characters that are in no word.
        for block in self._blocks:
            text = text.replace(block, BLANK)
        return text

    def _is_in(self, text: str) -> bool:
        return any(block in text for block in self._blocks)
