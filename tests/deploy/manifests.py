"""The objects of deploy/, the pods within them, and the jobs that deploy/README.md lists."""

import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

Manifest = dict[str, Any]

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
README = (DEPLOY / "README.md").read_text()
FILES = ["base", "raycluster", "rayjob", "secrets.example"]
OBJECTS: list[Manifest] = [
    found
    for path in [*(DEPLOY / f"kuberay/{name}.yaml" for name in FILES), DEPLOY / "vllm/vllm.yaml"]
    for found in yaml.safe_load_all(path.read_text())
]
VERSION: str = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]


@dataclass(frozen=True)
class Pod:
    """A pod that will be made from a template.

    Attributes:
        where: cluster or job, and place of the template.
        metadata: of the template.
        spec: of the template.
    """

    where: str
    metadata: Manifest
    spec: Manifest

    @property
    def role(self) -> str:
        return self.metadata["labels"]["raylab/role"]

    @property
    def container(self) -> Manifest:
        """The only container of the template."""
        (container,) = self.spec["containers"]
        return container


@dataclass(frozen=True)
class Job:
    """A row of the jobs in README.md, by which rayjob.yaml is changed.

    Attributes:
        name: of the job.
        arguments: its command line, after those that all have.
        cpus: replicas of the CPU group.
        gpus: replicas of the GPU group.
    """

    name: str
    arguments: str
    cpus: int
    gpus: int


JOBS = [
    Job(name, arguments, int(cpus), int(gpus))
    for name, arguments, cpus, gpus in re.findall(
        r"^\| (\w+) \| `(.+?)` \| .* \| .* \| (\d) \| (\d) \|$", README, re.M
    )
]


def of_kind(kind: str) -> list[Manifest]:
    return [found for found in OBJECTS if found["kind"] == kind]


def the(kind: str) -> Manifest:
    """The only object of a kind."""
    (found,) = of_kind(kind)
    return found


def clusters() -> dict[str, Manifest]:
    """The specifications of the Ray clusters, by what runs on them."""
    return {
        "standing": the("RayCluster")["spec"],
        "job": the("RayJob")["spec"]["rayClusterSpec"],
        "models": the("RayService")["spec"]["rayClusterConfig"],
    }


def pods() -> Iterator[Pod]:
    """Every pod that the operator makes, without those it copies."""
    for where, spec in clusters().items():
        groups = [{"groupName": "head"} | spec["headGroupSpec"], *spec["workerGroupSpecs"]]
        for group in groups:
            template = group["template"]
            name = f"{where} {group['groupName']}"
            yield Pod(name, template["metadata"], template["spec"])
    template = the("RayJob")["spec"]["submitterPodTemplate"]
    yield Pod("submitter", template["metadata"], template["spec"])
