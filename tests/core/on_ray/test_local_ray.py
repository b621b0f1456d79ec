"""The Ray that a job starts on this machine: who reaches it, and what it leaves and says."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from raylab.core.config.base import ClusterConfig
from raylab.core.errors import ConfigError
from raylab.core.on_ray.session import SETTINGS, session

pytestmark = pytest.mark.ray

SCRIPT = """
import json, os, time
import psutil
from raylab.core.config.base import ClusterConfig
from raylab.core.environment import READ_BY_RAY_ON_IMPORT, set_variables
with set_variables(**READ_BY_RAY_ON_IMPORT):
    import ray
from raylab.core.on_ray.session import SETTINGS, session
from raylab.label.on_ray.driver import end_actors

class Actor:
    def work(self):
        return os.environ["RAY_AUTH_MODE"], os.environ["RAY_TRAIN_HEALTH_CHECK_INTERVAL_S"]

def listening():
    own = psutil.Process()
    for process in [own, *own.children(recursive=True)]:
        for connection in process.net_connections("inet"):
            if connection.status == psutil.CONN_LISTEN:
                yield process.name(), connection.laddr.ip.removeprefix("::ffff:")

with session(ClusterConfig()):
    restarting = ray.remote(Actor).options(max_restarts=-1, max_task_retries=-1)
    actors = [restarting.remote() for _ in range(2)]
    theirs, _ = ray.get([actor.work.remote() for actor in actors])
    here = [name for name in os.environ if name.startswith("RAY_")]
    print(json.dumps({"theirs": theirs, "here": here, "listening": list(listening())}))
    end_actors(actors)
    # Ray reports a retry within this time.
    time.sleep(2)
with session(ClusterConfig()):
    again, _ = ray.get(ray.remote(Actor).remote().work.remote())
left = [name for name in os.environ if name.startswith("RAY_")]
print(json.dumps({"again": again, "left": left}))
"""


def test_a_local_ray_is_private_and_ends_in_silence(tmp_path: Path) -> None:
    environment = {key: value for key, value in os.environ.items() if not key.startswith("RAY_")}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        env=environment | {"HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    seen, after = map(json.loads, done.stdout.splitlines())
    assert {ip for _, ip in seen["listening"]} == {"127.0.0.1"}
    assert {"gcs_server", "raylet"} <= {name for name, _ in seen["listening"]}
    assert seen["theirs"] == ["token", "0.25"]
    ours = {*SETTINGS, "RAY_gcs_server_port_wait_time_s"}
    assert not ours & set(seen["here"])
    assert not (tmp_path / ".ray" / "auth_token").exists()
    assert done.stderr == ""
    # Ray itself leaves others.
    assert after["again"] == "token" and not {*ours, "RAY_AUTH_TOKEN"} & set(after["left"])


HANGS = """
import threading, time
import psutil
from raylab.core.config.base import ClusterConfig
from raylab.core.environment import READ_BY_RAY_ON_IMPORT, set_variables
from raylab.core.errors import ConfigError
with set_variables(**READ_BY_RAY_ON_IMPORT):
    from raylab.core.on_ray.session import session

def hang():
    while True:
        for child in psutil.Process().children(recursive=True):
            if child.name() == "raylet":
                child.suspend()
                return
        time.sleep(0.01)

threading.Thread(target=hang, daemon=True).start()
try:
    with session(ClusterConfig()):
        pass
except ConfigError as error:
    print(error)
"""


@pytest.mark.slow
def test_a_ray_that_hangs_when_it_starts_is_told_with_the_way_out() -> None:
    environment = {key: value for key, value in os.environ.items() if not key.startswith("RAY_")}
    command = [sys.executable, "-c", HANGS]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("no local Ray can be started (The current node timed out during")
    assert done.stdout.endswith("or name a running cluster by cluster.address\n")


def test_a_ray_that_would_listen_to_the_network_is_not_started(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("ray.is_initialized", lambda: False)
    monkeypatch.setattr("ray.util.get_node_ip_address", lambda: "10.0.0.7")
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    with pytest.raises(ConfigError, match=r"start Ray by ray\.init\(\)"), session(ClusterConfig()):
        pass


@pytest.mark.parametrize("mode", [0o644, 0o640])
def test_a_token_that_others_can_read_joins_no_cluster(
    mode: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = tmp_path / ".ray" / "auth_token"
    token.parent.mkdir()
    token.write_text("0" * 64)
    token.chmod(mode)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    monkeypatch.delenv("RAY_AUTH_TOKEN", raising=False)
    monkeypatch.setattr("ray.is_initialized", lambda: False)
    with (
        pytest.raises(ConfigError, match=f"{token} is open to .*: chmod 600 {token}, "),
        session(ClusterConfig(address="127.0.0.1:1")),
    ):
        pass


@pytest.mark.parametrize("scheme", ["", "ray://"])
def test_an_address_where_nothing_listens_is_told_within_seconds(
    scheme: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RAY_AUTH_MODE", raising=False)
    monkeypatch.setattr("ray.is_initialized", lambda: False)
    begun = time.monotonic()
    with (
        pytest.raises(
            ConfigError, match=r"no Ray cluster at .*127\.0\.0\.1:1 \(.*refused\): start"
        ),
        session(ClusterConfig(address=f"{scheme}127.0.0.1:1")),
    ):
        pass
    assert time.monotonic() - begun < 30
