"""The cluster of VMs and the runtime environment, as Ray reads them."""

from copy import deepcopy

import yaml
from ray.autoscaler._private.util import prepare_config, validate_config
from ray.runtime_env import RuntimeEnv

from tests.deploy.manifests import DEPLOY, ROOT, Manifest

CONFIG: Manifest = yaml.safe_load((DEPLOY / "launcher/vms.yaml").read_text())


def test_ray_takes_it() -> None:
    validate_config(prepare_config(deepcopy(CONFIG)))


def test_head_and_workers_have_token_authentication_on() -> None:
    commands = CONFIG["head_start_ray_commands"] + CONFIG["worker_start_ray_commands"]
    head, worker = (command for command in commands if "ray start" in command)
    assert head.startswith("RAY_AUTH_MODE=token ray start --head")
    assert worker.startswith("RAY_AUTH_MODE=token ray start")
    # The dashboard is on loopback.
    assert "--dashboard-host=127.0.0.1" in head


def test_the_token_comes_as_a_file_that_its_owner_alone_reads() -> None:
    path = "/home/ray/.ray/auth_token"
    assert CONFIG["file_mounts"] == {path: "~/.ray/auth_token"}
    assert f"chmod 600 {path}" in CONFIG["setup_commands"]


WORKING_DIRECTORY = "${RAY_RUNTIME_ENV_CREATE_WORKING_DIR}"
"""Ray's name for the checkout as it was uploaded."""


def test_nodes_install_what_is_locked_by_its_hash() -> None:
    environment = RuntimeEnv(**yaml.safe_load((DEPLOY / "runtime-env.yaml").read_text()))
    pip = environment.pip_config()
    names = [package.removeprefix(f"-r {WORKING_DIRECTORY}/") for package in pip["packages"]]
    assert names == ["deploy/locks/run.txt", "deploy/locks/cuda.txt"]
    assert all((ROOT / name).is_file() for name in names)
    options = ["--require-hashes", "--no-deps", "--no-build-isolation"]
    assert pip["pip_install_options"] == options
    assert environment.env_vars() == {}
