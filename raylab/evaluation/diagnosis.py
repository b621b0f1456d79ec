"""The diagnosis of a benchmark in a run: its responses are read by `Workers`, and its page made."""

import logging
from collections.abc import Sequence
from functools import partial
from typing import ClassVar

from raylab.config.jobs import QualityConfig
from raylab.doctor.diagnosis import ITEMS, Diagnosed, Diagnosis, diagnose
from raylab.doctor.example import write_example
from raylab.doctor.readers.reading import read_responses
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
    settings, locations = config.quality_eval_cfg, [tree.location for tree in trees]
    read = partial(
        read_responses,
        metric=None if settings.metric == HEADER_METRIC else settings.metric,
        scorer=settings.scorer,
        strict=config.strict,
        layout=config.layout,
        workers=workers,
    )
    try:
        own, *priors = [
            read(location, others=[*locations[:number], *locations[number + 1 :]])
            for number, location in enumerate(locations)
        ]
    except DataError as error:
        if config.strict:
            raise
        log_line(f"warning: no diagnosis: {error}", logging.WARNING)
        return None
    return diagnose(own, dict(zip(locations[1:], priors, strict=True)))


def write_diagnosis(run: Run, quality: Quality, diagnosed: Diagnosed) -> None:
    """Writes `diagnosis.json`, `items.parquet` and the page of a run, and prints the verdict."""
    run.write_record(DiagnosisRecord(diagnosis=diagnosed.diagnosis))
    (run / ITEMS).write(diagnosed.items.reset_index().to_parquet(index=False))
    write_page(run, diagnosis_page(run, quality, diagnosed))
    log_diagnosis(diagnosed.diagnosis)
    for name in (ITEMS, PAGE):
        log_line(f"{run / name}", uri=str(run / name))
