"""The cluster of VMs, by Ray's own validator."""

from copy import deepcopy

import pytest
import yaml
from ray.autoscaler._private.util import prepare_config, validate_config

from tests.deploy.manifests import DEPLOY, VERSION, Manifest

CONFIG: Manifest = yaml.safe_load((DEPLOY / "launcher/vms.yaml").read_text())


def test_ray_takes_it() -> None:
    validate_config(prepare_config(deepcopy(CONFIG)))


def test_ray_sees_a_mistake() -> None:
    with pytest.raises(Exception, match="head_start_ray_command"):
        validate_config(prepare_config(CONFIG | {"head_start_ray_command": []}))


def starts() -> list[str]:
    commands = CONFIG["head_start_ray_commands"] + CONFIG["worker_start_ray_commands"]
    return [command for command in commands if "ray start" in command]


def test_head_and_workers_have_token_authentication_on() -> None:
    assert len(starts()) == 2
    assert all(command.startswith("RAY_AUTH_MODE=token ray start") for command in starts())


def test_the_token_comes_as_a_file_that_its_owner_alone_reads() -> None:
    path = "/home/ray/.ray/auth_token"
    assert CONFIG["file_mounts"] == {path: "~/.ray/auth_token"}
    assert f"chmod 600 {path}" in CONFIG["setup_commands"]


def test_the_dashboard_is_on_loopback() -> None:
    head = next(command for command in starts() if "--head" in command)
    assert "--dashboard-host=127.0.0.1" in head


def test_the_container_is_confined() -> None:
    options = CONFIG["docker"]["run_options"]
    assert {"--security-opt=no-new-privileges", "--cap-drop=ALL"} <= set(options)
    assert "--privileged" not in options


def test_the_image_is_the_one_that_is_built() -> None:
    assert CONFIG["docker"]["image"] == f"raylab-cpu:{VERSION}"
