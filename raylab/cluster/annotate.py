"""Annotation on Ray: cases streamed to actors, every step archived, stopped and resumed at will."""

import logging
import math
import signal
import time
from collections import Counter
from collections.abc import Generator, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from itertools import islice
from types import FrameType
from typing import Any
from uuid import uuid4

import ray
from ray import ObjectRef
from ray.exceptions import RayActorError
from rich.live import Live
from rich.text import Text

from raylab.annotation.cases import Case
from raylab.annotation.outcome import PROTOCOL, TAXONOMY, Status
from raylab.annotation.run import archive_location
from raylab.annotation.settings import settings_of
from raylab.annotation.sources import select_cases
from raylab.archive.store import Archive
from raylab.cluster.annotators import (
    Annotator,
    ArchiveWriter,
    Chunk,
    RateLimiterActor,
    Tally,
    case_row,
    failed,
)
from raylab.cluster.metrics import CASES_IN_FLIGHT, Meters
from raylab.cluster.session import require_kept, result_of, session, this_node
from raylab.config.jobs import AnnotateConfig
from raylab.errors import DataError, StoppedError
from raylab.llm.embedded import SMOKE_NOTICE, Embedded, embedded_if_used, uses_embedded
from raylab.log import console, log_line, structured
from raylab.opt.prompts import prompt_catalogue
from raylab.report.annotation_run import conclude, tell_drift
from raylab.report.progress import duration
from raylab.runs.run import RECORD, Json, Run
from raylab.runs.run_record import identity_of

CASES_LOOKED_UP = 1000
"""Cases of which the archive is asked at once whether it has them."""
CASES_AHEAD = 2
"""Cases in flight for each call in flight: a case waits for the archive as well."""
CHUNKS_AHEAD = 4
LARGEST_CHUNK = 16
RETRIES = 3
"""After losses of the process that ran a chunk; then its cases are tried alone, each as often."""
CPUS_OF_AN_ACTOR = 0.1
"""Little, so that the actors of a lost node find a place on the nodes that are left."""
POLL_SECONDS = 0.5
LINE_SECONDS = 10.0


def run_annotate(config: AnnotateConfig) -> None:
    """Run the protocol on every case that the archive does not have yet, and report.

    Raises:
        RaylabError: what a user can act on, with the way out.
        KeyboardInterrupt: the user stopped the run, which can be resumed.
    """
    if config.drift:
        tell_drift(config)
        return
    location = archive_location(config)
    run = Run.open(config, config.job)
    with Archive.open(location) as archive:
        archive.start_run(run.name, identity_of(config), _versions(run), run.id)
        archive.add_prompts(prompt_catalogue())
        if not run.finished:
            _annotate(config, run, archive, location)
            archive.finish_run(run.name)
            run.finish()
        conclude(config, run, archive)


def _annotate(config: AnnotateConfig, run: Run, archive: Archive, location: str) -> None:
    """Bring every case to its end."""
    for warning in settings_of(config, run.name).warnings:
        log_line(f"warning: {warning}", logging.WARNING)
    # All of the input is read once before anything is paid for, so that a bad row costs nothing.
    total = sum(1 for _ in select_cases(config.cases, config.generations))
    before = archive.counts(run.name)
    done = sum(before.values())
    log_line(
        f"{total} cases, {done} of them done -> {run}, {archive.place}",
        done=done,
        total=total,
        uri=run.uri,
        archive=archive.place,
    )
    if done == total:
        return
    if uses_embedded(config.llm):
        log_line(f"note: {SMOKE_NOTICE}")
    with ExitStack() as stack:
        embedded = stack.enter_context(embedded_if_used(config.llm))
        stack.enter_context(session(config.cluster))
        require_kept(run)
        stop = stack.enter_context(_stop_signals())
        progress = stack.enter_context(Progress(total, before))
        pool = stack.enter_context(Pool(config, run.name, location, embedded))
        drive(pool, chunks_of(_open_cases(config, run, archive), pool.chunk), progress, stop)
    halt = progress.tally.halt
    if halt is not None and not isinstance(halt, StoppedError):
        raise halt
    if stop.asked:
        raise KeyboardInterrupt


def _versions(run: Run) -> Json:
    recorded = (run.read_json(RECORD) or {})["versions"]
    return {**recorded, "protocol": PROTOCOL, "taxonomy": TAXONOMY}


def _open_cases(config: AnnotateConfig, run: Run, archive: Archive) -> Iterator[tuple[str, Case]]:
    """The cases that the archive does not have.

    Raises:
        DataError: a case has another description than when it was archived.
    """
    cases = select_cases(config.cases, config.generations)
    while some := list(islice(cases, CASES_LOOKED_UP)):
        known = archive.description_hashes(run.name, [case.id for _, case in some])
        for generation, case in some:
            if case.id not in known:
                yield generation, case
            elif case.description_hash != known[case.id]:
                raise DataError(
                    f"case {case.id} has another description than run {run.name} classified: "
                    "restore it, give it another id, or choose another name="
                )


def chunks_of(cases: Iterator[tuple[str, Case]], size: int) -> Iterator[Chunk]:
    """The cases in chunks of at most `size`."""
    while chunk := list(islice(cases, size)):
        yield chunk


class Stop:
    """Whether the user asked to stop."""

    asked = False


@dataclass(frozen=True)
class Work:
    """Cases for an actor.

    Attributes:
        chunk: the cases.
        losses: how often the process that ran them was lost.
        alone: whether no other case may be under way, to tell which one it is that kills it.
    """

    chunk: Chunk
    losses: int = 0
    alone: bool = False


def drive(
    pool: "Pool", chunks: Iterator[Chunk], progress: "Progress", stop: Stop | None = None
) -> None:
    """Keep the pool busy until all chunks have ended, or the run must stop."""
    stopped = False
    fresh = map(Work, chunks)
    while True:
        while not stopped and pool.has_room and (work := pool.again() or next(fresh, None)):
            pool.submit(work)
        if not pool.busy and (stopped or (pool.has_room and not pool.submit_suspect())):
            return
        for tally in pool.collect():
            progress.tally.add(tally)
        if not stopped and (progress.tally.halt is not None or (stop and stop.asked)):
            stopped = True
            pool.stop()
        progress.show()


class Pool:
    """The actors of a run, and which cases each of them has."""

    def __init__(
        self, config: AnnotateConfig, run: str, archive: str, embedded: Embedded | None
    ) -> None:
        """Start as many actors as configured, or one a CPU, but none without a call to make.

        Args:
            config: the run's; the calls in flight that it allows are shared among the actors.
            run: name of the run.
            archive: location that this machine knows the archive by.
            embedded: where the embedded model is served on this machine, if it is used.
        """
        used = {chat.endpoint for chat in config.llm.roles.values()}
        slots = [config.llm.endpoints[name].limits.concurrency for name in used]
        count = min(config.actors or _cpus(), *slots)
        cases = max(CASES_AHEAD * max(slots) // count, 1)
        self.chunk = min(max(cases // CHUNKS_AHEAD, 1), LARGEST_CHUNK)
        self._room = math.ceil(cases / self.chunk)
        self._run = run
        self._meters = Meters(run)
        self._pending: dict[ObjectRef[Tally], tuple[int, Work]] = {}
        self._again: list[Work] = []
        self._suspects: list[Work] = []
        # Actors that were lost, by what they answer when they are back.
        self._lost: dict[ObjectRef[Any], int] = {}
        self._busy = Counter(dict.fromkeys(range(count), 0))
        # Actors find each other by name: a handle among the arguments of an actor's start lies in
        # the object store, where a restart may no longer find it.
        writer, limiter = f"writer-{uuid4().hex}", f"limiter-{uuid4().hex}"
        self._writer = _lasting(ArchiveWriter, writer).remote(archive)
        self._others: list[Any] = [self._writer]
        if rates := _has_rates(config):
            host = _lasting(RateLimiterActor, limiter)
            self._others.append(host.remote(config.model_dump(mode="json"), run, archive))
        annotator: Any = ray.remote(Annotator).options(
            num_cpus=CPUS_OF_AN_ACTOR,
            max_restarts=-1,
            scheduling_strategy=this_node() if embedded else "SPREAD",
        )
        shares = [_share(config, number, count) for number in range(count)]
        self._actors: list[Any] = [
            annotator.remote(share, run, writer, limiter if rates else None, embedded)
            for share in shares
        ]

    def __enter__(self) -> "Pool":
        return self

    def __exit__(self, *error: object) -> None:
        for actor in (*self._actors, *self._others):
            ray.kill(actor)

    @property
    def has_room(self) -> bool:
        """Whether an actor would take another chunk."""
        return any(self._busy[actor] < self._room for actor in self._reachable)

    @property
    def busy(self) -> bool:
        """Whether any chunk is under way."""
        return bool(self._pending)

    def submit(self, work: Work) -> None:
        """Hand cases to the actor that has the fewest."""
        actor = min(self._reachable, key=self._busy.__getitem__)
        self._busy[actor] += 1
        self._pending[self._actors[actor].annotate.remote(work.chunk)] = actor, work
        self._count()

    def again(self) -> Work | None:
        """Cases whose process was lost, for another to run them."""
        return self._again.pop() if self._again else None

    def submit_suspect(self) -> bool:
        """Run alone one of the cases that were under way when a process was lost once too often.

        Only so can it be told which of them it was. False if none is left.
        """
        if not self._suspects:
            return False
        self.submit(self._suspects.pop())
        return True

    def collect(self) -> Iterator[Tally]:
        """What became of the chunks that have ended, after waiting a moment for one."""
        awaited = [*self._pending, *self._lost]
        ready, _ = ray.wait(awaited, num_returns=1, timeout=POLL_SECONDS)
        for ref in ready:
            if ref in self._lost:
                del self._lost[ref]
                continue
            actor, work = self._pending.pop(ref)
            self._busy[actor] -= 1
            try:
                yield result_of(ref)
            except RayActorError as error:
                self._miss(actor)
                yield from self._after_loss(work, error)
        self._count()

    def stop(self) -> None:
        """Let no actor send another call; those in flight are finished and archived."""
        for actor in self._actors:
            actor.stop.remote()

    @property
    def _reachable(self) -> list[int]:
        lost = set(self._lost.values())
        return [actor for actor in self._busy if actor not in lost]

    def _miss(self, actor: int) -> None:
        """Give an actor nothing more until it answers, be it from another process or node.

        Ray takes some time to tell a node that is lost from one that is slow to answer; until then
        the actor fails whatever it is given.
        """
        if actor in self._reachable:
            back = self._actors[actor].__ray_ready__.options(max_task_retries=-1).remote()
            self._lost[back] = actor

    def _after_loss(self, work: Work, error: RayActorError) -> Iterator[Tally]:
        losses = work.losses + 1
        if losses <= RETRIES:
            again = self._suspects if work.alone else self._again
            again.append(replace(work, losses=losses))
        elif work.alone:
            yield self._give_up(work.chunk, error)
        else:
            self._suspects += [Work([case], alone=True) for case in work.chunk]

    def _count(self) -> None:
        cases = sum(len(work.chunk) for _, work in self._pending.values())
        self._meters.set(CASES_IN_FLIGHT, cases)

    def _give_up(self, chunk: Chunk, error: RayActorError) -> Tally:
        """Archive as failed a case whose process died again and again."""
        reason = f"the process that ran it alone died {RETRIES + 1} times: {error}"
        rows = [case_row(case, failed(case, name, reason)) for name, case in chunk]
        result_of(self._writer.add_cases.remote(self._run, rows))
        known = result_of(self._writer.known.remote(self._run, [case.id for _, case in chunk]))
        return Tally(Counter(known.values()))


def _cpus() -> int:
    return max(int(ray.cluster_resources().get("CPU", 1)), 1)


def _lasting(kind: type, name: str) -> Any:
    """An actor beside the archive's file, found by its name, started anew whenever it dies."""
    return ray.remote(kind).options(
        name=name,
        num_cpus=0,
        max_restarts=-1,
        max_task_retries=-1,
        scheduling_strategy=this_node(),
    )


def _share(config: AnnotateConfig, number: int, count: int) -> Json:
    """The configuration of one of `count` actors, with its part of the calls in flight."""
    settings = config.model_dump(mode="json")
    for endpoint in settings["llm"]["endpoints"].values():
        most = endpoint["limits"]["concurrency"]
        endpoint["limits"]["concurrency"] = max(most // count + (number < most % count), 1)
    return settings


def _has_rates(config: AnnotateConfig) -> bool:
    limits = [endpoint.limits for endpoint in config.llm.endpoints.values()]
    budget = config.llm.budget
    return (budget.tokens or budget.money) is not None or any(
        limit.requests_per_minute or limit.tokens_per_minute for limit in limits
    )


class Progress:
    """One line about a run: alive on a terminal, elsewhere printed every ten seconds."""

    def __init__(self, total: int, before: Mapping[str, int] | None = None) -> None:
        """Start the clock.

        Args:
            total: cases of the run.
            before: those that the archive has already, by status.
        """
        self.total, self.before, self.tally = total, Counter(before or {}), Tally()
        out = console()
        self._alive = out.is_terminal and not structured()
        self._live = Live(console=out, refresh_per_second=4, transient=True)
        self._start = self._shown = time.monotonic()

    def __enter__(self) -> "Progress":
        if self._alive:
            self._live.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._live.stop()
        self._say()

    def show(self) -> None:
        """Tell how things stand, where it is time to."""
        if self._alive:
            self._live.update(Text(self.line()))
        elif time.monotonic() - self._shown >= LINE_SECONDS:
            self._shown = time.monotonic()
            self._say()

    def figures(self) -> Json:
        """How far the run is and how fast, since this process started."""
        tally, statuses = self.tally, self.before + self.tally.statuses
        seconds = max(time.monotonic() - self._start, 1e-9)
        left, ended = self.total - statuses.total(), tally.statuses.total()
        return {
            "done": statuses.total(),
            "total": self.total,
            "cases": {status.value: statuses[status] for status in Status},
            "calls_per_second": tally.sent / seconds,
            "tokens": tally.tokens,
            "known": tally.known,
            "failures": tally.failures.total(),
            "cost": tally.cost,
            "eta_seconds": seconds * left / ended if left and ended else None,
        }

    def line(self) -> str:
        """What a user reads of the run."""
        figures = self.figures()
        parts = [
            f"{figures['done']}/{self.total} cases",
            *(f"{count} {status}" for status, count in figures["cases"].items()),
            f"{figures['calls_per_second']:.1f} calls/s",
            f"{figures['tokens']:,} tokens",
        ]
        if figures["known"]:
            parts.append(f"{figures['known']} answers known")
        if figures["failures"]:
            parts.append(f"{figures['failures']} attempts failed")
        if figures["cost"]:
            parts.append(f"cost {figures['cost']:.4g}")
        if figures["eta_seconds"] is not None:
            parts.append(f"ETA {duration(figures['eta_seconds'])}")
        return "  ".join(parts)

    def _say(self) -> None:
        log_line(self.line(), **self.figures())


@contextmanager
def _stop_signals() -> Generator[Stop]:
    """Take the first Ctrl-C or SIGTERM as a wish, while in use; a second one is not to be denied.

    To be entered when Ray has started, which installs a handler of its own.
    """
    stop = Stop()

    def ask(number: int, frame: FrameType | None) -> None:
        if stop.asked:
            raise KeyboardInterrupt
        stop.asked = True
        log_line("stopping when the calls in flight are answered; again stops at once")

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
