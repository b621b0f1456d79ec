"""The requests to an endpoint, below the SDK: answers are read as they stream in, up to a limit."""

from collections.abc import Mapping
from contextlib import aclosing
from dataclasses import dataclass

import httpx2
from openai import AsyncOpenAI, DefaultAioHttpClient

CONNECT_TIMEOUT = 15.0
KEEP_ALIVE = 4.0
"""Seconds that an idle connection is kept: shorter than servers keep it, so that none breaks."""
LARGEST_ANSWER = 1 << 22
"""Most bytes of an answer, decompressed: the 200,000 characters that are read of a reply take up
to 2.4 MB in JSON, and some servers repeat the thoughts of a model beside it."""
LARGEST_ERROR = 1 << 16
"""Bytes of any other answer that are read; the rest is not needed to show it."""


class OversizeError(Exception):
    """An answer of more than `LARGEST_ANSWER` bytes."""


@dataclass(frozen=True)
class HttpResponse:
    """A response of an endpoint.

    Attributes:
        status: HTTP status.
        headers: its headers; look-ups ignore case.
        content: its body, decompressed.
    """

    status: int
    headers: Mapping[str, str]
    content: bytes

    @property
    def is_success(self) -> bool:
        """True for HTTP 2xx."""
        return 200 <= self.status < 300


class Transport:
    """A sender of chat requests to one address, with the SDK's headers and HTTP client.

    The SDK's own methods cost more than sending itself does. No redirect is followed:
    whoever may redirect a call may send it to any host, and a call that is sent on is not the one
    that the archive says was made.
    """

    def __init__(self, base_url: str, key: str, connections: int, trust_env: bool) -> None:
        """Opens no connection yet.

        Args:
            base_url: Address of the endpoint, to which `/chat/completions` is added.
            key: Its key; empty to send none.
            connections: Most connections.
            trust_env: Whether the environment sets proxies.
        """
        limits = httpx2.Limits(
            max_connections=connections,
            max_keepalive_connections=connections,
            keepalive_expiry=KEEP_ALIVE,
        )
        self._http = DefaultAioHttpClient(
            limits=limits, trust_env=trust_env, follow_redirects=False
        )
        self._url = httpx2.URL(f"{base_url.rstrip('/')}/chat/completions")
        self._headers = _headers(base_url, key, self._http)
        self._extensions = {"timeout": httpx2.Timeout(None, connect=CONNECT_TIMEOUT).as_dict()}

    async def close(self) -> None:
        """Closes the connections."""
        await self._http.aclose()

    async def post(self, content: bytes) -> HttpResponse:
        """Sends a request and reads the answer.

        Raises:
            OversizeError: An answer with HTTP 2xx has more than `LARGEST_ANSWER` bytes.
            httpx2.HTTPError, aiohttp.ClientError, OSError: The connection failed.
        """
        request = httpx2.Request(
            "POST",
            self._url,
            headers=self._headers,
            content=content,
            extensions=self._extensions,
        )
        response = await self._http.send(request, stream=True)
        try:
            return HttpResponse(response.status_code, response.headers, await _read(response))
        finally:
            await response.aclose()


def _headers(base_url: str, key: str, http: httpx2.AsyncClient) -> httpx2.Headers:
    """Returns the SDK's headers, some of which the environment sets, with no other key."""
    sdk = AsyncOpenAI(api_key="in the header", base_url=base_url, http_client=http)
    headers = httpx2.Headers(
        [(name, of) for name, of in sdk.default_headers.items() if isinstance(of, str)]
    )
    headers.pop("Authorization", None)
    if key:
        headers["Authorization"] = f"Bearer {key}"
    return headers


async def _read(response: httpx2.Response) -> bytes:
    most = LARGEST_ANSWER if response.is_success else LARGEST_ERROR
    content = bytearray()
    async with aclosing(response.aiter_bytes()) as parts:
        async for part in parts:
            content += part
            if len(content) > most:
                if response.is_success:
                    raise OversizeError
                break
    return bytes(content[:most])
