"""The actors of an annotation: the annotators, the archive's writer and the rate limiter."""

from collections.abc import Sequence
from typing import Any

import ray

from raylab.annotation.calls import ArchiveWriter
from raylab.annotation.outcome import Status
from raylab.annotation.worker import Chunk, Tally, Worker
from raylab.archive.ledger import CallOperation, CallResults
from raylab.archive.records import CallRow, CaseRow, DecisionRow
from raylab.archive.store import Archive
from raylab.cluster.metrics import ATTEMPTS, CASES, COST, KNOWN, SECONDS, TOKENS, Meters
from raylab.cluster.session import awaited
from raylab.config.jobs import AnnotateConfig
from raylab.config.llm import Budget
from raylab.errors import RaylabError
from raylab.llm.client import CallEvent
from raylab.llm.endpoints import EndpointAccess
from raylab.llm.limits import RateLimiter, Share
from raylab.taxonomies import choose_codebook

SERVER_SECONDS = 60.0
"""Longest wait for a database server that is starting, in seconds."""


class ArchiveWriterActor(ArchiveWriter):
    """The archive's writer in its own process."""

    def __init__(self, location: str, run: str, owner: str, budget: Budget) -> None:
        super().__init__(Archive.open(location, wait=SERVER_SECONDS), run, owner, budget)


class RateLimiterActor(RateLimiter):
    """The rate limiter of a run in its own process."""


class Annotator:
    """A worker in its own process; see `raylab.annotation.worker.Worker`."""

    def __init__(
        self,
        config: AnnotateConfig,
        run: str,
        name: str,
        writer: str,
        limiter: str | None,
        embedded: EndpointAccess | None,
        share: Share,
    ) -> None:
        """Opens the worker.

        Args:
            config: configuration of the run.
            run: name of the run.
            name: name of the actor in the run, which it keeps when it restarts.
            writer: name of the actor that writes the archive.
            limiter: name of the actor that holds the limits a minute; None without any.
            embedded: address of the embedded model, if it is used.
            share: the share of this actor in the calls in flight.
        """
        archive = _RemoteArchive(ray.get_actor(writer), name)
        limits = None if limiter is None else _RemoteRateLimiter(ray.get_actor(limiter))
        self._refusal: RaylabError | None = None
        try:
            codebook = choose_codebook(config.protocol)
            self._worker = Worker(
                config, codebook, run, archive, _RayMeter(run), limits, embedded, share=share
            )
        except RaylabError as error:
            # Raising here would count as a death of the process, so the first chunk returns it.
            self._refusal = error

    async def annotate(self, chunk: Chunk) -> Tally:
        """Annotates cases concurrently; each is archived when it ends."""
        if self._refusal is not None:
            return Tally(halt=self._refusal)
        return await self._worker.annotate(chunk)

    async def stop(self) -> None:
        """Sends no further call; those in flight are finished and archived."""
        if self._refusal is None:
            self._worker.stop()


class _RemoteArchive:
    """Client of the archive's writer; see `raylab.annotation.calls.ArchiveClient`."""

    def __init__(self, writer: Any, claimant: str) -> None:
        self._writer, self._claimant = writer, claimant

    async def write_calls(self, operations: Sequence[CallOperation]) -> CallResults:
        return await awaited(self._writer.write_calls.remote(operations, self._claimant))

    async def void_claims(self) -> None:
        await awaited(self._writer.void_claims.remote(self._claimant))

    async def calls_of(self, description_hashes: Sequence[str]) -> list[CallRow]:
        return await awaited(self._writer.calls_of.remote(description_hashes))

    async def add_cases(self, rows: Sequence[CaseRow]) -> None:
        await awaited(self._writer.add_cases.remote(rows))

    async def confirm(self, sequence: int, row: DecisionRow) -> None:
        await awaited(self._writer.confirm.remote(sequence, row))


class _RemoteRateLimiter:
    """Client of the rate limiter; see `raylab.llm.limits.RateLimiterClient`."""

    def __init__(self, limiter: Any) -> None:
        self._limiter = limiter

    async def reserve(self, endpoint: str, tokens: int) -> float:
        return await awaited(self._limiter.reserve.remote(endpoint, tokens))

    async def settle(self, endpoint: str, tokens: int, calls: int = 0) -> None:
        await awaited(self._limiter.settle.remote(endpoint, tokens, calls))

    async def penalise(self, endpoint: str, seconds: float) -> None:
        await awaited(self._limiter.penalise.remote(endpoint, seconds))


class _RayMeter:
    """Recorder of the events of a worker as Ray's metrics; see `raylab.annotation.worker.Meter`."""

    def __init__(self, run: str) -> None:
        self._meters = Meters(run)

    def attempted(self, event: CallEvent) -> None:
        labels = {"endpoint": event.endpoint, "model": event.model}
        self._meters.add(ATTEMPTS, **labels, outcome=event.outcome.value)
        self._meters.observe(SECONDS, event.seconds, **labels)
        if (reply := event.reply) is not None:
            self._meters.add(TOKENS, reply.prompt_tokens, **labels, direction="prompt")
            self._meters.add(TOKENS, reply.completion_tokens, **labels, direction="reply")
            self._meters.add(COST, reply.cost or 0.0, **labels)

    def found(self, answers: int) -> None:
        self._meters.add(KNOWN, answers)

    def ended(self, status: Status) -> None:
        self._meters.add(CASES, status=status.value)
