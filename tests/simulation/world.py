"""One simulated world: a machine with an archive, runs, their sessions, and what befalls them."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, ClassVar

from sqlalchemy import Connection, Engine

from raylab.label.archive.database import Database
from raylab.label.archive.store import Archive
from raylab.label.input.cases import Case
from raylab.llm.connection import Timing
from tests.simulation.scheduler import PROCESS, Crashed, Process, Scheduler, running_as
from tests.simulation.server import Attempt, Batches, Fate, Server, Weather

PAGE = 4096
FULL = 2
"""Value of SQLite's `PRAGMA synchronous` with which a transaction is durable when it returns."""
EPOCH = datetime(2026, 1, 1, tzinfo=UTC)
LINGER = 3.0
"""Most seconds for which the actors of a dead driver live on."""
UNDER_WAY = (Fate.IN_FLIGHT, Fate.ANSWERED)


class Violation(Exception):
    """An invariant that does not hold."""


@dataclass(frozen=True)
class RunPlan:
    """A run to be made; its budget is in tokens."""

    name: str
    cases: tuple[Case, ...]
    workers: int
    budget: int | None
    concurrency: int
    requests_per_minute: int | None
    batches: float
    """Share of the sessions that make their calls in batches."""


@dataclass(eq=False)
class Group:
    """The processes of a session, which depend on its driver."""

    driver: Process
    actors: list[Process] = field(default_factory=list[Process])
    unlocked: bool = False
    """True once the connection that held its lock is lost, so that others may take its run."""
    ended: bool = False
    """True once it gave the run back."""

    @property
    def processes(self) -> list[Process]:
        return [self.driver, *self.actors]

    @property
    def works(self) -> bool:
        """True until it ends or dies."""
        return self.driver.alive and not self.ended


class Disk:
    """The archive's file on a disk that may lose what was not synced.

    SQLite appends to the write-ahead log: a transaction is durable when the log is synced up to its
    end. A crash of the machine leaves any part of what was written since, and a torn page at its
    end.
    """

    def __init__(self, file: Path, template: bytes) -> None:
        """Writes the file from a template."""
        self.file = file
        self._log = Path(f"{file}-wal")
        self._synced = 0
        self._write(template, b"")

    def note_sync(self) -> None:
        """Notes that the log is durable up to its end."""
        self._synced = self._log.stat().st_size if self._log.exists() else 0

    def crash(self, random: Random, disconnect: Callable[[], None]) -> str:
        """Leaves what a power failure could; returns the loss in words.

        `disconnect` closes all connections, which would complete the file.
        """
        database = self.file.read_bytes()
        log = self._log.read_bytes() if self._log.exists() else b""
        # Often none or all of what is not synced is there.
        drawn, left = random.random(), len(log) - self._synced
        kept = 0 if drawn < 0.25 else left if drawn < 0.5 else random.randint(0, left)
        cut = self._synced + kept
        # The end of the last page holds anything, but nothing synced is harmed.
        torn = min(cut - self._synced, random.choice((0, random.randrange(1, PAGE))))
        disconnect()
        self._write(database, log[: cut - torn] + random.randbytes(torn))
        return f"{len(log) - cut} bytes are lost and {torn} torn"

    def remove(self) -> None:
        """Removes the file and its log."""
        for suffix in ("", "-wal", "-shm", "-journal"):
            Path(f"{self.file}{suffix}").unlink(missing_ok=True)

    def _write(self, database: bytes, log: bytes) -> None:
        self.remove()
        self.file.write_bytes(database)
        if log:
            self._log.write_bytes(log)


class World:
    """The world; exactly one exists at a time, as `World.current`."""

    current: ClassVar["World"]

    def __init__(
        self,
        random: Random,
        faults: list[str],
        spacing: int,
        directory: Path,
        template: bytes,
    ) -> None:
        self.random = random
        self.loop = Scheduler(random, self._stepped)
        self.server = Server(random, self.check_purchase)
        self.batches = Batches(random, self.server, self.loop)
        self.disk = Disk(directory / "archive.db", template)
        self._connection: Connection | None = None
        self.is_durable = False
        """True if a transaction is durable when it returns."""
        self.trace: list[tuple[float, str, str]] = []
        self.plans: dict[str, RunPlan] = {}
        self.archived: set[tuple[str, str]] = set()
        """Cases, with their run, whose row was acknowledged."""
        self.settled: set[str] = set()
        """Keys of calls whose reply was returned."""
        self.strikes = 0
        """Faults that befell processes."""
        self.done: set[str] = set()
        """Runs that ended well."""
        self.poor: set[str] = set()
        """Runs that ended because their budget is used up."""
        self.start_rival: Callable[[str], object] = lambda run: None
        """Starts a session of a run beside the one that hangs."""
        self._groups: list[Group] = []
        self._locks: dict[int, Process] = {}
        self._owners: dict[str, Group] = {}
        self._lost_at_claim: dict[tuple[str, str], set[int]] = {}
        """Attempts that were lost when a session claimed their call."""
        self._kinds = faults
        self._spacing = spacing
        self._countdown = self._draw_countdown()
        World.current = self

    def note(self, what: str) -> None:
        """Adds an event to the trace."""
        process = PROCESS.get(self.loop.observer)
        self.trace.append((self.loop.time(), process.name, what))

    def close(self) -> None:
        """Removes the archive."""
        self._disconnect()
        self.disk.remove()

    # Time

    def now(self) -> datetime:
        """Returns the time in UTC."""
        return EPOCH + timedelta(seconds=self.loop.time())

    def timing(self) -> Timing:
        """Returns the clocks of a client."""
        return Timing(
            self.loop.time, lambda: self.now().timestamp(), asyncio.sleep, self.random.random
        )

    async def pass_time(self) -> None:
        """Takes the time of a message between processes."""
        drawn = self.random.random()
        await asyncio.sleep(0 if drawn < 0.5 else drawn * 0.1 if drawn < 0.95 else drawn * 5)

    # Archive

    def open_archive(self) -> Archive:
        """Opens the archive in this process; see `edges` for what is simulated of it."""
        database = Database(self.disk.file)
        database.now = self.now
        return Archive(database)

    def connect(self, engine: Engine) -> Connection:
        """Returns the one connection to the archive, as only one transaction is open at a time."""
        if self._connection is None:
            self._connection = engine.connect()
            driver: Any = self._connection.connection.driver_connection
            self.is_durable = driver.execute("PRAGMA synchronous").fetchone() == (FULL,)
        return self._connection

    def rows(self, statement: str) -> list[tuple[str, ...]]:
        """Returns the rows of a query on the archive."""
        # After a crash nothing may be connected any more.
        connection = self._connection or self.connect(Database(self.disk.file)._engine)
        driver: Any = connection.connection.driver_connection
        return driver.execute(statement).fetchall()

    def answered(self) -> set[str]:
        """Returns the keys of the calls whose reply is archived."""
        return {key for (key,) in self.rows("SELECT key FROM calls WHERE state = 'answered'")}

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection.engine.dispose()
            self._connection = None

    def try_lock(self, number: int) -> Callable[[], None] | None:
        """Gives a lock to the process that runs; None if a process that lives has it."""
        if self.is_locked(number):
            return None
        holder = self._locks[number] = PROCESS.get()

        def release() -> None:
            if self._locks.get(number) is holder:
                del self._locks[number]

        return release

    def is_locked(self, number: int) -> bool:
        holder = self._locks.get(number)
        return holder is not None and holder.alive

    def transact(self, writes: bool, work: Callable[[], bool]) -> None:
        """Does a transaction of the process that runs, which may die at it.

        `work` does it, and returns True if it is durable then.
        """
        process = PROCESS.get()
        if not process.alive:
            raise Crashed
        kind = self._due() if writes and process is not self.loop.observer else None
        if kind is not None and self.random.random() < 0.3:
            self._strike_at(kind, process, "before a write")
            kind = None
        durable = work()
        # A machine crashes while this is written, so that it is whole, torn or absent.
        if kind == "machine":
            self._strike_at(kind, process, "in a write")
        if writes and durable:
            self.disk.note_sync()
        if kind is not None:
            self._strike_at(kind, process, "after a write")

    def _strike_at(self, kind: str, process: Process, where: str) -> None:
        self.note(f"{kind} {where}")
        self.strike(kind, process)
        if not process.alive:
            raise Crashed

    # Faults

    def _hang(self, group: Group, seconds: float) -> None:
        """Lets the user of a session start another one beside it."""
        run = group.driver.name.partition(".")[0]
        delay = seconds * self.random.random()
        self.loop.call_in(self.loop.observer, delay, lambda: self.start_rival(run))

    def calm_down(self) -> None:
        """Ends all faults."""
        self._kinds.clear()
        self.server.weather = Weather()

    def start_group(self, name: str) -> Group:
        """Starts the driver of a session."""
        group = Group(self._start(name))
        self._groups.append(group)
        return group

    def start_actor(self, group: Group, name: str) -> Process:
        """Starts a process that a driver depends on."""
        process = self._start(f"{group.driver.name}/{name}")
        group.actors.append(process)
        return process

    def _start(self, name: str) -> Process:
        process = self.loop.process(name)
        process.watchers.append(lambda: self._die(process))
        return process

    def strike(self, kind: str, process: Process) -> None:
        """Lets a fault of a kind befall the process that runs, and its group."""
        self.strikes += 1
        group, random = self._group_of(process), self.random
        match kind:
            case "machine":
                for other in (each for group in self._groups for each in group.processes):
                    self.loop.kill(other)
                # What was not synced is lost.
                self.note(f"the machine crashes: {self.disk.crash(random, self._disconnect)}")
            case "driver":
                self._kill(group.driver)
                for actor in group.actors:
                    # They live on for a while, and what they do then must be void.
                    if delay := random.choice((0.0, random.random() * LINGER)):
                        kill = partial(self.loop.kill, actor)
                        self.loop.call_in(self.loop.observer, delay, kill)
                    else:
                        self.loop.kill(actor)
            case "actor":
                if actors := [actor for actor in group.actors if actor.alive]:
                    self._kill(process if process in actors else random.choice(actors))
            case "freeze":
                frozen = group.processes if random.random() < 0.6 else [process]
                seconds = random.choice((3.0, 20.0, 70.0, 200.0))
                self.note(f"{frozen} frozen for {seconds:g} s")
                for each in frozen:
                    self.loop.freeze(each, seconds)
                if group.driver in frozen:
                    self._hang(group, seconds)
            case _:
                self._locks = {
                    n: each for n, each in self._locks.items() if each is not group.driver
                }
                group.unlocked = True
                self.note(f"{group.driver} loses its lock")
                self._lose_attempts(group)
                self._hang(group, 10.0)

    def _kill(self, process: Process) -> None:
        self.note(f"{process} is killed")
        self.loop.kill(process)

    def _group_of(self, process: Process) -> Group:
        return next(group for group in self._groups if process in group.processes)

    def _stepped(self, process: Process) -> None:
        if process is not self.loop.observer and (kind := self._due()) is not None:
            self.note(f"{kind} at {process}")
            with running_as(self.loop.observer):
                self.strike(kind, process)

    def _due(self) -> str | None:
        """Returns the kind of the fault that is due at this step."""
        self._countdown -= 1
        if self._countdown != 0 or not self._kinds:
            return None
        self._countdown = self._draw_countdown()
        return self._kinds.pop()

    def _draw_countdown(self) -> int:
        return self.random.randrange(1, self._spacing)

    # Invariants at a purchase

    def _die(self, process: Process) -> None:
        """Notes what was in flight at the death of a process."""
        group = self._group_of(process)
        # What the actors of a dead driver still do is void for the next session.
        self._lose_attempts(group, None if process is group.driver else process)

    def _lose_attempts(self, group: Group, process: Process | None = None) -> None:
        """Loses what a process of a session sent, or all of them."""
        for attempt in self._under_way(group):
            if process in (None, attempt.process):
                attempt.fate = Fate.LOST

    def _under_way(self, group: Group) -> list[Attempt]:
        return [
            attempt
            for attempt in self.server.attempts
            if attempt.process in group.processes and attempt.fate in UNDER_WAY
        ]

    def check_purchase(self, attempt: Attempt) -> None:
        """Blames an attempt that buys what is bought already, or what the budget does not cover."""
        self.note(f"sends {attempt}")
        group = self._group_of(attempt.process)
        in_batch = attempt.fate is Fate.IN_BATCH
        if not in_batch and (not group.driver.alive or group.unlocked):
            attempt.fate = Fate.LOST
        if group.unlocked and not in_batch:
            # The claim may be from before another took the run.
            return
        # A session may have died since it claimed the calls of a batch.
        excused = self._lost_at_claim.get((group.driver.name, attempt.key), set())
        self._check_losable(group, self.plans[attempt.run])
        for earlier in self.server.attempts[:-1]:
            if (
                earlier.key == attempt.key
                and earlier.fate not in (Fate.FAILED, Fate.LOST)
                and earlier.number not in excused
            ):
                self.blame(f"{attempt} buys what {earlier} bought")
        budget = self.plans[attempt.run].budget
        if budget is not None:
            spent = self.billed(attempt.run)
            if spent > budget:
                self.blame(f"{attempt}: run {attempt.run} spent {spent:,} of {budget:,} tokens")

    def _check_losable(self, group: Group, plan: RunPlan) -> None:
        """Blames a session whose crash would lose more replies than it has slots."""
        losable = self._under_way(group)
        slots = max(plan.concurrency, plan.workers)
        if len(losable) > slots:
            stored = self.answered()
            losable = [attempt for attempt in losable if attempt.key not in stored]
            if len(losable) > slots:
                self.blame(f"a crash loses {len(losable)} replies of {slots} slots")

    def note_owner(self, run: str, group: Group) -> None:
        """Notes that a session took a run; its former owner must be dead or ended, or unlocked."""
        before = self._owners.get(run)
        if before is not None and before.works and not before.unlocked:
            self.blame(f"{group.driver} takes the run that {before.driver} works on")
        self._owners[run] = group
        self.note("owns the run")

    def note_claims(self, run: str, keys: list[str]) -> None:
        """Notes that calls were claimed; only the owner of the run may do so."""
        group = self._group_of(PROCESS.get())
        if keys and group is not self._owners.get(run):
            self.blame(f"{group.driver} claims calls of a run that it does not own")
        for key in keys:
            # These may be settled after all until the claimed attempt is sent.
            self._lost_at_claim[group.driver.name, key] = {
                attempt.number
                for attempt in self.server.attempts
                if attempt.key == key and attempt.fate is Fate.LOST
            }

    def blame(self, problem: str) -> None:
        """Notes a violation; raylab may catch what is raised where it was found."""
        self.note(f"VIOLATION {problem}")
        self.loop.errors.append(Violation(problem))

    def billed(self, run: str) -> int:
        """Returns the tokens that the server billed to a run."""
        return sum(attempt.billed for attempt in self.server.attempts if attempt.run == run)
