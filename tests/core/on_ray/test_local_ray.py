"""The Ray that a job starts on this machine: who reaches it, and what it leaves and says."""

import json
import os
import re
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


def run_alone(script: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    """Runs a script in a process that has no variable of Ray."""
    others = {key: value for key, value in os.environ.items() if not key.startswith("RAY_")}
    done = subprocess.run(
        [sys.executable, "-c", script],
        env=others | environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return done


def test_a_local_ray_is_private_and_ends_in_silence(tmp_path: Path) -> None:
    done = run_alone(SCRIPT, HOME=str(tmp_path))
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
    done = run_alone(HANGS)
    assert done.stdout.startswith("no local Ray can be started (The current node timed out during")
    assert done.stdout.endswith("or name a running cluster by cluster.address\n")


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """As in a process that has no connection to a Ray and knows of none."""
    for name in ("RAY_ADDRESS", "RAY_AUTH_MODE", "RAY_AUTH_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("ray.is_initialized", lambda: False)
    return monkeypatch


def refusal(**cluster: str) -> str:
    with pytest.raises(ConfigError) as caught, session(ClusterConfig.model_validate(cluster)):
        pass
    return str(caught.value)


def test_a_ray_that_would_listen_to_the_network_is_not_started(alone: pytest.MonkeyPatch) -> None:
    alone.setattr("ray.util.get_node_ip_address", lambda: "10.0.0.7")
    assert "start Ray by ray.init()" in refusal()


@pytest.mark.parametrize("mode", [0o644, 0o640])
def test_a_token_that_others_can_read_joins_no_cluster(
    mode: int, tmp_path: Path, alone: pytest.MonkeyPatch
) -> None:
    token = tmp_path / ".ray" / "auth_token"
    token.parent.mkdir()
    token.write_text("0" * 64)
    token.chmod(mode)
    alone.setenv("HOME", str(tmp_path))
    alone.setenv("RAY_AUTH_MODE", "token")
    refused = refusal(address="127.0.0.1:1")
    assert f"{token} is open to " in refused and f": chmod 600 {token}, " in refused


@pytest.mark.parametrize("scheme", ["", "ray://"])
def test_an_address_where_nothing_listens_is_told_within_seconds(
    scheme: str, alone: pytest.MonkeyPatch
) -> None:
    begun = time.monotonic()
    refused = refusal(address=f"{scheme}127.0.0.1:1")
    assert re.search(r"no Ray cluster at .*127\.0\.0\.1:1 \(.*refused\): start", refused)
    assert time.monotonic() - begun < 30
