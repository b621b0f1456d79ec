"""A training of a given time, on simulated machines."""

from collections.abc import Callable
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest

from raylab.arc import time_limit
from raylab.arc.time_limit import Course, TimeLimit, affordable_steps

EPOCH_STEPS = 100
Pace = Callable[[float], float]
"""Seconds of a step at a time in seconds."""


class Machine:
    """A machine that trains: a clock, and what `TimeLimit` sees of Lightning."""

    def __init__(
        self, pace: Pace, validation: float = 0.0, *, epochs: int | None = None, rank: int = 0
    ) -> None:
        self.pace, self.validation, self.now = pace, validation, 0.0
        self.decisions: list[Any] = []
        strategy = SimpleNamespace(broadcast=self.decide if rank == 0 else self.obey)
        self.trainer: Any = SimpleNamespace(
            global_step=0, should_stop=False, strategy=strategy, current_epoch=0
        )
        self.module: Any = SimpleNamespace(
            epoch_steps=EPOCH_STEPS,
            course=Course((epochs or 1_000) * EPOCH_STEPS),
            training_config=SimpleNamespace(epochs=epochs),
        )
        self.places: list[float] = []
        """Share of the schedule that has passed, by step."""

    def decide(self, value: Any) -> Any:
        self.decisions.append(value)
        return value

    def obey(self, value: Any) -> Any:
        return self.decisions.pop(0)

    def epoch(self, limit: TimeLimit) -> None:
        for batch in range(EPOCH_STEPS):
            course = self.module.course
            self.places.append(course.place_at(self.trainer.global_step) / course.steps)
            self.now += self.pace(self.now)
            self.trainer.global_step += 1
            limit.on_train_batch_end(self.trainer, self.module, None, None, batch)
            if self.trainer.should_stop:
                break
        limit.on_validation_start(self.trainer, self.module)
        self.now += self.validation
        limit.on_validation_end(self.trainer, self.module)

    def train(self, limit: TimeLimit, epochs: int = 10**6) -> None:
        limit.on_train_start(self.trainer, self.module)
        while not self.trainer.should_stop and (epochs := epochs - 1) >= 0:
            self.epoch(limit)


On = Callable[[Machine], Machine]


@pytest.fixture
def on(monkeypatch: pytest.MonkeyPatch) -> On:
    """Sets the clock to a machine's."""

    def use(machine: Machine) -> Machine:
        monkeypatch.setattr(time_limit, "perf_counter", lambda: machine.now)
        return machine

    return use


MACHINES = {
    "steady": (lambda now: 0.5, 7.0),
    "first step compiles": (lambda now: 0.1 if now else 20.0, 3.0),
    "much validation": (lambda now: 0.05, 6.0),
    "one long epoch": (lambda now: 4.0, 0.0),
    "slows down at half time": (lambda now: 0.2 if now < 150 else 1.6, 5.0),
    "slows down within its only epoch": (lambda now: 2.0 if now < 100 else 10.0, 0.0),
    "is freed at half time": (lambda now: 0.8 if now < 150 else 0.1, 2.0),
}


@pytest.mark.parametrize("name", MACHINES)
def test_a_training_takes_its_time_and_its_whole_schedule_on_any_machine(name: str, on: On) -> None:
    machine = on(Machine(*MACHINES[name]))
    machine.train(TimeLimit(minutes=5))
    # A step, and a validation that is shorter than what is left, may remain.
    assert 300 * 0.9 - machine.validation <= machine.now <= 300 * 1.06
    # The schedule ends with the training, and its share never jumps.
    rises = [after - before for before, after in pairwise(machine.places)]
    assert machine.places[-1] + max(rises[-1:]) == pytest.approx(1)
    assert min(rises) >= 0 and max(rises) < 0.2


def test_what_is_less_than_a_step_is_one_that_ends_with_a_validation(on: On) -> None:
    machine = on(Machine(lambda now: 30.0))
    machine.train(TimeLimit(minutes=0.1))
    # The second step is the first one that is measured.
    assert machine.trainer.global_step == 2


def test_a_clock_that_stands_still_changes_no_plan_until_it_moves(on: On) -> None:
    standing = on(Machine(lambda now: 0.0, epochs=3))
    standing.train(TimeLimit(minutes=5), epochs=3)
    assert standing.trainer.global_step == 3 * EPOCH_STEPS
    # Steps take no time, and then half a second each.
    machine = on(Machine(lambda now: 0.5 if machine.trainer.global_step >= EPOCH_STEPS else 0.0))
    machine.train(TimeLimit(minutes=5))
    assert 300 * 0.9 <= machine.now <= 300 * 1.06


def test_the_epochs_of_the_configuration_end_it_too(on: On) -> None:
    machine = on(Machine(lambda now: 0.01, epochs=3))
    machine.train(TimeLimit(minutes=5), epochs=3)
    assert machine.trainer.global_step == machine.module.course.steps == 3 * EPOCH_STEPS


def test_a_steady_machine_resumes_exactly_and_another_one_keeps_to_the_time(on: On) -> None:
    whole = on(Machine(*MACHINES["steady"]))
    whole.train(TimeLimit(minutes=5))
    killed, limit = on(Machine(*MACHINES["steady"])), TimeLimit(minutes=5)
    killed.train(limit, epochs=2)
    state = limit.state_dict()
    for seconds in (0.5, 2.0):
        resumed, limit = on(Machine(lambda now, s=seconds: s, 7.0)), TimeLimit(minutes=5)
        resumed.trainer.global_step, resumed.now = killed.trainer.global_step, 10_000.0
        limit.load_state_dict(state)
        resumed.train(limit)
        if seconds == 0.5:
            assert killed.places + resumed.places == whole.places
        assert killed.now + resumed.now - 10_000 == pytest.approx(300, rel=0.06)


def test_all_workers_do_what_the_first_one_decides(on: On) -> None:
    first = on(Machine(lambda now: 0.3, 5.0))
    first.train(TimeLimit(minutes=5))
    slower = on(Machine(lambda now: 0.7, 9.0, rank=1))
    slower.decisions = first.decisions
    slower.train(TimeLimit(minutes=5))
    assert slower.places == first.places and not slower.decisions


@pytest.mark.parametrize("validation", [0.0, 3.0, 30.0])
@pytest.mark.parametrize("batches", [0, 1, 99])
def test_the_steps_that_fit_are_those_of_a_walk_through_them(
    batches: int, validation: float
) -> None:
    def seconds(steps: int) -> float:
        ended = (batches + steps - 1) // EPOCH_STEPS + 1
        return 0.5 * steps + validation * ended

    for left in (-3.0, 0.0, 0.7, 52.0, 333.3, 5_000.0):
        fitting = [steps for steps in range(1, 12_000) if seconds(steps) <= left]
        steps = affordable_steps(left, batches, EPOCH_STEPS, 0.5, validation)
        assert steps == max(fitting, default=0)
