import os
from typing import Any

import pytest
import ray
from ray.exceptions import RayTaskError

from raylab.core.config.base import ClusterConfig
from raylab.core.errors import ConfigError, DataError, RunError
from raylab.core.on_ray.session import (
    count_trainings,
    cpus_per_worker,
    even_share,
    result_of,
    uses_gpu,
)
from raylab.core.on_ray.workers import RayWorkers

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("ray_cluster")]


@pytest.mark.parametrize(
    ("nodes", "workers", "share"),
    # A head of one CPU limits nobody; five workers do not fit two nodes of eight with four each.
    [([1, 16], 2, 8), ([8, 8], 5, 2), ([4, 4], 3, 2), ([2], 4, 1), ([], 1, 1)],
)
def test_workers_share_nodes_evenly(nodes: list[int], workers: int, share: int):
    assert even_share(nodes, workers) == share


def test_trainings_share_the_cluster_and_more_than_fit_are_refused():
    """The cluster has 2 CPUs; trainings that wait for each other's workers never end."""

    def at_a_time(workers: int, wanted: int | None) -> int:
        config = ClusterConfig(workers=workers, cpus_per_worker=1, use_gpu=False)
        return count_trainings(config, wanted)

    assert [at_a_time(1, None), at_a_time(1, 1), at_a_time(2, None)] == [2, 1, 1]
    for workers, wanted, fit in ((1, 3, 2), (2, 2, 1), (3, None, 0)):
        message = rf"^{wanted or 1} training\(s\) at a time .* {fit} would: lower concurrent"
        with pytest.raises(ConfigError, match=message):
            at_a_time(workers, wanted)


@pytest.mark.parametrize(
    ("selector", "accelerator", "suits"),
    [
        ({"pool": "spot"}, "T4", True),
        ({"pool": "spot", "zone": "east"}, None, False),
        ({}, "A100", False),
    ],
)
def test_shares_are_of_the_nodes_that_have_the_labels_and_the_accelerator(
    selector: dict[str, str], accelerator: str | None, suits: bool, monkeypatch: pytest.MonkeyPatch
):
    resources = {"CPU": 8.0, "GPU": 2.0, "accelerator_type:T4": 1.0}
    node = {"NodeID": "1", "NodeManagerAddress": "10.0.0.1", "Alive": True, "Resources": resources}
    monkeypatch.setattr("ray.nodes", lambda: [node | {"Labels": {"pool": "spot"}}])
    config = ClusterConfig(workers=(2, 4), accelerator_type=accelerator, label_selector=selector)
    # Of the fewest workers.
    assert cpus_per_worker(config) == (4 if suits else 1)
    assert uses_gpu(config) is suits


def test_tasks_run_on_the_nodes_that_have_the_labels():
    def double(number: int) -> int:
        return 2 * number

    node = ray.get_runtime_context().get_node_id()
    cluster = ClusterConfig(workers=2, label_selector={"ray.io/node-id": node})
    assert dict(RayWorkers(cluster).run(double, {"one": (1,)})) == {"one": 2}


def test_the_error_of_a_task_is_raylabs_own_or_else_that_of_ray():
    def fail(error: Exception) -> None:
        raise error

    task: Any = ray.remote(num_cpus=0)(fail)
    with pytest.raises(DataError, match=r"^no such file$") as caught:
        result_of(task.remote(DataError("no such file")))
    assert type(caught.value) is DataError
    with pytest.raises(RayTaskError, match="ZeroDivisionError"):
        result_of(task.remote(ZeroDivisionError()))


def test_a_task_that_is_lost_each_time_is_an_error_with_the_way_out():
    def die() -> None:
        os._exit(1)

    task: Any = ray.remote(num_cpus=0, max_retries=1)(die)
    with pytest.raises(RunError, match=r"(?s)^counting was lost at each attempt: .*resume=true"):
        result_of(task.remote(), "counting")
