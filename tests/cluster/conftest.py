"""One local Ray for all cluster tests, started when the first of them asks."""

import os
from collections.abc import Generator

import pytest


@pytest.fixture(scope="session")
def ray_cluster() -> Generator[None]:
    os.environ.setdefault("RAY_TRAIN_HEALTH_CHECK_INTERVAL_S", "0.25")
    os.environ.setdefault("RAY_TRAIN_ENABLE_PREEMPTION_WATCHER", "0")
    import ray

    ray.init(num_cpus=4, log_to_driver=False, logging_level="ERROR")
    yield
    ray.shutdown()
