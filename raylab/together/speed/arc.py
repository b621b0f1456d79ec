"""Speed of solving: a model is trained in stages, and answers tasks as it was at several moments.

Times begin before data are read, and end with the answers; what was answered for earlier moments
does not count.
"""

import time
from typing import ClassVar

from raylab.arc.checkpoints import Checkpoint, checkpoint_path, read_checkpoint
from raylab.arc.config.jobs import TrainConfig
from raylab.arc.config.sections import ScoringConfig
from raylab.arc.data.sources import load_tasks
from raylab.arc.device import use_share
from raylab.arc.inputs import read_inputs
from raylab.arc.prize.answering import answer_tasks
from raylab.arc.prize.scores import prize_score, solutions_of
from raylab.arc.scoring.evaluation import model_on
from raylab.arc.training.local import fit
from raylab.core.config.base import ClusterConfig
from raylab.core.log import log_line
from raylab.core.page.table import Table, print_tables
from raylab.core.printable import duration
from raylab.core.runs.records import Part, Record
from raylab.core.runs.run import METRICS, Run
from raylab.core.tracking import Figures
from raylab.together.config import BenchmarkConfig

MOMENT_SECONDS = 120.0
"""Least time between two moments of the last stage."""
GOALS = (10, 15, 20)
"""Numbers of solved tasks, the time to which is reported."""


class Moment(Part):
    """A model in training, and the tasks it solves."""

    seconds: float
    """From the start to its last answer."""
    first_attempt: float
    """Solved tasks; a task counts by the share of its test outputs."""
    two_attempts: float


class Speedrun(Record):
    """The moments of a speedrun: its `metrics.json`."""

    file: ClassVar[str] = METRICS
    version: ClassVar[int] = 1
    tasks: int
    moments: tuple[Moment, ...]

    def seconds_to(self, solved: float) -> float | None:
        """Returns the time of the first moment with so many solved tasks; None without one."""
        return next((own.seconds for own in self.moments if own.two_attempts >= solved), None)


def benchmark_arc(config: BenchmarkConfig) -> None:
    """Trains the stages, answers the tasks, and prints the seconds to 10, 15 and 20 solved."""
    start, run = time.monotonic(), Run.open(config)
    cluster = ClusterConfig(use_gpu=False, cpus_per_worker=config.threads)
    checkpoints: list[tuple[float, Checkpoint]] = []
    for number, stage in enumerate(config.stages, 1):
        training = TrainConfig(
            name=f"stage-{number}",
            storage=run.uri,
            init_from=f"stage-{number - 1}" if number > 1 else None,
            cluster=cluster,
            tracking=(),
            **dict(stage),
        )
        inputs = read_inputs(training)
        own = Run.open(inputs.config)

        def keep(figures: Figures, best: float, own: Run = own, last: bool = False) -> None:
            seconds = time.monotonic() - start
            if last or not checkpoints or seconds > checkpoints[-1][0] + MOMENT_SECONDS:
                path = own / checkpoint_path(int(figures["epoch"]))
                checkpoints.append((seconds, read_checkpoint(path)))

        checkpoints.clear()
        ended = fit(inputs.config, own, inputs.sides, inputs.start, keep)
        keep(ended.best.row(), 0.0, last=True)
        own.finish()
    tasks = load_tasks(config.data)
    posed, solutions = [task.without_outputs for task in tasks], solutions_of(tasks)
    device, record = use_share(cluster), Speedrun(tasks=len(solutions), moments=())
    for seconds, checkpoint in checkpoints:
        begun = time.monotonic()
        answers = answer_tasks(
            model_on(checkpoint, device).answers,
            posed,
            ScoringConfig(votes=config.votes),
            checkpoint.model.context_pairs,
            device,
        )
        answered = {own.task: own for own in answers}
        score = prize_score(answered, solutions, config.votes.views)
        moment = Moment(
            seconds=seconds + time.monotonic() - begun,
            first_attempt=score.first_attempt * len(solutions),
            two_attempts=score.two_attempts * len(solutions),
        )
        record = record.model_copy(update={"moments": (*record.moments, moment)})
        run.write_record(record)
        log_line(f"{duration(moment.seconds)}: {moment.two_attempts:.1f} solved", **dict(moment))
    reached = {goal: record.seconds_to(goal) for goal in GOALS}
    print_tables(
        Table(
            f"Seconds to solved tasks, of {record.tasks}",
            ["solved", "seconds"],
            [[f"{n}", "-" if s is None else f"{s:.0f}"] for n, s in reached.items()],
        ),
        **record.model_dump(),
    )
    run.finish()
