"""One schedule: a world drawn from a seed, its runs made to their end, and the invariants."""

import asyncio
import multiprocessing
import os
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

from raylab.core.errors import BudgetError, LlmError, OwnerError
from raylab.label.archive.records import RunCost
from raylab.label.archive.store import Archive
from raylab.label.input.cases import Case
from tests.simulation.edges import simulated
from tests.simulation.server import FAULTS, Answer, Fate, Weather
from tests.simulation.session import ActorDied, Session
from tests.simulation.world import RunPlan, Violation, World

KINDS = ("machine", "machine", "driver", "actor", "actor", "freeze", "lock")
BUSY_SECONDS = 60.0
"""Time after which a user tries again to start a run that is owned."""
MAX_SESSIONS = 6
"""Sessions of a run after which all faults end."""
MAX_STARTS = 60
LONG_CALL = 800
"""More tokens than any call of the simulation reserves, also one that is claimed and never sent."""
RIVALS = 0.15
"""Share of runs that two users start at once."""
BATCH = 50
MEMORY = Path("/dev/shm")


@dataclass(frozen=True)
class Outcome:
    """The end of a schedule: the first invariant that does not hold, and all events.

    An event is a virtual time, a process and what happened.
    """

    seed: int
    problem: str | None
    events: tuple[tuple[float, str, str], ...] = field(repr=False)

    def __str__(self) -> str:
        return f"{self.problem}\n    python -m tests.simulation --seed {self.seed}"


def run_schedule(seed: int, directory: Path, template: bytes) -> Outcome:
    """Runs the schedule of a seed."""
    world = draw_world(seed, directory, template)
    problem = None
    try:
        world.loop.run(_live(world))
    except Exception as error:
        problem = f"{type(error).__name__}: {error}"
    finally:
        world.close()
    if world.loop.errors:
        error = world.loop.errors[0]
        problem = f"{type(error).__name__}: {error}"
    return Outcome(seed, problem, tuple(world.trace))


def draw_world(seed: int, directory: Path, template: bytes) -> World:
    """Draws a world."""
    random = Random(seed)
    faults = [random.choice(KINDS) for _ in range(random.choice((0, 1, 1, 1, 2)))]
    world = World(random, faults, random.choice((20, 100, 300)), directory, template)
    for number in range(1 + (random.random() < 0.2)):
        texts = random.choice((("a",), ("a",), ("a",), ("a",), ("a", "b"), ("a", "a")))
        world.plans[f"r{number}"] = RunPlan(
            f"r{number}",
            tuple(Case(f"c{place}", text) for place, text in enumerate(texts)),
            workers=random.choice((1, 2)),
            budget=random.choice((None, None, random.randrange(200, 1500))),
            concurrency=random.choice((2, 4)),
            requests_per_minute=random.choice((None, None, None, 5)),
            batches=random.choice((0.0, 0.0, 0.5, 1.0)),
        )
    if random.random() >= 0.4:
        some = random.sample(FAULTS, random.choice((1, 2, 4)))
        world.server.weather = Weather(tuple(some), random.choice((0.1, 0.3, 0.5)))
    return world


async def _live(world: World) -> None:
    """Lets the users make their runs, and checks what is left."""
    rivals: list[asyncio.Task[None]] = []

    async def rival(run: str, name: str) -> None:
        wait = world.random.random() < 0.7
        try:
            await Session(world, world.plans[run], name, wait).run()
        except (ActorDied, LlmError, OwnerError) as error:
            world.note(f"session {name}: {type(error).__name__}")

    def start_rival(run: str) -> None:
        """Starts a session of a run beside that of its user."""
        rivals.append(asyncio.create_task(rival(run, f"{run}.r{len(rivals)}")))

    world.start_rival = start_rival
    for run in world.plans:
        if world.random.random() < RIVALS:
            world.loop.call_later(world.random.random() * 60, start_rival, run)
    await asyncio.gather(*(_operate(world, plan) for plan in world.plans.values()))
    world.calm_down()
    await asyncio.gather(*rivals)
    _check(world)


async def _operate(world: World, plan: RunPlan) -> None:
    """Starts a run and resumes it until it ends, as its user does."""
    sessions = 0
    for start in range(MAX_STARTS):
        if sessions >= MAX_SESSIONS:
            world.calm_down()
        name = f"{plan.name}.{start}"
        try:
            await Session(world, plan, name).run()
        except OwnerError:
            await asyncio.sleep(BUSY_SECONDS)
            continue
        except BudgetError as error:
            world.note(f"session {name}: {error}")
            if plan.name in world.poor:
                return
            world.poor.add(plan.name)
        except (ActorDied, LlmError) as error:
            world.note(f"session {name}: {type(error).__name__}: {error}")
        else:
            world.done.add(plan.name)
            return
        sessions += 1
        await asyncio.sleep(world.random.random() * 10)
    raise Violation(f"run {plan.name} does not end")


def _check(world: World) -> None:
    archive = world.open_archive()
    if lost := world.settled - world.answered():
        raise Violation(f"replies that were used are not archived: {lost}")
    rows = world.rows('SELECT name, "case" FROM cases JOIN runs ON runs.id = run_id')
    for plan in world.plans.values():
        _check_cases(world, plan, [case for run, case in rows if run == plan.name])
        _check_cost(world, plan, archive.run(plan.name).cost())


def _check_cases(world: World, plan: RunPlan, rows: list[str]) -> None:
    if twice := [case for case, count in Counter(rows).items() if count > 1]:
        raise Violation(f"run {plan.name} has cases twice: {twice}")
    if lost := {case for run, case in world.archived if run == plan.name} - set(rows):
        raise Violation(f"run {plan.name} lost acknowledged cases: {lost}")
    if plan.name in world.done and len(rows) < len(plan.cases):
        raise Violation(f"run {plan.name} ended with {len(rows)} of {len(plan.cases)} cases")


def _check_cost(world: World, plan: RunPlan, cost: RunCost) -> None:
    attempts = [attempt for attempt in world.server.attempts if attempt.run == plan.name]
    counted, billed = (cost.billed + cost.uncertain).tokens, world.billed(plan.name)
    open_batches = world.rows("SELECT name FROM batches JOIN runs ON runs.id = run_id")
    if plan.name in world.done and (plan.name,) in open_batches:
        raise Violation(f"run {plan.name} has ended and left a batch")
    if cost.held.tokens and (plan.name,) not in open_batches:
        raise Violation(f"run {plan.name} has ended and holds {cost.held.tokens:,} tokens")
    if counted < billed:
        raise Violation(f"run {plan.name} counts {counted:,} of {billed:,} tokens paid")
    # A live call that was claimed and never sent counts as well.
    if plan.batches == 1.0 and all(attempt.fate is Fate.IN_BATCH for attempt in attempts):
        if counted != billed and all(attempt.answer is Answer.OK for attempt in attempts):
            raise Violation(f"run {plan.name} counts {counted:,} of {billed:,} tokens in batches")
    # A claim that was not ended at a crash counts, whether it was sent and answered or not.
    most = sum(attempt.estimate for attempt in attempts if not attempt.refused)
    if counted > most + world.strikes * plan.concurrency * LONG_CALL:
        raise Violation(f"run {plan.name} counts {counted:,} tokens, paid at most {most:,}")
    if plan.name in world.poor - world.done and plan.budget is not None:
        if attempts and counted + 2 * LONG_CALL < plan.budget:
            raise Violation(f"run {plan.name} ended with {counted:,} of {plan.budget:,} tokens")


Simulator = Callable[[int], Outcome]
"""Runs the schedule of a seed in this process, in which nothing else may use raylab meanwhile."""


@contextmanager
def simulator() -> Generator[Simulator]:
    """Opens a simulator in this process."""
    # In memory, where the system has such a filesystem.
    within = MEMORY if os.access(MEMORY, os.W_OK) else None
    with TemporaryDirectory(prefix="raylab-simulation-", dir=within) as scratch:
        directory = Path(scratch)
        file = directory / "template.db"
        Archive.open(file).close()
        with simulated():
            yield partial(run_schedule, directory=directory, template=file.read_bytes())


def failures_of(seeds: range) -> Iterator[Outcome]:
    """Runs the schedules of some seeds in a process a core; yields those that fail."""
    batches = [seeds[first : first + BATCH] for first in range(0, len(seeds), BATCH)]
    with ProcessPoolExecutor(mp_context=multiprocessing.get_context("fork")) as pool:
        for failures in pool.map(_run, batches):
            yield from failures


def _run(seeds: range) -> list[Outcome]:
    with simulator() as run:
        return [ended for ended in map(run, seeds) if ended.problem is not None]
