"""The results of runs as pandas DataFrames.

Runs and score trees are given by directory or URI, as `runs/one`. A run of another job, or one
without such results yet, is a `RunError`; a file that cannot be read is a `DataError`.
"""

from dataclasses import replace
from typing import Any

import pandas as pd
import pyarrow as pa

from raylab.arc.config.jobs import TrainConfig, TuneConfig
from raylab.arc.records import PipelineMetrics, TrainingMetrics
from raylab.arc.sweep import SweepMetrics
from raylab.benchmark.config import Layout, QualityConfig
from raylab.benchmark.logs.reading import read_responses, read_trees
from raylab.benchmark.logs.trees import CONFIGURED, find_tree
from raylab.core.errors import DataError, RunError
from raylab.core.files import Place
from raylab.core.runs.run import Run
from raylab.label.codebooks.choose import choose_codebook
from raylab.label.protocol.outcome import name_annotators
from raylab.label.protocol.run import archive_location, find_annotation_run, open_archive
from raylab.label.statistics.frame import export_tables
from raylab.together.config import PipelineConfig

SCORE_COLUMNS = ["model", "generation", "file", "accuracy", "reason"]


def epochs(run: str) -> pd.DataFrame:
    """Returns the epochs of a training, or of all trainings of a pipeline, a row each.

    Columns: `model` (the run's name, or that within the pipeline), the fields of
    `raylab.arc.records.Epoch`, and every validation metric with the prefix `val_`.
    """
    trainings = _read_trainings(run)
    rows = [{"model": name, **row} for name, training in trainings.items() for row in training.rows]
    return pd.DataFrame(rows)


def tests(run: str) -> pd.DataFrame:
    """Returns the test of a training, or of all trainings of a pipeline, a row each.

    Columns: `model`, `tasks`, `pairs`, `epoch` (the chosen one), `parameters`, every metric of
    `raylab.arc.grid_metrics` and `loss`, and the ends of the 95 % intervals for the choice of tasks
    as `<metric>_low` and `<metric>_high`. A fine-tuned model has a row for the model before, and
    each baseline has one, `baseline:<name>`.
    """
    rows, baselines = list[dict[str, Any]](), dict[str, dict[str, Any]]()
    for name, training in _read_trainings(run).items():
        about = {"epoch": training.best.epoch, "parameters": training.parameters}
        for suffix, held_out in {"": training.test, " before": training.before}.items():
            if held_out is None:
                continue
            counts = {"tasks": held_out.tasks, "pairs": held_out.pairs}
            ends = {
                f"{metric}_{side}": end
                for metric, interval in held_out.intervals.items()
                for side, end in zip(("low", "high"), interval, strict=True)
            }
            own = {} if suffix else about
            rows.append({"model": f"{name}{suffix}", **counts, **own, **held_out.metrics, **ends})
            for baseline, metrics in held_out.baselines.items():
                row = {"model": f"baseline:{baseline}", **counts, **metrics}
                baselines.setdefault(f"{baseline}{counts}", row)
    if not rows:
        raise RunError(f"{run} has no tested model yet: resume it until its training has ended")
    return pd.DataFrame([*rows, *baselines.values()])


def _read_trainings(run: str) -> dict[str, TrainingMetrics]:
    """Returns the metrics of a training, or of those of a pipeline, by the name of the model."""
    place, trainings = Run.at(run), dict[str, TrainingMetrics]()
    job = place.record.job
    if job == PipelineConfig.job and (pipeline := place.read_record(PipelineMetrics)):
        trainings |= {**pipeline.models, **pipeline.tuned}
    if job == TrainConfig.job and (training := place.read_record(TrainingMetrics)):
        trainings[place.name] = training
    if not trainings:
        raise RunError(f"{run} has no epochs: give a training or a pipeline that finished one")
    return trainings


def trials(sweep: str) -> pd.DataFrame:
    """Returns the trials of a sweep, best first.

    Columns: `trial`, `failure`, the drawn values by their keys, and the fields of
    `raylab.arc.sweep.Trained`; missing where a trial has none.
    """
    place = Run.at(sweep)
    metrics = place.read_record(SweepMetrics) if place.record.job == TuneConfig.job else None
    if metrics is None:
        raise RunError(f"{sweep} has no ranked trials: give a finished run of jobs/tune.py")
    return pd.DataFrame(
        {"trial": trial.trial, "failure": trial.failure}
        | dict(trial.drawn or {})
        | ({} if trial.trained is None else trial.trained.model_dump())
        for trial in metrics.trials
    )


def scores(tree: str, layout: Layout = Layout.AUTO) -> pd.DataFrame:
    """Returns the score files of a tree, a row each, by model, generation and file.

    Columns: `model`, `generation` (empty without generations), `file` below that directory,
    `accuracy` in [0, 1], and `reason` where a file cannot be used. A tree without directories of
    models is a `DataError`: `responses` reads it.
    """
    listed = find_tree(str(Place.at(tree)), layout=layout)
    if listed.layout is Layout.NAMED:
        raise DataError(f"{tree} has no directories of models: read it with frames.responses")
    (read,) = read_trees([replace(listed, reason=CONFIGURED)], samples=False)
    used = read.table[["model", "generation", "item", "score"]]
    rows = [(*row, None) for row in used.itertuples(index=False, name=None)]
    # Files that cannot be used have a row too, with the reason.
    sources = (*listed.sources, *(source for source, _ in listed.faults))
    places = {f"{s.top.path}/{s.name}": (s.generation, s.name) for s in sources}
    for model, files in read.skipped.items():
        rows += [(model, *places[file.path], None, file.reason) for file in files]
    frame = pd.DataFrame(rows, columns=SCORE_COLUMNS).astype({"accuracy": float})
    return frame.sort_values(SCORE_COLUMNS[:3], ignore_index=True)


def responses(tree: str, **keys: Any) -> pd.DataFrame:
    """Returns the scores of models on items in evaluation logs and tables, a row each.

    Columns: those of `raylab.benchmark.responses.COLUMNS`. Models and items are matched as by
    `jobs/quality.py`, whose keys (`raylab.benchmark.config.QualityConfig`) choose what is read:
    `responses("logs", scale=(0, 10))`. A tree without responses is a `DataError`.
    """
    return read_responses(find_tree(str(Place.at(tree))), QualityConfig(**keys)).table


def cases(run: str, archive: str | None = None) -> pd.DataFrame:
    """Returns the cases of an annotation run with people's decisions, a row each.

    Columns: those of `raylab.label.statistics.columns.export_columns`. `archive` is the location of
    an archive that is on a server or was moved.

    Raises:
        ConfigError: The archive is on a server, and its location is not given.
        ArchiveError: The archive cannot be opened or read.
    """
    place = Place.at(run)
    opened, made = find_annotation_run(str(place.parent), place.name, archive)
    codebook, annotators = choose_codebook(made), name_annotators(len(made.llm.annotators))
    open_book = codebook.prompts[made.llm.prompt].open_book
    with open_archive(opened, archive_location(made.storage, made.archive)) as store:
        archived = store.run(opened.name)
        tables = export_tables(archived, codebook, annotators, open_book=open_book)
        return pa.concat_tables(tables).to_pandas()
