"""The runtime environment for nodes that have Ray alone."""

import yaml
from ray.runtime_env import RuntimeEnv

from tests.deploy.manifests import DEPLOY, ROOT

WORKING_DIRECTORY = "${RAY_RUNTIME_ENV_CREATE_WORKING_DIR}"
"""Ray's name for the checkout as it was uploaded."""


def test_nodes_install_the_checkout_under_its_constraints() -> None:
    environment = RuntimeEnv(**yaml.safe_load((DEPLOY / "runtime-env.yaml").read_text()))
    constraints, package = environment.pip_config()["packages"]
    assert constraints == f"-c {WORKING_DIRECTORY}/constraints.txt"
    assert (ROOT / "constraints.txt").is_file()
    assert package == WORKING_DIRECTORY
    assert environment.env_vars() == {}
