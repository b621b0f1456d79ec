"""The manifests for Kubernetes: of the form that it takes, and as closed as README.md says."""

import json
import re
import shlex
import shutil
import subprocess
from pathlib import Path

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
from tests.deploy.kustomize import Manifest
from tests.deploy.manifests import (
    BUILDS,
    DEPLOY,
    JOBS,
    PLAIN,
    ROOT,
    VERSION,
    Pod,
    all_objects,
    clusters,
    objects_of,
    of_kind,
    pods,
)

KUBERNETES = "1.34"
CONFIGS: dict[str, type[JobConfig]] = {
    kind.job: kind
    for kind in (
        TrainConfig,
        TuneConfig,
        EvaluateConfig,
        AnnotateConfig,
        QualityConfig,
        PipelineConfig,
    )
}
CHECKOUT = "/opt/raylab/"
MODELS = {"/etc/raylab/models.yaml": DEPLOY / "vllm/models.yaml"}
"""Files that jobs are given by a volume, with where they come from."""
OBJECT_STORE = 0.3
"""Share of a node's memory that Ray takes for its object store."""

each_pod = pytest.mark.parametrize("pod", list(pods()), ids=lambda pod: pod.where)
each_cluster = pytest.mark.parametrize("spec", list(clusters().values()), ids=list(clusters()))
each_job = pytest.mark.parametrize("job", JOBS)


def validate_as_kubernetes(document: Manifest) -> None:
    kubernetes_validate.validate(document, KUBERNETES, strict=True)


def as_pod(metadata: Manifest, spec: Manifest) -> Manifest:
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def ray_job(job: str) -> Manifest:
    (found,) = objects_of(f"kuberay/jobs/{job}")
    return found


def config_of(job: str) -> JobConfig:
    """The configuration that a RayJob's command line comes to."""
    python, script, *arguments = shlex.split(ray_job(job)["spec"]["entrypoint"])
    assert (python, script) == ("python", f"{CHECKOUT}jobs/{job}.py")
    file = None
    if "--config" in arguments:
        position = arguments.index("--config")
        _, path = arguments[position : position + 2]
        del arguments[position : position + 2]
        file = MODELS[path]
    return load_config(CONFIGS[job], arguments, file)


@pytest.mark.parametrize("name", BUILDS)
def test_kubectl_builds_the_same(name: str) -> None:
    kubectl = shutil.which("kubectl")
    if kubectl is None:
        pytest.skip("kubectl is not installed")
    command = [kubectl, "kustomize", str(DEPLOY / name)]
    built = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout
    theirs = [found for found in yaml.safe_load_all(built) if found]

    def in_order(found: list[Manifest]) -> list[str]:
        return sorted(json.dumps(item, sort_keys=True) for item in found)

    assert in_order(theirs) == in_order(objects_of(name))


@pytest.mark.parametrize("name", [*BUILDS, *PLAIN])
def test_every_object_is_of_the_form_that_its_api_takes(name: str) -> None:
    for found in objects_of(name):
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


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("rayVersion",), 2.6),
        (("autoscalerOptions", "version"), "v3"),
        (("headGroupSpec", "rayStartParams"), {"num-cpus": 0}),
        (("authOption",), {"mode": "token"}),
        (("workerGroupSpecs",), [{"groupName": "cpu", "maxReplicas": "8"}]),
    ],
)
def test_the_schema_of_kuberay_sees_mistakes(path: tuple[str, ...], value: object) -> None:
    wrong = json.loads(json.dumps(objects_of("kuberay/cluster")[0]))
    *parents, last = path
    place = wrong["spec"]
    for key in parents:
        place = place[key]
    place[last] = value
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(wrong, SCHEMAS["RayCluster"])


def test_every_job_that_works_on_a_cluster_has_its_rayjob() -> None:
    scripts = {path.stem for path in (ROOT / "jobs").glob("*.py")}
    assert {*JOBS, "benchmark", "report", "review"} == scripts
    assert [ray_job(job)["metadata"]["name"] for job in JOBS] == [f"raylab-{job}" for job in JOBS]


@each_job
def test_a_rayjob_runs_a_valid_configuration_on_shared_storage(job: str) -> None:
    config = config_of(job)
    head = ray_job(job)["spec"]["rayClusterSpec"]["headGroupSpec"]["template"]["spec"]
    claims = {v["name"] for v in head["volumes"] if "persistentVolumeClaim" in v}
    mounts = head["containers"][0]["volumeMounts"]
    shared = [mount["mountPath"] for mount in mounts if mount["name"] in claims]
    assert any(Path(config.storage).is_relative_to(path) for path in shared)


@each_job
def test_a_try_goes_on_where_the_one_before_ended(job: str) -> None:
    config = config_of(job)
    assert config.resume
    assert config.name is not None
    assert ray_job(job)["spec"]["backoffLimit"] > 0


@each_job
def test_a_job_finds_the_workers_it_needs_when_it_starts(job: str) -> None:
    cluster = getattr(config_of(job), "cluster")  # noqa: B009 - not every JobConfig has one
    resource = "nvidia.com/gpu" if cluster.use_gpu else "cpu"
    found = 0
    for group in ray_job(job)["spec"]["rayClusterSpec"]["workerGroupSpecs"]:
        (container,) = group["template"]["spec"]["containers"]
        each = int(container["resources"]["limits"].get(resource, 0))
        assert group["minReplicas"] == group["replicas"] <= group["maxReplicas"]
        found += group["replicas"] * each
    assert found >= cluster.workers


def test_jobs_have_the_cluster_that_the_other_tests_look_at() -> None:
    (standing,) = objects_of("kuberay/cluster")
    for job in JOBS:
        spec = json.loads(json.dumps(ray_job(job)["spec"]["rayClusterSpec"]))
        for group, model in zip(
            spec["workerGroupSpecs"], standing["spec"]["workerGroupSpecs"], strict=True
        ):
            group |= {key: model[key] for key in ("replicas", "minReplicas")}
        assert spec == standing["spec"]


def test_the_cluster_runs_the_ray_that_is_pinned() -> None:
    (standing,) = objects_of("kuberay/cluster")
    assert f"ray=={standing['spec']['rayVersion']}\n" in (ROOT / "constraints.txt").read_text()


@each_cluster
def test_every_cluster_asks_for_the_token_of_a_secret(spec: Manifest) -> None:
    secrets = {found["metadata"]["name"] for found in of_kind("Secret")}
    assert spec["authOptions"]["mode"] == "token"
    assert spec["authOptions"]["secretName"] in secrets


@each_pod
def test_every_container_has_token_authentication_on(pod: Pod) -> None:
    assert {"name": "RAY_AUTH_MODE", "value": "token"} in pod.container["env"]


@each_pod
def test_every_pod_is_confined(pod: Pod) -> None:
    security = pod.spec["securityContext"]
    assert security["runAsNonRoot"] is True
    assert security["runAsUser"] > 0
    assert security["seccompProfile"] == {"type": "RuntimeDefault"}
    assert not {"hostNetwork", "hostPID", "hostIPC", "initContainers"} & pod.spec.keys()
    assert not [volume for volume in pod.spec["volumes"] if "hostPath" in volume]
    assert_confined(pod.container["securityContext"])


@each_cluster
def test_every_autoscaler_is_confined(spec: Manifest) -> None:
    assert_confined(spec["autoscalerOptions"]["securityContext"])


def assert_confined(security: Manifest) -> None:
    assert security == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }


@each_pod
def test_a_read_only_root_leaves_ray_where_it_writes(pod: Pod) -> None:
    writable = {
        volume["name"]
        for volume in pod.spec["volumes"]
        if "emptyDir" in volume or "persistentVolumeClaim" in volume
    }
    paths = {m["mountPath"] for m in pod.container["volumeMounts"] if m["name"] in writable}
    assert "/tmp" in paths
    assert pod.role == "submitter" or "/dev/shm" in paths


@each_pod
def test_no_job_has_rights_in_kubernetes(pod: Pod) -> None:
    assert pod.spec["automountServiceAccountToken"] is False
    tokens = {volume["name"] for volume in pod.spec["volumes"] if "projected" in volume}
    assert not tokens & {mount["name"] for mount in pod.container["volumeMounts"]}
    accounts = {found["metadata"]["name"] for found in of_kind("ServiceAccount")}
    assert pod.spec["serviceAccountName"] in accounts
    assert not [found for found in all_objects() if "Role" in found["kind"]]


@each_pod
def test_every_container_says_what_it_needs(pod: Pod) -> None:
    resources = pod.container["resources"]
    assert {"cpu", "memory"} <= resources["requests"].keys()
    assert "memory" in resources["limits"]


@each_pod
def test_every_image_has_a_version(pod: Pod) -> None:
    name, tag = pod.container["image"].split(":")
    assert tag != "latest"
    if name.startswith("raylab"):
        assert tag == VERSION


@each_pod
def test_every_volume_is_made_here_or_may_be_absent(pod: Pod) -> None:
    claims = {found["metadata"]["name"]: found for found in of_kind("PersistentVolumeClaim")}
    maps = {found["metadata"]["name"] for found in of_kind("ConfigMap")}
    for volume in pod.spec["volumes"]:
        if claim := volume.get("persistentVolumeClaim"):
            assert claims[claim["claimName"]]["spec"]["accessModes"] == ["ReadWriteMany"]
        if source := volume.get("configMap"):
            assert source["name"] in maps


def gibibytes(quantity: str) -> int:
    assert quantity.endswith("Gi")
    return int(quantity.removesuffix("Gi"))


@each_pod
def test_the_object_store_fits_into_shared_memory(pod: Pod) -> None:
    stores = [v["emptyDir"] for v in pod.spec["volumes"] if v["name"] == "shared-memory"]
    for store in stores:
        assert store["medium"] == "Memory"
        memory = gibibytes(pod.container["resources"]["limits"]["memory"])
        assert gibibytes(store["sizeLimit"]) >= OBJECT_STORE * memory
    assert stores or pod.role == "submitter"


@each_cluster
def test_the_head_runs_no_work_and_shows_itself_to_nobody_outside(spec: Manifest) -> None:
    head = spec["headGroupSpec"]
    assert head["rayStartParams"] == {"num-cpus": "0"}
    assert head["serviceType"] == "ClusterIP"


@each_cluster
def test_every_cluster_grows_by_the_second_autoscaler(spec: Manifest) -> None:
    assert spec["enableInTreeAutoscaling"] is True
    assert spec["autoscalerOptions"]["version"] == "v2"
    assert any(group["minReplicas"] < group["maxReplicas"] for group in spec["workerGroupSpecs"])


def test_all_objects_are_in_a_namespace_that_refuses_unconfined_pods() -> None:
    (namespace,) = of_kind("Namespace")
    labels = namespace["metadata"]["labels"]
    assert labels["pod-security.kubernetes.io/enforce"] == "restricted"
    others = [found for found in all_objects() if found["kind"] != "Namespace"]
    assert {o["metadata"]["namespace"] for o in others} == {namespace["metadata"]["name"]}


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


def test_all_is_closed_that_is_not_opened() -> None:
    assert policies()["default-deny"] == {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}


def role_of(peer: Manifest) -> str | None:
    """The role of a peer in the same namespace; None for one of another namespace."""
    if "namespaceSelector" in peer:
        return None
    return peer["podSelector"]["matchLabels"]["raylab/role"]


@pytest.mark.parametrize("role", ["ray", "llm"])
def test_only_a_clusters_own_pods_reach_all_its_ports(role: str) -> None:
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


@each_pod
def test_every_role_has_its_policies(pod: Pod) -> None:
    roles = re.findall(r"raylab/role\W+(\w+)", json.dumps(list(policies().values())))
    assert pod.role in roles
