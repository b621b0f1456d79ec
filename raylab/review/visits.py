"""Browsers' visits: a cookie with a random name, and the keys that follow from it."""

import hmac
import re
import secrets

from pydantic import SecretStr
from starlette.requests import HTTPConnection
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from raylab.review.access import Access

SESSION_SECONDS = 7 * 24 * 3600
NAME = re.compile(r"[\w-]{43}", re.ASCII)


class Visit:
    """A browser's visit.

    What is known of it lies on the server, under keys that only a process with the page's own key
    can compute from the name in the cookie; the cookie itself says nothing.
    """

    def __init__(self, key: SecretStr, name: str) -> None:
        """Goes on with a visit of this name; an empty one is a new visitor's."""
        self._key = key.get_secret_value().encode()
        self._given = name
        self._name = name

    @property
    def name(self) -> str | None:
        """The name to give the browser: empty to end the visit, None to leave it as it is."""
        return None if self._name == self._given else self._name

    @property
    def session_key(self) -> str:
        """The key of the visit's session; 64 characters."""
        return self._digest("session")

    @property
    def form_token(self) -> str:
        """The token that the visit's forms carry; begins a visit if there is none."""
        if not self._name:
            self.renew()
        return self._digest("form")

    def has_token(self, token: str) -> bool:
        """Returns whether a form carries the visit's token."""
        expected = self._digest("form") if self._name else ""
        return bool(expected) and hmac.compare_digest(
            expected.encode(), token.encode(errors="replace")
        )

    def renew(self) -> None:
        """Begins another visit, whose name nobody has seen."""
        self._name = secrets.token_urlsafe(32)

    def end(self) -> None:
        """Ends the visit."""
        self._name = ""

    def _digest(self, purpose: str) -> str:
        return hmac.digest(self._key, f"{purpose}:{self._name}".encode(), "sha256").hex()


class Visits:
    """Finds the visit that a request belongs to, and gives the browser its name."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        """Stands before an application, which finds the visit in `request.state.visit`."""
        self._app = app
        self._access = access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Lets a request pass, and sets the cookie if the visit has changed."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        secure = scope["scheme"] == "https"
        # By the prefix the browser takes the cookie from this very host over TLS alone.
        cookie = f"__Host-{self._access.cookie}" if secure else self._access.cookie
        given = HTTPConnection(scope).cookies.get(cookie, "")
        visit = Visit(self._access.key, given if NAME.fullmatch(given) else "")
        scope.setdefault("state", {})["visit"] = visit

        async def send_named(message: Message) -> None:
            if message["type"] == "http.response.start" and visit.name is not None:
                message.setdefault("headers", []).append(_set_cookie(cookie, visit.name, secure))
            await send(message)

        await self._app(scope, receive, send_named)


def _set_cookie(cookie: str, name: str, secure: bool) -> tuple[bytes, bytes]:
    answer = Response()
    answer.set_cookie(
        cookie,
        name,
        max_age=SESSION_SECONDS if name else 0,
        secure=secure,
        httponly=True,
        samesite="strict",
    )
    (header,) = (item for item in answer.raw_headers if item[0] == b"set-cookie")
    return header
