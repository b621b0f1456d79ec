"""The HTTP client below the SDK: it reads answers as they stream in, up to a limit."""

from contextlib import aclosing
from http import HTTPStatus
from typing import Any

import httpx2
from openai import DefaultAioHttpClient

LARGEST_ANSWER = 1 << 22
"""Most bytes of an answer, decompressed: the 200,000 characters that are read of a reply take up
to 2.4 MB in JSON, and some servers repeat the thoughts of a model beside it."""
LARGEST_ERROR = 1 << 16
"""Bytes of any other answer that are read; the rest is not needed to show it."""
DECODED = ("content-encoding", "content-length", "transfer-encoding")
"""Headers that are no longer true of a body that was read."""


class OversizeError(Exception):
    """An answer of more than `LARGEST_ANSWER` bytes."""


class BoundedClient(DefaultAioHttpClient):
    """A client whose answers are read as a whole, with limits, and that follows no redirects.

    Whoever may redirect a call may send it to any host; and a call that is sent on is not the one
    that the archive says was made.
    """

    def __init__(self, limits: httpx2.Limits, trust_env: bool) -> None:
        """Takes the limits of connections, and whether the environment sets proxies."""
        super().__init__(limits=limits, trust_env=trust_env, follow_redirects=False)

    async def send(
        self, request: httpx2.Request, *, stream: bool = False, **options: Any
    ) -> httpx2.Response:
        """Sends a request and reads the answer.

        Raises:
            OversizeError: An answer with HTTP 200 has more than `LARGEST_ANSWER` bytes.
        """
        response = await super().send(request, stream=True, **options)
        try:
            content = await _read(response)
        finally:
            await response.aclose()
        headers = [(name, of) for name, of in response.headers.items() if name not in DECODED]
        return httpx2.Response(
            response.status_code, headers=headers, content=content, request=response.request
        )


async def _read(response: httpx2.Response) -> bytes:
    answered = response.status_code == HTTPStatus.OK
    most = LARGEST_ANSWER if answered else LARGEST_ERROR
    content = bytearray()
    async with aclosing(response.aiter_bytes()) as parts:
        async for part in parts:
            content += part
            if len(content) > most:
                if answered:
                    raise OversizeError
                break
    return bytes(content[:most])
