"""Scoring trained models on generations of tasks: one Ray task a model and generation.

The scores are a tree of Inspect AI eval logs, `<subdir>/<model>/<generation>/<unit>.json`;
`<subdir>.json` beside it says of which checkpoints and tasks.
"""

import statistics
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, cast

import ray
import torch
from pyarrow import fs

from raylab.arc.checkpoints import Checkpoint
from raylab.arc.data.groups import group_tasks
from raylab.arc.data.tasks import Task, load_tasks
from raylab.arc.evaluation import UnitScore, score_tasks, trained_on, unit_of_tasks
from raylab.arc.trained_models import fetch_checkpoint, file_name, find_models
from raylab.cluster.metrics import PAIRS, TASKS, Meters
from raylab.cluster.session import cpus_per_worker, result_of, session, uses_gpu
from raylab.config.arc import DataConfig, ScoringConfig, TaskSource
from raylab.config.base import AS_PUBLISHED, ClusterConfig, Generation
from raylab.config.jobs import EvaluateConfig
from raylab.errors import CheckpointError, ConfigError, DataError, RunError
from raylab.files import Place
from raylab.log import log_line, log_tables
from raylab.quality.logs import EvalLog, read_score
from raylab.report.progress import duration
from raylab.report.tables import accuracy_table, percent
from raylab.runs.run import METRICS, SCORES, Json, Run

FILE_THREADS = 16
HEARTBEAT_SECONDS = 30.0

Accuracies = dict[str, dict[str, float]]
"""Mean accuracy over the units, by model and generation."""


def run_evaluate(config: EvaluateConfig) -> None:
    """Score the models of `config` on its generations, or what is left of that.

    Raises:
        RaylabError: what a user can act on, with the way out.
    """
    models = find_models(config.models, config.storage)
    generation_configs(config.generations, config.data)
    run = Run.open(config, config.job)
    with session(config.cluster, run):
        accuracies = evaluate_models(
            models, config.generations, config.data, config.scoring, config.cluster, run
        )
    run.write_json(METRICS, {"metric": config.scoring.metric, "models": accuracies})
    log_tables(
        accuracy_table(accuracies, config.scoring),
        metric=config.scoring.metric,
        models=accuracies,
    )
    scores = str(run / SCORES)
    log_line(f"score tree {scores}", uri=scores)
    run.finish()


def evaluate_models(
    models: Mapping[str, str],
    generations: Sequence[Generation],
    data: DataConfig,
    scoring: ScoringConfig,
    cluster: ClusterConfig,
    tree: Run,
    subdir: str = SCORES,
) -> Accuracies:
    """Score every model on every generation in the current Ray session.

    All models are scored on the same tasks: those that none of them was trained on, unless
    `scoring.include_seen`. Files that are there are not made again.

    Args:
        models: checkpoint file of each model, a path or URI, by its name in the tree.
        generations: as in `EvaluateConfig`.
        data: the tasks.
        scoring: what a file is about and which metric is its accuracy.
        cluster: CPUs of a Ray task (1 by default), GPU, and deaths to recover from.
        tree: the run that the scores belong to.
        subdir: directory of the tree within the run.

    Raises:
        DataError: the tasks cannot be used, or none is left to score.
        CheckpointError: a checkpoint cannot be read, or does not tell what it was trained on.
        RunError: the tree holds scores of other checkpoints or settings, or scoring failed.
        ConfigError: the generations or the cluster cannot be used.
    """
    datasets = generation_configs(generations, data)
    units, checkpoints = _plan(models, datasets, data, scoring, tree, subdir)
    job = _Job(dict(models), datasets, units, scoring, tree, subdir)
    missing = _missing_units(job)
    accuracies = _present_accuracies(job, missing)
    if len(missing) < len(job.pairs):
        done = len(job.pairs) - len(missing)
        log_line(
            f"{done} of {len(job.pairs)} pairs of model and generation are scored already",
            done=done,
            total=len(job.pairs),
        )
    if missing:
        lacking = {model for model, _ in missing} - checkpoints.keys()
        checkpoints |= {model: fetch_checkpoint(models[model]) for model in sorted(lacking)}
        _score_missing(job, missing, checkpoints, cluster, accuracies)
    return {
        model: {name: statistics.fmean(accuracies[model, name].values()) for name in datasets}
        for model in models
    }


# Generations


def generation_configs(
    generations: Sequence[Generation], data: DataConfig
) -> dict[str, DataConfig]:
    """The data of every generation, by its name: `published`, `seed-<n>` or an archive's name.

    Raises:
        ConfigError: an archive is given for a packaged source, or two have one name.
    """
    configs: dict[str, DataConfig] = {}
    for generation in generations:
        name, config = _generation(generation, data)
        if name in configs:
            raise ConfigError(
                f"generations: {generation} and another are both called {name}: give it once, or "
                "rename an archive"
            )
        configs[name] = config
    return configs


def _generation(generation: Generation, data: DataConfig) -> tuple[str, DataConfig]:
    if generation == AS_PUBLISHED:
        return AS_PUBLISHED, data
    if isinstance(generation, int):
        return f"seed-{generation}", data.model_copy(update={"generation": generation})
    if data.source in (TaskSource.ARC_AGI_1, TaskSource.ARC_AGI_2):
        raise ConfigError(
            f"generations: {generation} is the path of an archive, but data.source={data.source} "
            f"is packaged: give seeds and {AS_PUBLISHED}, or choose data=re_arc or data=arc_json"
        )
    archive = Place.at(generation)
    name = archive.name if archive.is_directory() else archive.stem
    return file_name(name), data.model_copy(update={"path": generation})


# What is to be scored


Pair = tuple[str, str]
"""A model and a generation."""
Units = dict[str, list[str]]
"""Ids of the tasks of each unit."""


@dataclass(frozen=True)
class _Job:
    """What is scored and where the scores go."""

    models: dict[str, str]
    datasets: dict[str, DataConfig]
    units: Units
    scoring: ScoringConfig
    tree: Run
    subdir: str

    @property
    def pairs(self) -> list[Pair]:
        """Every model on every generation, the models of one generation together."""
        return [(model, generation) for generation in self.datasets for model in self.models]

    def file(self, pair: Pair, unit: str) -> str:
        """The name of a score file within the run."""
        return f"{self.subdir}/{'/'.join(pair)}/{file_name(unit)}.json"


def _plan(
    models: Mapping[str, str],
    datasets: Mapping[str, DataConfig],
    data: DataConfig,
    scoring: ScoringConfig,
    tree: Run,
    subdir: str,
) -> tuple[Units, dict[str, Checkpoint]]:
    """The units to score, and the checkpoints that had to be read to tell.

    A tree that was begun keeps its units; models may be added that were trained on none of them.
    """
    name = f"{subdir}.json"
    state: Json = {
        "models": {model: _file_identity(uri) for model, uri in models.items()},
        "generations": {key: value.model_dump(mode="json") for key, value in datasets.items()},
        "scoring": scoring.model_dump(mode="json"),
    }
    before = tree.read_json(name)
    if before is None:
        checkpoints = {model: fetch_checkpoint(uri) for model, uri in models.items()}
        units = _choose_units(checkpoints, data, scoring)
    else:
        _refuse_other_scores(tree, name, before, state)
        units = cast("Units", before["units"])
        added = models.keys() - before["models"].keys()
        checkpoints = {model: fetch_checkpoint(models[model]) for model in sorted(added)}
        if not scoring.include_seen:
            _refuse_seen(tree, checkpoints, units)
    if before is None or state["models"] != before["models"]:
        tree.write_json(name, {**state, "units": units})
    return units, checkpoints


def _file_identity(uri: str) -> Json:
    """What tells whether a checkpoint file is still the same, without reading it."""
    info = Place.at(uri).info()
    if info.type != fs.FileType.File:
        raise CheckpointError(f"no checkpoint at {uri}")
    modified = None if info.mtime is None else info.mtime.isoformat()
    return {"checkpoint": uri, "bytes": info.size, "modified": modified}


def _choose_units(
    checkpoints: Mapping[str, Checkpoint], data: DataConfig, scoring: ScoringConfig
) -> Units:
    tasks = load_tasks(data)
    seen: frozenset[str] = frozenset()
    if not scoring.include_seen:
        seen = seen.union(*map(trained_on, checkpoints.values()))
    unseen = [task for task in tasks if task.id not in seen]
    if not unseen:
        raise DataError(
            f"all {len(tasks)} tasks of data.source={data.source} were trained on by one of the "
            f"models {', '.join(checkpoints)}: score them all the same with "
            "scoring.include_seen=true, or name others by data=, data.subset or data.tasks"
        )
    log_line(
        f"{len(unseen)} of {len(tasks)} tasks are scored, {len(tasks) - len(unseen)} that a model "
        "was trained on are left out",
        scored=len(unseen),
        tasks=len(tasks),
    )
    units: Units = {}
    for task, unit in unit_of_tasks(group_tasks(unseen, data.taxonomy), scoring).items():
        units.setdefault(unit, []).append(task)
    _refuse_equal_file_names(units)
    return dict(sorted(units.items()))


def _refuse_equal_file_names(units: Iterable[str]) -> None:
    taken: dict[str, str] = {}
    for unit in units:
        other = taken.setdefault(file_name(unit).casefold(), unit)
        if other != unit:
            raise DataError(
                f"the {unit!r} and the {other!r} would both be scored in {file_name(unit)}.json: "
                "rename one of them"
            )


def _refuse_other_scores(tree: Run, name: str, before: Json, now: Json) -> None:
    for key in ("generations", "scoring"):
        if before[key] != now[key]:
            raise RunError(
                f"{tree / name} is of other {key}: {before[key]}, now {now[key]}; set them as "
                "they were, or choose another name="
            )
    for model, identity in before["models"].items():
        other = now["models"].get(model)
        if other != identity:
            raise RunError(
                f"{tree} holds scores of model {model} from {identity['checkpoint']}, changed "
                f"{identity['modified']}, and now it is {_described(other)}: its scores would "
                "mix, so choose another name="
            )


def _described(identity: Json | None) -> str:
    if identity is None:
        return "not among the models"
    return f"{identity['checkpoint']}, changed {identity['modified']}"


def _refuse_seen(tree: Run, checkpoints: Mapping[str, Checkpoint], units: Units) -> None:
    scored = {task for tasks in units.values() for task in tasks}
    for model, checkpoint in checkpoints.items():
        seen = sorted(scored & trained_on(checkpoint))
        if seen:
            raise RunError(
                f"model {model} was trained on {len(seen)} of the {len(scored)} tasks that "
                f"{tree} scores, such as {seen[0]}: score it under another name="
            )


def _missing_units(job: _Job) -> dict[Pair, list[str]]:
    """The units that have no file yet, of the pairs that lack any."""
    present = {file.path for file in (job.tree / job.subdir).files("**/*.json")}
    units = {
        pair: [u for u in job.units if (job.tree / job.file(pair, u)).path not in present]
        for pair in job.pairs
    }
    return {pair: lacking for pair, lacking in units.items() if lacking}


def _present_accuracies(
    job: _Job, missing: Mapping[Pair, Sequence[str]]
) -> dict[Pair, dict[str, float]]:
    """The accuracy of every unit that has a file."""
    wanted = [
        (pair, unit)
        for pair in job.pairs
        for unit in sorted(job.units.keys() - set(missing.get(pair, ())))
    ]
    accuracies: dict[Pair, dict[str, float]] = {pair: {} for pair in job.pairs}
    with ThreadPoolExecutor(FILE_THREADS) as threads:
        values = threads.map(lambda place: _accuracy_in(job, *place), wanted)
        for (pair, unit), value in zip(wanted, values, strict=True):
            accuracies[pair][unit] = value
    return accuracies


def _accuracy_in(job: _Job, pair: Pair, unit: str) -> float:
    name = job.file(pair, unit)
    with (job.tree / name).opened() as file:
        accuracy = read_score(file, name)
    if isinstance(accuracy, str):
        raise RunError(
            f"{job.tree / name} cannot be used ({accuracy}): remove it, and resume=true makes "
            "it again"
        )
    return accuracy


# Scoring


def _score_missing(
    job: _Job,
    missing: Mapping[Pair, Sequence[str]],
    checkpoints: Mapping[str, Checkpoint],
    cluster: ClusterConfig,
    accuracies: dict[Pair, dict[str, float]],
) -> None:
    """Score the missing units, write each pair's files as it comes, and add its accuracies."""
    pending = _submit(job, missing, checkpoints, cluster)
    start, total, meters = time.monotonic(), len(pending), Meters(job.tree.name)
    uri = str(job.tree / job.subdir)
    log_line(f"scoring {total} pairs of model and generation -> {uri}", total=total, uri=uri)
    try:
        while pending:
            ready, _ = ray.wait(list(pending), num_returns=1, timeout=HEARTBEAT_SECONDS)
            elapsed = time.monotonic() - start
            if not ready:
                done = total - len(pending)
                message = f"  {done} of {total} done after {duration(elapsed)}"
                log_line(message, done=done, total=total, seconds=elapsed)
                continue
            pair = pending[ready[0]]
            try:
                scores, seconds = result_of(ready[0], f"scoring {pair[0]} on {pair[1]}")
            except Exception:
                meters.add(PAIRS, outcome="failed")
                raise
            del pending[ready[0]]
            _write_scores(job, pair, scores)
            metric = job.scoring.metric
            accuracies[pair] |= {unit: score.metrics[metric] for unit, score in scores.items()}
            meters.add(PAIRS, outcome="scored")
            meters.add(TASKS, sum(len(job.units[unit]) for unit in scores))
            done, mean = total - len(pending), statistics.fmean(accuracies[pair].values())
            left = elapsed / done * len(pending)
            log_line(
                f"[{done:>{len(str(total))}}/{total}] {pair[0]} on {pair[1]}: {metric} "
                f"{percent(mean)} over {len(accuracies[pair])} {job.scoring.unit}s, "
                f"{seconds:.1f} s, ETA {duration(left)}",
                done=done,
                total=total,
                eta_seconds=left,
                model=pair[0],
                generation=pair[1],
                accuracy=mean,
                seconds=seconds,
            )
    finally:
        for reference in pending:
            ray.cancel(reference, force=True)


def _submit(
    job: _Job,
    missing: Mapping[Pair, Sequence[str]],
    checkpoints: Mapping[str, Checkpoint],
    cluster: ClusterConfig,
) -> dict[ray.ObjectRef[Any], Pair]:
    alone = {"workers": 1, "cpus_per_worker": cluster.cpus_per_worker or 1}
    cluster = cluster.model_copy(update=alone)
    gpu = uses_gpu(cluster)
    placed = ray.remote(
        num_cpus=cpus_per_worker(cluster),
        num_gpus=int(gpu),
        max_retries=cluster.max_failures,
    )(_score_generation)
    stored = {model: ray.put(checkpoints[model]) for model in {model for model, _ in missing}}
    pending: dict[ray.ObjectRef[Any], Pair] = {}
    for pair, units in missing.items():
        model, generation = pair
        unit_of_task = {task: unit for unit in units for task in job.units[unit]}
        # They are chosen already, so that none is passed over here.
        chosen = {"tasks": tuple(sorted(unit_of_task)), "every": 1}
        data = job.datasets[generation].model_copy(update=chosen).model_dump_json()
        reference = placed.remote(
            stored[model], data, unit_of_task, job.scoring.model_dump(mode="json"), gpu
        )
        pending[reference] = pair
    return pending


def _score_generation(
    checkpoint: Checkpoint,
    data: str,
    unit_of_task: Mapping[str, str],
    scoring: Json,
    gpu: bool,
) -> tuple[dict[str, UnitScore], float]:
    """The scores of one model on one generation and the seconds they took, as a Ray task."""
    start = time.monotonic()
    torch.set_num_threads(int(ray.get_runtime_context().get_assigned_resources().get("CPU", 1)))
    device = torch.device("cuda" if gpu else "cpu")
    settings = ScoringConfig.model_validate(scoring)
    scores = score_tasks(checkpoint, _tasks_of(data), unit_of_task, settings, device)
    return scores, time.monotonic() - start


@lru_cache(maxsize=1)
def _tasks_of(data: str) -> tuple[Task, ...]:
    """The tasks, kept for the next model that this process scores on them."""
    return load_tasks(DataConfig.model_validate_json(data))


def _write_scores(job: _Job, pair: Pair, scores: Mapping[str, UnitScore]) -> None:
    created = datetime.now(UTC).isoformat(timespec="seconds")

    def write(unit: str, score: UnitScore) -> None:
        log = EvalLog(
            model=pair[0],
            task=unit,
            dataset=pair[1],
            samples=score.grids,
            metrics=_logged_metrics(score, job.scoring.metric),
            created=created,
            run_id=job.tree.id,
            metadata={
                "metric": job.scoring.metric,
                "unit": job.scoring.unit,
                "tasks": job.units[unit],
                "checkpoint": job.models[pair[0]],
            },
        )
        job.tree.write_record(log, job.file(pair, unit))

    with ThreadPoolExecutor(FILE_THREADS) as threads:
        list(threads.map(write, scores.keys(), scores.values()))


def _logged_metrics(score: UnitScore, chosen: str) -> dict[str, float]:
    """`accuracy` and `stderr` are those of the `chosen` metric; all go by their names too."""
    errors = {f"{name}_stderr": error for name, error in score.standard_errors.items()}
    logged = {"accuracy": score.metrics[chosen], **score.metrics, **errors}
    if chosen in score.standard_errors:
        logged["stderr"] = score.standard_errors[chosen]
    return logged
