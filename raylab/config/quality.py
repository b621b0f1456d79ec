"""The configuration of benchmark quality."""

from enum import StrEnum
from typing import Any

from raylab.config.base import Location, Strict, Text

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
