"""The annotators' endpoint: its key, and that jobs/annotate.py and the models fit together."""

import importlib.util
from types import ModuleType
from urllib.parse import urlsplit

import pytest
import yaml
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from starlette.testclient import TestClient

from raylab.core.config.compose import load_config
from raylab.label.config.jobs import AnnotateConfig
from tests.deploy.manifests import DEPLOY, README, pods, the

VLLM = DEPLOY / "vllm"
KEY = "a-key-of-this-test"


def keygate() -> ModuleType:
    spec = importlib.util.spec_from_file_location("keygate", VLLM / "keygate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def status_of(path: str, authorization: bytes | None) -> int:
    """What a server behind the gate answers to a request."""

    async def served(request: Request) -> PlainTextResponse:
        return PlainTextResponse("served")

    app = Starlette(routes=[Route("/{path:path}", served)], middleware=keygate().middlewares())
    headers = {} if authorization is None else {b"authorization": authorization}
    return TestClient(app).get(path, headers=headers).status_code


@pytest.mark.parametrize(
    "authorization", [None, b"Bearer ", f"Bearer {KEY}x".encode(), KEY.encode(), b"Bearer \xfc"]
)
def test_without_the_key_nothing_is_answered(
    authorization: bytes | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAYLAB_LLM_KEY", KEY)
    assert status_of("/v1/chat/completions", authorization) == 401
    assert status_of("/-/other", authorization) == 401
    assert status_of("/v1/models", f"Bearer {KEY}".encode()) == 200
    # Probes need no key.
    assert status_of("/-/healthz", None) == 200


def test_without_a_key_of_its_own_the_endpoint_does_not_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("RAYLAB_LLM_KEY", "")
    with pytest.raises(RuntimeError, match="give the endpoint a key"):
        keygate().middlewares()


def test_every_proxy_has_the_gate() -> None:
    for pod in (pod for pod in pods() if pod.role == "llm"):
        environment = {entry["name"]: entry for entry in pod.container["env"]}
        gate = environment["RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH"]["value"]
        assert gate == "keygate.middlewares"
        mounts = {mount["name"]: mount["mountPath"] for mount in pod.container["volumeMounts"]}
        assert environment["PYTHONPATH"]["value"] == mounts["keygate"]
        (volume,) = (volume for volume in pod.spec["volumes"] if volume["name"] == "keygate")
        made = f"configmap {volume['configMap']['name']} --from-file=deploy/vllm/keygate.py"
        assert made in README
        source = environment["RAYLAB_LLM_KEY"]["valueFrom"]["secretKeyRef"]
        assert source == {"name": "raylab-keys", "key": "RAYLAB_LLM_KEY"}


def test_the_annotators_call_the_service_for_its_models_which_have_their_gpus_at_once() -> None:
    serve = yaml.safe_load(the("RayService")["spec"]["serveConfigV2"])
    (application,) = serve["applications"]
    models = application["args"]["llm_configs"]
    llm = load_config(AnnotateConfig, file=VLLM / "models.yaml").llm
    served = {model["model_loading_config"]["model_id"] for model in models}
    assert {role.model for role in llm.models.values()} == served
    address = urlsplit(str(llm.endpoints["default"].base_url))
    assert address.hostname == f"{the('RayService')['metadata']['name']}-serve-svc"
    assert address.port == serve["http_options"]["port"]
    assert llm.endpoints["default"].api_key_env == keygate().KEY_VARIABLE
    scaling = [model["deployment_config"]["autoscaling_config"] for model in models]
    (group,) = the("RayService")["spec"]["rayClusterConfig"]["workerGroupSpecs"]
    assert group["minReplicas"] == sum(each["min_replicas"] for each in scaling)
    assert group["maxReplicas"] == sum(each["max_replicas"] for each in scaling)
