"""The configuration of `jobs/quality.py`."""

from enum import StrEnum
from typing import Any, ClassVar, Literal

from pydantic import NonNegativeInt

from raylab.core.config.base import (
    ClusterConfig,
    JobConfig,
    Keys,
    Location,
    Strict,
    Text,
    Trackers,
)

OF_OTHER_TOOLS = frozenset(
    {
        "defaults",
        "embedding_backend",
        "embedding_dimensions",
        "embedding_model",
        "entropy_k",
        "evaluation_cfg",
        "exp_cfg",
        "kl_k",
        "mdm_metric",
        "mdm_n_clusters",
        "mmd_degree",
        "mmd_kernel",
        "pad_classifier",
        "prompt_cfg",
        "umap_metric",
        "umap_min_dist",
        "umap_n_components",
        "umap_n_neighbors",
    }
)
"""Sections of Vector's configuration files that concern no figure of raylab."""


class Layout(StrEnum):
    """Layout of a score tree."""

    AUTO = "auto"
    GENERATIONS = "generations"
    """A directory for each model, with one for each generation in it."""
    FLAT = "flat"
    """A directory for each model."""
    NAMED = "named"
    """Logs and tables that name their models themselves, in any directories."""


class QualityEvalConfig(Strict):
    """The locations of the scores, and what is read of them."""

    scores_root_dir: Location | None = None
    """Directory with one subdirectory per model, or a run with scores; null takes that of
    `target_data`, else BASE_ARTIFACTS_DIR and `run_id`."""
    scores_subdir: Text = "scores"
    """Directory of scores within BASE_ARTIFACTS_DIR, above `run_id`."""
    prior_datasets: tuple[Location, ...] = ()
    """Directories of earlier benchmarks, laid out alike, which novelty compares with."""
    metric: Text = "accuracy"
    """Metric to read of each log, with values in [0, 1]."""
    scorer: Text | None = None
    """Score to read by its name or scorer, or the filter of lm-evaluation-harness; null reads the
    first of each file."""


class TargetData(Strict):
    """The benchmark, in Vector's configuration file."""

    scores_root_dir: Location | None = None
    """Directory with one subdirectory per model."""
    capabilities_dir: str | None = None
    """Texts of the tasks, which are not read."""


class ReferenceDataset(Strict):
    """An earlier benchmark, in Vector's configuration file."""

    name: Text | None = None
    """Its name, and that of its directory in `target_data.scores_root_dir` without `scores_dir`."""
    scores_dir: Location | None = None
    """Directory with one subdirectory per model."""
    path: str | None = None
    """Texts of its tasks, which are not read."""
    dataloader: dict[str, Any] | None = None
    """Source of these texts, which is not read."""


class QualityConfig(JobConfig):
    """`jobs/quality.py`."""

    job: ClassVar[str] = "quality"
    main: ClassVar[Keys] = (
        "example",
        "quality_eval_cfg.scores_root_dir",
        "layout",
        "strict",
        "bootstrap",
        "diagnosis",
    )
    foreign: ClassVar[frozenset[str]] = OF_OTHER_TOOLS

    quality_eval_cfg: QualityEvalConfig = QualityEvalConfig()
    target_data: TargetData = TargetData()
    reference_datasets: tuple[ReferenceDataset, ...] = ()
    """Earlier benchmarks after those of `quality_eval_cfg`, as Vector's file names them; with any,
    a model's accuracy on an earlier benchmark is the mean over all files, as in Vector's script."""
    metrics_to_compute: tuple[Text, ...] = ()
    """Figures to compute; empty computes all. Those that raylab lacks are named as not computed."""
    run_id: Text | None = None
    """Directory in `{BASE_ARTIFACTS_DIR}/{scores_subdir}`; used if `scores_root_dir` is null."""
    layout: Layout = Layout.AUTO
    """Directories are those of models, with generations in them or not, or logs and tables name
    their models themselves; `auto` decides and logs the reason."""
    on_missing_generation: Literal["error", "drop"] = "error"
    """`error` refuses generations that some model lacks; `drop` leaves them out."""
    strict: bool = False
    """Refuse a tree with unusable files instead of listing them."""
    bootstrap: NonNegativeInt = 1000
    """Bootstrap replicates of the tasks for the 95 % intervals; 0 computes none."""
    diagnosis: bool = True
    """Diagnose the benchmark by the samples of its logs; `false` reads no samples."""
    example: bool = False
    """Measure simulated scores with planted faults, written to `{storage}/example-scores`."""
    cluster: ClusterConfig = ClusterConfig()
    tracking: Trackers = ()

    @classmethod
    def resolve(cls, values: dict[str, Any]) -> dict[str, Any]:
        """Returns composed values with a single reference dataset as a list of one."""
        datasets = values.get("reference_datasets")
        return (
            {**values, "reference_datasets": [datasets]} if isinstance(datasets, dict) else values
        )
