"""The configuration of benchmark quality."""

from enum import StrEnum

from raylab.config.base import Location, Strict, Text


class Layout(StrEnum):
    """Layout of a score tree below a model."""

    AUTO = "auto"
    GENERATIONS = "generations"
    FLAT = "flat"


class QualityEvalConfig(Strict):
    """The locations of the scores."""

    scores_root_dir: Location | None = None
    """Directory with one subdirectory per model; null takes BASE_ARTIFACTS_DIR and `run_id`."""
    scores_subdir: Text = "scores"
    """Directory of scores within BASE_ARTIFACTS_DIR, above `run_id`."""
    prior_datasets: tuple[Location, ...] = ()
    """Directories of earlier benchmarks, laid out alike, which novelty compares with."""
