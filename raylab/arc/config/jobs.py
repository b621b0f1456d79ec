"""The configurations of `jobs/train.py`, `tune.py` and `evaluate.py`."""

import sys
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, cast

from pydantic import Field, PositiveInt, model_validator

from raylab.arc.config.models import ChampionConfig, ModelConfig
from raylab.arc.config.search import Search, SearchSpace
from raylab.arc.config.sections import DataConfig, ScoringConfig, TrainingConfig
from raylab.arc.grid_metrics import GRID_METRICS, VALIDATION
from raylab.core.config.base import (
    AS_PUBLISHED,
    ClusterConfig,
    Generation,
    JobConfig,
    Keys,
    Location,
    ModelName,
    Seed,
    Trackers,
)


class TrainConfig(JobConfig):
    """`jobs/train.py`."""

    job: ClassVar[str] = "train"
    main: ClassVar[Keys] = (
        "training.epochs",
        "training.max_minutes",
        "training.batch_size",
        "training.lr",
        "data.path",
        "init_from",
        "cluster.workers",
    )

    model: ModelConfig = ChampionConfig()
    data: DataConfig = DataConfig()
    training: TrainingConfig = TrainingConfig()
    cluster: ClusterConfig = ClusterConfig()
    tracking: Trackers = ("tensorboard",)
    init_from: ModelName | None = None
    """Trained model whose weights and sizes the model starts from: a checkpoint file, or a run by
    its name under `storage` or its directory."""

    def grown(self, before: Mapping[str, Any]) -> Mapping[str, Any]:
        """Returns the configuration of a run, with the epochs of this one if they are more."""
        training, epochs = before["training"], self.training.epochs
        if not training["epochs"] or training["max_minutes"] or epochs is None:
            return before
        return {**before, "training": training | {"epochs": max(epochs, training["epochs"])}}


DEFAULT_TRIALS = 20


class TuneConfig(JobConfig):
    """`jobs/tune.py`."""

    job: ClassVar[str] = "tune"
    main: ClassVar[Keys] = (
        "trials",
        "search",
        "stop_early",
        "concurrent",
        "training.epochs",
        "cluster.workers",
    )

    space: SearchSpace
    search: Search = Search.TPE
    """Tree-structured Parzen estimator, random search, or all combinations; no configuration is
    drawn twice."""
    trials: PositiveInt | None = None
    """Most trials, fewer if the space has fewer configurations; null is 20, for `grid` all."""
    concurrent: PositiveInt | None = None
    """Trials at a time; null takes as many as fit on the cluster."""
    stop_early: bool = True
    """Stop trials that fall behind at equal epochs (ASHA); none with `training.max_minutes`, which
    ends trials at different epochs."""
    grace_epochs: PositiveInt = 5
    """Fewest epochs before a trial may be stopped, extended to the next end of all cosines."""
    seed: Seed = 307
    """Seed of the search."""
    data: DataConfig = DataConfig()
    training: TrainingConfig = TrainingConfig()
    cluster: ClusterConfig = ClusterConfig(cpus_per_worker=1)
    """Workers and CPUs of one trial."""
    tracking: Trackers = ("tensorboard",)

    @property
    def monitor(self) -> str:
        """The metric that ranks trials: `training.monitor`, if all trials measure it alike.

        Of teacher-forced models and models that write all cells at once, it is the solve rate.
        """
        chosen = self.training.monitor
        metric = GRID_METRICS.get(chosen.removeprefix(VALIDATION))
        alike = not self.space.is_mixed or metric is None or metric.free_running
        return chosen if alike else f"{VALIDATION}solve_rate"

    @property
    def trial_count(self) -> int:
        size = self.space.size
        by_default = size if size and self.search is Search.GRID else DEFAULT_TRIALS
        return min(self.trials or by_default, size or sys.maxsize)

    @model_validator(mode="after")
    def _grid_is_finite(self) -> "TuneConfig":
        endless = self.space.endless
        if self.search is Search.GRID and endless:
            raise ValueError(
                f"search=grid trains all combinations, and {', '.join(endless)} have no end of "
                f"values: list some with choice, delete each ('~{endless[0]}'), or draw with "
                "search=random"
            )
        return self

    @model_validator(mode="after")
    def _rungs_compare_one_schedule(self) -> "TuneConfig":
        drawn = self.space.training.get("schedule")
        if self.stop_early and drawn is not None and len(drawn.extremes) > 1:
            raise ValueError(
                "the space draws training.schedule, and trials are compared at equal epochs, where "
                "one has a low learning rate and another a high one: set stop_early=false, or "
                "sweep each schedule by itself"
            )
        return self


class EvaluateConfig(JobConfig):
    """`jobs/evaluate.py`."""

    job: ClassVar[str] = "evaluate"
    main: ClassVar[Keys] = (
        "models",
        "submission",
        "generations",
        "data.path",
        "scoring.metric",
        "cluster.workers",
    )

    models: tuple[ModelName, ...] = ()
    """Checkpoint files, run names under `storage`, run directories, or sweeps (all trials)."""
    submission: Location | None = None
    """Anyone's `submission.json`, to score instead of models."""
    generations: Annotated[tuple[Generation, ...], Field(min_length=1)] = (AS_PUBLISHED, 1, 2)
    """Seeds of redrawings, `published`, or paths of archives in the format of `data.source`; with
    `scoring=arc` `published` alone by default."""
    data: DataConfig = DataConfig()
    scoring: ScoringConfig = ScoringConfig()
    cluster: ClusterConfig = ClusterConfig()

    @classmethod
    def resolve(cls, values: dict[str, Any]) -> dict[str, Any]:
        """Returns composed values with the one generation that ARC Prize's scoring is about."""
        scoring = values.get("scoring")
        if isinstance(scoring, dict) and cast("dict[str, Any]", scoring).get("protocol") == "arc":
            return {"generations": [AS_PUBLISHED], **values}
        return values

    @model_validator(mode="after")
    def _models_or_submission(self) -> "EvaluateConfig":
        if bool(self.models) == (self.submission is not None):
            raise ValueError("give models=[...] to score, or submission=FILE: one of the two")
        if self.submission is not None and self.scoring.protocol != "arc":
            raise ValueError("a submission is scored as ARC Prize does: add scoring=arc")
        if self.submission is not None and self.generations != (AS_PUBLISHED,):
            raise ValueError("a submission answers the tasks as published: leave generations out")
        return self
