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

from raylab.config.base import JobConfig
from raylab.config.compose import load_config
from raylab.config.jobs import (
    AnnotateConfig,
    EvaluateConfig,
    PipelineConfig,
    QualityConfig,
    TrainConfig,
    TuneConfig,
)
from tests.deploy.kuberay import SCHEMAS
from tests.deploy.manifests import (
    DEPLOY,
    JOBS,
    OBJECTS,
    ROOT,
    VERSION,
    Job,
    Manifest,
    Pod,
    clusters,
    of_kind,
    pods,
    the,
)

KUBERNETES = "1.34"
KINDS: tuple[type[JobConfig], ...] = (
    TrainConfig,
    TuneConfig,
    EvaluateConfig,
    AnnotateConfig,
    QualityConfig,
    PipelineConfig,
)
OBJECT_STORE = 0.3
"""Share of a node's memory that Ray takes for its object store."""
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
each_job = pytest.mark.parametrize("job", JOBS, ids=lambda job: job.name)


def validate_as_kubernetes(document: Manifest) -> None:
    kubernetes_validate.validate(document, KUBERNETES, strict=True)


def as_pod(metadata: Manifest, spec: Manifest) -> Manifest:
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


@pytest.mark.parametrize("found", OBJECTS, ids=lambda o: f"{o['kind']} {o['metadata']['name']}")
def test_every_object_is_of_the_form_that_its_api_takes(found: Manifest) -> None:
    if schema := SCHEMAS.get(found["kind"]):
        jsonschema.validate(found, schema)
    else:
        validate_as_kubernetes(found)


@each_pod
def test_every_pod_is_of_the_form_that_kubernetes_takes(pod: Pod) -> None:
    validate_as_kubernetes(as_pod(pod.metadata, pod.spec))


@each_cluster
def test_the_autoscaler_is_a_container_that_kubernetes_takes(spec: Manifest) -> None:
    options = spec["autoscalerOptions"]
    fields = {key: options[key] for key in ("resources", "securityContext", "volumeMounts")}
    container = {"name": "autoscaler", "image": "raylab", **fields}
    validate_as_kubernetes(as_pod({"name": "head"}, {"containers": [container]}))
    assert_confined(options["securityContext"])


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("rayVersion", 2.6),
        ("autoscalerOptions", {"version": "v3"}),
        ("authOption", {"mode": "token"}),
        ("workerGroupSpecs", [{"groupName": "cpu", "maxReplicas": "8", "template": {}}]),
    ],
)
def test_the_schema_of_kuberay_sees_mistakes(key: str, value: object) -> None:
    cluster = the("RayCluster")
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(
            cluster | {"spec": cluster["spec"] | {key: value}}, SCHEMAS["RayCluster"]
        )


# Jobs


def config_of(job: Job) -> JobConfig:
    """The configuration that a RayJob of the table comes to."""
    arguments = shlex.split(job.arguments)
    file = None
    if arguments[0] == "--config":
        assert arguments[1] == "/etc/raylab/models.yaml"
        file, arguments = DEPLOY / "vllm/models.yaml", arguments[2:]
    (kind,) = (kind for kind in KINDS if kind.job == job.name)
    return load_config(kind, ["storage=/shared/runs", "resume=true", *arguments], file)


def test_every_job_that_works_on_a_cluster_is_in_the_table() -> None:
    scripts = {path.stem for path in (ROOT / "jobs").glob("*.py")}
    assert sorted(job.name for job in JOBS) == sorted(scripts - {"benchmark", "report", "review"})


def test_the_rayjob_is_that_of_training_in_the_table() -> None:
    rayjob, (train,) = the("RayJob"), (job for job in JOBS if job.name == "train")
    command = f"python /opt/raylab/jobs/train.py storage=/shared/runs resume=true {train.arguments}"
    assert rayjob["spec"]["entrypoint"] == command
    assert rayjob["metadata"]["name"] == "raylab-train"
    assert rayjob["spec"]["backoffLimit"] > 0
    groups = rayjob["spec"]["rayClusterSpec"]["workerGroupSpecs"]
    assert [group["replicas"] for group in groups] == [train.cpus, train.gpus]


@each_job
def test_a_job_finds_the_workers_it_needs_on_shared_storage(job: Job) -> None:
    config = config_of(job)
    assert config.name is not None
    mounts = clusters()["job"]["headGroupSpec"]["template"]["spec"]["containers"][0]["volumeMounts"]
    (shared,) = (mount["mountPath"] for mount in mounts if mount["name"] == "storage")
    assert Path(config.storage).is_relative_to(shared)
    cluster: Any = getattr(config, "cluster")  # noqa: B009 - not every JobConfig has one
    cpus_of_a_node = 4
    assert (job.gpus if cluster.use_gpu else cpus_of_a_node * job.cpus) >= cluster.workers


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
    secrets = {found["metadata"]["name"] for found in of_kind("Secret")}
    assert spec["authOptions"]["mode"] == "token"
    assert spec["authOptions"]["secretName"] in secrets


@each_pod
def test_every_pod_is_confined(pod: Pod) -> None:
    assert {"name": "RAY_AUTH_MODE", "value": "token"} in pod.container["env"]
    security = pod.spec["securityContext"]
    assert security["runAsNonRoot"] is True
    assert security["runAsUser"] > 0
    assert security["seccompProfile"] == {"type": "RuntimeDefault"}
    assert not {"hostNetwork", "hostPID", "hostIPC", "initContainers"} & pod.spec.keys()
    assert not [volume for volume in pod.spec["volumes"] if "hostPath" in volume]
    assert_confined(pod.container["securityContext"])


def assert_confined(security: Manifest) -> None:
    assert security == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }


@each_pod
def test_a_read_only_root_leaves_ray_where_it_writes(pod: Pod) -> None:
    writable = {volume["name"] for volume in pod.spec["volumes"] if "emptyDir" in volume}
    paths = {m["mountPath"] for m in pod.container["volumeMounts"] if m["name"] in writable}
    assert paths >= ({"/tmp"} if pod.role == "submitter" else {"/tmp", "/dev/shm"})


@each_pod
def test_no_job_has_rights_in_kubernetes(pod: Pod) -> None:
    assert pod.spec["automountServiceAccountToken"] is False
    tokens = {volume["name"] for volume in pod.spec["volumes"] if "projected" in volume}
    assert not tokens & {mount["name"] for mount in pod.container["volumeMounts"]}
    accounts = {found["metadata"]["name"] for found in of_kind("ServiceAccount")}
    assert pod.spec["serviceAccountName"] in accounts
    assert not [found for found in OBJECTS if "Role" in found["kind"]]


@each_pod
def test_every_container_says_what_it_is_and_needs(pod: Pod) -> None:
    assert {"cpu", "memory"} <= pod.container["resources"]["requests"].keys()
    assert "memory" in pod.container["resources"]["limits"]
    name, tag = pod.container["image"].split(":")
    assert tag == VERSION if name.startswith("raylab") else tag != "latest"
    claims = {found["metadata"]["name"]: found for found in of_kind("PersistentVolumeClaim")}
    for volume in pod.spec["volumes"]:
        if claim := volume.get("persistentVolumeClaim"):
            assert claims[claim["claimName"]]["spec"]["accessModes"] == ["ReadWriteMany"]


@each_pod
def test_the_object_store_fits_into_shared_memory(pod: Pod) -> None:
    stores = [v["emptyDir"] for v in pod.spec["volumes"] if v["name"] == "shared-memory"]
    assert stores or pod.role == "submitter"
    for store in stores:
        assert store["medium"] == "Memory"
        memory = pod.container["resources"]["limits"]["memory"]
        size, limit = (int(text.removesuffix("Gi")) for text in (store["sizeLimit"], memory))
        assert size >= OBJECT_STORE * limit


@each_cluster
def test_the_head_runs_no_work_and_shows_itself_to_nobody_outside(spec: Manifest) -> None:
    head = spec["headGroupSpec"]
    assert head["rayStartParams"] == {"num-cpus": "0"}
    assert head["serviceType"] == "ClusterIP"


def test_all_objects_are_in_a_namespace_that_refuses_unconfined_pods() -> None:
    namespace = the("Namespace")["metadata"]
    assert namespace["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"
    others = [found for found in OBJECTS if found["kind"] != "Namespace"]
    assert {found["metadata"]["namespace"] for found in others} == {namespace["name"]}


def policies() -> dict[str, Manifest]:
    return {found["metadata"]["name"]: found["spec"] for found in of_kind("NetworkPolicy")}


def ingress_of(role: str) -> list[tuple[Manifest, list[int]]]:
    """Who may come in to the pods of a role, each with the ports; no ports are all of them."""
    found: list[tuple[Manifest, list[int]]] = []
    for spec in policies().values():
        selector = spec["podSelector"]
        roles = [
            *selector.get("matchLabels", {}).values(),
            *(value for e in selector.get("matchExpressions", []) for value in e["values"]),
        ]
        for rule in spec.get("ingress", []) if role in roles else []:
            ports = [port["port"] for port in rule.get("ports", [])]
            found += [(peer, ports) for peer in rule["from"]]
    return found


def role_of(peer: Manifest) -> str | None:
    """The role of a peer in the same namespace; None for one of another namespace."""
    if "namespaceSelector" in peer:
        return None
    return peer["podSelector"]["matchLabels"]["raylab/role"]


@pytest.mark.parametrize("role", ["ray", "llm"])
def test_only_a_clusters_own_pods_reach_all_its_ports(role: str) -> None:
    assert policies()["default-deny"] == {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}
    assert [role_of(peer) for peer, ports in ingress_of(role) if not ports] == [role]


def test_who_reaches_which_port_of_a_job() -> None:
    reached = {
        role_of(peer) or peer["podSelector"]["matchLabels"]["app.kubernetes.io/name"]: ports
        for peer, ports in ingress_of("ray")
        if ports
    }
    assert reached == {
        "submitter": [8265],
        "kuberay-operator": [8265],
        "prometheus": [8080, 44217, 44227],
    }


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


@pytest.mark.parametrize(
    "path",
    [path for path in DEPLOY.rglob("*") if path.is_file() and path.suffix != ".pyc"],
    ids=lambda path: str(path.relative_to(DEPLOY)),
)
def test_every_file_can_be_read_and_holds_no_secret(path: Path) -> None:
    text = path.read_text()
    if path.suffix in (".yaml", ".yml"):
        assert list(yaml.safe_load_all(text))
    assert not LOOKS_SECRET.search(text)


def test_containers_take_secrets_by_reference() -> None:
    secrets = of_kind("Secret")
    assert [found["metadata"]["name"] for found in secrets] == ["raylab-token", "raylab-keys"]
    assert {value for found in secrets for value in found["stringData"].values()} == {""}
    for pod in pods():
        for entry in pod.container.get("env", []):
            assert "value" not in entry or not re.search("KEY|TOKEN|PASS|SECRET", entry["name"])
    keys = {"secretRef": {"name": "raylab-keys", "optional": True}}
    taken = {pod.role: pod.container.get("envFrom") for pod in pods()}
    assert taken == {"ray": [keys], "llm": None, "submitter": None}
