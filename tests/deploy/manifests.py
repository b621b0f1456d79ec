"""The objects of deploy/ by where they come from, and the pods within them."""

import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tests.deploy.kustomize import Manifest, build, read_objects

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
KUBERAY = DEPLOY / "kuberay"
JOBS = sorted(path.name for path in (KUBERAY / "jobs").iterdir())
BUILDS = ["kuberay/base", "kuberay/cluster", *(f"kuberay/jobs/{job}" for job in JOBS), "vllm"]
PLAIN = ["kuberay/base/secrets.example.yaml"]
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


@cache
def objects_of(build_name: str) -> list[Manifest]:
    path = DEPLOY / build_name
    return build(path) if path.is_dir() else read_objects(path)


def all_objects() -> list[Manifest]:
    return [found for name in [*BUILDS, *PLAIN] for found in objects_of(name)]


def of_kind(kind: str) -> list[Manifest]:
    return [found for found in all_objects() if found["kind"] == kind]


def clusters() -> dict[str, Manifest]:
    """The Ray clusters that differ, by the object that they are of.

    Those of the jobs are as the standing one, but for the number of workers: a test compares them.
    """
    (standing,), (service,) = of_kind("RayCluster"), of_kind("RayService")
    return {"jobs": standing["spec"], "models": service["spec"]["rayClusterConfig"]}


def pods() -> Iterator[Pod]:
    """Every pod that the operator makes, without those it copies."""
    for where, spec in clusters().items():
        head = spec["headGroupSpec"]["template"]
        yield Pod(f"{where} head", head["metadata"], head["spec"])
        for group in spec["workerGroupSpecs"]:
            template = group["template"]
            name = f"{where} {group['groupName']}"
            yield Pod(name, template["metadata"], template["spec"])
    for job in of_kind("RayJob"):
        template = job["spec"]["submitterPodTemplate"]
        name = f"{job['metadata']['name']} submitter"
        yield Pod(name, template["metadata"], template["spec"])


def files_of_deploy() -> list[Path]:
    return sorted(path for path in DEPLOY.rglob("*") if path.is_file() and path.suffix != ".pyc")
