"""Tasks as ARC Prize poses them: demonstrations, and test inputs whose outputs may be unknown."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from raylab.arc.data.arc_json import read_arc_json
from raylab.arc.data.generations import redrawing
from raylab.arc.data.sources import SOURCES
from raylab.arc.data.tasks import Grid, Pair, Task
from raylab.config.arc import DataConfig, TaskSource

NO_OUTPUT = np.zeros((1, 1), dtype=np.uint8)
"""The output of a test pair that is posed; it tells nothing."""


@dataclass(frozen=True, eq=False)
class Challenge:
    """A task with its test inputs, and their outputs as far as they are known."""

    id: str
    demonstrations: tuple[Pair, ...]
    inputs: tuple[Grid, ...]
    outputs: tuple[Grid | None, ...]
    """As many as inputs; None where it is unknown."""

    @classmethod
    def of(cls, task: Task) -> "Challenge":
        """Returns a task whose questions are its test inputs."""
        return cls(
            task.id,
            task.demonstrations,
            tuple(pair.input for pair in task.questions),
            tuple(pair.output for pair in task.questions),
        )

    @property
    def posed(self) -> Task:
        """The task as a solver may see it: its questions have `NO_OUTPUT`."""
        questions = tuple(Pair(grid, NO_OUTPUT) for grid in self.inputs)
        return Task(self.id, self.demonstrations, questions)

    @property
    def solution(self) -> tuple[Grid, ...] | None:
        """The outputs of all test inputs; None if there is none, or one is unknown."""
        known = tuple(grid for grid in self.outputs if grid is not None)
        return known if known and len(known) == len(self.inputs) else None

    def redrawn(self, draw: Callable[[Grid], Grid]) -> "Challenge":
        """Returns the challenge with `draw` of every grid."""
        return replace(
            self,
            demonstrations=tuple(
                Pair(draw(pair.input), draw(pair.output)) for pair in self.demonstrations
            ),
            inputs=tuple(map(draw, self.inputs)),
            outputs=tuple(None if grid is None else draw(grid) for grid in self.outputs),
        )


def load_challenges(config: DataConfig) -> tuple[Challenge, ...]:
    """Returns the tasks of `load_tasks`, with the test inputs that lack an output too.

    Raises:
        DataError: as `load_tasks`.
    """
    if config.source is TaskSource.ARC_JSON:
        challenges = tuple(
            Challenge(
                read.id,
                read.demonstrations,
                tuple(source for source, _ in read.questions),
                tuple(target for _, target in read.questions),
            )
            for read in read_arc_json(config)
        )
    else:
        challenges = tuple(map(Challenge.of, SOURCES[config.source](config)))
    seed = config.generation
    if seed is None:
        return challenges
    return tuple(one.redrawn(redrawing(one.id, seed).apply) for one in challenges)
