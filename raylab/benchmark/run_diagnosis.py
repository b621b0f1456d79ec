"""The diagnosis of a benchmark in a run, from its responses to its page."""

import logging
from collections.abc import Sequence

from raylab.benchmark.checks.diagnosis import Diagnosed, diagnose
from raylab.benchmark.checks.example import write_example
from raylab.benchmark.config import Layout, QualityConfig
from raylab.benchmark.logs.reading import read_responses
from raylab.benchmark.logs.rows import Choice, as_name
from raylab.benchmark.logs.trees import ScoreTree, find_tree
from raylab.benchmark.pages.diagnosis import write_diagnosis
from raylab.benchmark.responses import Responses
from raylab.core.errors import ConfigError, DataError
from raylab.core.files import Place
from raylab.core.log import log_line
from raylab.core.runs.run import Run
from raylab.core.workers import Workers

EXAMPLE = "example-scores"
HEADER_METRIC = "accuracy"
"""The metric of logs without samples; it chooses no score of samples."""


def with_example(config: QualityConfig) -> QualityConfig:
    """Writes the simulated example, and returns the configuration that measures it.

    Raises:
        ConfigError: The storage is not a local directory.
    """
    place = Place.at(config.storage) / EXAMPLE
    if not place.is_local:
        raise ConfigError(f"example=true writes to a local directory, not to {place}: set storage=")
    write_example(place.path)
    log_line(f"simulated scores with planted faults: {place}", uri=str(place))
    settings = config.quality_eval_cfg.model_copy(update={"scores_root_dir": str(place)})
    return config.model_copy(update={"quality_eval_cfg": settings})


def diagnose_responses(trees: Sequence[ScoreTree], read: Sequence[Responses]) -> Diagnosed:
    """Diagnoses a benchmark by the responses of its tree and of its priors."""
    (tree, *priors), (responses, *others) = trees, read
    if tree.models and not {*responses.matrix.models} <= set(map(as_name, tree.models)):
        log_line(
            f"warning: the logs of {tree.location} name other models than its directories: the "
            "diagnosis uses the logs, the figures use the directories; layout=named uses the logs "
            "for both",
            logging.WARNING,
        )
    locations = [prior.location for prior in priors]
    return diagnose(responses, dict(zip(locations, others, strict=True)))


def read_tree(tree: ScoreTree, config: QualityConfig, workers: Workers) -> Responses:
    """Reads the responses of a tree.

    Raises:
        DataError: There is none, or `strict` refuses what would be left out.
    """
    settings = config.quality_eval_cfg
    metric = None if settings.metric == HEADER_METRIC else settings.metric
    choice = Choice(metric, settings.scorer)
    try:
        return read_responses(tree, choice, strict=config.strict, workers=workers)
    except OSError as error:
        raise DataError(f"scores cannot be read, after retries: {error}") from error


def diagnose_scores(run: Run, subdir: str, workers: Workers | None) -> None:
    """Diagnoses the tasks of a run by the scores of its models, if there are several.

    Args:
        run: Gets `diagnosis.json`, `items.parquet` and `diagnosis.html`.
        subdir: Its score tree.
        workers: Where the scores are read; None reads them in this process.
    """
    tree = run / subdir
    if len(tree.names()) > 1:
        scores = find_tree(str(tree), layout=Layout.GENERATIONS)
        write_diagnosis(run, diagnose(read_responses(scores, workers=workers)))
