"""Admits only requests with the endpoint's key to Ray Serve, which checks none by itself.

The environment variable RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH names `middlewares`, so Ray
Serve's proxies put what it returns before every application.
"""

import hmac
import os

from starlette.datastructures import Headers
from starlette.middleware import Middleware
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

KEY_VARIABLE = "RAYLAB_LLM_KEY"
PROBES = ("/-/healthz", "/-/routes")
"""Paths that the proxy answers itself; Kubernetes and KubeRay request them without a key."""


class KeyGate:
    """Answers 401 to requests that do not carry the key as a bearer token."""

    def __init__(self, app: ASGIApp, key: str) -> None:
        self._app = app
        self._expected = f"Bearer {key}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan" or scope["path"] in PROBES or self._has_key(scope):
            await self._app(scope, receive, send)
            return
        refusal = JSONResponse({"error": {"message": "wrong or no API key"}}, status_code=401)
        await refusal(scope, receive, send)

    def _has_key(self, scope: Scope) -> bool:
        given = Headers(scope=scope).get("authorization", "")
        return hmac.compare_digest(given.encode("latin-1"), self._expected)


def middlewares() -> list[Middleware]:
    """Returns the middleware; Ray Serve calls this when a proxy starts.

    Raises:
        RuntimeError: There is no key; the proxy then does not start, rather than admit everybody.
    """
    key = os.environ.get(KEY_VARIABLE, "")
    if not key:
        raise RuntimeError(f"{KEY_VARIABLE} is empty: give the endpoint a key")
    return [Middleware(KeyGate, key=key)]
