"""Access to the page: host names, the token, sessions, and the size and origin of requests."""

import hmac
import ipaddress
import os
import secrets
from contextlib import suppress
from dataclasses import dataclass, field

from fastapi import FastAPI, Request, Response
from pydantic import SecretStr
from starlette.middleware.base import BaseHTTPMiddleware, RequestResponseEndpoint
from starlette.middleware.body_limit import RequestBodyLimitMiddleware
from starlette.middleware.sessions import SessionMiddleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.responses import PlainTextResponse
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

from raylab.core.errors import ConfigError
from raylab.label.config.jobs import ReviewConfig

TOKEN_VARIABLE = "RAYLAB_REVIEW_TOKEN"
MIN_TOKEN = 32
"""Characters."""
SESSION_SECONDS = 7 * 24 * 3600
MAX_BODY = 1 << 18
"""Bytes of a request: the longest justification and code, however they are encoded."""
LOOPBACK = frozenset({"localhost", "127.0.0.1", "[::1]"})
EVERYWHERE = frozenset({"0.0.0.0", "::"})
SAFE_METHODS = frozenset({"GET", "HEAD"})
HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src data:; "
        "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
OVER_TLS = {"Strict-Transport-Security": "max-age=31536000"}
NOT_BY_PROXY = (
    "This page answers over HTTPS only: through a proxy that sends X-Forwarded-Proto: https from "
    "an address in proxies= of jobs/review.py."
)
FOREIGN = "This form comes from another page: open the page itself and send it again."


@dataclass(frozen=True)
class Access:
    """The names, the token and the cookie of the page.

    Attributes:
        hosts: names and addresses of the page, as requests name them.
        token: demanded of reviewers; None asks for a name alone.
        cookie: name of the session's cookie.
        proxies: addresses and networks of TLS proxies, whose word on a request counts.
        key: signs the cookies of sessions, which end with the process.
    """

    hosts: tuple[str, ...]
    token: SecretStr | None
    cookie: str
    proxies: tuple[str, ...] = ()
    key: SecretStr = field(default_factory=lambda: SecretStr(secrets.token_hex(32)))

    def admits(self, token: str) -> bool:
        """Returns whether a token is right, or none is demanded; compares in constant time."""
        expected = self.token.get_secret_value() if self.token else ""
        return self.token is None or hmac.compare_digest(
            expected.encode(), token.encode(errors="replace")
        )

    def guard(self, app: FastAPI) -> None:
        """Puts the checks of requests before an application, the outermost last."""
        app.add_middleware(
            SessionMiddleware,
            secret_key=self.key.get_secret_value(),
            session_cookie=self.cookie,
            max_age=SESSION_SECONDS,
            same_site="strict",
            https_only=bool(self.proxies),
        )
        app.add_middleware(RequestBodyLimitMiddleware, max_body_size=MAX_BODY)
        app.add_middleware(TrustedHostMiddleware, allowed_hosts=self.hosts, www_redirect=False)
        app.add_middleware(BaseHTTPMiddleware, dispatch=self._check)
        if self.proxies:
            app.add_middleware(ProxyHeadersMiddleware, trusted_hosts=list(self.proxies))

    async def _check(self, request: Request, call_next: RequestResponseEndpoint) -> Response:
        """Refuses what another page sent, and what came without TLS where TLS is required."""
        # A page elsewhere may have a signed-in browser send requests; the browser then names that
        # page's origin. What names neither site nor origin comes from no browser.
        site, origin = (request.headers.get(name) for name in ("sec-fetch-site", "origin"))
        is_own = site == "same-origin" or (site is None and origin is not None)
        if origin is not None:
            is_own &= origin.partition("://")[2] == request.headers.get("host")
        if self.proxies and request.url.scheme != "https":
            response: Response = PlainTextResponse(NOT_BY_PROXY, 400)
        elif request.method not in SAFE_METHODS and not is_own:
            response = PlainTextResponse(FOREIGN, 403)
        else:
            response = await call_next(request)
        response.headers.update(HEADERS | (OVER_TLS if request.url.scheme == "https" else {}))
        return response


def access_of(config: ReviewConfig) -> Access:
    """Returns the access to the page that a configuration describes.

    Raises:
        ConfigError: The page can be reached from elsewhere without a token, the token is short, or
            the page listens everywhere and has no name.
    """
    if config.host in EVERYWHERE and not config.hosts:
        raise ConfigError(
            f"host={config.host} needs hosts=[NAME], the names by which browsers reach the page"
        )
    is_loopback = config.host == "localhost"
    with suppress(ValueError):
        is_loopback = ipaddress.ip_address(config.host).is_loopback
    token = os.environ.get(TOKEN_VARIABLE, "").strip()
    if not token and (config.hosts or not is_loopback):
        raise ConfigError(
            f"a page that is reached at {', '.join((config.host, *config.hosts))} demands a "
            f"token: export {TOKEN_VARIABLE} with the output of openssl rand -hex 32, or leave "
            "host= and hosts= unset and reach the page by ssh -L"
        )
    if token and len(token) < MIN_TOKEN:
        raise ConfigError(
            f"the token in {TOKEN_VARIABLE} has {len(token)} characters, it needs "
            f"{MIN_TOKEN}: take the output of openssl rand -hex 32"
        )
    names = {config.host, *config.hosts} - EVERYWHERE
    # Cookies do not tell the ports of a host apart, so the page of each run has its own.
    cookie = f"raylab-review-{config.name}"
    return Access(
        hosts=tuple(sorted(LOOPBACK.union(f"[{name}]" if ":" in name else name for name in names))),
        token=SecretStr(token) if token else None,
        # With this prefix a browser takes the cookie only from this very host, over TLS.
        cookie=f"__Host-{cookie}" if config.proxies else cookie,
        proxies=tuple(map(str, config.proxies)),
    )
