"""The calls of a run in one process, without the actors that an annotation has."""

from typing import Any

from raylab.annotation.calls import ArchiveClient, ArchiveWriter, CallJournal, Send
from raylab.archive.store import Archive
from raylab.config.annotation import LlmConfig
from raylab.llm.client import Client
from raylab.llm.connection import Timing
from raylab.llm.endpoints import EndpointAccess
from raylab.llm.limits import RateLimiter, RateLimiterClient


def sender(actor: object) -> Send:
    """Returns what calls the methods of an object in this process by name."""

    async def send(method: str, *arguments: object) -> Any:
        return getattr(actor, method)(*arguments)

    return send


def local_archive(writer: ArchiveWriter, claimant: str = "") -> ArchiveClient:
    """Returns a client of a writer in the same process."""
    return ArchiveClient(sender(writer), claimant)


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
    return Client(llm, journal, RateLimiterClient(sender(limiter)), embedded, timing=timing)
