"""What is told of endpoints before any call."""

import socket
from collections.abc import Iterator

import pytest

from raylab.config.annotation import LlmConfig
from raylab.errors import ConfigError, EndpointError
from raylab.llm.endpoints import require_endpoints

PROXIES = ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in PROXIES:
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def closed() -> Iterator[str]:
    """The URL of a port that is bound, and at which nothing listens."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{taken.getsockname()[1]}/v1"


def llm(base_url: str, **endpoint: object) -> LlmConfig:
    """An evaluator at `base_url`, beside an endpoint that no role uses."""
    values = {
        "endpoints": {
            "main": {"base_url": base_url, **endpoint},
            "idle": {"base_url": "http://nowhere.invalid/v1", "api_key_env": "RAYLAB_NO_SUCH_KEY"},
        },
        "evaluator": {"model": "m", "endpoint": "main"},
    }
    return LlmConfig.model_validate(values)


def unknown(base_url: str) -> bool:
    return False


def test_an_address_that_refuses_is_told_unless_its_answers_are_known(closed: str) -> None:
    with pytest.raises(EndpointError, match=r"endpoint main .* cannot be reached .*base_url"):
        require_endpoints(llm(closed), unknown)
    asked: list[str] = []
    require_endpoints(llm(closed), lambda base_url: not asked.append(base_url))
    assert asked == [closed]


def test_an_address_that_listens_is_asked_nothing() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        require_endpoints(llm(f"http://127.0.0.1:{server.getsockname()[1]}/v1"), unknown)
        connection, _ = server.accept()
        with connection:
            assert connection.recv(1) == b""


def test_with_a_proxy_no_connection_is_tried(closed: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("https_proxy", "http://proxy.invalid:3128")
    require_endpoints(llm(closed), unknown)


def test_keys_of_used_endpoints_are_asked_for(closed: str, monkeypatch: pytest.MonkeyPatch) -> None:
    keyed = llm(closed, api_key_env="RAYLAB_TEST_KEY")
    with pytest.raises(ConfigError, match="RAYLAB_TEST_KEY, which is not set"):
        require_endpoints(keyed, lambda _: True)
    monkeypatch.setenv("RAYLAB_TEST_KEY", "kéy")
    with pytest.raises(ConfigError, match="no HTTP header can hold"):
        require_endpoints(keyed, lambda _: True)
    monkeypatch.setenv("RAYLAB_TEST_KEY", "key")
    require_endpoints(keyed, lambda _: True)
