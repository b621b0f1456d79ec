"""The configurations of `jobs/pipeline.py`, `report.py` and `benchmark.py`."""

from typing import Annotated, ClassVar, Literal

from pydantic import (
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveInt,
    model_validator,
)

from raylab.arc.config.models import ALL_MODELS, Models
from raylab.arc.config.sections import DataConfig, ScoringConfig, TrainingConfig
from raylab.core.config.base import (
    AS_PUBLISHED,
    ClusterConfig,
    Generation,
    JobConfig,
    Keys,
    Location,
    ModelName,
    Text,
    Trackers,
)


class PipelineConfig(JobConfig):
    """`jobs/pipeline.py`."""

    job: ClassVar[str] = "pipeline"
    main: ClassVar[Keys] = (
        "models",
        "take",
        "training.epochs",
        "training.max_minutes",
        "data.path",
        "generations",
        "pictures",
    )

    models: Models = ALL_MODELS
    """Models to train in turn: an architecture or `{architecture: ..., key: value}` each."""
    take: tuple[ModelName, ...] = ()
    """Trained models to add, as in `jobs/evaluate.py`."""
    data: DataConfig = DataConfig()
    training: TrainingConfig = TrainingConfig()
    generations: Annotated[tuple[Generation, ...], Field(min_length=1)] = (AS_PUBLISHED, 1, 2)
    """Generations of `data` that every model is scored on."""
    prior: DataConfig | None = None
    """An earlier benchmark that all models are scored on too, for novelty to compare with."""
    scoring: ScoringConfig = ScoringConfig()
    pictures: NonNegativeInt = 4
    """Number of tasks in the report with predictions drawn beside the target."""
    cluster: ClusterConfig = ClusterConfig()
    tracking: Trackers = ("tensorboard",)

    @model_validator(mode="after")
    def _scores_pairs(self) -> "PipelineConfig":
        if self.scoring.protocol != "pairs":
            raise ValueError(
                f"scoring.protocol={self.scoring.protocol} is of jobs/evaluate.py: score the run "
                "of the pipeline with it"
            )
        return self


class ReportConfig(JobConfig):
    """`jobs/report.py`."""

    job: ClassVar[str] = "report"
    main: ClassVar[Keys] = ("runs", "drift", "archive")

    runs: tuple[Text, ...] = ()
    """Runs of any jobs: names under `storage`, directories or URIs."""
    drift: bool = False
    """Compare the annotation runs of an archive over time instead."""
    archive: Location | None = None
    """Archive for `drift`, given like `archive` of the annotation."""

    @model_validator(mode="after")
    def _does_one_thing(self) -> "ReportConfig":
        if bool(self.runs) == self.drift:
            raise ValueError("needs either runs=[...], the runs to compare, or drift=true")
        if self.archive is not None and not self.drift:
            raise ValueError("archive= goes with drift=true")
        return self


class BenchmarkConfig(JobConfig):
    """`jobs/benchmark.py`."""

    job: ClassVar[str] = "benchmark"
    main: ClassVar[Keys] = (
        "part",
        "models",
        "batch_size",
        "threads",
        "rounds",
        "cases",
        "concurrency",
    )

    part: Literal["train", "annotate", "quality"] = "train"
    """The part to measure."""
    data: DataConfig = DataConfig()
    models: Models = ALL_MODELS
    """The architectures to measure, as in the pipeline."""
    batch_size: PositiveInt = 32
    """Samples of a training step."""
    threads: PositiveInt = 2
    """CPU threads of torch."""
    rounds: PositiveInt = 3
    """Rounds of every measurement."""
    cases: PositiveInt = 2000
    """Cases annotated per round."""
    concurrency: PositiveInt = 128
    """Calls in flight, of raylab and of the bare loop."""
    latency: NonNegativeFloat = 0.05
    """Seconds that the local chat server takes to answer."""
