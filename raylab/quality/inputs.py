"""What a measurement of quality looks at before it starts."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from raylab.config.jobs import QualityConfig
from raylab.errors import DataError
from raylab.quality.reading import holds_files
from raylab.quality.trees import LISTING_THREADS, ScoreTree, Unit, configured_trees
from raylab.runs.run import Run


def read_trees(config: QualityConfig) -> list[ScoreTree]:
    """Finds the trees that `config` names; what cannot be used is told soon.

    Raises:
        DataError: A root is missing or holds no models, or a model holds no score file.
        ConfigError: No root is configured, or no filesystem opens a URI.
        RunError: The run of `config` cannot be started or gone on with.
    """
    Run.planned(config, config.job)
    trees = configured_trees(config)
    for tree in trees:
        _refuse_empty(tree)
    return trees


def _refuse_empty(tree: ScoreTree) -> None:
    models: dict[str, list[Unit]] = {}
    for unit in tree.units:
        models.setdefault(unit.model, []).append(unit)
    with ThreadPoolExecutor(LISTING_THREADS) as pool:
        found = list(pool.map(_any_files, models.values()))
    for model, any_files in zip(models, found, strict=True):
        if not any_files:
            raise DataError(
                f"model {model} of {tree.location} has no score file below it, neither .json nor "
                ".eval: add its scores or remove the directory"
            )


def _any_files(units: Sequence[Unit]) -> bool:
    return any(holds_files(unit) for unit in units)
