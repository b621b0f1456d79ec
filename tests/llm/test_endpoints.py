"""What is checked of endpoints before any call, and the removal of their keys."""

import socket
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raylab.core.errors import ConfigError, EndpointError
from raylab.llm.client import Client
from raylab.llm.endpoints import BLANK, MIN_PIECE, Redactor, require_endpoints
from tests.llm.test_client import Notebook, config

KEY = "sk-live/0a1B2c3D4e5F6g7H8i9J+k=="
OTHER = "other-5d41402abc4b2a76b9719d911017c592"
CLOSED = "http://127.0.0.1:9/v1"


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


def never(base_url: str) -> bool:
    return False


def test_an_address_that_refuses_is_named_unless_its_answers_are_archived(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(EndpointError, match=r"endpoint main .* cannot be reached .*base_url"):
        require_endpoints(config(CLOSED), never)
    require_endpoints(config(CLOSED), {CLOSED}.__contains__)
    # With a proxy no connection is tried.
    monkeypatch.setenv("https_proxy", "http://proxy.invalid:3128")
    require_endpoints(config(CLOSED), never)


def test_an_address_that_listens_is_sent_nothing() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}/v1"
        require_endpoints(config(url), never)
        connection, _ = server.accept()
        with connection:
            assert connection.recv(1) == b""


def test_key_that_cannot_be_used_is_refused_unseen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MAIN_KEY", "sk-geheim\nschlüssel")
    llm, words = config(CLOSED, "MAIN_KEY"), "MAIN_KEY holds characters that no HTTP header"
    with pytest.raises(ConfigError, match=words) as raised:
        require_endpoints(llm, never)
    assert "geheim" not in str(raised.value)
    with pytest.raises(ConfigError, match=words):
        Client(llm, Notebook())


@pytest.mark.parametrize(
    ("text", "redacted"),
    [
        (f'{{"a": "{KEY}", "b": "Bearer {OTHER}."}}', f'{{"a": "{BLANK}", "b": "Bearer {BLANK}"}}'),
        (f"?{quote(KEY, safe='')}&b", f"?{BLANK}&b"),
        (f"begins <{KEY[:MIN_PIECE]}>", f"begins <{BLANK}>"),
        (f"middle {KEY[3 : 3 + 2 * MIN_PIECE]}!", f"middle {BLANK}!"),
        (f"begins {KEY[: MIN_PIECE - 1]}", f"begins {KEY[: MIN_PIECE - 1]}"),
        ("EMPTY learning", "EMPTY learning"),
    ],
)
def test_keys_are_removed(text: str, redacted: str) -> None:
    assert Redactor([KEY, OTHER, "", "EMPTY", "learning"])(text) == redacted


@given(st.text(), st.text(), st.text(st.characters(codec="ascii"), min_size=MIN_PIECE))
def test_no_key_is_left_in_any_text(before: str, after: str, key: str) -> None:
    for form in (key, quote(key, safe="")):
        assert form not in Redactor([key])(before + form + after) or form in BLANK
