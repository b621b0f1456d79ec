"""The configuration of benchmark quality."""

from enum import StrEnum

from raylab.config.base import Location, Strict, Text


class Layout(StrEnum):
    """How a score tree is laid out below a model."""

    AUTO = "auto"
    GENERATIONS = "generations"
    FLAT = "flat"


class QualityEvalConfig(Strict):
    """Where the scores are."""

    scores_root_dir: Location | None = None
    """Directory with one subdirectory a model; null takes BASE_ARTIFACTS_DIR and `run_id`."""
    scores_subdir: Text = "scores"
    """Directory of scores within BASE_ARTIFACTS_DIR, above `run_id`."""
    prior_datasets: tuple[Location, ...] = ()
    """Directories of the same structure, for earlier benchmarks; novelty is against them."""
