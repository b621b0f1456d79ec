"""The runtime environment for nodes that have Ray alone."""

import yaml
from ray.runtime_env import RuntimeEnv

from tests.deploy.manifests import DEPLOY, ROOT

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
