"""The configurations of `jobs/pipeline.py`, `report.py` and `benchmark.py`."""

from collections import Counter
from typing import Annotated, ClassVar, Literal

from pydantic import (
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveInt,
    model_validator,
)

from raylab.arc.config.models import ALL_MODELS, ModelConfig, Models
from raylab.arc.config.sections import (
    DataConfig,
    ScoringConfig,
    TrainingConfig,
    VotesConfig,
)
from raylab.core.config.base import (
    AS_PUBLISHED,
    ClusterConfig,
    Generation,
    JobConfig,
    Keys,
    Location,
    ModelName,
    Strict,
    Text,
    Trackers,
)


class FineTuningConfig(Strict):
    """The further training of one model of a pipeline, tested before and after."""

    model: Text
    """Its name in the pipeline: `champion`, or `champion-1` of several."""
    path: Location | None = None
    """Archive of other pairs, in the format of `data.source`; null takes those of `data`."""
    tasks: Annotated[tuple[Text, ...], Field(min_length=1)]
    """Ids of the tasks; their pairs are split."""
    pairs_per_task: PositiveInt | None = None
    """Most pairs of each task."""
    training: TrainingConfig = TrainingConfig()


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
    """Models to train in turn: an architecture or `{architecture: ..., key: value}` each. The same
    model again is trained with the next seed."""
    take: tuple[ModelName, ...] = ()
    """Trained models to add, as in `jobs/evaluate.py`."""
    data: DataConfig = DataConfig()
    training: TrainingConfig = TrainingConfig()
    generations: Annotated[tuple[Generation, ...], Field(min_length=1)] = (AS_PUBLISHED, 1, 2)
    """Generations of `data` that every model is scored on."""
    prior: DataConfig | None = None
    """An earlier benchmark that all models are scored on too, for novelty to compare with."""
    fine_tuning: FineTuningConfig | None = None
    """A further training of one of the models on some tasks; null for none."""
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

    @model_validator(mode="after")
    def _tunes_a_model(self) -> "PipelineConfig":
        if self.fine_tuning and self.fine_tuning.model not in (names := self.trainings):
            raise ValueError(
                f"fine_tuning.model={self.fine_tuning.model} is none of {', '.join(names)}"
            )
        return self

    @property
    def trainings(self) -> dict[str, tuple[ModelConfig, TrainingConfig]]:
        """The models by label, numbered if there are several of one, and their trainings."""
        total = Counter(model.label for model in self.models)
        seen, trainings = list[ModelConfig](), dict[str, tuple[ModelConfig, TrainingConfig]]()
        for model in self.models:
            alike = [other for other in seen if other.label == model.label]
            number = f"-{len(alike) + 1}" if total[model.label] > 1 else ""
            seed = self.training.seed + alike.count(model)
            training = self.training.model_copy(update={"seed": seed})
            trainings[f"{model.label}{number}"] = model, training
            seen.append(model)
        return trainings

    @property
    def tuning(self) -> tuple[str, DataConfig, TrainingConfig] | None:
        """The model of the fine-tuning, its pairs and its training."""
        if (own := self.fine_tuning) is None:
            return None
        data = DataConfig(
            source=self.data.source,
            path=own.path or self.data.path,
            subset=self.data.subset,
            tasks=own.tasks,
            pairs_per_task=own.pairs_per_task,
            split_by="pair",
        )
        return own.model, data, own.training


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


class StageConfig(Strict):
    """A training of `part=arc`."""

    model: ModelConfig
    data: DataConfig
    training: TrainingConfig


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

    part: Literal["train", "arc", "annotate", "quality"] = "train"
    """The part to measure."""
    data: DataConfig = DataConfig()
    """The pairs to train on, or with `part=arc` the tasks to solve."""
    stages: tuple[StageConfig, ...] = ()
    """Trainings of `part=arc`, each from the weights of the one before."""
    votes: VotesConfig = VotesConfig()
    """The views that `part=arc` answers."""
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

    @model_validator(mode="after")
    def _has_stages(self) -> "BenchmarkConfig":
        if (self.part == "arc") != bool(self.stages):
            raise ValueError("part=arc and stages go together: choose speedrun=hour")
        return self
