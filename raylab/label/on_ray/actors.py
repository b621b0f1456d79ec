"""The annotators of a run, each in its own process."""

from typing import Any

import ray
from ray.exceptions import RayTaskError

from raylab.core.errors import RaylabError, RunError
from raylab.label.codebooks.choose import choose_codebook
from raylab.label.config.jobs import AnnotateConfig
from raylab.label.protocol.calls import ArchiveClient, Send
from raylab.label.protocol.settings import protocol_settings
from raylab.label.protocol.worker import Chunk, Tally, Worker
from raylab.llm.endpoints import EndpointAccess
from raylab.llm.limits import RateLimiterClient, Share


class Annotator:
    """A worker in its own process; see `raylab.label.protocol.worker.Worker`."""

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
            name: name of the actor in the run, which it keeps when it restarts.
            writer: name of the actor that writes the archive.
            limiter: name of the actor that holds the per-minute limits; None without any.
        """
        archive = ArchiveClient(_sender(ray.get_actor(writer)), name)
        limits = None if limiter is None else RateLimiterClient(_sender(ray.get_actor(limiter)))
        self._refusal: RaylabError | None = None
        try:
            settings = protocol_settings(config, run, choose_codebook(config))
            self._worker = Worker(
                config.llm,
                settings,
                run,
                archive,
                limits,
                embedded,
                share=share,
            )
        except RaylabError as error:
            # Raising here would count as a death of the process, so the first chunk returns it.
            self._refusal = error

    async def annotate(self, chunk: Chunk) -> Tally:
        """Annotates cases concurrently; each is archived when it ends."""
        if self._refusal is not None:
            return Tally(halt=self._refusal)
        return await self._worker.annotate(chunk)

    async def take_counts(self) -> Tally:
        """Returns the counts of calls since the last time."""
        return Tally() if self._refusal is not None else self._worker.take_counts()

    async def stop(self) -> None:
        """Sends no further call; those in flight are finished and archived."""
        if self._refusal is None:
            self._worker.stop()


def _sender(actor: Any) -> Send:
    """Returns a function that calls the methods of an actor by name and raises their errors."""

    async def send(method: str, *arguments: object) -> Any:
        try:
            return await getattr(actor, method).remote(*arguments)
        except RayTaskError as error:
            if isinstance(error.cause, RaylabError):
                raise error.cause from None
            raise RunError(f"an actor of the run failed: {error}") from error

    return send
