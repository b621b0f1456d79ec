"""Who is let in: tokens, hosts, origins, sizes."""

import itertools
import logging
import time

import pytest
from fastapi.routing import APIRoute
from starlette.testclient import TestClient

from raylab.core.errors import ConfigError
from raylab.label.config.jobs import ReviewConfig
from raylab.label.review.access import HEADERS, MAX_BODY, SESSION_SECONDS, TOKEN_VARIABLE, access_of
from raylab.label.review.reviews import Reviews
from tests.label.review.office import BASE, Browser, Office

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


def paths(browser: Browser, method: str) -> list[str]:
    """Every path of the page, with a case in place of parameters."""
    routes = [route for route in browser.app.routes if isinstance(route, APIRoute)]
    here = [route.path for route in routes if method in (route.methods or ())]
    return [path.replace("{case}", "1") for path in here if "{name}" not in path]


def test_a_page_beyond_loopback_demands_a_token(monkeypatch: pytest.MonkeyPatch) -> None:
    for host in ("127.0.0.1", "127.0.0.2", "::1", "localhost"):
        assert access_of(config(host=host)).token is None
    for keys in ({"host": "10.0.0.7"}, {"host": "0.0.0.0", "hosts": ("node",)}, {"hosts": ("n",)}):
        assert f"demands a token: export {TOKEN_VARIABLE}" in refusal(**keys)
    monkeypatch.setenv(TOKEN_VARIABLE, TOKEN[:31])
    short = refusal(host="10.0.0.7")
    assert "has 31 characters, it needs 32" in short and TOKEN[:31] not in short
    monkeypatch.setenv(TOKEN_VARIABLE, f" {TOKEN}\n")
    access = access_of(config(host="10.0.0.7", hosts=("Node",)))
    assert access.admits(TOKEN) and not access.admits(TOKEN[:-1]) and not access.admits("é")
    assert set(access.hosts) == {"10.0.0.7", "Node", "localhost", "127.0.0.1", "[::1]"}
    assert TOKEN not in repr(access) and access.key.get_secret_value() not in repr(access)
    for host in ("0.0.0.0", "::"):
        assert f"host={host} needs hosts=[NAME]" in refusal(host=host)


# Sessions


def test_nobody_sees_or_does_anything_without_signing_in(office: Office) -> None:
    browser = office.browser()
    for path in paths(browser, "GET"):
        answer = browser.get(path)
        assert answer.status_code == 401 and browser.text("#name-hint")
        assert "pool" not in answer.text and "valve" not in answer.text
    posts = set(paths(browser, "POST")) - {"/sign-in", "/sign-out"}
    assert len(posts) == 4
    for path in posts:
        assert browser.post(path, **FILLED).status_code == 401
    for name in ("", " ", "x" * 61, "a\x07b"):
        assert browser.post("/sign-in", name=name).status_code == 401
        assert "1 to 60 letters" in browser.text()
    assert office.held() == {} and office.decisions() == []


def test_the_token_lets_in_and_is_shown_nowhere(
    office: Office, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    monkeypatch.setenv(TOKEN_VARIABLE, TOKEN)
    browser = office.browser(access=access_of(config()))
    for wrong in ("", TOKEN[:-1], TOKEN.upper()):
        assert browser.post("/sign-in", name="Ada", token=wrong).status_code == 401
        assert "not the token" in browser.text("#token-problem")
        assert browser.get("/cases/1").status_code == 401
    answers = [browser.post("/sign-in", name="Ada", token=TOKEN)]
    answers += [browser.get(path) for path in ("/", "/cases/1", "/decided")]
    assert [answer.status_code for answer in answers] == [303, 200, 200, 200]
    shown = [f"{answer.url} {answer.headers} {answer.text}" for answer in answers]
    assert TOKEN not in "".join([*shown, caplog.text, str(browser.client.cookies)])
    assert "wrong token" in caplog.text


def test_a_cookie_that_was_changed_or_made_by_another_page_is_none(office: Office) -> None:
    ((name, cookie),) = office.browser("Ada").client.cookies.items()
    for changed in (cookie, f"x{cookie}", "x"):
        browser = office.browser()
        browser.client.cookies.set(name, changed)
        assert browser.get("/").status_code == 401


def test_a_session_ends_after_a_week_and_by_signing_out(
    office: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    browser = office.browser("Ada")
    later = time.time() + SESSION_SECONDS + 60
    with monkeypatch.context() as patch:
        patch.setattr("itsdangerous.timed.time.time", lambda: later)
        ((name, cookie),) = browser.client.cookies.items()
        assert browser.get("/", Cookie=f"{name}={cookie}").status_code == 401
    browser.post("/sign-in", name="Ada")
    assert browser.get("/").status_code == 200
    assert browser.post("/sign-out").status_code == 303
    assert browser.get("/").status_code == 401 and not browser.client.cookies


# Proxies, hosts and origins


def test_behind_a_tls_proxy_cookies_are_secure(
    office: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(TOKEN_VARIABLE, TOKEN)
    access = access_of(config(hosts=("review.example",), proxies=("10.0.0.0/24",)))

    def reached_from(peer: str) -> Browser:
        browser = office.browser(access=access)
        # What counts is not how a client asks, but what a trusted proxy says.
        browser.client = TestClient(
            browser.app, "http://review.example", follow_redirects=False, client=(peer, 5000)
        )
        return browser

    by_tls = {"X-Forwarded-Proto": "https", "X-Forwarded-For": "192.0.2.7"}
    headers = {**by_tls, "Origin": "https://review.example"}
    browser = reached_from("10.0.0.5")
    answer = browser.post("/sign-in", headers, name="Ada", token=TOKEN)
    name, *attributes = answer.headers["set-cookie"].lower().split("; ")
    assert answer.status_code == 303 and name.startswith("__host-raylab-review-systems=")
    assert {"secure", "httponly", "samesite=strict", "path=/"} <= {*attributes}
    assert answer.headers["strict-transport-security"] == "max-age=31536000"
    # Without the proxy's word nothing is answered.
    for headers in ({}, {"X-Forwarded-Proto": "http"}):
        refused = browser.get("/", **headers)
        assert refused.status_code == 400 and "over HTTPS only" in refused.text
    assert reached_from("203.0.113.9").get("/", **by_tls).status_code == 400


def test_a_request_by_a_strange_name_is_refused(office: Office) -> None:
    browser = office.browser()
    for host in ("evil.example:8700", "127.0.0.1.evil.example", "", "[::1", "10.0.0.7"):
        assert browser.get("/", Host=host).status_code == 400
    # A tunnel may have another port.
    for host in ("127.0.0.1:1234", "LOCALHOST:8700", "[::1]:8700", "localhost"):
        assert browser.get("/", Host=host).status_code == 401


def test_forged_forms_are_refused(office: Office) -> None:
    browser = office.browser("Ada")
    posts = paths(browser, "POST")
    assert len(posts) == 6
    forged = [{"Origin": origin} for origin in ("http://127.0.0.1:9999", "null", "http://[")]
    forged += [{"Origin": BASE, "Sec-Fetch-Site": "cross-site"}, {"Sec-Fetch-Site": "none"}, {}]
    for path, headers in itertools.product(posts, forged):
        assert browser.post(path, headers, **FILLED).status_code == 403
    assert browser.client.put("/cases/1").status_code == 403
    assert office.held() == {} and office.decisions() == []
    for headers in ({"Origin": BASE}, {"Sec-Fetch-Site": "same-origin"}):
        assert browser.post("/cases/1/keep", headers).status_code == 200


def test_every_answer_forbids_the_browser_all_but_the_page_itself(
    office: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("secret detail")

    browser = office.browser("Ada")
    monkeypatch.setattr(Reviews, "made_by", fail)
    browser.client = TestClient(browser.app, BASE, False, cookies=browser.client.cookies)
    answers = {
        200: browser.get("/cases/1"),
        400: browser.get("/", Host="evil.example"),
        403: browser.post("/sign-out", {}),
        404: browser.get("/static/base.html"),
        413: browser.post("/cases/1/keep", justification="x" * MAX_BODY),
        500: browser.get("/decided"),
    }
    for status, answer in answers.items():
        assert answer.status_code == status
        assert {key: answer.headers.get(key) for key in HEADERS} == HEADERS
    assert "secret" not in answers[500].text
    policy = answers[200].headers["content-security-policy"]
    assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self';")
    assert "unsafe" not in policy
