"""The calls of a run in one process, without the actors that an annotation has."""

from typing import Any

from raylab.annotation.calls import ArchiveClient, ArchiveWriter, CallJournal
from raylab.archive.store import Archive
from raylab.config.annotation import LlmConfig
from raylab.llm.client import Client
from raylab.llm.connection import Timing
from raylab.llm.endpoints import EndpointAccess
from raylab.llm.limits import RateLimiter


def local_archive(writer: ArchiveWriter, claimant: str = "") -> ArchiveClient:
    """Returns a client of a writer in the same process."""

    async def send(method: str, *arguments: object) -> Any:
        return getattr(writer, method)(*arguments)

    return ArchiveClient(send, claimant)


class LocalRateLimiter:
    """The client of a limiter in the same process."""

    def __init__(self, limiter: RateLimiter) -> None:
        self._limiter = limiter

    async def reserve(self, endpoint: str, tokens: int) -> float:
        return self._limiter.reserve(endpoint, tokens)

    async def settle(self, endpoint: str, tokens: int, calls: int = 0) -> None:
        self._limiter.settle(endpoint, tokens, calls)

    async def penalise(self, endpoint: str, seconds: float) -> None:
        self._limiter.penalise(endpoint, seconds)


def client_of_run(
    llm: LlmConfig,
    archive: Archive,
    run: str,
    owner: str,
    embedded: EndpointAccess | None = None,
    timing: Timing | None = None,
    limiter: RateLimiter | None = None,
) -> Client:
    """Returns a client of this process alone, which shares its limits with nobody."""
    if limiter is None:
        limiter = RateLimiter(llm.limits, (timing or Timing()).clock)
    writer = local_archive(ArchiveWriter(archive, run, owner, llm.budget))
    journal = CallJournal(writer, run, llm.budget)
    return Client(llm, journal, LocalRateLimiter(limiter), embedded, timing=timing)
