"""One schedule: a world drawn from a seed, its runs made to their end, and the invariants."""

import asyncio
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from raylab.core.errors import BudgetError, LlmError, OwnerError
from raylab.label.archive.records import RunCost
from raylab.label.input.cases import Case
from tests.simulation.actors import ActorDied
from tests.simulation.server import FAULTS, Answer, Fate, Weather
from tests.simulation.session import Session
from tests.simulation.world import RunPlan, Violation, World

KINDS = ("machine", "machine", "driver", "actor", "actor", "freeze", "lock")
BUSY_SECONDS = 60.0
"""Time after which a user tries again to start a run that is owned."""
MOST_SESSIONS = 6
"""Sessions of a run after which all faults end."""
MOST_STARTS = 60
LONG_CALL = 800
"""More tokens than any call of the simulation reserves, also one that is claimed and never sent."""
RIVALS = 0.15
"""Share of runs that two users start at once."""


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
        plan = _draw_plan(random, f"r{number}")
        world.plans[plan.name] = plan
    world.server.weather = _draw_weather(random)
    return world


def _draw_plan(random: Random, name: str) -> RunPlan:
    texts = random.choice((("a",), ("a",), ("a",), ("a",), ("a", "b"), ("a", "a")))
    return RunPlan(
        name,
        tuple(Case(f"c{number}", text) for number, text in enumerate(texts)),
        workers=random.choice((1, 2)),
        budget=random.choice((None, None, random.randrange(200, 1500))),
        concurrency=random.choice((2, 4)),
        requests_per_minute=random.choice((None, None, None, 5)),
        batches=random.choice((0.0, 0.0, 0.5, 1.0)),
    )


def _draw_weather(random: Random) -> Weather:
    if random.random() < 0.4:
        return Weather()
    some = random.sample(FAULTS, random.choice((1, 2, 4)))
    return Weather(tuple(some), random.choice((0.1, 0.3, 0.5)))


async def _live(world: World) -> None:
    """Lets the users make their runs, and checks what is left."""
    rivals: list[asyncio.Task[None]] = []

    def start_rival(run: str) -> None:
        name = f"{run}.r{len(rivals)}"
        rivals.append(asyncio.create_task(_rival(world, world.plans[run], name)))

    world.start_rival = start_rival
    for run in world.plans:
        if world.random.random() < RIVALS:
            world.loop.call_later(world.random.random() * 60, start_rival, run)
    await asyncio.gather(*(_operate(world, plan) for plan in world.plans.values()))
    world.calm_down()
    await asyncio.gather(*rivals)
    _check(world)


async def _rival(world: World, plan: RunPlan, name: str) -> None:
    """Starts one session of a run beside that of its user."""
    try:
        await Session(world, plan, name, wait=world.random.random() < 0.7).run()
    except (ActorDied, LlmError, OwnerError) as error:
        world.note(f"session {name}: {type(error).__name__}")


async def _operate(world: World, plan: RunPlan) -> None:
    """Starts a run and resumes it until it ends, as its user does."""
    sessions = 0
    for start in range(MOST_STARTS):
        if sessions >= MOST_SESSIONS:
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
    if world.held(plan.name) and (plan.name,) not in open_batches:
        raise Violation(f"run {plan.name} has ended and holds {world.held(plan.name):,} tokens")
    if counted < billed:
        raise Violation(f"run {plan.name} counts {counted:,} of {billed:,} tokens paid")
    # A live call that was claimed and never sent counts as well.
    if plan.batches == 1.0 and all(one.fate is Fate.IN_BATCH for one in attempts):
        if counted != billed and all(one.answer is Answer.OK for one in attempts):
            raise Violation(f"run {plan.name} counts {counted:,} of {billed:,} tokens in batches")
    # A claim that was not ended at a crash counts, whether it was sent and answered or not.
    most = sum(one.estimate for one in attempts if not one.refused)
    if counted > most + world.strikes * plan.concurrency * LONG_CALL:
        raise Violation(f"run {plan.name} counts {counted:,} tokens, paid at most {most:,}")
    if plan.name in world.poor - world.done and plan.budget is not None:
        if attempts and counted + 2 * LONG_CALL < plan.budget:
            raise Violation(f"run {plan.name} ended with {counted:,} of {plan.budget:,} tokens")
