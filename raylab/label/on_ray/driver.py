"""An annotation on Ray: a driver streams cases to actors, until all ended or it must stop."""

import math
import signal
import time
from collections import Counter
from collections.abc import Generator, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from threading import Event
from types import FrameType
from typing import Any, NamedTuple
from uuid import uuid4

import ray
from ray import ObjectRef
from ray.exceptions import RayActorError, RayTaskError

from raylab.core import live
from raylab.core.errors import RaylabError, RunError, StoppedError
from raylab.core.log import log_line
from raylab.core.on_ray.session import result_of, session, this_node
from raylab.label.codebooks.choose import choose_codebook
from raylab.label.config.jobs import AnnotateConfig
from raylab.label.input.cases import Case
from raylab.label.judgement import UNCONFIRMED
from raylab.label.pages.progress import AnnotationProgress
from raylab.label.protocol.calls import ArchiveClient, RunWriter, Send
from raylab.label.protocol.run import AnnotationRun
from raylab.label.protocol.settings import protocol_settings
from raylab.label.protocol.worker import Chunk, Tally, Worker, chunks_of
from raylab.llm.config import Lane
from raylab.llm.embedded import embedded_server, uses_embedded
from raylab.llm.endpoints import EndpointAccess
from raylab.llm.limits import (
    RateLimiter,
    RateLimiterClient,
    Share,
    calls_at_once,
    limited_endpoints,
)

CASES_AHEAD = 2
"""Cases in flight for each call in flight, because a case also waits for the archive."""
CHUNKS_AHEAD = 4
MAX_CHUNK = 16
CASES_IN_BATCHES, CHUNK_IN_BATCHES = 50_000, 500
"""Cases in flight, and in a chunk, where calls are made in batches: all that one machine holds."""
RETRIES = 3
"""Retries of a chunk whose process was lost; then its cases stay open."""
CPUS_OF_AN_ACTOR = 0.1
"""CPUs per actor, few enough that the actors of a lost node fit on the remaining nodes."""
END_SECONDS = 5.0
"""Longest wait until actors begin to end."""
POLL_SECONDS = 0.5
LOOK_SECONDS = 1.0
"""Time between two looks at the calls of actors whose cases have not ended."""


def annotate_on_ray(
    annotation: AnnotationRun, cases: Iterator[tuple[str, Case]], total: int
) -> str:
    """Annotates cases of a run in a Ray session; returns how many stay open, and why.

    Args:
        annotation: The run, which this process owns.
        cases: The cases, each with its generation; one with a decision has that judged.
        total: Number of cases of the run, archived ones included.
    """
    before, config = annotation.archived.counts(now=True), annotation.config
    before.pop(UNCONFIRMED, None)
    left = total - sum(before.values())
    with ExitStack() as stack:
        # Ray and its actors take seconds to start.
        stack.enter_context(live.progress())
        uses = uses_embedded(config.llm)
        # Actors are told its address, so it is served before they start.
        embedded = stack.enter_context(embedded_server()) if uses else None
        stack.enter_context(session(config.cluster))
        stop = stack.enter_context(_stop_signals())
        progress = AnnotationProgress(total, before)
        stack.callback(progress.show, every=0.0)
        pool = stack.enter_context(Pool(annotation, left, embedded))
        pool.run(chunks_of(cases, pool.chunk), progress, stop)
    halt = progress.tally.halt
    if halt is not None and not isinstance(halt, StoppedError):
        raise halt
    # A stop by the user ends as Ctrl-C does, also where the signal was SIGTERM.
    if stop.is_set():
        raise KeyboardInterrupt
    reasons = progress.tally.open_cases
    cases_are = "case is" if len(reasons) == 1 else "cases are"
    return f"{len(reasons)} {cases_are} open, first {reasons[0]}" if reasons else ""


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
            name: Name of the actor in the run, which it keeps when it restarts.
            writer: Name of the actor that writes the archive.
            limiter: Name of the actor that holds the per-minute limits; None without any.
        """
        archive = ArchiveClient(_sender(ray.get_actor(writer)), name)
        limits = None if limiter is None else RateLimiterClient(_sender(ray.get_actor(limiter)))
        self._refusal: RaylabError | None = None
        try:
            settings = protocol_settings(config, run, choose_codebook(config))
            self._worker = Worker(config.llm, settings, run, archive, limits, embedded, share=share)
        except RaylabError as error:
            # Raising here would count as a death of the process, so the first chunk returns it.
            self._refusal = error

    async def annotate(self, chunk: Chunk) -> Tally:
        if self._refusal is not None:
            return Tally(halt=self._refusal)
        return await self._worker.annotate(chunk)

    async def take_counts(self) -> Tally:
        return Tally() if self._refusal is not None else self._worker.take_counts()

    async def stop(self) -> None:
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


class Work(NamedTuple):
    """Cases for an actor, and the number of times that their process was lost."""

    chunk: Chunk
    losses: int = 0


class Pool:
    """The actors of a run, and the cases that each of them has."""

    def __init__(
        self, annotation: AnnotationRun, left: int, embedded: EndpointAccess | None = None
    ) -> None:
        """Starts the configured number of actors, or one per CPU, but no more than can have a call.

        Args:
            annotation: The run, which this process owns; the actors share its calls in flight.
            left: Number of cases to annotate; all actors get some of them.
        """
        config = annotation.config
        fewest, most = calls_at_once(config.llm)
        lanes = {config.llm.lane_of(chat) for chat in config.llm.models.values()}
        if in_batches := Lane.BATCH in lanes:
            # One actor makes the largest batches.
            count, cases = config.actors or 1, CASES_IN_BATCHES
        else:
            count = min(config.actors or max(int(ray.cluster_resources().get("CPU", 1)), 1), fewest)
            cases = max(CASES_AHEAD * most // count, 1)
        few = min(cases, left // count) // CHUNKS_AHEAD
        self.chunk = min(max(few, 1), CHUNK_IN_BATCHES if in_batches else MAX_CHUNK)
        self._room = math.ceil(cases / self.chunk)
        self._pending: dict[ObjectRef[Tally], tuple[int, Work]] = {}
        self._again: list[Work] = []
        self._lost: dict[ObjectRef[Any], int] = {}
        """Lost actors, by the pending call that they answer once they are back."""
        run, here = annotation.run.name, this_node()
        # Actors find each other by name: a handle passed as an argument lies in the object store,
        # and may be gone from there when an actor restarts.
        writer, limiter = f"writer-{uuid4().hex}", None
        # These are on the node of the archive's file, and start again if they die.
        kept: dict[str, Any] = {"num_cpus": 0, "max_restarts": -1, "max_task_retries": -1}
        kept["scheduling_strategy"] = here
        actor: Any = ray.remote(RunWriter).options(name=writer, **kept)
        self._writer = actor.remote(
            annotation.archive.place, run, annotation.owner, config.llm.budget
        )
        self._others: list[Any] = [self._writer]
        if limited_endpoints(config.llm):
            limiter = f"limiter-{uuid4().hex}"
            actor = ray.remote(RateLimiter).options(name=limiter, **kept)
            self._others.append(actor.remote(config.llm.limits))
        annotator: Any = ray.remote(Annotator).options(
            num_cpus=CPUS_OF_AN_ACTOR,
            max_restarts=-1,
            scheduling_strategy=here if embedded else "SPREAD",
        )
        self._actors: list[Any] = [
            annotator.remote(
                config, run, _name(number), writer, limiter, embedded, Share(number, count)
            )
            for number in range(count)
        ]
        self._looks: dict[ObjectRef[Tally], int] = {}
        """Actors whose counts were asked for, by the call that returns them."""
        self._looked = float("-inf")
        self._starting: dict[ObjectRef[Any], int] = {
            actor.__ray_ready__.remote(): number for number, actor in enumerate(self._actors)
        }

    def __enter__(self) -> "Pool":
        return self

    def __exit__(self, *error: object) -> None:
        end_actors([*self._actors, *self._others])

    def run(
        self, chunks: Iterator[Chunk], progress: AnnotationProgress, stop: Event | None = None
    ) -> None:
        """Keeps the actors busy until all chunks have ended or the run must stop."""
        fresh, stopped = map(Work, chunks), False
        while True:
            while not stopped and self._free:
                # The cases of lost actors come first.
                work = self._again.pop() if self._again else next(fresh, None)
                if work is None:
                    break
                self._submit(work)
            if not self._pending and (stopped or self._free):
                for tally in self._look(END_SECONDS):
                    progress.tally.add(tally)
                return
            for tally in (*self._collect(), *self._look()):
                progress.tally.add(tally)
            if not stopped and (progress.tally.halt is not None or (stop and stop.is_set())):
                stopped = True
                # Calls in flight are finished and archived; nobody waits for actors that have not
                # started.
                for actor in self._actors:
                    actor.stop.remote()
                refs = [*self._starting]
                _, waiting = ray.wait(refs, num_returns=len(refs), timeout=0)
                absent = {self._starting[ref] for ref in waiting}
                for number in absent:
                    ray.kill(self._actors[number])
                pending = self._pending.items()
                self._pending = {ref: its for ref, its in pending if its[0] not in absent}
            progress.show()

    @property
    def _free(self) -> list[int]:
        """The actors that can take another chunk, those with the fewest first."""
        chunks = Counter(actor for actor, _ in self._pending.values())
        lost = self._lost.values()
        free = [n for n in range(len(self._actors)) if n not in lost and chunks[n] < self._room]
        return sorted(free, key=chunks.__getitem__)

    def _submit(self, work: Work) -> None:
        """Gives the cases to the actor with the fewest chunks."""
        actor = self._free[0]
        self._pending[self._actors[actor].annotate.remote(work.chunk)] = actor, work

    def _collect(self) -> Iterator[Tally]:
        """Waits a moment for a chunk to end, and yields the tallies of those that ended."""
        awaited = [*self._pending, *self._lost]
        ready, _ = ray.wait(awaited, num_returns=1, timeout=POLL_SECONDS)
        for ref in ready:
            if self._lost.pop(ref, None) is not None:
                continue
            actor, work = self._pending.pop(ref)
            try:
                yield result_of(ref)
            except RayActorError as error:
                # Ray takes time to tell a lost node from a slow one, and until then every call to
                # the actor fails. It gets no more work until it answers again.
                if actor not in self._lost.values():
                    # Others may wait for the calls that it had in flight.
                    self._writer.void_claims.remote(_name(actor))
                    back = self._actors[actor].__ray_ready__.options(max_task_retries=-1).remote()
                    self._lost[back] = actor
                losses = work.losses + 1
                if losses <= RETRIES:
                    self._again.append(Work(work.chunk, losses))
                else:
                    why = f"its process died {losses} times: {error}"
                    yield Tally(open_cases=[f"{case.id}: {why}" for _, case in work.chunk])

    def _look(self, wait: float = 0.0) -> Iterator[Tally]:
        """Yields the counts that actors at work were asked for, and asks again after a while."""
        refs, now = [*self._looks], time.monotonic()
        ready = ray.wait(refs, num_returns=len(refs), timeout=wait)[0] if refs else []
        for ref in ready:
            del self._looks[ref]
            with suppress(RayActorError):
                yield result_of(ref)
        if now >= self._looked + LOOK_SECONDS and self._pending:
            self._looked = now
            for actor in {actor for actor, _ in self._pending.values()} - {*self._looks.values()}:
                self._looks[self._actors[actor].take_counts.remote()] = actor


def _name(actor: int) -> str:
    """Returns the name of an actor, which it keeps when it restarts."""
    return f"annotator-{actor}"


@contextmanager
def _stop_signals() -> Generator[Event]:
    """Yields an event that the first Ctrl-C or SIGTERM sets, to stop the run; the second raises.

    Must be entered after Ray has started, because Ray installs its own handler.
    """
    stop = Event()

    def ask(number: int, frame: FrameType | None) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        stop.set()
        log_line("stopping when the calls in flight are answered; a second signal stops at once")

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def end_actors(actors: Sequence[Any]) -> None:
    """Ends actors; those that have not begun to end after `END_SECONDS` are killed."""
    # Ray reports each retry to the user, and an actor that ends does not answer.
    ended = {
        actor.__ray_terminate__.options(max_task_retries=0).remote(): actor for actor in actors
    }
    _, busy = ray.wait(list(ended), num_returns=len(ended), timeout=END_SECONDS)
    for ref in busy:
        ray.kill(ended[ref])
