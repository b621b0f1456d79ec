"""The records of trainings, scores and pictures, which reports read without torch."""

from collections.abc import Mapping
from statistics import fmean
from typing import Any, ClassVar, Literal, Self

from pydantic import Field

from raylab.arc.config.sections import SplitBy
from raylab.arc.grid_metrics import VALIDATION, BaselineMetrics
from raylab.core.runs.records import Part, Record
from raylab.core.runs.run import METRICS, SCORES

NEW_IN_SPLIT = {
    "task": "tasks",
    "pair": "pairs (of tasks that were trained on)",
    "question": "questions (of tasks whose demonstrations were trained on)",
}
"""The held-out side of each `data.split_by`, in words."""

GridRows = tuple[tuple[int, ...], ...]
"""The rows of an ARC grid, colours 0..9."""


class GroupMetrics(Part):
    """The metrics of a group of validation tasks."""

    grids: int
    """Grids of the group, at least 1."""
    metrics: Mapping[str, float]
    """Every grid metric, and `compositional_gap`: cell accuracy minus grid accuracy.

    `compositional_gap_rate` is its formal form: the share of the group's tasks with over 80 % of
    their cells right and under 10 % of their grids.
    """


class Epoch(Part):
    """One epoch of a training."""

    epoch: int
    """Counted from 1."""
    step: int
    """Optimiser steps since the start."""
    planned_steps: int
    """Optimiser steps of the whole training, as planned when the epoch ended."""
    train_loss: float
    """Mean loss of the epoch."""
    learning_rate: float
    """Learning rate of its first step."""
    samples_per_second: float
    """Training speed, over all workers."""
    train_seconds: float
    """Duration of training."""
    validation_seconds: float
    """Duration of validation."""
    validation: Mapping[str, float]
    """Every grid metric of the validation tasks, by its name in `grid_metrics`, and `loss`."""

    @classmethod
    def of_row(cls, row: Mapping[str, Any]) -> Self:
        """Returns the epoch of a flat row, as `row` returns it."""
        own = {key: row[key] for key in Epoch.model_fields.keys() & row.keys()}
        measured = {
            key.removeprefix(VALIDATION): value
            for key, value in row.items()
            if key.startswith(VALIDATION)
        }
        return cls.model_validate(own | {"validation": measured})

    def row(self) -> dict[str, float]:
        """Returns all values in one flat mapping for curves and logs, metrics prefixed `val_`."""
        own = self.model_dump(include=set(Epoch.model_fields) - {"validation"})
        return own | {f"{VALIDATION}{name}": value for name, value in self.validation.items()}


class BestEpoch(Epoch):
    """The epoch with the best value of the monitored metric; among equals the latest."""

    groups: Mapping[str, GroupMetrics]
    """Metrics by group of the validation tasks."""
    checkpoint: str
    """The checkpoint file, relative to the run directory."""


class TaskFigures(Part):
    """The main figures of a model on one task."""

    pairs: int
    """Pairs of the task, at least 1."""
    solve_rate: float
    cell_accuracy: float
    grid_accuracy: float


class HeldOut(Part):
    """The figures of a trained model on tasks, or pairs of tasks, that it was not trained on."""

    by: SplitBy = "task"
    """With `pair`, other pairs of the same tasks were trained on; with `question` their
    demonstrations."""
    side: Literal["test", "validation"]
    """The side of the split that the tasks are on; those of validation chose the epoch too."""
    chosen_on: bool
    """True if the same tasks chose the epoch, so that the figures are too good."""
    tasks: int | None
    """Number of tasks; None on the validation side."""
    pairs: int | None
    """Number of pairs; None on the validation side."""
    metrics: Mapping[str, float]
    """Every grid metric, by its name in `raylab.arc.grid_metrics`, and `loss`."""
    intervals: Mapping[str, tuple[float, float]] = Field(default={})
    """95 % intervals of grid metrics for the choice of tasks; empty on the validation side."""
    groups: Mapping[str, GroupMetrics]
    """Metrics by group of the tasks."""
    baselines: BaselineMetrics
    """Metrics of the baselines on the same tasks."""
    group_baselines: Mapping[str, BaselineMetrics] = Field(default={})
    """The same by group of the tasks; empty on the validation side."""
    by_task: Mapping[str, TaskFigures] = Field(default={})
    """Main figures by id of the task; empty on the validation side."""
    trained_pairs: int = 0
    """Number of the pairs that the model was trained on nevertheless, as the model that a
    fine-tuning starts from may be."""

    @property
    def name(self) -> str:
        """The held-out tasks or pairs in words."""
        chosen = ", which also chose the epoch" if self.chosen_on else ""
        return f"{self.side} {NEW_IN_SPLIT[self.by]}{chosen}"

    @property
    def mean_of_tasks(self) -> TaskFigures:
        """The mean over tasks of their figures, and all pairs; needs `by_task`."""
        tasks = self.by_task.values()
        return TaskFigures(
            pairs=sum(task.pairs for task in tasks),
            solve_rate=fmean(task.solve_rate for task in tasks),
            cell_accuracy=fmean(task.cell_accuracy for task in tasks),
            grid_accuracy=fmean(task.grid_accuracy for task in tasks),
        )


class TrainingMetrics(Record):
    """Measurements of a training so far: its `metrics.json`."""

    file: ClassVar[str] = METRICS
    version: ClassVar[int] = 4

    parameters: int
    """Parameters of the model."""
    teacher_forced: bool = True
    """True if cells and grids are counted with the true cells before each; False for a model that
    writes all cells at once, whose figures are all free-running."""
    best: BestEpoch
    last: Epoch
    history: tuple[Epoch, ...]
    """All epochs, in order."""
    ended: bool = False
    """True once no epoch is left to train; the test may be."""
    baselines: BaselineMetrics = Field(default={})
    """Metrics of the baselines on the same validation tasks."""
    test: HeldOut | None = None
    """Figures of the best epoch on the test side; None until it is tested, and in the trials of a
    sweep that are not the best."""
    before: HeldOut | None = None
    """Figures on the same test side of the checkpoint that the training started from; None without
    `init_from`, and where `test` is None."""

    @property
    def result(self) -> HeldOut:
        """The figures to report: on the test tasks, or without them on the validation tasks."""
        return self.test or HeldOut(
            side="validation",
            chosen_on=True,
            tasks=None,
            pairs=None,
            metrics=self.best.validation,
            groups=self.best.groups,
            baselines=self.baselines,
        )

    @property
    def rows(self) -> list[dict[str, float]]:
        """The epochs as flat rows."""
        return [epoch.row() for epoch in self.history]


class PipelineMetrics(Record):
    """Measurements of the trainings of a pipeline: its `metrics.json`."""

    file: ClassVar[str] = METRICS
    version: ClassVar[int] = 4

    models: Mapping[str, TrainingMetrics]
    """The models trained so far, by name."""
    tuned: Mapping[str, TrainingMetrics] = Field(default={})
    """The fine-tuned model by name, once it is trained; without `fine_tuning` none."""


class BaselineScores(Record):
    """Mean scores of the baselines on the tasks of a score tree, kept beside it."""

    file: ClassVar[str] = f"{SCORES}-baselines.json"

    metric: str
    """The metric that the score tree calls accuracy."""
    baselines: Mapping[str, Mapping[str, float]]
    """Mean over the units, in [0, 1], by baseline and generation."""

    @property
    def means(self) -> dict[str, float]:
        """Mean over the generations, by baseline."""
        return {baseline: fmean(means.values()) for baseline, means in self.baselines.items()}


def baseline_scores_file(subdir: str) -> str:
    """Returns the name of the `BaselineScores` of the score tree in `subdir` of a run."""
    return f"{subdir}-baselines.json"


class AttemptScore(Part):
    """A score as ARC Prize counts it: the mean over tasks of the share of solved test outputs."""

    first_attempt: float
    """In [0, 1], where the first attempt alone counts."""
    two_attempts: float
    """In [0, 1], where either attempt solves."""


class VotesScore(AttemptScore):
    """The score of the attempts that some views vote for."""

    views: int


class TrainedScore(Part):
    """The cost and the effect of test-time training."""

    before: AttemptScore | None
    """The score without it; None unless it was asked for."""
    steps: float
    """Mean optimiser steps of a task."""
    seconds: float
    """Mean time of a task's training."""


class PrizeScore(AttemptScore):
    """The score of a model, a submission or a baseline on the tasks of a generation."""

    tasks: int
    """Tasks with a known test output, at least 1."""
    outputs: int
    """Their known test outputs."""
    missing: int = 0
    """Attempts of a submission that are missing or no grid, and so wrong."""
    errors: AttemptScore | None = None
    """Standard errors of the two over the tasks; None of a single one."""
    curve: tuple[VotesScore, ...] = ()
    """The score by the number of views, up to all; none of a baseline."""
    seconds: float | None = None
    """Mean time of a task's answers, without training; None of a baseline and a submission."""
    sizes_by_rule: float | None = None
    """Share of the views' answers in the size of the size rule; None without models."""
    trained: TrainedScore | None = None
    """Test-time training; None without any."""


class EvaluationMetrics(Record):
    """Mean scores of an evaluation: its `metrics.json`."""

    file: ClassVar[str] = METRICS
    version: ClassVar[int] = 4

    metric: str
    """The metric that the score tree calls accuracy."""
    models: Mapping[str, Mapping[str, float]]
    """Mean over the units, in [0, 1], by model and generation."""
    baselines: BaselineMetrics = Field(default={})
    """The same of the baselines, by baseline and generation."""

    by: Literal["task", "pair"] = "task"
    """With `pair`, the scored pairs are new and their tasks were seen."""
    prize: Mapping[str, Mapping[str, PrizeScore]] = Field(default={})
    """Scores as ARC Prize counts them, by model or submission and generation; none by pairs, of
    generations without a known test output."""
    prize_baselines: Mapping[str, Mapping[str, PrizeScore]] = Field(default={})
    """The same of the baselines."""


class PredictedGrid(Part):
    """The free-running answer of a model to a task."""

    grid: GridRows
    solved: bool


class Example(Part):
    """A question of a task, its answer, and each model's answer to it."""

    task: str
    """Id of the task."""
    input: GridRows
    target: GridRows
    predictions: Mapping[str, PredictedGrid]
    """Answers by model."""


class Examples(Record):
    """The tasks that the report of a pipeline pictures."""

    file: ClassVar[str] = "examples.json"

    examples: tuple[Example, ...]
