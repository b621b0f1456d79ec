"""The manifests for Kubernetes: of the form that it takes, and as closed as README.md says."""

import json
import re
import shlex
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml

from raylab.core.config.compose import load_config
from tests.deploy.manifests import (
    DEPLOY,
    OBJECTS,
    README,
    ROOT,
    VERSION,
    Manifest,
    Pod,
    clusters,
    of_kind,
    pods,
    the,
)
from tests.job_configs import JOB_CONFIGS

KUBERNETES = "1.34"
KUBERAY: Manifest = json.loads((Path(__file__).parent / "kuberay.json").read_text())
KINDS = {kind.job: kind for kind in JOB_CONFIGS}
JOBS: list[tuple[str, str, str, str]] = re.findall(
    r"^\| (\w+) \| `(.+?)` \| (\d) \| (\d) \|$", README, re.M
)
"""Rows of README.md that say how rayjob.yaml is changed: job, arguments, CPU and GPU workers."""
LOOKS_SECRET = re.compile(
    r"""
      \b(sk|hf|ghp|xox[bp])[-_][A-Za-z0-9_-]{16,}    # keys of well-known services
    | \bAKIA[A-Z0-9]{16}\b
    | BEGIN\ [A-Z ]*PRIVATE\ KEY
    | ://[^/\s:@]+:[^/\s:@]+@                        # user:password@host
    | (?<!sha256:)\b[0-9a-f]{32,}\b                  # tokens as Ray and openssl make them
    """,
    re.VERBOSE,
)

each_pod = pytest.mark.parametrize("pod", list(pods()), ids=lambda pod: pod.where)
each_cluster = pytest.mark.parametrize("spec", list(clusters().values()), ids=list(clusters()))


def validate_as_kubernetes(document: Manifest) -> None:
    kubernetes_validate.validate(document, KUBERNETES, strict=True)


@pytest.mark.parametrize("document", OBJECTS, ids=lambda o: f"{o['kind']} {o['metadata']['name']}")
def test_every_object_is_of_the_form_that_its_api_takes(document: Manifest) -> None:
    if document["kind"] in KUBERAY["properties"]:
        assert document["apiVersion"] == "ray.io/v1"
        jsonschema.validate({document["kind"]: document["spec"]}, KUBERAY)
    else:
        validate_as_kubernetes(document)


@each_cluster
def test_the_autoscaler_is_a_container_that_kubernetes_takes(spec: Manifest) -> None:
    options = spec["autoscalerOptions"]
    fields = {key: options[key] for key in ("resources", "securityContext", "volumeMounts")}
    container = {"name": "autoscaler", "image": "raylab", **fields}
    pod = {"metadata": {"name": "head"}, "spec": {"containers": [container]}}
    validate_as_kubernetes({"apiVersion": "v1", "kind": "Pod", **pod})
    assert_confined(options["securityContext"])


# Jobs


def test_every_job_that_works_on_a_cluster_is_in_the_table() -> None:
    scripts = {path.stem for path in (ROOT / "jobs").glob("*.py")}
    alone = {"benchmark", "conclude", "report", "review"}
    assert sorted(name for name, *_ in JOBS) == sorted(scripts - alone)


def test_the_rayjob_is_that_of_training_in_the_table() -> None:
    rayjob = the("RayJob")
    ((_, arguments, *replicas),) = (job for job in JOBS if job[0] == "train")
    command = f"python /opt/raylab/jobs/train.py storage=/shared/runs resume=true {arguments}"
    assert rayjob["spec"]["entrypoint"] == command
    assert rayjob["metadata"]["name"] == "raylab-train"
    assert rayjob["spec"]["backoffLimit"] > 0
    groups = rayjob["spec"]["rayClusterSpec"]["workerGroupSpecs"]
    assert [str(group["replicas"]) for group in groups] == replicas


@pytest.mark.parametrize(("name", "line", "cpus", "gpus"), JOBS, ids=[job[0] for job in JOBS])
def test_a_job_finds_the_workers_it_needs_on_shared_storage(
    name: str, line: str, cpus: str, gpus: str
) -> None:
    file, arguments = None, shlex.split(line)
    if arguments[0] == "--config":
        assert arguments[1] == "/etc/raylab/models.yaml"
        file, arguments = DEPLOY / "vllm/models.yaml", arguments[2:]
    order = ["storage=/shared/runs", "resume=true", *arguments]
    config: Any = load_config(KINDS[name], order, file)
    assert config.name is not None
    mounts = clusters()["job"]["headGroupSpec"]["template"]["spec"]["containers"][0]["volumeMounts"]
    (shared,) = (mount["mountPath"] for mount in mounts if mount["name"] == "storage")
    assert Path(config.storage).is_relative_to(shared)
    cpus_of_a_node = 4
    workers = int(gpus) if config.cluster.use_gpu else cpus_of_a_node * int(cpus)
    assert workers >= config.cluster.most_workers


def test_a_job_has_the_standing_cluster_but_for_the_number_of_workers() -> None:
    spec = json.loads(json.dumps(clusters()["job"]))
    standing = clusters()["standing"]
    for group, model in zip(spec["workerGroupSpecs"], standing["workerGroupSpecs"], strict=True):
        assert group["minReplicas"] == group["replicas"] <= group["maxReplicas"]
        group |= {key: model[key] for key in ("replicas", "minReplicas")}
    assert spec == standing
    assert f"ray=={standing['rayVersion']}\n" in (ROOT / "constraints.txt").read_text()


# Security


@each_cluster
def test_every_cluster_asks_for_the_token_of_a_secret(spec: Manifest) -> None:
    secrets = {secret["metadata"]["name"] for secret in of_kind("Secret")}
    assert spec["authOptions"]["mode"] == "token"
    assert spec["authOptions"]["secretName"] in secrets


@each_pod
def test_every_pod_is_confined(pod: Pod) -> None:
    metadata = {"metadata": pod.metadata, "spec": pod.spec}
    validate_as_kubernetes({"apiVersion": "v1", "kind": "Pod", **metadata})
    assert {"name": "RAY_AUTH_MODE", "value": "token"} in pod.container["env"]
    security = pod.spec["securityContext"]
    assert security["runAsNonRoot"] is True
    assert security["runAsUser"] > 0
    assert security["seccompProfile"] == {"type": "RuntimeDefault"}
    assert not {"hostNetwork", "hostPID", "hostIPC", "initContainers"} & pod.spec.keys()
    assert not [volume for volume in pod.spec["volumes"] if "hostPath" in volume]
    assert_confined(pod.container["securityContext"])
    name, tag = pod.container["image"].split(":")
    assert tag == VERSION if name.startswith("raylab") else tag != "latest"
    # Ray writes below these alone; the root is read-only.
    writable = {volume["name"] for volume in pod.spec["volumes"] if "emptyDir" in volume}
    paths = {m["mountPath"] for m in pod.container["volumeMounts"] if m["name"] in writable}
    assert paths >= ({"/tmp"} if pod.role == "submitter" else {"/tmp", "/dev/shm"})


def assert_confined(security: Manifest) -> None:
    assert security == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }


@each_pod
def test_no_job_has_rights_in_kubernetes(pod: Pod) -> None:
    assert pod.spec["automountServiceAccountToken"] is False
    tokens = {volume["name"] for volume in pod.spec["volumes"] if "projected" in volume}
    assert not tokens & {mount["name"] for mount in pod.container["volumeMounts"]}
    accounts = {account["metadata"]["name"] for account in of_kind("ServiceAccount")}
    assert pod.spec["serviceAccountName"] in accounts
    assert not [document for document in OBJECTS if "Role" in document["kind"]]


@each_cluster
def test_the_head_runs_no_work_and_shows_itself_to_nobody_outside(spec: Manifest) -> None:
    head = spec["headGroupSpec"]
    assert head["rayStartParams"] == {"num-cpus": "0"}
    assert head["serviceType"] == "ClusterIP"


def test_all_objects_are_in_a_namespace_that_refuses_unconfined_pods() -> None:
    namespace = the("Namespace")["metadata"]
    assert namespace["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"
    others = [document for document in OBJECTS if document["kind"] != "Namespace"]
    assert {document["metadata"]["namespace"] for document in others} == {namespace["name"]}


def policies() -> dict[str, Manifest]:
    return {policy["metadata"]["name"]: policy["spec"] for policy in of_kind("NetworkPolicy")}


def ingress_of(role: str) -> dict[str, list[int]]:
    """The ports of the pods of a role by who reaches them; no ports are all of them."""
    ports: dict[str, list[int]] = {}
    for spec in policies().values():
        if f'"{role}"' not in json.dumps(spec["podSelector"]):
            continue
        for rule in spec.get("ingress", []):
            for peer in rule["from"]:
                labels = peer["podSelector"]["matchLabels"]
                name = labels.get("raylab/role") or labels["app.kubernetes.io/name"]
                assert ("raylab/role" in labels) is ("namespaceSelector" not in peer)
                ports[name] = [port["port"] for port in rule.get("ports", [])]
    return ports


def test_who_reaches_which_port_of_a_cluster() -> None:
    assert policies()["default-deny"] == {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}
    assert ingress_of("ray") == {
        "ray": [],
        "submitter": [8265],
        "kuberay-operator": [8265],
        "prometheus": [8080, 44217, 44227],
    }
    # Only a cluster's own pods reach all its ports.
    assert [peer for peer, ports in ingress_of("llm").items() if not ports] == ["llm"]


def test_who_comes_from_another_namespace_is_named_with_it() -> None:
    peers = [
        peer
        for spec in policies().values()
        for rule in [*spec.get("ingress", []), *spec.get("egress", [])]
        for peer in [*rule.get("from", []), *rule.get("to", [])]
    ]
    for peer in peers:
        assert peer.get("namespaceSelector") != {}
        assert "ipBlock" in peer or peer["podSelector"]["matchLabels"]
    outside = [peer["ipBlock"] for peer in peers if "ipBlock" in peer]
    assert [block["except"] for block in outside] == [["169.254.0.0/16"]]


# Secrets


def test_every_file_can_be_read_and_holds_no_secret() -> None:
    paths = [path for path in DEPLOY.rglob("*") if path.is_file() and path.suffix != ".pyc"]
    assert len(paths) > 15
    for path in paths:
        text = path.read_text()
        if path.suffix in (".yaml", ".yml"):
            assert list(yaml.safe_load_all(text)), path
        assert not LOOKS_SECRET.search(text), path


def test_containers_take_secrets_by_reference() -> None:
    secrets = of_kind("Secret")
    assert [secret["metadata"]["name"] for secret in secrets] == ["raylab-token", "raylab-keys"]
    assert {value for secret in secrets for value in secret["stringData"].values()} == {""}
    for pod in pods():
        for entry in pod.container.get("env", []):
            assert "value" not in entry or not re.search("KEY|TOKEN|PASS|SECRET", entry["name"])
    keys = {"secretRef": {"name": "raylab-keys", "optional": True}}
    taken = {pod.role: pod.container.get("envFrom") for pod in pods()}
    assert taken == {"ray": [keys], "llm": None, "submitter": None}
