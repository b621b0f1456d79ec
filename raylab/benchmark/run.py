"""A benchmark from its configuration to its pages: trees are read once, measured and diagnosed."""

import logging
from collections.abc import Sequence

from raylab.benchmark.checks.diagnosis import Diagnosed, diagnose
from raylab.benchmark.config import Layout, QualityConfig
from raylab.benchmark.example import describe_confirmed, write_example
from raylab.benchmark.figures.measure import measure
from raylab.benchmark.figures.record import QUALITY, Quality
from raylab.benchmark.logs.join import TreeScores
from raylab.benchmark.logs.reading import read_trees, require_responses
from raylab.benchmark.logs.trees import ScoreTree, find_tree, find_trees, log_layout
from raylab.benchmark.pages.quality import log_quality
from raylab.benchmark.pages.sentences import log_verdict
from raylab.benchmark.responses import make_responses
from raylab.core.errors import ConfigError, DataError
from raylab.core.files import Place
from raylab.core.log import log_line
from raylab.core.runs.run import Run
from raylab.core.tracking import track
from raylab.core.workers import Workers

EXAMPLE = "example-scores"


def with_example(config: QualityConfig) -> QualityConfig:
    """Writes the example, and returns the configuration that measures it.

    Raises:
        ConfigError: The storage is not a local directory.
    """
    place = Place.at(config.storage) / EXAMPLE
    if not place.is_local:
        raise ConfigError(f"example=true writes to a local directory, not to {place}: set storage=")
    write_example(place.path)
    log_line(f"answers of ten models to 600 items of MMLU: {place}", uri=str(place))
    settings = config.quality_eval_cfg.model_copy(update={"scores_root_dir": str(place)})
    return config.model_copy(update={"quality_eval_cfg": settings})


def measure_and_diagnose(
    trees: Sequence[ScoreTree], config: QualityConfig, workers: Workers
) -> tuple[Quality, Diagnosed | None]:
    """Measures score trees and diagnoses their benchmark, if that is configured."""
    second = find_trees(config.forms[1], [], config.layout) if config.forms else []
    read = _read([*trees, *second], config, workers, samples=config.diagnosis)
    read, forms = read[: len(trees)], read[len(trees) :]
    quality = measure(read, config)
    if not config.diagnosis:
        return quality, None
    form = require_responses(forms[0], config.strict) if forms else None
    try:
        responses = require_responses(read[0], config.strict)
    except DataError as error:
        # The logs have the means that the figures need.
        if read[0].left_out:
            if config.strict or not quality.models:
                raise
            log_line(f"warning: no diagnosis: {error}", logging.WARNING)
        return quality, None
    tree = read[0].tree
    if tree.models and not {*responses.matrix.models} <= {*tree.models}:
        log_line(
            f"warning: the logs of {tree.location} name other models than its directories: the "
            "diagnosis uses the logs, the figures use the directories; layout=named uses the logs "
            "for both",
            logging.WARNING,
        )
    wanted = config.baseline, config.smallest_difference, config.detect
    diagnosed = diagnose(responses, *wanted, form)
    if config.example:
        confirmed = describe_confirmed(diagnosed.diagnosis.suspects)
        diagnosis = diagnosed.diagnosis.model_copy(update={"confirmed": confirmed})
        diagnosed = diagnosed._replace(diagnosis=diagnosis)
    return quality, diagnosed


def measure_trees(trees: Sequence[ScoreTree], config: QualityConfig, workers: Workers) -> Quality:
    """Measures the tree of a benchmark, beside those of its priors, without a diagnosis."""
    return measure(_read(trees, config, workers, samples=False), config)


def _read(
    trees: Sequence[ScoreTree], config: QualityConfig, workers: Workers, *, samples: bool
) -> list[TreeScores]:
    """Reads the trees, samples too where the figures need them."""
    samples = samples or any(tree.layout is Layout.NAMED for tree in trees)
    read = read_trees(trees, config, workers, samples)
    if not samples and any(each.tree.layout is Layout.NAMED for each in read):
        read = read_trees(trees, config, workers)
    for tree, each in zip(trees, read, strict=True):
        if each.tree.layout is not tree.layout:
            log_layout(each.tree)
    return read


def write_quality(config: QualityConfig, quality: Quality, diagnosed: Diagnosed | None) -> None:
    """Writes the files of a finished run, and prints the figures and the diagnosis, if any."""
    run = Run.open(config)
    run.write_record(quality)
    track(config.tracking, run, 0, quality_figures(quality))
    log_quality(quality)
    log_line(f"{run / QUALITY}", uri=str(run / QUALITY))
    if diagnosed is not None:
        _write_diagnosis(run, diagnosed, quality)
    run.finish()


def quality_figures(quality: Quality) -> dict[str, float]:
    """Returns the figures of a benchmark that could be computed, and the models' accuracies."""
    figures = {
        name: figure.value for name, figure in quality.figures.items() if figure.value is not None
    }
    return figures | {f"accuracy/{model}": share for model, share in quality.models.items()}


def diagnose_scores(run: Run, subdir: str, workers: Workers | None) -> None:
    """Diagnoses the tasks of a run by the scores of its models, if there are several.

    Args:
        run: Gets `diagnosis.json`, `items.parquet` and `diagnosis.html`.
        subdir: Its score tree; a log is an item.
        workers: Where the scores are read; None reads them in this process.
    """
    tree = run / subdir
    if len(tree.names()) > 1:
        scores = find_tree(str(tree), layout=Layout.GENERATIONS)
        (read,) = read_trees([scores], workers=workers, samples=False)
        items = read.table["item"].str.removesuffix(".json")
        _write_diagnosis(run, diagnose(make_responses(read.table.assign(item=items))))


def _write_diagnosis(run: Run, diagnosed: Diagnosed, quality: Quality | None = None) -> None:
    log_verdict(diagnosed.diagnosis)
    # Charts take a second to import.
    from raylab.benchmark.pages.diagnosis import write_diagnosis

    write_diagnosis(run, diagnosed, quality)
