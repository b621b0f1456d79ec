"""The configuration of ARC data, training, search and scoring."""

import itertools
import json
from enum import StrEnum
from typing import Annotated, Literal

from pydantic import (
    BaseModel,
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    ValidationError,
    model_validator,
)

from raylab.config.base import Fraction, Location, OneOf, Scalar, Strict, Text
from raylab.config.models import MODEL_CONFIGS, Architecture
from raylab.config.schema import problems_of
from raylab.grid_metrics import MONITORED, OBJECTIVE, SCORED, VALIDATION


class TaskSource(StrEnum):
    """The source of the tasks."""

    ARC_AGI_1 = "arc_agi_1"
    ARC_AGI_2 = "arc_agi_2"
    ARC_JSON = "arc_json"
    RE_ARC = "re_arc"


class Subset(StrEnum):
    """The published halves of a packaged task set."""

    TRAINING = "training"
    EVALUATION = "evaluation"
    ALL = "all"


class DataConfig(Strict):
    """The tasks, their split and their groups."""

    source: TaskSource = TaskSource.ARC_AGI_1
    path: Location | None = None
    """Directory, JSON file or zip; needed by `arc_json` and `re_arc`."""
    subset: Subset = Subset.TRAINING
    """Used by the packaged sources `arc_agi_1` and `arc_agi_2`."""
    tasks: tuple[Text, ...] | None = None
    """Keep only these task ids."""
    every: PositiveInt = 1
    """Keep every n-th task, in the order of their ids."""
    pairs_per_task: PositiveInt | None = None
    """Keep at most this many pairs of each task, demonstrations first."""
    generation: NonNegativeInt | None = None
    """Seed that redraws colours and symmetries of the tasks; null keeps them as published."""
    split: Location | None = None
    """JSON file of task ids, `{"train": [...], "val": [...], "test": [...]}`; of two lists, `train`
    and `val`, the second is the test side. Null draws the split by `split_seed`."""
    split_by: Literal["task", "pair"] = "task"
    """Sides of different tasks, or of different pairs of the same tasks, as for fine-tuning."""
    test_fraction: Fraction = 0.23
    """Share of the tasks, or of each task's pairs, that is reported on; unused with a file."""
    val_fraction: Fraction = 0.1
    """Share of the others that chooses the checkpoint; unused with a file of three lists."""
    split_seed: NonNegativeInt = 307
    """Seed of what is drawn."""
    select_on_test: bool = False
    """Choose on the test side and train on all others, as the published protocol does."""
    taxonomy: Location | None = None
    """JSON file `{task id: group}`; null computes groups from the grids."""

    @model_validator(mode="after")
    def _path_matches_source(self) -> "DataConfig":
        packaged = self.source in (TaskSource.ARC_AGI_1, TaskSource.ARC_AGI_2)
        if packaged and self.path is not None:
            raise ValueError(
                f"source {self.source} is packaged and takes no path: remove data.path"
            )
        if not packaged and self.path is None:
            raise ValueError(f"source {self.source} needs data.path=FILE_OR_DIRECTORY")
        return self

    @model_validator(mode="after")
    def _file_splits_tasks(self) -> "DataConfig":
        if self.split is not None and self.split_by == "pair":
            raise ValueError(
                "data.split=FILE names the tasks of each side, and data.split_by=pair has all "
                "tasks on every side: leave one of them out"
            )
        return self


class Precision(StrEnum):
    """Precision of training; `auto` uses bfloat16 if the hardware supports it."""

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


class TrainingConfig(Strict):
    """The optimiser, its schedule and stopping; the defaults are the published recipe."""

    epochs: PositiveInt = 100
    """Most passes over the training pairs."""
    batch_size: PositiveInt = 32
    """Mean samples of a step over all workers; every target cell has the same weight."""
    lr: PositiveFloat = 0.00185
    """Learning rate at the start and after each restart."""
    betas: tuple[Fraction, Fraction] = (0.95, 0.999)
    """Decay rates of Adam's moment estimates."""
    weight_decay: NonNegativeFloat = 0.0
    """Weight decay of Adam."""
    restart_epochs: PositiveInt = 6
    """Epochs between warm restarts of the cosine schedule."""
    lr_min: NonNegativeFloat = 1.68e-6
    """Learning rate at the end of each cosine."""
    gradient_clip: PositiveFloat = 1.0
    """Largest norm of the gradient."""
    shape_loss_weight: NonNegativeFloat = 0.1
    """Weight of the loss of height and width; the loss of the cells has weight 1."""
    precision: Precision = Precision.AUTO
    seed: NonNegativeInt = 307
    """Seed of initialisation, order and dropout."""
    objective: ObjectiveConfig = ObjectiveConfig()
    monitor: Monitor = f"{VALIDATION}{OBJECTIVE}"
    """Metric that selects checkpoints and stops early; of `val_loss` the lowest is the best."""
    patience: PositiveInt | None = 7
    """Validations without improvement before stopping; null never stops early."""
    judge_at_restarts: bool = True
    """Stop a training, or a trial of a sweep, only where a cosine ends."""
    keep_checkpoints: PositiveInt = 2
    """Number of best checkpoints to keep; the latest is kept as well."""


class Domain(Strict):
    """The values that a search draws one key from: exactly one of these."""

    choice: Annotated[tuple[Scalar, ...], Field(min_length=1)] | None = None
    """One of these."""
    uniform: tuple[float, float] | None = None
    """Any number between the two."""
    log_uniform: tuple[PositiveFloat, PositiveFloat] | None = None
    """Any number between the two, uniform in the logarithm."""
    integer: tuple[int, int] | None = None
    """Any whole number from the first to the last."""

    @model_validator(mode="after")
    def _one_of_them(self) -> "Domain":
        given = [key for key, value in self if value is not None]
        if len(given) != 1:
            raise ValueError(
                f"needs exactly one of {', '.join(Domain.model_fields)}, has "
                f"{', '.join(given) or 'none'}: set the others to null"
            )
        if self.choice is None and self.bounds[0] >= self.bounds[1]:
            low, high = self.bounds
            raise ValueError(f"{given[0]}: {low} should be less than {high}")
        return self

    @property
    def bounds(self) -> tuple[float, float]:
        """The least and the greatest number of a numeric domain."""
        found = self.uniform or self.log_uniform or self.integer
        assert found is not None
        return found

    @property
    def extremes(self) -> tuple[Scalar, ...]:
        """All choices, or the least and the greatest number."""
        return self.bounds if self.choice is None else self.choice


Domains = dict[str, Domain]


class SearchSpace(Strict):
    """The space that a sweep searches."""

    model: Annotated[dict[Architecture, Domains], Field(min_length=1)]
    """The architectures, each with the domains of its own keys."""
    training: Domains = Field(default={})
    """Domains of `training` keys, for all architectures."""

    @model_validator(mode="after")
    def _keys_and_values_fit(self) -> "SearchSpace":
        for architecture, domains in self.model.items():
            _check_domains(MODEL_CONFIGS[architecture], domains, f"model.{architecture}")
        _check_domains(TrainingConfig, self.training, "training")
        return self


CHECKED_COMBINATIONS = 4096


def _check_domains(kind: type[BaseModel], domains: Domains, where: str) -> None:
    unknown = [key for key in domains if key not in kind.model_fields or key == "architecture"]
    if unknown:
        known = ", ".join(key for key in kind.model_fields if key != "architecture")
        raise ValueError(f"{where} has no key {', '.join(unknown)}; its keys: {known}")
    combinations = itertools.product(*(domain.extremes for domain in domains.values()))
    for values in itertools.islice(combinations, CHECKED_COMBINATIONS):
        drawn = dict(zip(domains, values, strict=True))
        try:
            kind.model_validate_json(json.dumps(drawn), strict=True)
        except ValidationError as error:
            problem = problems_of(kind, error.errors(include_url=False))[0]
            raise ValueError(f"{where} allows {json.dumps(drawn)}, but {problem}") from error


class Search(StrEnum):
    """The way a sweep draws its trials."""

    TPE = "tpe"
    RANDOM = "random"
    POPULATION = "population"


ScoreMetric = Annotated[str, OneOf(SCORED)]
"""A metric that a score tree is about."""


class ScoringConfig(Strict):
    """The scoring of a model on a generation of tasks."""

    metric: ScoreMetric = "solve_rate"
    """The metric recorded as accuracy; score files hold the others under their names."""
    unit: Literal["task", "group"] = "task"
    """The unit that one file of the score tree is about."""
    include_seen: bool = False
    """Also score tasks that one of the models was trained on."""
    batch_size: PositiveInt = 32
    """Mean grids per batch."""
