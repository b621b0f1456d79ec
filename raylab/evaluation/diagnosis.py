"""The diagnosis of a benchmark in a run: its responses are read by `Workers`, and its page made."""

import logging
from collections.abc import Sequence
from typing import ClassVar

from raylab.config.jobs import QualityConfig
from raylab.config.quality import Layout
from raylab.doctor.diagnosis import ITEMS, Diagnosed, Diagnosis, diagnose
from raylab.doctor.example import write_example
from raylab.doctor.readers.reading import read_responses
from raylab.doctor.readers.rows import Choice, as_name
from raylab.doctor.responses import Responses
from raylab.errors import ConfigError, DataError
from raylab.files import Place
from raylab.log import log_line
from raylab.quality.record import Quality
from raylab.quality.trees import ScoreTree
from raylab.report.diagnosis import diagnosis_page, log_diagnosis
from raylab.report.page import PAGE, write_page
from raylab.runs.records import Record
from raylab.runs.run import Run
from raylab.workers import Workers

EXAMPLE = "example-scores"
HEADER_METRIC = "accuracy"
"""The metric of logs without samples, which is no choice among the scores of samples."""


class DiagnosisRecord(Record):
    """The record of a diagnosis: `diagnosis.json`."""

    file: ClassVar[str] = "diagnosis.json"
    diagnosis: Diagnosis


def with_example(config: QualityConfig) -> QualityConfig:
    """Writes the simulated example, and returns the configuration that measures it.

    Raises:
        ConfigError: The storage is no local directory.
    """
    place = Place.at(config.storage) / EXAMPLE
    if not place.is_local:
        raise ConfigError(f"example=true writes to a local directory, not to {place}: set storage=")
    write_example(place.path)
    log_line(f"simulated scores with planted faults: {place}", uri=str(place))
    settings = config.quality_eval_cfg.model_copy(update={"scores_root_dir": str(place)})
    return config.model_copy(update={"quality_eval_cfg": settings})


def diagnose_trees(
    trees: Sequence[ScoreTree], config: QualityConfig, workers: Workers
) -> Diagnosed | None:
    """Diagnoses a benchmark by its tree, beside those of its priors.

    Returns None, after a warning, if a tree has no response that can be used: its logs may still
    have the means that the figures are computed from.

    Args:
        trees: The tree of the benchmark, then those of its priors.
        config: Metric and scorer to read, layout, and whether to be strict.
        workers: Where the logs are read.

    Raises:
        DataError: A response cannot be used, and `strict` is set.
    """
    try:
        read = [read_tree(number, trees, config, workers) for number in range(len(trees))]
    except DataError as error:
        if config.strict:
            raise
        log_line(f"warning: no diagnosis: {error}", logging.WARNING)
        return None
    return diagnose_responses(trees, read)


def diagnose_responses(trees: Sequence[ScoreTree], read: Sequence[Responses]) -> Diagnosed:
    """Diagnoses a benchmark by the responses of its tree, beside those of its priors."""
    (tree, *priors), (responses, *others) = trees, read
    models, units = set(responses.matrix.models), {as_name(unit.model) for unit in tree.units}
    if tree.layout is not Layout.NAMED and not models <= units:
        log_line(
            f"warning: the logs of {tree.location} name other models than its directories: the "
            "diagnosis is of those, the figures are of the directories; layout=named takes both "
            "from the logs",
            logging.WARNING,
        )
    locations = [prior.location for prior in priors]
    return diagnose(responses, dict(zip(locations, others, strict=True)))


def read_tree(
    number: int, trees: Sequence[ScoreTree], config: QualityConfig, workers: Workers
) -> Responses:
    """Reads the responses of one of several trees.

    Raises:
        DataError: There is none, or `strict` refuses what would be left out.
    """
    tree, settings = trees[number], config.quality_eval_cfg
    metric = None if settings.metric == HEADER_METRIC else settings.metric
    try:
        return read_responses(
            tree.location,
            Choice(metric, settings.scorer),
            strict=config.strict,
            others=[other.location for other in trees if other is not tree],
            layout=tree.layout if tree.layout is Layout.NAMED else config.layout,
            workers=workers,
        )
    except OSError as error:
        raise DataError(f"scores cannot be read, after retries: {error}") from error


def write_diagnosis(run: Run, quality: Quality, diagnosed: Diagnosed) -> None:
    """Writes `diagnosis.json`, `items.parquet` and the page of a run, and prints the verdict."""
    run.write_record(DiagnosisRecord(diagnosis=diagnosed.diagnosis))
    (run / ITEMS).write(diagnosed.items.reset_index().to_parquet(index=False))
    write_page(run, diagnosis_page(run, quality, diagnosed))
    log_diagnosis(diagnosed.diagnosis)
    for name in (ITEMS, PAGE):
        log_line(f"{run / name}", uri=str(run / name))
