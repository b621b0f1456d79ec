"""One local Ray for all cluster tests, started when the first of them asks."""

from collections.abc import Generator

import pytest


@pytest.fixture(scope="session")
def ray_cluster() -> Generator[None]:
    import ray

    ray.init(
        "local",
        num_cpus=4,
        log_to_driver=False,
        logging_level="ERROR",
        _system_config={"metrics_report_interval_ms": 500},
    )
    yield
    ray.shutdown()
