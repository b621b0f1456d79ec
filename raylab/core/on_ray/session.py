"""The Ray cluster of a job: joining or starting it, its nodes, and the results of its tasks."""

import contextlib
import importlib.util
import logging
import os
import secrets
import signal
import socket
import threading
from collections.abc import Generator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from threading import Event
from types import FrameType
from typing import Any, NoReturn
from urllib.parse import urlsplit

import ray
from ray.exceptions import RayActorError, RayError, RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from raylab.core.config.base import ClusterConfig
from raylab.core.environment import PASSIVE_WAITING, is_inherited, set_variables
from raylab.core.errors import ConfigError, DataError, RaylabError, RunError
from raylab.core.files import Place
from raylab.core.log import prints_details
from raylab.core.runs.run import RECORD, SHARED_PLACES, Run

logger = logging.getLogger(__name__)

LOOPBACK = "127.0.0.1"
TOKEN_FILE = Path("~/.ray/auth_token")
"""The token of all clusters for which the environment names no other."""
SETTINGS = {
    # Ray Train collects reports once per poll. At the default of 2 s, short epochs wait for it, and
    # a checkpoint that is written but not yet collected is lost with its worker.
    "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.25",
    **PASSIVE_WAITING,
}
"""Variables of the processes that Ray starts for a job; the user's own settings win."""
JOIN_SECONDS = 5.0
_own = Event()
"""Set while this process has a connection that a `session` made."""
_TOKEN = secrets.token_hex(32)
"""The token of all local Rays of this process, which Ray reads once."""


def placement_options(config: ClusterConfig) -> dict[str, Any]:
    """Returns the options of Ray's tasks and of Ray Train that choose the configured nodes."""
    selector = {"label_selector": config.label_selector} if config.label_selector else {}
    accelerator = config.accelerator_type
    return selector | ({"accelerator_type": accelerator} if accelerator else {})


@contextmanager
def session(config: ClusterConfig, run: Run | None = None) -> Generator[None]:
    """Joins the cluster of `config.address` or RAY_ADDRESS, or starts a local one, while in use.

    A local one listens on loopback alone, and asks for a token that this process draws. Every node
    of the cluster must see the directory of `run`.

    Raises:
        ConfigError: The `lightning` package is installed, no Ray can be joined or started, or other
            accounts can read the token of a cluster.
        RunError: A node of the cluster does not see the run's directory.
    """
    if importlib.util.find_spec("lightning") is not None:
        raise ConfigError(
            "package lightning is installed: Ray would mix it with pytorch_lightning; "
            "pip uninstall lightning"
        )
    with nullcontext() if ray.is_initialized() else _connect(config.address_to_join):
        if run is not None:
            _require_shared(run)
        yield


def _require_shared(run: Run) -> None:
    """Refuses a run that a node cannot read or has a separate copy of."""
    if len(nodes := _nodes()) == 1:
        return
    record = str(run / RECORD)
    # Without a CPU of its own, a probe does not wait for a busy node.
    read: Any = ray.remote(num_cpus=0)(_read)
    places = [NodeAffinitySchedulingStrategy(node["NodeID"], soft=False) for node in nodes]
    probes = [read.options(scheduling_strategy=place).remote(record) for place in places]
    own, blind = _read(record), list[str]()
    for node, probe in zip(nodes, probes, strict=True):
        # A node that was lost meanwhile gets no task.
        with contextlib.suppress(RunError):
            if result_of(probe) != own:
                blind.append(node["NodeManagerAddress"])
    if not blind:
        return
    count = f"{len(blind)} of {len(nodes)} nodes cannot see it ({', '.join(blind)})"
    if run.is_local:
        raise RunError(
            f"run {run} is on the disk of one machine, and {count}: give storage= {SHARED_PLACES}"
        )
    raise RunError(
        f"run {run} is in remote storage, and {count}: give every node the environment or the "
        "credentials file that this machine reaches it with, before Ray is started there"
    )


def _read(uri: str) -> bytes | None:
    try:
        return Place.at(uri).read()
    except DataError:
        return None


def _nodes() -> list[dict[str, Any]]:
    """Returns the nodes of the cluster, as `ray.nodes` describes them."""
    return [node for node in ray.nodes() if node["Alive"]]


def this_node() -> NodeAffinitySchedulingStrategy:
    """Returns the node of the caller, as a place for tasks and actors."""
    return NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)


@contextmanager
def _connect(address: str | None) -> Generator[None]:
    # Without one Ray would write a token to `TOKEN_FILE`, for every account to read.
    lacks_token = os.environ.get("RAY_AUTH_MODE") != "disabled" and not _environment_has_token()
    token = {"RAY_AUTH_TOKEN": _TOKEN} if address is None and lacks_token else {}
    before = signal.getsignal(signal.SIGTERM)
    # Set until the end: this process reads it for each of its connections.
    with set_variables(**token):
        if address is None:
            _start()
        else:
            _join(address)
        _own.set()
        try:
            # Ray's own handler exits, with a status that code of the user's could have given.
            _handle_sigterm(_interrupt)
            yield
        finally:
            _own.clear()
            ray.shutdown()
            _handle_sigterm(before)


def _interrupt(number: int, frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt


def _handle_sigterm(handler: Any) -> None:
    # Python lets no other thread set one, and Ray has set none there.
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, handler)


def owns_connection() -> bool:
    """Returns True if a `session` connected this process, and its end ends all tasks."""
    return _own.is_set()


def _start() -> None:
    """Starts a Ray that no other account and no other machine can use."""
    if ray.util.get_node_ip_address() != LOOPBACK:
        raise ConfigError(
            "a local Ray would listen to the network, because RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER "
            "was not 0 when Ray was imported: unset it, and start the job where Ray is not "
            "imported yet, or start Ray by ray.init() before the job"
        )
    try:
        # Ray's processes inherit the environment in which Ray starts.
        with set_variables(**SETTINGS):
            # Without an address Ray would join any cluster that it finds on the machine.
            _init("local", _node_ip_address=LOOPBACK)
    # A node that is too slow to start raises a bare Exception.
    except Exception as error:
        raise ConfigError(
            f"no local Ray can be started ({_first_line(error)}): fix that, or try again when this "
            "machine is less busy; set RAY_TMPDIR to another directory for Ray's files; or name a "
            "running cluster by cluster.address"
        ) from error


def _join(address: str) -> None:
    token = TOKEN_FILE.expanduser()
    if (
        os.environ.get("RAY_AUTH_MODE") == "token"
        and not _environment_has_token()
        and token.exists()
        and token.stat().st_mode & 0o077
    ):
        raise ConfigError(
            f"{token} is open to other accounts of this machine, and whoever reads it can run code "
            f"on the cluster: chmod 600 {token}, and give the cluster a new token if others may "
            "have read this one"
        )
    # A variable that is inherited is one of a submitted job, or Ray Train hands it on.
    settings = {name: value for name, value in SETTINGS.items() if not is_inherited(name)}
    url = urlsplit(address if "://" in address else f"//{address}")
    try:
        # If nothing listens there, Ray would take most of a minute to tell.
        if url.scheme in ("", "ray") and url.hostname and url.port:
            socket.create_connection((url.hostname, url.port), JOIN_SECONDS).close()
        # Ray tries twenty times by default, for 40 seconds each.
        with set_variables(RAY_gcs_server_port_wait_time_s="1"):
            _init(address, runtime_env={"env_vars": settings})
    except Exception as error:
        raise ConfigError(
            f"no Ray cluster at {address} ({_first_line(error)}): start it; set "
            "RAY_AUTH_MODE=token and RAY_AUTH_TOKEN if it asks for a token; correct "
            "cluster.address or RAY_ADDRESS; or leave both unset for a local one"
        ) from error


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]


def _environment_has_token() -> bool:
    return bool({"RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"} & os.environ.keys())


def _init(address: str, **options: Any) -> None:
    # Warnings and progress of workers reach the driver as results. Ray's log stream has them again.
    ray.init(address, log_to_driver=prints_details(), logging_level=logging.ERROR, **options)


def result_of(task: "ray.ObjectRef[Any]", what: str = "a task") -> Any:
    """Returns the result of a Ray task or of an actor's call.

    Raises:
        RaylabError, OSError: The task raised it.
        RunError: The task, by its name `what`, was lost with its process or node at each attempt.
        ray.exceptions.RayActorError: The actor was lost.
        ray.exceptions.RayTaskError: The task raised any other error.
    """
    try:
        return ray.get(task)
    except RayTaskError as error:
        if isinstance(error.cause, RaylabError | OSError):
            raise error.cause from error
        raise
    except RayActorError:
        raise
    except RayError as error:
        raise RunError(
            f"{what} was lost at each attempt: {error}\nfix the cause, then resume=true continues"
        ) from error


def uses_gpu(config: ClusterConfig) -> bool:
    """Returns True if each worker gets a GPU: as configured, or if the cluster has enough.

    `cluster.use_gpu=true` on a cluster without a GPU is a `ConfigError`.
    """
    gpus = sum(_shares(config, "GPU"))
    if config.use_gpu and not gpus:
        raise ConfigError("cluster.use_gpu=true, but the cluster has no GPU: leave it unset")
    return gpus >= config.fewest_workers if config.use_gpu is None else config.use_gpu


def cpus_per_worker(config: ClusterConfig) -> int:
    """Returns the CPUs of each worker: as configured, or the largest even share that fits."""
    nodes = _shares(config, "CPU")
    # More workers than the fewest find room on nodes that join.
    wanted = config.cpus_per_worker or even_share(nodes, config.fewest_workers)
    # A warning, not an error, because the cluster may still be growing.
    if sum(cpus // wanted for cpus in nodes) < config.fewest_workers:
        logger.warning(
            "cluster.workers=%d of %d CPUs each need more than the %d CPUs of the cluster that "
            "suit: waiting for nodes to join",
            config.fewest_workers,
            wanted,
            sum(nodes),
        )
    return wanted


def cpus_here() -> int | None:
    """Returns the CPUs that Ray reserved for this actor; None in a process that is no actor."""
    context = ray.get_runtime_context()
    if context.get_actor_id() is None:
        return None
    return int(context.get_assigned_resources().get("CPU", 1))


def even_share(nodes: Sequence[int], workers: int) -> int:
    """Returns the most CPUs that each of so many workers can have on these nodes, at least 1."""
    shares = range(sum(nodes) // workers, 1, -1)
    fits = (share for share in shares if sum(cpus // share for cpus in nodes) >= workers)
    return next(fits, 1)


def count_trainings(config: ClusterConfig, wanted: int | None) -> int:
    """Returns the number of trainings to run side by side: `wanted`, or all that fit.

    If none fits, or fewer than wanted, this is a `ConfigError`.
    """
    fit = count_places(config) // config.most_workers
    # More than fit would deadlock, each waiting for workers of another.
    if fit < (wanted or 1):
        raise ConfigError(
            f"{wanted or 1} training(s) at a time of cluster.workers={config.most_workers} with "
            f"{cpus_per_worker(config)} CPU(s) each do not fit on this cluster, {fit} would: lower "
            "concurrent, cluster.workers or cluster.cpus_per_worker, or add nodes"
        )
    return wanted or fit


def count_places(config: ClusterConfig) -> int:
    """Returns how many workers or tasks of this share the cluster has room for at a time."""
    cpus = cpus_per_worker(config)
    places = sum(node // cpus for node in _shares(config, "CPU"))
    return min(places, sum(_shares(config, "GPU"))) if uses_gpu(config) else places


def _shares(config: ClusterConfig, resource: str) -> list[int]:
    """Returns the amount of a resource on each node that suits a configuration."""
    has = set[str]() if (kind := config.accelerator_type) is None else {f"accelerator_type:{kind}"}
    return [
        int(node["Resources"].get(resource, 0))
        for node in _nodes()
        if has <= node["Resources"].keys()
        and config.label_selector.items() <= node["Labels"].items()
    ]
