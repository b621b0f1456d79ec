"""Servers and a cluster for all tests, each started when the first of them asks."""

import re
import runpy
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import settings
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

from tests.label.archive.postgres import PostgresServer, postgres_server
from tests.llm.scripted_server import server_process
from tests.object_storage import ObjectStorage, s3_server

ROOT = Path(__file__).parents[1]
KEY_VARIABLE, KEY = "RAYLAB_TEST_KEY", "sk-raylab-0123456789abcdef"
"""A key of the chat server that every worker of the local Ray has."""

# How long an example takes says more about the machine than about the code.
settings.register_profile("raylab", deadline=None)
settings.load_profile("raylab")

# A shell starts a background job with SIGINT ignored, which the jobs that tests stop would inherit.
signal.signal(signal.SIGINT, signal.default_int_handler)

RunScript = Callable[..., "subprocess.CompletedProcess[str]"]


class FileScheduling(LoadScopeScheduling):
    """Gives a test process whole files, and one process all that share the local Ray."""

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.split("::")[0]
        text = (ROOT / file).read_text(encoding="utf-8")
        shares_ray = re.search(r"\b(ray_cluster|run_script: RunScript)\b", text)
        return "ray" if shares_ray else file


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadScopeScheduling:
    return FileScheduling(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Puts the tests on Ray first: they take the longest."""
    items.sort(key=lambda item: item.get_closest_marker("ray") is None)


@pytest.fixture(scope="session")
def object_storage() -> Iterator[ObjectStorage]:
    with s3_server() as storage:
        yield storage


@pytest.fixture
def s3(object_storage: ObjectStorage, monkeypatch: pytest.MonkeyPatch) -> ObjectStorage:
    """The object storage, in the environment of one of its users."""
    for name, value in object_storage.environment.items():
        monkeypatch.setenv(name, value)
    return object_storage


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """One server for all tests; a test that kills it starts it again."""
    with postgres_server() as server:
        yield server


@pytest.fixture(scope="session")
def chat() -> Iterator[str]:
    """URL of a scripted chat server that fails at nothing."""
    with server_process() as url:
        yield url


@pytest.fixture(scope="session")
def ray_cluster(object_storage: ObjectStorage) -> Iterator[None]:
    """A local Ray of two CPUs, whose workers reach the object storage and have a key."""
    import ray

    from raylab.core.on_ray.session import SETTINGS

    with pytest.MonkeyPatch.context() as patch:
        environment = object_storage.environment | {KEY_VARIABLE: KEY} | SETTINGS
        for name, value in environment.items():
            patch.setenv(name, value)
        ray.init(
            "local",
            num_cpus=2,
            log_to_driver=False,
            logging_level="ERROR",
            _system_config={"metrics_report_interval_ms": 500},
        )
    yield
    ray.shutdown()


@pytest.fixture
def run_script(
    ray_cluster: None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> RunScript:
    """Runs the script of a job in this process, where it uses the Ray that is there."""

    def run(job: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
        script = f"{ROOT}/jobs/{job}.py"
        capsys.readouterr()
        with monkeypatch.context() as patch, pytest.raises(SystemExit) as ended:
            patch.chdir(tmp_path)
            patch.setattr(sys, "argv", [script, *arguments])
            runpy.run_path(script, run_name="__main__")
        status = ended.value.code
        assert isinstance(status, int)
        return subprocess.CompletedProcess([job, *arguments], status, *capsys.readouterr())

    return run
