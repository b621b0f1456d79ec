"""The configuration of ARC data, training, search and scoring."""

from collections.abc import Iterable
from enum import StrEnum
from typing import Annotated, Literal

from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt, model_validator

from raylab.arc.config.models import AnyModelConfig, CustomConfig, ModelTarget
from raylab.arc.grid_metrics import ATTEMPTS, MONITORED, OBJECTIVE, SCORED, VALIDATION
from raylab.core.config.base import Fraction, Location, OneOf, Probability, Seed, Strict, Text


class TaskSource(StrEnum):
    """The source of the tasks."""

    ARC_AGI_1 = "arc_agi_1"
    ARC_AGI_2 = "arc_agi_2"
    ARC_JSON = "arc_json"
    RE_ARC = "re_arc"
    CURRICULUM = "curriculum"


WITHOUT_PATH = (TaskSource.ARC_AGI_1, TaskSource.ARC_AGI_2, TaskSource.CURRICULUM)
"""The sources that read no files of their own."""


class Subset(StrEnum):
    """The published halves of a packaged task set."""

    TRAINING = "training"
    EVALUATION = "evaluation"
    ALL = "all"


CurriculumLevel = Literal[1, 2, 3]
SplitBy = Literal["task", "pair", "question"]


class CurriculumConfig(Strict):
    """The tasks of source `curriculum`, which are drawn and not read."""

    families: tuple[Text, ...] | None = None
    """Families of tasks; null takes all."""
    levels: Annotated[tuple[CurriculumLevel, ...], Field(min_length=1)] = (1,)
    """Levels of difficulty: grids with sides of up to 6 (1), 10 (2) or 15 (3) cells."""
    variants: Annotated[int, Field(ge=1, le=99)] = 2
    """Tasks per family and level. Each has its own rule, such as a colour or a direction, which the
    demonstrations show; families with a single rule have one task."""
    seed: Seed = 0
    """Seed of the pairs; the rules of the tasks do not depend on it."""


class DataConfig(Strict):
    """The tasks, their split and their groups."""

    source: TaskSource = TaskSource.ARC_AGI_1
    path: Location | tuple[Location, ...] | None = None
    """Directory, JSON file or zip; needed by `arc_json` and `re_arc`. `arc_json` reads several too,
    such as [challenges.json,solutions.json]; of a task in two, the first counts."""
    curriculum: CurriculumConfig = CurriculumConfig()
    """Used by source `curriculum`."""
    subset: Subset = Subset.TRAINING
    """Used by the packaged sources `arc_agi_1` and `arc_agi_2`."""
    tasks: tuple[Text, ...] | None = None
    """Keep only these task ids."""
    every: PositiveInt = 1
    """Keep every n-th task, in the order of their ids."""
    pairs_per_task: Annotated[PositiveInt, Field(le=100_000)] | None = None
    """Keep at most this many pairs of each task, demonstrations first; for the curriculum, draw
    this many (600 by default)."""
    max_side: Annotated[int, Field(ge=1, le=30)] | None = None
    """Keep tasks with visible grids of at most this length and width; of `re_arc`, keep the pairs
    that fit, and tasks with at least three of them. Test outputs are not looked at."""
    generation: Seed | None = None
    """Seed that redraws colours and symmetries of the tasks; null keeps them as published."""
    split: Location | None = None
    """JSON file of task ids, `{"train": [...], "val": [...], "test": [...]}`; of two lists, the
    second, `val` or `test`, is the test side. Null draws the split by `split_seed`."""
    split_by: SplitBy = "task"
    """Split the tasks, or the pairs of each task, as for fine-tuning; `question` trains on the
    demonstrations of all tasks and tests their questions, as a solver may."""
    test_fraction: Fraction = 0.23
    """Share of the tasks, or of each task's pairs, on the test side; unused with `split`."""
    val_fraction: Fraction = 0.1
    """Share of the remaining tasks (by `task`) or pairs on the validation side, which chooses the
    checkpoint; unused with a file of three lists."""
    split_seed: Seed = 307
    """Seed of the drawn split."""
    select_on_test: bool = False
    """Choose on the test side and train on all others, as the published protocol does."""
    taxonomy: Location | None = None
    """JSON file `{task id: group}`; null computes groups from the grids."""

    @property
    def paths(self) -> tuple[str, ...]:
        """All of `path`."""
        return (self.path,) if isinstance(self.path, str) else self.path or ()

    @model_validator(mode="after")
    def _path_matches_source(self) -> "DataConfig":
        if self.source in WITHOUT_PATH and self.path is not None:
            raise ValueError(f"source {self.source} reads no files: remove data.path")
        if self.source not in WITHOUT_PATH and not self.path:
            raise ValueError(f"source {self.source} needs data.path=FILE_OR_DIRECTORY")
        if self.source == TaskSource.RE_ARC and len(self.paths) > 1:
            raise ValueError("source re_arc reads one archive: name one as data.path")
        return self

    @model_validator(mode="after")
    def _file_splits_tasks(self) -> "DataConfig":
        if self.split is not None and self.split_by != "task":
            raise ValueError(
                f"data.split=FILE names tasks, and data.split_by={self.split_by} has all tasks on "
                "every side: leave one of them out"
            )
        return self


class Precision(StrEnum):
    """Precision of training; `auto` is half precision where it is fast, and else float32."""

    AUTO = "auto"
    FLOAT32 = "32-true"
    BFLOAT16 = "bf16-mixed"
    FLOAT16 = "16-mixed"


class ObjectiveConfig(Strict):
    """Weights of the dense grid objective."""

    w_cell: NonNegativeFloat = 0.0
    """Weight of cell_accuracy."""
    w_tol: NonNegativeFloat = 0.8
    """Weight of grid_tol_0p95, the share of grids with at least 95 % of their cells right."""
    w_ex: NonNegativeFloat = 0.2
    """Weight of grid_accuracy."""


Monitor = Annotated[str, OneOf(MONITORED)]
"""A validation metric, or the validation loss, that training selects checkpoints by."""
Colours = Literal["model", "none", "all", "all_but_0"]
Demonstrations = Literal["first", "epoch", "batch"]


class TrainingConfig(Strict):
    """The optimiser, its schedule, augmentation and stopping; by default the published recipe."""

    epochs: PositiveInt | None = 100
    """Most passes over the training pairs; null leaves the end to `max_minutes`."""
    max_minutes: PositiveFloat | None = None
    """Most minutes of steps and validations; the number of steps and the schedule follow from the
    speed of the first steps."""
    batch_size: PositiveInt = 32
    """Mean samples of a step over all workers; every target cell has the same weight."""
    optimiser: Literal["adam", "adamw", "muon"] = "adam"
    """`muon` updates the matrices of hidden linear layers, and AdamW all other weights."""
    lr: PositiveFloat = 0.00185
    """Highest learning rate of the schedule; Muon's is scaled to updates of AdamW's size."""
    weight_decay: NonNegativeFloat = 0.0
    """Weight decay: `adam` adds it to the gradient, the others decouple it."""
    schedule: Literal["cosine_restarts", "wsd"] = "cosine_restarts"
    """Course of the learning rate: cosines with restarts, epoch by epoch, or a warm-up, a stable
    phase and a decay over the whole run, step by step."""
    warmup: Probability = 0.05
    """Share of the run's steps in which `wsd` rises to `lr`."""
    decay: Probability = 0.2
    """Share of the run's steps in which `wsd` falls from `lr` at the end; 0 keeps it."""
    restart_epochs: PositiveInt = 6
    """Epochs between the restarts of `cosine_restarts`."""
    ema: Fraction | None = None
    """Decay per step of an average of the weights, which is validated and stored as the model; null
    uses the weights of the last step."""
    augment_colours: Colours = "model"
    """Relabel the colours of each task of a batch by a random permutation of all ten, or of all but
    the background 0, or not; `model` is `all` or `none` by `model.colour_relabelling`."""
    augment_symmetries: bool = False
    """Turn and mirror each task of a batch by one of the eight symmetries of the square."""
    augment_demonstrations: Demonstrations = "epoch"
    """Choice and order of a task's demonstrations: its first ones, or drawn anew in each epoch, or
    for each batch."""
    gradient_clip: PositiveFloat = 1.0
    """Largest norm of the gradient."""
    shape_loss_weight: NonNegativeFloat = 0.1
    """Weight of the loss of height and width; the loss of the cells has weight 1."""
    precision: Precision = Precision.AUTO
    seed: Seed = 307
    """Seed of initialisation, order and dropout."""
    objective: ObjectiveConfig = ObjectiveConfig()
    monitor: Monitor = f"{VALIDATION}{OBJECTIVE}"
    """Metric that selects checkpoints and stops early; the lowest `val_loss` is the best."""
    patience: PositiveInt | None = 7
    """Validations without improvement before stopping; null never stops early."""
    judge_at_restarts: bool = True
    """Stop a training, or a trial of a sweep, only where a cosine ends; `wsd` ends with the run, so
    that only trials that fall behind are stopped."""
    keep_checkpoints: PositiveInt = 2
    """Number of best checkpoints to keep; the latest is kept as well."""

    @model_validator(mode="after")
    def _phases_fit_the_run(self) -> "TrainingConfig":
        if self.warmup + self.decay > 1:
            raise ValueError(
                f"warmup={self.warmup} and decay={self.decay} are shares of one run and exceed 1 "
                "together: lower one of them"
            )
        return self

    @model_validator(mode="after")
    def _has_an_end(self) -> "TrainingConfig":
        if self.epochs is None and self.max_minutes is None:
            raise ValueError("epochs=null leaves the training without an end: set max_minutes")
        return self

    @property
    def judged_every(self) -> int | None:
        """A training may be stopped early every so many epochs; None if never."""
        if not self.judge_at_restarts:
            return 1
        return self.restart_epochs if self.schedule == "cosine_restarts" else None


ScoreMetric = Annotated[str, OneOf((*SCORED, *ATTEMPTS))]
"""A metric that a score tree can record as accuracy."""
MAX_VIEWS = 4096


class VotesConfig(Strict):
    """The views of a task that a model answers, and that vote on its attempts."""

    views: Annotated[PositiveInt, Field(le=MAX_VIEWS)] = 1
    """Views of each test input that vote; the first is the task as it is."""
    symmetries: bool = True
    """Views differ in the symmetry of the square."""
    colours: bool = True
    """Views differ in a permutation of all ten colours."""
    orders: bool = True
    """Views differ in the order of the demonstrations, and so in which ones a model is shown."""
    seed: Seed = 307
    """Seed of the views; with more views, the first ones stay the same."""


class TaskTrainingConfig(Strict):
    """The training of a copy of the model on the demonstrations of each task."""

    steps: Annotated[PositiveInt, Field(le=100_000)] | None = 32
    """Most optimiser steps on each task; null leaves the end to `seconds`."""
    seconds: PositiveFloat | None = None
    """Most seconds of training on each task."""
    lr: PositiveFloat = 0.0003
    """Learning rate of Adam."""
    augmentations: Annotated[PositiveInt, Field(le=MAX_VIEWS)] = 16
    """Train on the demonstrations of this many views of the task, drawn as by `scoring.votes`."""
    batch_size: PositiveInt = 16
    """Mean demonstrations of a step."""
    before: bool = False
    """Also answer each task before the training, to show what it changed."""
    keep: bool = False
    """Store the model trained on each task, its specialist, as a file of the run."""
    specialists: Location | None = None
    """A run with stored specialists, which answer; tasks without one are trained."""

    @model_validator(mode="after")
    def _has_an_end(self) -> "TaskTrainingConfig":
        if self.steps is None and self.seconds is None:
            raise ValueError("steps=null leaves the training without an end: set seconds")
        return self


class ScoringConfig(Strict):
    """The scoring of a model on a generation of tasks."""

    protocol: Literal["pairs", "arc"] = "pairs"
    """`pairs` asks for every pair, `arc` for two attempts at each test input, as ARC Prize does."""

    metric: ScoreMetric = "solve_rate"
    """The metric recorded as accuracy; score files hold the others under their names."""
    unit: Literal["task", "group"] = "task"
    """The content of one file of the score tree."""
    include_seen: bool = False
    """Also score tasks that one of the models was trained on."""
    batch_size: PositiveInt = 32
    """Mean grids per batch."""
    votes: VotesConfig = VotesConfig()
    """Used by `protocol: arc`."""
    test_time_training: TaskTrainingConfig | None = None
    """Training on the demonstrations of each task before it is answered; null for none."""
    model_classes: tuple[ModelTarget, ...] = ()
    """Your own classes that checkpoints may have, `package.module:Class`; imports no others."""

    def trusting(self, models: Iterable[AnyModelConfig]) -> "ScoringConfig":
        """Returns this with the classes of `models` among those that checkpoints may have."""
        own = [model.target for model in models if isinstance(model, CustomConfig)]
        classes = tuple(dict.fromkeys([*self.model_classes, *own]))
        return self.model_copy(update={"model_classes": classes})

    @model_validator(mode="after")
    def _metric_is_of_protocol(self) -> "ScoringConfig":
        if (self.metric in ATTEMPTS) != (self.protocol == "arc"):
            raise ValueError(
                f"metric {self.metric} is not measured by protocol {self.protocol}: choose "
                "scoring=arc or scoring=pairs, and scoring.metric beside it"
            )
        if self.protocol == "pairs" and self.test_time_training is not None:
            raise ValueError("test_time_training needs protocol arc: choose scoring=arc")
        return self
