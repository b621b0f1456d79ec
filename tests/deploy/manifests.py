"""The objects of deploy/ and the pods within them."""

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
FILES = [*sorted((DEPLOY / "kuberay").glob("*.yaml")), DEPLOY / "vllm/vllm.yaml"]
OBJECTS: list[Manifest] = [
    document for path in FILES for document in yaml.safe_load_all(path.read_text())
]
VERSION: str = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]


@dataclass(frozen=True)
class Pod:
    """A pod that will be made from a template: the cluster or job and its place in it."""

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


def of_kind(kind: str) -> list[Manifest]:
    return [document for document in OBJECTS if document["kind"] == kind]


def the(kind: str) -> Manifest:
    """The only object of a kind."""
    (document,) = of_kind(kind)
    return document


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
        for group in ({"groupName": "head"} | spec["headGroupSpec"], *spec["workerGroupSpecs"]):
            yield Pod(f"{where} {group['groupName']}", **group["template"])
    yield Pod("submitter", **the("RayJob")["spec"]["submitterPodTemplate"])
