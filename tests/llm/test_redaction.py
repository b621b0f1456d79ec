import base64
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raylab.config.annotation import LlmConfig
from raylab.config.llm import ChatModel, Endpoint
from raylab.llm.client import Client
from raylab.llm.redaction import BLANK, SHORTEST, Redactor
from tests.llm.scripted_server import Answer, Call, ScriptedServer, completion
from tests.llm.test_client import Notebook, ask, awaited, error_of

KEY = "sk-live/0a1B2c3D4e5F6g7H8i9J+k=="
OTHER = "other-5d41402abc4b2a76b9719d911017c592"
BASIC = base64.b64encode(f"me:{KEY}".encode()).decode()


@pytest.mark.parametrize(
    ("text", "redacted"),
    [
        ("nothing", "nothing"),
        (KEY, BLANK),
        (f"Bearer {KEY}.", f"Bearer {BLANK}."),
        (f'{{"a": "{KEY}", "b": "{OTHER}"}}', f'{{"a": "{BLANK}", "b": "{BLANK}"}}'),
        (KEY + KEY, BLANK * 2),
        (f"?key={quote(KEY, safe='')}&b", f"?key={BLANK}&b"),
        (f"0x{KEY.encode().hex()} {KEY.encode().hex().upper()}", f"0x{BLANK} {BLANK}"),
        (f"begins {KEY[:SHORTEST]}", f"begins {BLANK}"),
        (f"middle {KEY[3 : 3 + 2 * SHORTEST]}!", f"middle {BLANK}!"),
        (f"begins {KEY[: SHORTEST - 1]}", f"begins {KEY[: SHORTEST - 1]}"),
    ],
)
def test_keys_are_removed(text: str, redacted: str) -> None:
    assert Redactor([KEY, OTHER, ""])(text) == redacted


@pytest.mark.parametrize("ahead", ["", "a", "ab", "abc", "user:"])
@pytest.mark.parametrize("encode", [base64.b64encode, base64.urlsafe_b64encode])
def test_keys_in_base64_are_removed(ahead: str, encode: type) -> None:
    told = Redactor([KEY])(f"Basic {encode(f'{ahead}{KEY}?'.encode()).decode()}")
    assert BLANK in told
    # At both ends a character or two also depend on the neighbours.
    assert len(told) < len("Basic ") + len(BLANK) + 4 * (len(ahead) + 2)


def test_short_keys_are_no_secrets() -> None:
    assert Redactor(["EMPTY", "learning"])("EMPTY learning") == "EMPTY learning"
    assert Redactor([])("x") == "x"


@given(st.text(), st.text(), st.text(st.characters(codec="ascii"), min_size=SHORTEST))
def test_no_key_is_left_in_any_text(before: str, after: str, key: str) -> None:
    assert key not in Redactor([key])(before + key + after) or key in BLANK


def config(first: str, second: str) -> LlmConfig:
    """Two endpoints with a key each."""
    one, other = ChatModel(model="m", endpoint="main"), ChatModel(model="m", endpoint="other")
    return LlmConfig(
        endpoints={
            "main": Endpoint(base_url=first, api_key_env="MAIN_KEY"),
            "other": Endpoint(base_url=second, api_key_env="OTHER_KEY"),
        },
        annotator_a=one,
        annotator_b=other,
        evaluator=one,
        adjudicator=one,
    )


@awaited
async def test_keys_that_a_server_echoes_in_good_answers_are_not_kept() -> None:
    def echo(call: Call) -> Answer:
        given = call.headers["Authorization"]
        changes = {"model": f"m {given}", "system_fingerprint": KEY}
        return completion(call, f'{{"rationale": "{given}, {OTHER}, {BASIC}"}}', **changes)

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MAIN_KEY", KEY)
        patch.setenv("OTHER_KEY", OTHER)
        async with ScriptedServer(echo) as server:
            llm = config(server.base_url, server.base_url)
            async with Client(llm, journal := Notebook()) as client:
                reply = await ask(client)
    assert reply.response_model == f"m Bearer {BLANK} {BLANK}"
    assert reply.text.startswith(f'{{"rationale": "Bearer {BLANK}, {BLANK}, ')
    kept = repr(journal.replies)
    assert not any(piece in kept for piece in (KEY[:SHORTEST], OTHER[:SHORTEST], BASIC[8:20]))


@awaited
async def test_keys_of_other_endpoints_are_not_in_errors() -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MAIN_KEY", KEY)
        patch.setenv("OTHER_KEY", OTHER)
        refusal = Answer(f'{{"error": "no {OTHER}{KEY}"}}'.encode(), status=400)
        async with ScriptedServer(lambda _: refusal) as server:
            async with Client(config(server.base_url, server.base_url), Notebook()) as client:
                error = str(await error_of(ask(client)))
    assert OTHER[:SHORTEST] not in error and KEY[:SHORTEST] not in error
