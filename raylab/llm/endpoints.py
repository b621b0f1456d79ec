"""What can be told of endpoints before any call: whether their keys and addresses can be used."""

import os
import socket
from collections.abc import Callable
from urllib.parse import urlsplit
from urllib.request import getproxies

from pydantic import SecretStr

from raylab.config.annotation import LlmConfig
from raylab.config.llm import Endpoint
from raylab.errors import ConfigError, EndpointError

LOOK_SECONDS = 2.0
"""Longest wait for a connection, after which it stays unknown whether there will be one."""
PORTS = {"http": 80, "https": 443}


def require_endpoints(llm: LlmConfig, known: Callable[[str], bool]) -> None:
    """Refuses endpoints of roles whose key is not set, or whose address this machine cannot reach.

    A connection is tried, and nothing is sent. With a proxy in the environment it is not tried. An
    address may be out of reach if its answers are known, because the calls may all be answered.

    Args:
        llm: The endpoints and roles.
        known: Returns True if answers of the endpoint at an address are archived.

    Raises:
        ConfigError: A key is not in the environment, or no header can hold it.
        EndpointError: The host of an address does not exist, or refuses connections.
    """
    used = sorted({chat.endpoint for chat in llm.roles.values()})
    endpoints = {name: llm.endpoints[name] for name in used}
    for name, endpoint in endpoints.items():
        key_of(name, endpoint)
    for name, endpoint in endpoints.items():
        if endpoint.base_url is None or getproxies():
            continue
        reason = _why_not_reached(endpoint.base_url)
        if reason is not None and not known(endpoint.base_url):
            raise EndpointError(
                f"endpoint {name} ({endpoint.base_url}) cannot be reached from here: {reason}; "
                f"start it, or correct llm.endpoints.{name}.base_url"
            )


def key_of(name: str, endpoint: Endpoint) -> SecretStr:
    """Returns the key of an endpoint from the environment; empty if it needs none.

    Raises:
        ConfigError: It is not set, or no header can hold it.
    """
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


def _why_not_reached(base_url: str) -> str | None:
    """Returns why there can be no connection; None if there is one, or it cannot be told."""
    url = urlsplit(base_url)
    port = url.port or PORTS.get(url.scheme)
    if url.hostname is None or port is None:
        return None
    try:
        socket.create_connection((url.hostname, port), timeout=LOOK_SECONDS).close()
    except socket.gaierror as error:
        return f"the host {url.hostname} is not found ({error.strerror})"
    except ConnectionRefusedError:
        return f"nothing listens at port {port} of {url.hostname}"
    except OSError:
        return None
    return None
