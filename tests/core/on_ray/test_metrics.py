"""The export of what an actor counted last."""

import threading
from typing import Any

import psutil
import pytest
import ray

from raylab.core.on_ray.metrics import CASES, Meters
from raylab.label.on_ray import driver
from tests.core.on_ray.scrape import exported

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("ray_cluster")]


@ray.remote(num_cpus=0.1)
class Counting:
    def count(self) -> None:
        Meters("ended").record(CASES, 3, status="accepted")


def test_what_an_actor_counted_last_is_exported_though_the_agent_is_slow() -> None:
    (agent,) = (
        process
        for process in psutil.Process().children(recursive=True)
        if process.cmdline() and process.cmdline()[0].startswith("ray::DashboardAgent")
    )
    actor: Any = Counting.remote()
    ray.get(actor.__ray_ready__.remote())
    resume = threading.Timer(2.0, agent.resume)
    agent.suspend()
    resume.start()
    try:
        ray.get(actor.count.remote())
        driver.end_actors([actor])
    finally:
        resume.join()
    exported("ended", {"ray_raylab_cases_total": 3})
