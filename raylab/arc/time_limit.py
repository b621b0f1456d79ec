"""The planned length of a training, and the callback that fits it to a time limit."""

from time import perf_counter
from typing import Any, NamedTuple

import pytorch_lightning as pl

TOLERANCE = 0.05
"""A plan may miss the time limit by this share of it."""
LOOKS = 8
"""The speed is measured again after this fraction, 1 / `LOOKS`, of the steps left."""


class Course(NamedTuple):
    """The planned length of a training, and its progress through its schedule."""

    steps: int
    """The step after which the training ends."""
    since: int = 0
    """The step of the last plan, from which the schedule runs evenly to its end."""
    place: float = 0.0
    """Position of that step in a schedule of `steps` steps."""

    def place_at(self, step: int) -> float:
        """Returns the position of a step, from 0, in a schedule of `steps` steps."""
        left = max(1, self.steps - self.since)
        return self.place + (self.steps - self.place) * (step - self.since) / left

    def replan(self, steps: int, step: int) -> "Course":
        """Returns the course from `step` on of a training that ends after `steps`.

        It keeps the share of the schedule that has passed, so that the learning rate never jumps.
        """
        return Course(steps, step, self.place_at(step) * steps / self.steps)


class TimeLimit(pl.Callback):
    """Callback that ends a training after some minutes of steps and validations.

    It measures the speed after 2, 4, 8, ... steps, then in ever shorter intervals, and after each
    validation. If the training would miss its end by more than `TOLERANCE`, it plans the rest
    again. The first worker decides. Checkpoints hold the plan and the time used, with which a
    resumed training continues; the time between the two runs does not count.
    """

    def __init__(self, minutes: float) -> None:
        """Ends after `minutes`, or after the epochs of the configuration, whichever is first."""
        self._seconds = 60 * minutes
        self._course = Course(0)
        self._start = self._used = 0.0
        self._validation_start = self._validation = 0.0
        self._mark = (0, 0.0)
        """A step and its end, from which on the speed is measured."""
        self._next_look = 0

    def state_dict(self) -> dict[str, Any]:
        used = perf_counter() - self._start
        return {"course": [*self._course], "used": used, "validation": self._validation}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._course = Course(*state_dict["course"])
        self._used, self._validation = state_dict["used"], state_dict["validation"]

    def on_train_start(self, trainer: pl.Trainer, pl_module: Any) -> None:
        """Starts the clock; stops at once if the training was killed after its last step."""
        self._start = perf_counter() - self._used
        self._mark = (0, 0.0)
        self._follow(trainer, pl_module, self._course if self._course.steps else pl_module.course)

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Plans the rest if a measurement is due."""
        step = trainer.global_step
        if not self._mark[0]:
            # The first step warms up, and does not count.
            self._measure_from(step, perf_counter(), pl_module.course)
        elif step == self._next_look:
            self._plan(trainer, pl_module, batch_idx + 1)
        self._follow(trainer, pl_module, pl_module.course)

    def on_validation_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._validation_start = perf_counter()

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Plans the rest with the time that the validation took."""
        self._validation = perf_counter() - self._validation_start
        step, time = self._mark
        self._mark = (step, time + self._validation)
        if trainer.global_step > step:
            self._plan(trainer, pl_module, 0)

    def _plan(self, trainer: pl.Trainer, pl_module: Any, batches: int) -> None:
        """Plans the steps after the first `batches` of an epoch."""
        step, now, course = trainer.global_step, perf_counter(), pl_module.course
        if step >= course.steps:
            return
        pace = (now - self._mark[1]) / (step - self._mark[0])
        if pace > 0:
            left = self._seconds - (now - self._start)
            steps = step + affordable_steps(
                left, batches, pl_module.epoch_steps, pace, self._validation
            )
        else:
            # The clock has not moved since the last look: the plan stays until it does.
            steps = course.steps
        if (epochs := pl_module.training_config.epochs) is not None:
            steps = min(steps, epochs * pl_module.epoch_steps)
        if abs(steps - course.steps) * pace > TOLERANCE * self._seconds:
            course = course.replan(steps, step)
        course = Course(*trainer.strategy.broadcast(course))
        self._measure_from(step, now, course)
        self._follow(trainer, pl_module, course)

    def _measure_from(self, step: int, now: float, course: Course) -> None:
        """Starts a measurement that lasts as many steps as there were before it.

        Near the end of the course it is shorter, because less time is left for corrections.
        """
        self._mark = (step, now)
        self._next_look = step + max(1, min(step, (course.steps - step) // LOOKS))

    def _follow(self, trainer: pl.Trainer, pl_module: Any, course: Course) -> None:
        self._course = pl_module.course = course
        if trainer.global_step >= course.steps:
            trainer.should_stop = True


def affordable_steps(
    seconds: float, batches: int, epoch_steps: int, pace: float, validation: float
) -> int:
    """Returns the number of further steps that fit in `seconds`, with their validations.

    `batches` of the `epoch_steps` of the current epoch are done. A step takes `pace` seconds, and
    each epoch and the last step are followed by a validation of `validation` seconds.
    """
    seconds += batches * pace
    epochs, rest = divmod(seconds, epoch_steps * pace + validation)
    steps = int(epochs) * epoch_steps + max(0, int((rest - validation) / pace))
    return max(0, steps - batches)
