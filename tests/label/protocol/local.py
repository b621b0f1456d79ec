"""The calls of a run in one process, without the actors that an annotation has."""

from typing import Any

from raylab.label.archive.store import Archive
from raylab.label.config.jobs import LlmConfig
from raylab.label.protocol.calls import ArchiveClient, CallJournal, RunWriter
from raylab.llm.client import Client


def local_archive(writer: RunWriter, claimant: str = "") -> ArchiveClient:
    """Returns a client of a writer in the same process."""

    async def send(method: str, *arguments: object) -> Any:
        return getattr(writer, method)(*arguments)

    return ArchiveClient(send, claimant)


def client_of_run(llm: LlmConfig, archive: Archive, run: str, owner: str) -> Client:
    """Returns a client of this process alone."""
    writer = local_archive(RunWriter(archive.place, run, owner, llm.budget))
    return Client(llm, CallJournal(writer, run, llm.budget))
