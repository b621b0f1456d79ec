"""Benchmark quality: trees are read in parts by `Workers`, and measured from what was read."""

import logging
import math
from collections.abc import Sequence
from contextlib import closing

from raylab.benchmark.checks.diagnosis import Diagnosed
from raylab.benchmark.config import Layout, QualityConfig
from raylab.benchmark.figures.measure import measure
from raylab.benchmark.figures.record import QUALITY, Quality, SkippedFile
from raylab.benchmark.logs.accuracies import Scores, collect_scores, read_accuracies
from raylab.benchmark.logs.trees import ScoreTree, Source
from raylab.benchmark.pages.diagnosis import write_diagnosis
from raylab.benchmark.pages.quality import log_quality
from raylab.benchmark.responses import Responses
from raylab.benchmark.run_diagnosis import diagnose_responses, read_tree
from raylab.core.errors import DataError
from raylab.core.log import log_line
from raylab.core.page.work import watch
from raylab.core.runs.run import Run
from raylab.core.tracking import track
from raylab.core.workers import Workers

PARTS_PER_PLACE = 4
"""Enough for an even load, few enough that starting them costs little."""
FILES_PER_PART = 2000
"""Most files per part, so that large trees show progress."""


def measure_and_diagnose(
    trees: Sequence[ScoreTree], config: QualityConfig, workers: Workers
) -> tuple[Quality, Diagnosed | None]:
    """Measures score trees and diagnoses their benchmark, if that is configured.

    Raises:
        DataError: The trees cannot be used.
    """
    named = any(tree.layout is Layout.NAMED for tree in trees)
    read = [read_tree(tree, config, workers) for tree in trees] if named else []
    quality = measure_trees(trees, config, workers, read)
    if not config.diagnosis:
        return quality, None
    try:
        read = read or [read_tree(tree, config, workers) for tree in trees]
    except DataError as error:
        if config.strict:
            raise
        # The logs have the means that the figures need.
        log_line(f"warning: no diagnosis: {error}", logging.WARNING)
        return quality, None
    return quality, diagnose_responses(trees, read)


def write_quality(config: QualityConfig, quality: Quality, diagnosed: Diagnosed | None) -> None:
    """Writes the files of a finished run, and prints the figures and the diagnosis, if any."""
    run = Run.open(config)
    run.write_record(quality)
    track(config.tracking, run, 0, quality_figures(quality))
    log_quality(quality)
    log_line(f"{run / QUALITY}", uri=str(run / QUALITY))
    if diagnosed is not None:
        write_diagnosis(run, diagnosed, quality)
    run.finish()


def quality_figures(quality: Quality) -> dict[str, float]:
    """Returns the figures of a benchmark that could be computed, and the models' accuracies."""
    figures = {
        name: figure.value for name, figure in quality.figures.items() if figure.value is not None
    }
    return figures | {f"accuracy/{model}": share for model, share in quality.models.items()}


def measure_trees(
    trees: Sequence[ScoreTree],
    config: QualityConfig,
    workers: Workers,
    responses: Sequence[Responses] = (),
) -> Quality:
    """Measures score trees: by their logs, or by the responses to items where files name models.

    Args:
        trees: The tree of the benchmark, then those of its priors.
        config: Layout, bootstrap and refusals; its directories are not used.
        workers: Where the trees are read.
        responses: Those of each tree, where they were read.

    Raises:
        DataError: The trees cannot be used.
    """
    logs = [source for tree in trees for source in tree.logs]
    try:
        accuracies = iter(_read_logs(logs, config, workers) if logs else ())
    except OSError as error:
        raise DataError(f"scores cannot be read, after retries: {error}") from error
    scores = list[Scores]()
    for number, tree in enumerate(trees):
        if tree.layout is Layout.NAMED:
            read = responses[number] if responses else read_tree(tree, config, workers)
            scores.append(_scores_of_items(tree, read))
        else:
            scores.append(collect_scores(tree, [next(accuracies) for _ in tree.logs]))
    return measure(scores, config)


def _scores_of_items(tree: ScoreTree, read: Responses) -> Scores:
    left_out = [
        SkippedFile(path=read.examples.get(reason, tree.location), reason=f"{count:,} {reason}")
        for reason, count in read.left_out.items()
    ]
    return Scores(tree, read.table, {"": left_out})


def _read_logs(
    logs: Sequence[Source], config: QualityConfig, workers: Workers
) -> list[float | str]:
    """Returns the accuracy of each log, or the reason why it has none."""
    settings = config.quality_eval_cfg
    wanted = max(PARTS_PER_PLACE * workers.places, math.ceil(len(logs) / FILES_PER_PART))
    count = min(len(logs), wanted)
    calls = {n: (logs[n::count], settings.metric, settings.scorer) for n in range(count)}
    accuracies: list[float | str] = [""] * len(logs)
    ends = workers.run(read_accuracies, calls)
    with watch(len(logs), "files", parts=count) as progress, closing(ends):
        for number, read in ends:
            accuracies[number::count] = read
            progress.end(len(read))
    return accuracies
