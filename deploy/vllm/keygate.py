"""Guards Ray Serve, which checks no keys, by the endpoint's key.

Ray Serve's proxies put the middleware before every application, because the environment variable
RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH names `middlewares`.
"""

import hmac
import os

from starlette.datastructures import Headers
from starlette.middleware import Middleware
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

KEY_VARIABLE = "RAYLAB_LLM_KEY"
PROBES = ("/-/healthz", "/-/routes")
"""Paths that Kubernetes and KubeRay request without a key; the proxy answers them itself."""


class KeyGate:
    """Answers 401 to requests without the key as a bearer token."""

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
        RuntimeError: There is no key; the proxy does not start.
    """
    key = os.environ.get(KEY_VARIABLE, "")
    if not key:
        raise RuntimeError(f"{KEY_VARIABLE} is empty: give the endpoint a key")
    return [Middleware(KeyGate, key=key)]
