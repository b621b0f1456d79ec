"""Who is let in: tokens, hosts, origins, sizes."""

import itertools
import logging
import re
from collections.abc import Callable

import pytest
from fastapi.routing import APIRoute

from raylab.config.jobs import ReviewConfig
from raylab.errors import ConfigError
from raylab.review.access import HEADERS, LARGEST_BODY, TOKEN_VARIABLE, access_of
from raylab.review.app import PAGES
from tests.review.browser import BASE, FROM_HERE, Browser
from tests.review.office import Office

TOKEN = "0123456789abcdef0123456789abcdef"
FILLED = {"choice": "A", "justification": "it breeds"}


@pytest.fixture(autouse=True)
def no_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(TOKEN_VARIABLE, raising=False)


def config(**keys: object) -> ReviewConfig:
    return ReviewConfig.model_validate({"name": "systems", **keys})


def refusal(**keys: object) -> str:
    with pytest.raises(ConfigError) as raised:
        access_of(config(**keys))
    return str(raised.value)


def paths(method: str) -> list[str]:
    """Every path of the page, with a case in place of parameters."""
    routes = [route for route in PAGES.routes if isinstance(route, APIRoute)]
    found = [route.path for route in routes if method in (route.methods or ())]
    return [path.replace("{case}", "1") for path in found if "{name}" not in path]


@pytest.fixture
def with_token(office: Office, monkeypatch: pytest.MonkeyPatch) -> Callable[[], Browser]:
    monkeypatch.setenv(TOKEN_VARIABLE, TOKEN)
    return lambda: office.browser(access=access_of(config()))


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.2", "::1", "localhost"])
def test_loopback_needs_no_token(host: str) -> None:
    access = access_of(config(host=host))
    assert access.token is None and host in access.hosts


def test_a_page_beyond_loopback_demands_a_token(monkeypatch: pytest.MonkeyPatch) -> None:
    for keys in ({"host": "10.0.0.7"}, {"host": "0.0.0.0", "hosts": ("node",)}, {"hosts": ("n",)}):
        assert f"demands a token: export {TOKEN_VARIABLE}" in refusal(**keys)
    monkeypatch.setenv(TOKEN_VARIABLE, TOKEN[:31])
    told = refusal(host="10.0.0.7")
    assert "has 31 characters, it needs 32" in told and TOKEN[:31] not in told
    monkeypatch.setenv(TOKEN_VARIABLE, f" {TOKEN}\n")
    access = access_of(config(host="10.0.0.7", hosts=("Node",)))
    assert access.admits(TOKEN) and not access.admits(TOKEN[:-1]) and not access.admits("é")
    assert access.hosts == {"10.0.0.7", "node", "localhost", "127.0.0.1", "::1"}
    assert TOKEN not in repr(access)


def test_a_page_that_listens_everywhere_has_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(TOKEN_VARIABLE, TOKEN)
    for host in ("0.0.0.0", "::"):
        assert f"host={host} needs hosts=[NAME]" in refusal(host=host)
        assert host not in access_of(config(host=host, hosts=("node",))).hosts


def test_processes_with_one_token_share_sessions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(TOKEN_VARIABLE, TOKEN)
    first, second = (access_of(config()) for _ in range(2))
    assert first.key == second.key and TOKEN not in first.key.get_secret_value()
    monkeypatch.delenv(TOKEN_VARIABLE)
    assert len({access_of(config()).key.get_secret_value() for _ in range(2)}) == 2


def test_nobody_sees_or_does_anything_without_signing_in(office: Office) -> None:
    browser = office.browser()
    for path in paths("GET"):
        answer = browser.get(path)
        assert answer.status_code == 401 and browser.page.within["name-hint"]
        assert "pool" not in answer.text and "valve" not in answer.text
    posts = set(paths("POST")) - {"/sign-in", "/sign-out"}
    assert len(posts) == 4
    for path in posts:
        assert browser.post(path, **FILLED).status_code == 401
    assert office.archive.run("systems").leases().leases(office.clock()) == {}
    assert list(office.archive.run("systems").decisions()) == []


def test_the_token_lets_in_and_is_shown_nowhere(
    with_token: Callable[[], Browser], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    browser = with_token()
    for wrong in ("", TOKEN[:-1], TOKEN.upper(), "wrong-" + TOKEN):
        browser.get("/")
        answer = browser.post("/sign-in", name="Ada", token=wrong)
        assert answer.status_code == 401
        assert "not the token" in answer.text and (not wrong or wrong not in answer.text)
        assert browser.get("/cases/1").status_code == 401
    answer = browser.sign_in("Ada", token=TOKEN)
    assert answer.status_code == 303 and answer.headers["location"] == "/"
    cookie = answer.headers["set-cookie"].lower()
    assert "httponly" in cookie and "samesite=strict" in cookie
    shown = [browser.get(path) for path in ("/", "/cases/1", "/decided")]
    assert [one.status_code for one in shown] == [200, 200, 200]
    told = [cookie, caplog.text, str(browser.client.cookies)]
    told += [f"{one.url} {one.headers} {one.text}" for one in shown]
    assert TOKEN not in "".join(told)
    assert "wrong token" in caplog.text


def test_a_session_is_only_good_with_the_key_it_was_signed_with(
    with_token: Callable[[], Browser], monkeypatch: pytest.MonkeyPatch
) -> None:
    ada, other = with_token(), with_token()
    ada.sign_in("Ada", token=TOKEN)
    ((name, session),) = ada.client.cookies.items()
    other.client.cookies.set(name, session)
    assert other.get("/").status_code == 200
    monkeypatch.setenv(TOKEN_VARIABLE, TOKEN[::-1])
    for browser, cookie in ((with_token(), session), (other, session[:-2] + "xx")):
        browser.client.cookies.clear()
        browser.client.cookies.set(name, cookie)
        assert browser.get("/").status_code == 401


def test_signing_out_ends_the_session(office: Office) -> None:
    browser = office.browser("Ada")
    assert browser.post("/sign-out").status_code == 303
    assert browser.get("/").status_code == 401


@pytest.mark.parametrize("name", ["", "  ", "x" * 61, "a\x07b"])
def test_a_reviewer_has_a_name(office: Office, name: str) -> None:
    browser = office.browser()
    browser.get("/")
    assert browser.post("/sign-in", name=name).status_code == 401
    assert "1 to 60 letters" in browser.page.text


@pytest.mark.parametrize(
    ("then", "location"),
    [
        ("/cases/3?kind=one-acceptable", "/cases/3?kind=one-acceptable"),
        ("/decided", "/decided"),
        ("//evil.example", "/"),
        ("https://evil.example/", "/"),
        ("/\\evil.example", "/"),
        ("/sign-out", "/"),
    ],
)
def test_signing_in_leads_on_within_the_page_alone(
    office: Office, then: str, location: str
) -> None:
    browser = office.browser()
    browser.get("/")
    assert browser.post("/sign-in", name="Ada", then=then).headers["location"] == location


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8700", "127.0.0.1.evil.example", "", "[::1", "10.0.0.7"]
)
def test_a_request_by_a_strange_name_is_refused(office: Office, host: str) -> None:
    browser = office.browser("Ada")
    answer = browser.get("/", Host=host)
    assert answer.status_code == 400 and "add it to hosts=" in answer.text


@pytest.mark.parametrize("host", ["127.0.0.1:1234", "LOCALHOST:8700", "[::1]:8700", "localhost"])
def test_a_tunnel_may_have_another_port(office: Office, host: str) -> None:
    assert office.browser().get("/", Host=host).status_code == 401


FORGED = [
    {"Origin": "http://evil.example"},
    {"Origin": "http://127.0.0.1:9999"},
    {"Origin": "null"},
    {"Origin": "http://["},
    {"Origin": BASE, "Sec-Fetch-Site": "cross-site"},
    {"Sec-Fetch-Site": "same-site"},
    {"Sec-Fetch-Site": "none"},
    {},
]


def test_forged_forms_are_refused(office: Office) -> None:
    browser, stranger = office.browser("Ada"), office.browser("Bo")
    posts = paths("POST")
    assert len(posts) == 6
    for path, headers in itertools.product(posts, FORGED):
        assert browser.post(path, headers, **FILLED).status_code == 403
    for path, csrf in itertools.product(posts, (None, "", "é", "x" * 43, stranger.csrf)):
        assert browser.post(path, **FILLED, csrf=csrf).status_code == 403
    assert browser.get("/").status_code == 200
    assert office.archive.run("systems").leases().leases(office.clock()) == {}
    assert list(office.archive.run("systems").decisions()) == []


@pytest.mark.parametrize("headers", [{"Origin": BASE}, {"Sec-Fetch-Site": "same-origin"}])
def test_one_word_of_the_browser_is_enough(office: Office, headers: dict[str, str]) -> None:
    assert office.browser("Ada").post("/cases/1/draft", headers).status_code == 200


def test_other_methods_are_refused(office: Office) -> None:
    browser = office.browser("Ada")
    for method in ("PUT", "DELETE", "PATCH", "OPTIONS"):
        answer = browser.client.request(
            method, "/cases/1", headers={**FROM_HERE, "Content-Length": "0"}
        )
        assert answer.status_code == 405
        assert browser.client.request(method, "/cases/1").status_code == 403


def test_requests_are_of_bounded_size(office: Office) -> None:
    browser = office.browser("Ada")
    answer = browser.post("/cases/1/draft", justification="x" * LARGEST_BODY)
    assert answer.status_code == 413 and "262,144 bytes" in answer.text
    pieces = iter([b"csrf=", browser.csrf.encode()])
    headers = {**FROM_HERE, "Content-Type": "application/x-www-form-urlencoded"}
    answer = browser.client.post("/cases/1/draft", content=pieces, headers=headers)
    assert answer.status_code == 411


def test_every_answer_forbids_the_browser_all_but_the_page_itself(office: Office) -> None:
    browser = office.browser("Ada")
    answers = [browser.get(path) for path in ("/", "/cases/1", "/static/review.js", "/nothing")]
    answers += [browser.get("/", Host="evil.example"), browser.post("/sign-out", {})]
    for answer in answers:
        assert HEADERS.items() <= {key: answer.headers.get(key) for key in HEADERS}.items()
    policy = answers[0].headers["content-security-policy"]
    assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self';")
    assert "unsafe" not in policy


def test_pages_hold_no_script_or_style_of_their_own(office: Office) -> None:
    browser = office.browser("Ada")
    for path in ("/", "/cases/1", "/cases/3", "/decided"):
        browser.get(path)
        for tag, attributes in browser.page.tags:
            assert tag != "style" and "style" not in attributes
            assert not [key for key in attributes if key.startswith("on")]
            if tag == "script":
                assert attributes["src"] == "/static/review.js"
            for key in ("href", "src", "action", "formaction"):
                assert re.match(r"[/#]|data:,$", attributes.get(key) or "/")


@pytest.mark.parametrize("name", ["..%2Fapp.py", "app.py", "%2e%2e/app.py", "base.html"])
def test_no_directory_is_served(office: Office, name: str) -> None:
    assert office.browser().get(f"/static/{name}").status_code == 404
