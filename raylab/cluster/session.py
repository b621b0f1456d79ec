"""The Ray cluster of a job: joining or starting it, its nodes, and the results of its tasks."""

import importlib.util
import logging
import os
import threading
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from functools import partial
from typing import Any

import ray
from pydantic import BaseModel, ConfigDict, Field
from ray.exceptions import RayActorError, RayError, RayTaskError
from ray.job_config import JobConfig
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from raylab.background import Listeners, running
from raylab.config.base import ClusterConfig
from raylab.errors import ConfigError, DataError, RaylabError, RunError
from raylab.files import Place
from raylab.log import log_line, structured
from raylab.runs.run import RECORD, Run

logger = logging.getLogger(__name__)

SHARED_PLACES = "a directory that all nodes share, or a URI such as s3://bucket/runs"
WATCH_SECONDS = 1.0
REMOVED_IDLE = 4
"""Ray's reason of death for an idle node that an autoscaler removed."""


class Node(BaseModel):
    """A node of the cluster, as `ray.nodes` describes it."""

    model_config = ConfigDict(frozen=True)

    id: str = Field(alias="NodeID")
    address: str = Field(alias="NodeManagerAddress")
    alive: bool = Field(alias="Alive")
    death_reason: int = Field(0, alias="DeathReason")
    death_message: str = Field("", alias="DeathReasonMessage")
    resources: dict[str, float] = Field({}, alias="Resources")

    @property
    def cpus(self) -> int:
        """CPUs that Ray may use there."""
        return int(self.resources.get("CPU", 0))


@contextmanager
def session(config: ClusterConfig, run: Run | None = None) -> Generator[None]:
    """Joins the cluster of `config.address` or RAY_ADDRESS, or starts a local one, while in use.

    A line is logged for every node that is lost meanwhile.

    Args:
        config: the cluster to join.
        run: the run that tasks of the session read or write on any node.

    Raises:
        ConfigError: the `lightning` package is installed, or no Ray can be joined or started.
        RunError: a node of the cluster does not see the run's directory, or Ray will delete it.
    """
    if importlib.util.find_spec("lightning") is not None:
        raise ConfigError(
            "package lightning is installed: Ray would mix it with pytorch_lightning; "
            "pip uninstall lightning"
        )
    begun = not ray.is_initialized()
    if begun:
        _connect(config.joined)
    try:
        if run is not None:
            require_kept(run)
            _require_shared(run)
        with _watched_nodes():
            yield
    finally:
        if begun:
            ray.shutdown()


@contextmanager
def _watched_nodes() -> Generator[None]:
    over = threading.Event()
    with running(partial(_tell_losses, over), stop=over.set):
        yield


def _tell_losses(over: threading.Event) -> None:
    watch = Listeners({"nodes of the cluster": _NodeWatch().look})
    watch.tell(None)
    while not over.wait(WATCH_SECONDS):
        watch.tell(None)


class _NodeWatch:
    """Log of the nodes that are lost between two looks."""

    def __init__(self) -> None:
        self._alive: set[str] = set()

    def look(self, _: None) -> None:
        nodes = _all_nodes()
        for node in nodes:
            if node.id in self._alive and not node.alive and node.death_reason != REMOVED_IDLE:
                log_line(
                    f"node {node.address} is lost ({node.death_message}): its work continues "
                    "elsewhere from what is stored",
                    logging.WARNING,
                    node=node.address,
                )
        self._alive = {node.id for node in nodes if node.alive}


def require_kept(run: Run) -> None:
    """Refuses a run in Ray's copy of the working directory on a cluster of several nodes.

    Raises:
        RunError: Ray would delete the run, and only the node of the job has it.
    """
    if run.in_working_directory and len(_nodes()) > 1:
        raise RunError(
            f"run {run} lies in Ray's copy of the working directory, as a relative storage= does "
            "in a submitted job: other nodes have other copies, and Ray deletes them all. Give "
            f"storage= {SHARED_PLACES}"
        )


def _require_shared(run: Run) -> None:
    """Refuses a run that a node cannot read or has a separate copy of."""
    nodes = _nodes()
    if len(nodes) == 1:
        return
    record = str(run / RECORD)
    there = [_on_node(node.id, _read_file).remote(record) for node in nodes]
    own = _read_file(record)
    blind = [
        node.address for node, content in zip(nodes, there, strict=True) if not _holds(content, own)
    ]
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


def _all_nodes() -> list[Node]:
    """Returns the nodes that joined the cluster, lost ones included."""
    return [Node.model_validate(node) for node in ray.nodes()]


def _nodes() -> list[Node]:
    return [node for node in _all_nodes() if node.alive]


def _holds(probe: "ray.ObjectRef[bytes | None]", content: bytes | None) -> bool:
    """Returns True if a node reads this content or was lost meanwhile."""
    try:
        return result_of(probe) == content
    except RunError:
        return True


def this_node() -> NodeAffinitySchedulingStrategy:
    """Returns the node of the caller, as a place for tasks and actors."""
    return NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)


def _on_node(node: str, function: Callable[..., Any]) -> Any:
    place = NodeAffinitySchedulingStrategy(node, soft=False)
    return ray.remote(function).options(num_cpus=0, scheduling_strategy=place)


def _read_file(uri: str) -> bytes | None:
    try:
        return Place.at(uri).read()
    except DataError:
        return None


def _connect(address: str | None) -> None:
    # Warnings and progress of workers reach the driver as results, not through Ray's log stream.
    job = JobConfig()
    if structured():
        _log_in_json(job)
    if address is not None:
        # Ray tries twenty times by default, for 40 seconds each.
        os.environ.setdefault("RAY_gcs_server_port_wait_time_s", "1")
    try:
        # Without an address Ray would join any cluster that it finds on the machine.
        ray.init(
            address=address or "local",
            log_to_driver=False,
            logging_level=logging.ERROR,
            job_config=job,
        )
    except (OSError, ValueError, RuntimeError) as error:
        reason = str(error).partition("\n")[0]
        if address is None:
            raise ConfigError(
                f"no local Ray can be started ({reason}): fix that, set RAY_TMPDIR to another "
                "directory for its files, or name a running cluster by cluster.address"
            ) from error
        raise ConfigError(
            f"no Ray cluster at {address} ({reason}): start it; set RAY_AUTH_MODE=token and "
            "RAY_AUTH_TOKEN if it asks for a token; correct cluster.address or RAY_ADDRESS; or "
            "leave both unset for a local one"
        ) from error


def _log_in_json(job: JobConfig) -> None:
    """Makes Ray log in JSON: its workers in their log files, this process in its output."""
    # ray.init(logging_config=...) would add a second handler with other keys to this process.
    ray_logger = logging.getLogger("ray")
    ray_logger.handlers.clear()
    ray_logger.propagate = True
    job.set_py_logging_config(ray.LoggingConfig(encoding="JSON", log_level="WARNING"))


def result_of(task: "ray.ObjectRef[Any]", what: str = "a task") -> Any:
    """Returns the result of a Ray task or of an actor's call, or raises its original error.

    Args:
        task: the task, or the call of an actor.
        what: the task in words, for the message of an error.

    Raises:
        RaylabError: the task raised it.
        RunError: the task was lost with its process or node, and so were its retries.
        ray.exceptions.RayActorError: the actor was lost.
        ray.exceptions.RayTaskError: the task raised any other error.
    """
    try:
        return ray.get(task)
    except RayTaskError as error:
        if isinstance(error.cause, RaylabError):
            raise error.cause from None
        raise
    except RayActorError:
        raise
    except RayError as error:
        raise RunError(
            f"{what} was lost again and again: {error}\nfix the cause and continue with resume=true"
        ) from error


async def awaited(call: Awaitable[Any]) -> Any:
    """Returns the result of another actor's call, or raises its original error.

    Raises:
        RaylabError: the call raised it.
        RunError: the call failed by a fault of raylab.
        ray.exceptions.RayActorError: the actor was lost.
    """
    try:
        return await call
    except RayTaskError as error:
        if isinstance(error.cause, RaylabError):
            raise error.cause from None
        raise RunError(f"an actor of the run failed: {error}") from error


def uses_gpu(config: ClusterConfig) -> bool:
    """Returns True if each worker gets a GPU: as configured, or if the cluster has enough.

    Raises:
        ConfigError: `cluster.use_gpu=true` on a cluster without a GPU.
    """
    gpus = int(ray.cluster_resources().get("GPU", 0))
    if config.use_gpu and not gpus:
        raise ConfigError("cluster.use_gpu=true, but the cluster has no GPU: leave it unset")
    return gpus >= config.workers if config.use_gpu is None else config.use_gpu


def cpus_per_worker(config: ClusterConfig) -> int:
    """Returns the CPUs of each worker: as configured, or an even share that fits every node.

    Too few CPUs cause a warning, not an error, because the cluster may still be growing.
    """
    nodes = _cpus_of_nodes()
    total = sum(nodes)
    share = min(total // config.workers, min(nodes, default=1))
    wanted = config.cpus_per_worker or max(share, 1)
    if sum(cpus // wanted for cpus in nodes) < config.workers:
        logger.warning(
            "cluster.workers=%d of %d CPUs each need more than the %d CPUs of the cluster: "
            "waiting for nodes to join",
            config.workers,
            wanted,
            total,
        )
    return wanted


def trainings_at_a_time(config: ClusterConfig, wanted: int | None) -> int:
    """Returns the number of trainings to run side by side: `wanted`, or all that fit.

    Raises:
        ConfigError: the cluster holds none, or fewer than wanted: they would deadlock, each
            waiting for workers of another.
    """
    cpus = cpus_per_worker(config)
    places = sum(node // cpus for node in _cpus_of_nodes())
    if uses_gpu(config):
        places = min(places, int(ray.cluster_resources()["GPU"]))
    fit = places // config.workers
    if fit < (wanted or 1):
        raise ConfigError(
            f"{wanted or 1} training(s) at a time of cluster.workers={config.workers} with "
            f"{cpus} CPU(s) each do not fit on this cluster, {fit} would: lower concurrent, "
            "cluster.workers or cluster.cpus_per_worker, or add nodes"
        )
    return wanted or fit


def _cpus_of_nodes() -> list[int]:
    return [node.cpus for node in _nodes() if node.cpus]
