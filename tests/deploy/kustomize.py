"""What `kubectl kustomize` makes of a directory, as far as the files of deploy/ use it.

Tests need neither kubectl nor a cluster; where kubectl is installed, one compares the two.
"""

from copy import deepcopy
from pathlib import Path
from typing import Any

import jsonpatch
import yaml

Manifest = dict[str, Any]

LOCAL = "config.kubernetes.io/local-config"
"""Annotation of what is only copied from."""
UNDERSTOOD = {
    "apiVersion",
    "kind",
    "resources",
    "nameSuffix",
    "patches",
    "replacements",
    "configMapGenerator",
    "generatorOptions",
}


def build(directory: Path) -> list[Manifest]:
    """The objects that `kubectl apply -k` would send.

    Raises:
        ValueError: a kustomization uses what is not understood here.
    """
    objects = _built(directory)
    return [o for o in objects if LOCAL not in o["metadata"].get("annotations", {})]


def read_objects(file: Path) -> list[Manifest]:
    """The objects of one plain YAML file."""
    return list(yaml.safe_load_all(file.read_text()))


def _built(directory: Path) -> list[Manifest]:
    plan: Manifest = yaml.safe_load((directory / "kustomization.yaml").read_text())
    if unknown := plan.keys() - UNDERSTOOD:
        raise ValueError(f"{directory}: kustomize.py does not understand {', '.join(unknown)}")
    objects = [found for name in plan["resources"] for found in _resource(directory / name)]
    objects += [_config_map(directory, entry) for entry in plan.get("configMapGenerator", [])]
    for patch in plan.get("patches", []):
        operations = jsonpatch.JsonPatch(yaml.safe_load(patch["patch"]))
        for position in _selected(objects, patch["target"]):
            objects[position] = operations.apply(objects[position])
    for found in objects:
        found["metadata"]["name"] += plan.get("nameSuffix", "")
    for replacement in plan.get("replacements", []):
        _replace(objects, replacement)
    return objects


def _resource(path: Path) -> list[Manifest]:
    # Of one directory only what is not local goes on to the next, as in kustomize.
    return build(path) if path.is_dir() else read_objects(path)


def _config_map(directory: Path, entry: Manifest) -> Manifest:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": entry["name"], "namespace": entry["namespace"]}
        | entry.get("options", {}),
        "data": {name: (directory / name).read_text() for name in entry["files"]},
    }


def _selected(objects: list[Manifest], target: Manifest) -> list[int]:
    def fits(found: Manifest) -> bool:
        wanted = target.get("name", found["metadata"]["name"])
        return found["kind"] == target["kind"] and found["metadata"]["name"] == wanted

    return [position for position, found in enumerate(objects) if fits(found)]


def _replace(objects: list[Manifest], replacement: Manifest) -> None:
    source = replacement["source"]
    (position,) = _selected(objects, source)
    value: Any = objects[position]
    for key in _keys(source["fieldPath"]):
        value = value[int(key) if isinstance(value, list) else key]
    for target in replacement["targets"]:
        for position in _selected(objects, target["select"]):
            for path in target["fieldPaths"]:
                *parents, last = _keys(path)
                place: Any = objects[position]
                for key in parents:
                    place = place[int(key) if isinstance(place, list) else key]
                place[last] = deepcopy(value)


def _keys(path: str) -> list[str]:
    """`data.[serve.yaml]` is data, then serve.yaml."""
    before, bracket, within = path.partition(".[")
    return before.split(".") + ([within.removesuffix("]")] if bracket else [])
