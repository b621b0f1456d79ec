"""What is checked of endpoints before any call, and the removal of their keys."""

import socket
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raylab.config.annotation import LlmConfig
from raylab.errors import ConfigError, EndpointError
from raylab.llm.client import Client
from raylab.llm.endpoints import BLANK, SHORTEST, Redactor, require_endpoints
from tests.llm.scripted_server import Answer, Call, ScriptedServer, completion
from tests.llm.test_client import Notebook, ask, awaited, error_of

KEY = "sk-live/0a1B2c3D4e5F6g7H8i9J+k=="
OTHER = "other-5d41402abc4b2a76b9719d911017c592"
CLOSED = "http://127.0.0.1:9/v1"


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    monkeypatch.setenv("MAIN_KEY", KEY)
    monkeypatch.setenv("OTHER_KEY", OTHER)


def llm(base_url: str, key: str | None = None, **models: object) -> LlmConfig:
    """An evaluator at `base_url`, beside an endpoint that no role uses."""
    values = {
        "endpoints": {
            "main": {"base_url": base_url, "api_key_env": key},
            "other": {"base_url": base_url, "api_key_env": "OTHER_KEY"},
            "idle": {"base_url": "http://nowhere.invalid/v1", "api_key_env": "RAYLAB_NO_SUCH_KEY"},
        },
        "evaluator": {"model": "m", "endpoint": "main"},
        **models,
    }
    return LlmConfig.model_validate(values)


def test_an_address_that_refuses_is_named_unless_its_answers_are_archived() -> None:
    with pytest.raises(EndpointError, match=r"endpoint main .* cannot be reached .*base_url"):
        require_endpoints(llm(CLOSED), lambda _: False)
    looked_up: list[str] = []
    require_endpoints(llm(CLOSED), lambda base_url: not looked_up.append(base_url))
    assert looked_up == [CLOSED]


def test_an_address_that_listens_is_sent_nothing() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        require_endpoints(llm(f"http://127.0.0.1:{server.getsockname()[1]}/v1"), lambda _: False)
        connection, _ = server.accept()
        with connection:
            assert connection.recv(1) == b""


def test_with_a_proxy_no_connection_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("https_proxy", "http://proxy.invalid:3128")
    require_endpoints(llm(CLOSED), lambda _: False)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("  ", "endpoint main .* variable MAIN_KEY, which is not set"),
        ("sk-geheim\nschlüssel", "MAIN_KEY holds characters that no HTTP header can hold"),
    ],
)
def test_key_that_cannot_be_used_is_refused_unseen(
    monkeypatch: pytest.MonkeyPatch, value: str, words: str
) -> None:
    monkeypatch.setenv("MAIN_KEY", value)
    with pytest.raises(ConfigError, match=words) as raised:
        require_endpoints(llm(CLOSED, "MAIN_KEY"), lambda _: True)
    assert "geheim" not in str(raised.value)
    with pytest.raises(ConfigError, match=words):
        Client(llm(CLOSED, "MAIN_KEY"), Notebook())


@pytest.mark.parametrize(
    ("text", "redacted"),
    [
        ("nothing", "nothing"),
        (f"Bearer {KEY}.", f"Bearer {BLANK}"),
        (f'{{"a": "{KEY}", "b": "{OTHER}"}}', f'{{"a": "{BLANK}", "b": "{BLANK}"}}'),
        (f"?{quote(KEY, safe='')}&b", f"?{BLANK}&b"),
        (f"begins <{KEY[:SHORTEST]}>", f"begins <{BLANK}>"),
        (f"middle {KEY[3 : 3 + 2 * SHORTEST]}!", f"middle {BLANK}!"),
        (f"begins {KEY[: SHORTEST - 1]}", f"begins {KEY[: SHORTEST - 1]}"),
        ("EMPTY learning", "EMPTY learning"),
    ],
)
def test_keys_are_removed(text: str, redacted: str) -> None:
    assert Redactor([KEY, OTHER, "", "EMPTY", "learning"])(text) == redacted


@given(st.text(), st.text(), st.text(st.characters(codec="ascii"), min_size=SHORTEST))
def test_no_key_is_left_in_any_text(before: str, after: str, key: str) -> None:
    for form in (key, quote(key, safe="")):
        assert form not in Redactor([key])(before + form + after) or form in BLANK


@awaited
async def test_keys_that_a_server_echoes_are_not_kept() -> None:
    def echo(call: Call) -> Answer:
        header = call.headers["Authorization"]
        if "refuse" in call.text:
            return Answer(f'{{"error": "no {OTHER} {KEY}"}}'.encode(), status=400)
        changes = {"model": f"m {header}", "system_fingerprint": KEY}
        return completion(call, f'{{"rationale": "{header}, {OTHER}"}}', **changes)

    async with ScriptedServer(echo) as server:
        annotators = {"annotator_a": {"model": "m", "endpoint": "other"}}
        both = llm(server.base_url, "MAIN_KEY", **annotators)
        async with Client(both, journal := Notebook()) as client:
            reply = await ask(client)
            error = str(await error_of(ask(client, "refuse")))
    assert reply.response_model == f"m Bearer {BLANK} {BLANK}"
    assert reply.text == f'{{"rationale": "Bearer {BLANK}, {BLANK}"}}'
    kept = repr(journal.replies) + error
    assert KEY[:SHORTEST] not in kept and OTHER[:SHORTEST] not in kept
