"""The configuration of benchmark quality."""

from enum import StrEnum
from typing import Literal

from raylab.config.base import Location, Strict, Text


class Layout(StrEnum):
    """Layout of a score tree below a model."""

    AUTO = "auto"
    GENERATIONS = "generations"
    FLAT = "flat"


class QualityEvalConfig(Strict):
    """The locations of the scores, and what is read of them."""

    scores_root_dir: Location | None = None
    """Directory with one subdirectory per model; null takes BASE_ARTIFACTS_DIR and `run_id`."""
    scores_subdir: Text = "scores"
    """Directory of scores within BASE_ARTIFACTS_DIR, above `run_id`."""
    prior_datasets: tuple[Location, ...] = ()
    """Directories of earlier benchmarks, laid out alike, which novelty compares with."""
    prior_means: Literal["generations", "files"] = "generations"
    """Mean over a model's generations of a prior, or over all files of them, as published."""
    metric: Text = "accuracy"
    """Metric to read of each log, with values in [0, 1]."""
    scorer: Text | None = None
    """Score to read by its name or scorer; null reads the first score of each log."""
