"""What is recorded when Ray refuses it."""

import logging
import threading
import time
from typing import Any

import psutil
import pytest
import ray
from ray.exceptions import RayActorError

from raylab.cluster.annotation import driver
from raylab.cluster.metrics import CASES, EPOCH, Meters
from tests.cluster.scrape import exported

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("ray_cluster")]


def test_a_metric_that_ray_refuses_fails_nothing_and_is_warned_of_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    meters = Meters("refused")
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            meters.record(CASES, 2)
            meters.record(EPOCH, "three", training="t")
    told = [record.getMessage() for record in caplog.records]
    assert len(told) == 2
    assert told[0].startswith("metric raylab_cases is not recorded: Missing value for tag key(s)")
    assert told[1].startswith("metric raylab_training_epoch is not recorded: value must be")


@ray.remote(num_cpus=0.1)
class Counting:
    def count(self) -> None:
        Meters("ended").record(CASES, 3, status="accepted")

    def sleep(self) -> None:
        time.sleep(600)


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


def test_an_actor_that_does_not_end_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "END_SECONDS", 0.5)
    actor: Any = Counting.remote()
    ray.get(actor.__ray_ready__.remote())
    sleeping = actor.sleep.remote()
    driver.end_actors([actor])
    with pytest.raises(RayActorError):
        ray.get(sleeping, timeout=30)
