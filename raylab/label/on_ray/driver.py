"""The driver of an annotation: cases streamed to actors on Ray, until all ended or it must stop."""

import math
import signal
import time
from collections import Counter
from collections.abc import Generator, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from threading import Event
from types import FrameType
from typing import Any
from uuid import uuid4

import ray
from ray import ObjectRef
from ray.exceptions import RayActorError

from raylab.core import live
from raylab.core.errors import StoppedError
from raylab.core.log import log_line
from raylab.core.on_ray.session import result_of, session, this_node
from raylab.label.input.cases import Case
from raylab.label.judgement import UNCONFIRMED
from raylab.label.on_ray.actors import Annotator
from raylab.label.pages.progress import AnnotationProgress
from raylab.label.protocol.calls import RunWriter
from raylab.label.protocol.run import AnnotationRun
from raylab.label.protocol.worker import Chunk, Tally, chunks_of
from raylab.llm.config import Lane
from raylab.llm.embedded import embedded_server, uses_embedded
from raylab.llm.endpoints import EndpointAccess
from raylab.llm.limits import RateLimiter, Share, calls_at_once, limited_endpoints

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
    if stop.is_set():
        raise KeyboardInterrupt
    reasons = progress.tally.open_cases
    cases_are = "case is" if len(reasons) == 1 else "cases are"
    return f"{len(reasons)} {cases_are} open, first {reasons[0]}" if reasons else ""


@dataclass(frozen=True)
class Work:
    """Cases for an actor.

    Attributes:
        losses: number of times that their process was lost.
    """

    chunk: Chunk
    losses: int = 0


class Pool:
    """The actors of a run, and the cases that each of them has."""

    def __init__(
        self, annotation: AnnotationRun, left: int, embedded: EndpointAccess | None = None
    ) -> None:
        """Starts the configured number of actors, or one per CPU, but no more than can have a call.

        Args:
            annotation: the run, which this process owns; the actors share its calls in flight.
            left: number of cases to annotate; all actors get some of them.
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
        run = annotation.run.name
        # Actors find each other by name: a handle passed as an argument lies in the object store,
        # and may be gone from there when an actor restarts.
        writer, limiter = f"writer-{uuid4().hex}", None
        self._writer = _restarting(RunWriter, writer).remote(
            annotation.archive.place, run, annotation.owner, config.llm.budget
        )
        self._others: list[Any] = [self._writer]
        if limited_endpoints(config.llm):
            limiter = f"limiter-{uuid4().hex}"
            actor = _restarting(RateLimiter, limiter)
            self._others.append(actor.remote(config.llm.limits))
        annotator: Any = ray.remote(Annotator).options(
            num_cpus=CPUS_OF_AN_ACTOR,
            max_restarts=-1,
            scheduling_strategy=this_node() if embedded else "SPREAD",
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
        self,
        chunks: Iterator[Chunk],
        progress: AnnotationProgress,
        stop: Event | None = None,
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
                self._stop()
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

    def _stop(self) -> None:
        """Tells all actors to send no further call; those in flight are finished and archived.

        Actors that have not started are not waited for.
        """
        for actor in self._actors:
            actor.stop.remote()
        _, waiting = ray.wait([*self._starting], num_returns=len(self._starting), timeout=0)
        absent = {self._starting[ref] for ref in waiting}
        for actor in absent:
            ray.kill(self._actors[actor])
        self._pending = {ref: has for ref, has in self._pending.items() if has[0] not in absent}


def _name(actor: int) -> str:
    """Returns the name of an actor, which it keeps when it restarts."""
    return f"annotator-{actor}"


def _restarting(kind: type, name: str) -> Any:
    """Returns a named actor on this node, where the archive's file is; it restarts if it dies."""
    return ray.remote(kind).options(
        name=name,
        num_cpus=0,
        max_restarts=-1,
        max_task_retries=-1,
        scheduling_strategy=this_node(),
    )


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
