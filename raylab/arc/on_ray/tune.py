"""Search over architectures and hyperparameters: Ray Tune over Ray Train runs."""

import gc
import logging
import pickle
from collections.abc import Mapping
from functools import cache, partial
from pathlib import Path
from typing import Any, cast

import optuna
import psutil
import ray
import ray.tune
from pydantic import ValidationError
from ray.tune.experiment import Trial
from ray.tune.logger import JsonLoggerCallback
from ray.tune.schedulers import ASHAScheduler, FIFOScheduler, TrialScheduler
from ray.tune.search import Searcher

from raylab.arc.config.jobs import TrainConfig, TuneConfig
from raylab.arc.data.split import Sides
from raylab.arc.grid_metrics import LOSS, VALIDATION, label_of, mode_of, worst
from raylab.arc.on_ray.train import fit
from raylab.arc.pages.models import epoch_line, summary_table
from raylab.arc.pages.sweep import sweep_page, sweep_table
from raylab.arc.records import TrainingMetrics
from raylab.arc.search import REDUCTION_FACTOR, Draws, rungs, trial_config
from raylab.arc.sweep import (
    Drawn,
    SweepMetrics,
    TrialFailure,
    best_yaml,
    describe,
    name_trial,
    rank_trials,
)
from raylab.arc.training.outcome import with_test
from raylab.core.environment import set_variables
from raylab.core.errors import RaylabError, RunError, TrainingError, WorkersLostError
from raylab.core.files import Place
from raylab.core.live import log_progress, progress
from raylab.core.log import log_line
from raylab.core.on_ray.session import count_trainings, cpus_per_worker, session, uses_gpu
from raylab.core.on_ray.workers import session_workers
from raylab.core.page.page import PAGE, write_page
from raylab.core.page.table import print_tables
from raylab.core.runs.run import TRIALS, Run
from raylab.core.tracking import Figures, Tracker, tracking

TUNE_STATE = "tune"
BEST = "best.yaml"
GROWTH_BYTES = 2 << 30
"""Growth of a process since its first trial, after which the next trial moves to a new one."""
SETTINGS = {
    # A trial that ended after the last snapshot runs again on resume, and returns at once.
    "TUNE_GLOBAL_CHECKPOINT_S": "1",
    # The longest wait until a trial that is stopped early has left its process to the next.
    "TUNE_FUNCTION_THREAD_TIMEOUT_S": "60",
    # _Progress reports; Tune would add tables, and a traceback for each lost process.
    "RAY_AIR_NEW_OUTPUT": "0",
    # Tune would end on Ctrl-C as if all trials had been made; its last snapshot is recent enough.
    "TUNE_DISABLE_SIGINT_HANDLER": "1",
    # Trials track their curves themselves.
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
}
"""Variables that Tune reads in the job's process, and passes on to the trials' processes."""
DRAWN = "drawn"
"""Key of the drawn values in Tune's configuration of a trial."""
SCORE = "score"
"""Key of the best monitored value so far: it stops, draws and ranks trials."""
TIE = 1e-6
"""What a loss of 0 adds to the score of models that are ranked by their solved grids."""
FAILURE = "failure"
"""Key of the reason, in the result of a failed trial."""


def tune(config: TuneConfig, sides: Sides) -> None:
    """Runs the sweep of `config`, or the rest of it, and prints its trials by rank."""
    with Run.open_alone(config) as run:
        if run.is_finished:
            log_line(f"run {run.name} is finished, nothing is left to do")
            _print_outcome(run, run.read_record(SweepMetrics), config)
            return
        with (
            # Begun before its trials, which are tracked below it.
            tracking(config.tracking, run, has_trainings=True) as trackers,
            session(config.cluster, run),
        ):
            shared = ray.put(sides)
            with set_variables(**SETTINGS), progress():
                results = _tuner(config, run, shared).fit()
            _conclude(config, run, results, shared, trackers)


def _tuner(config: TuneConfig, run: Run, sides: "ray.ObjectRef[Sides]") -> ray.tune.Tuner:
    logging.getLogger("ray.tune").setLevel(logging.CRITICAL)
    cluster, trials = config.cluster, config.trial_count
    places = count_trainings(cluster, config.concurrent)
    log_line(
        f"{trials} trials, {places} at a time of {cluster.workers} worker(s) each -> {run}",
        trials=trials,
        concurrent=places,
        uri=run.uri,
    )
    trial = partial(_trial, config=config, uri=run.uri, sides=sides)
    if cluster.most_workers > 1:
        # The trial waits for its workers, so a CPU for it would be missing for them.
        resources = {"node:__internal_head__": 0.001}
    else:
        resources = {"cpu": float(cpus_per_worker(cluster)), "gpu": float(uses_gpu(cluster))}
    trainable = ray.tune.with_resources(trial, resources)
    state = str(run / TUNE_STATE)
    if ray.tune.Tuner.can_restore(state):
        try:
            return ray.tune.Tuner.restore(state, trainable=trainable, resume_errored=True)
        except (EOFError, pickle.UnpicklingError) as error:
            raise RunError(
                f"{state} was left half-written by Ray Tune and cannot be restored ({error}): "
                f"start another sweep under another name=; the trials in {run / TRIALS} are "
                "intact and can be evaluated"
            ) from error
    return ray.tune.Tuner(
        trainable,
        tune_config=ray.tune.TuneConfig(
            metric=SCORE,
            mode=mode_of(config.monitor),
            num_samples=trials,
            max_concurrent_trials=places,
            search_alg=TuneSearcher(config),
            scheduler=build_scheduler(config),
            # Imports take longer than a small trial.
            reuse_actors=True,
        ),
        run_config=ray.tune.RunConfig(
            name=TUNE_STATE,
            storage_path=run.uri,
            verbose=0,
            # Once more for a process that the trials outgrew.
            failure_config=ray.tune.FailureConfig(max_failures=cluster.max_failures + 1),
            # Tune reads the results of a sweep in the second one's files.
            callbacks=[_Progress(config), JsonLoggerCallback()],
        ),
    )


def _trial(
    values: dict[str, Any], *, config: TuneConfig, uri: str, sides: "ray.ObjectRef[Sides]"
) -> None:
    """Runs a trial as a training run below the sweep's, in a process that trials use in turn."""
    gc.collect()
    first = _memory_of_first_trial()
    if (memory := psutil.Process().memory_info().rss) > first + GROWTH_BYTES:
        # Retried in a new process, because this one has kept too much of earlier trials.
        raise WorkersLostError(
            f"its process grew to {memory >> 20:,} MiB in earlier trials: it starts in a new one"
        )
    drawn = cast("Drawn", values[DRAWN])
    name = name_trial(ray.tune.get_context().get_trial_id(), drawn, config.space)
    reported = False

    def report(figures: Figures, best: float) -> None:
        nonlocal reported
        reported = True
        tie = 0.0
        if config.space.is_mixed and mode_of(config.monitor) == "max":
            tie = TIE / (1 + figures[f"{VALIDATION}{LOSS}"])
        ray.tune.report({**figures, SCORE: best + tie})

    try:
        training = trial_config(config, drawn, storage=str(Place.at(uri) / TRIALS), name=name)
        run = Run.open(training)
        here = training.cluster.most_workers == 1
        metrics = fit(training, run, sides, report, here=here)
        if not reported:
            report(metrics.last.row(), metrics.best.row()[config.monitor])
        run.finish()
    except (WorkersLostError, RunError):
        # Tune tries the trial again, which continues from its last checkpoint.
        raise
    except (RaylabError, ValidationError) as error:
        # No other try would train it: the reason is its result.
        Run.at(Place.at(uri) / TRIALS / name).write_record(TrialFailure(message=str(error)))
        epochs = config.training.epochs or 0
        ray.tune.report({SCORE: worst(config.monitor), "epoch": epochs, FAILURE: str(error)})


@cache
def _memory_of_first_trial() -> int:
    return psutil.Process().memory_info().rss


class _Progress(ray.tune.Callback):
    """Callback on the driver that logs and records each epoch and the end of each trial."""

    def __init__(self, config: TuneConfig) -> None:
        self.trials, self.space, self.monitor = config.trial_count, config.space, config.monitor

    def on_trial_start(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        drawn = trial.config[DRAWN]
        self._log(_count_ended(trials), trial, f": {describe(drawn)}", drawn=drawn)

    def on_trial_result(
        self, iteration: int, trials: list[Any], trial: Any, result: dict[str, Any], **info: Any
    ) -> None:
        name = self._name(trial)
        if FAILURE in result:
            reason = result[FAILURE]
            log_line(f"trial {name} failed: {reason}", logging.WARNING, trial=name, reason=reason)
            return
        score = result[SCORE]
        # Tune stores the last results of this trial only after this call.
        choose = max if mode_of(self.monitor) == "max" else min
        others = [other.last_result or {} for other in trials if other is not trial]
        best = choose([score, *(o[SCORE] for o in others if SCORE in o)])
        figures = f"best {label_of(self.monitor)} {best:.4f}  trial {trial.trial_id} {score:.4f}"
        line, done = f" {epoch_line(result)}", _count_ended(trials)
        self._log(done, trial, line, figures, epoch=result["epoch"], score=score)

    def on_trial_complete(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        # Tune notes only after this call that the trial has ended.
        done = 1 + _count_ended([other for other in trials if other is not trial])
        self._log(done, trial, f" ended, {done} of {self.trials} done")

    def on_trial_error(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        reason = str(trial.get_error()).strip().rpartition("\n")[2]
        name = self._name(trial)
        log_line(f"trial {name} died: {reason}", logging.WARNING, trial=name, reason=reason)

    def _log(self, done: int, trial: Any, end: str, figures: str = "", **fields: Any) -> None:
        # The name of its run has the values too, which the line of its start tells.
        log_progress(
            f"trial {trial.trial_id}{end}",
            done=done,
            total=self.trials,
            unit="trials",
            figures=figures,
            trial=self._name(trial),
            **fields,
        )

    def _name(self, trial: Any) -> str:
        return name_trial(trial.trial_id, trial.config[DRAWN], self.space)


def _count_ended(trials: list[Any]) -> int:
    return sum(trial.is_finished() for trial in trials)


def _conclude(
    config: TuneConfig,
    run: Run,
    results: ray.tune.ResultGrid,
    sides: "ray.ObjectRef[Sides]",
    trackers: Mapping[str, Tracker],
) -> None:
    """Ranks the trials, writes and tracks the results of the sweep, and reports failures."""
    ids = [result.metrics["trial_id"] for result in results if result.metrics]
    metrics, trained = rank_trials(config, run, ids)
    best = metrics.trials[0] if metrics.trials else None
    if best is None or best.trained is None:
        reasons = [trial.failure for trial in metrics.trials] + [str(e) for e in results.errors]
        raise TrainingError(f"no trial of {run} could be trained: {reasons[0]}")
    own = Run.at(run / TRIALS / best.trial)
    chosen = TrainConfig.of_record(own.record.config)
    shared = ray.get(sides) if chosen.cluster.is_this_process else sides
    tested = with_test(chosen, own, trained[best.trial], shared, session_workers(chosen.cluster))
    metrics = metrics.model_copy(update={"test": tested.test})
    yaml, monitor = best_yaml(chosen), config.monitor
    histories = {t.trial: trained[t.trial].rows for t in metrics.trials if t.trained}
    (run / BEST).write(yaml.encode())
    run.write_record(metrics)
    figures = {"trials": float(len(metrics.trials)), monitor: best.trained.score}
    if metrics.test is not None:
        figures |= {f"test_{name}": value for name, value in metrics.test.metrics.items()}
    for tracker in trackers.values():
        tracker.log(len(metrics.trials), figures)
    write_page(run, sweep_page(run.uri, run.record, metrics, histories, monitor, yaml))
    _print_outcome(run, metrics, config)
    if results.errors:
        raise TrainingError(
            f"{len(results.errors)} of {len(results)} trials died: {results.errors[0]}\n"
            "the same command with resume=true tries them again"
        )
    run.finish()


def _print_outcome(run: Run, metrics: SweepMetrics | None, config: TuneConfig) -> None:
    if metrics is None or (best := metrics.trials[0].trained) is None:
        raise RunError(f"{run} is finished and has no {SweepMetrics.file} that can be read")
    winner = metrics.trials[0]
    trained = Run.at(run / TRIALS / winner.trial).read_record(TrainingMetrics)
    beside = [] if trained is None else [summary_table({winner.description: trained})]
    print_tables(
        sweep_table(metrics, config.monitor),
        *beside,
        trials=[trial.model_dump(mode="json") for trial in metrics.trials],
        baselines=metrics.baselines,
        test=None if metrics.test is None else metrics.test.model_dump(mode="json"),
    )
    log_line(
        f"configuration {run / BEST}\ncheckpoint {best.checkpoint}\nreport {run / PAGE}",
        uri=run.uri,
        checkpoint=best.checkpoint,
    )


class TuneSearcher(Searcher):
    """The draws of a sweep as a searcher of Ray Tune."""

    def __init__(self, config: TuneConfig) -> None:
        super().__init__(SCORE, mode_of(config.monitor))
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self._draws = Draws(config)

    def suggest(self, trial_id: str) -> Any:
        drawn = self._draws.draw(trial_id)
        return Searcher.FINISHED if drawn is None else {DRAWN: drawn}

    def on_trial_complete(
        self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False
    ) -> None:
        self._draws.tell(trial_id, None if error or result is None else result[SCORE])

    def save(self, checkpoint_path: str) -> None:
        Path(checkpoint_path).write_bytes(pickle.dumps(self._draws))

    def restore(self, checkpoint_path: str) -> None:
        self._draws = pickle.loads(Path(checkpoint_path).read_bytes())


def build_scheduler(config: TuneConfig) -> TrialScheduler:
    """Returns the scheduler that the search of `config` needs."""
    epochs = config.training.epochs
    stops = rungs(config) if config.stop_early else ()
    if epochs is None or not stops:
        if config.stop_early and config.training.max_minutes is None:
            log_line(
                f"no trial is stopped early: the first rung would come after the {epochs} epochs; "
                "lower grace_epochs, or judge within cosines (training.judge_at_restarts=false)"
            )
        return _ToTheEnd()
    log_line(f"trials that fall behind end after {' or '.join(map(str, stops))} epochs")
    return _ByRungs(
        time_attr="epoch",
        # Never reached: a trial ends by itself after its last epoch, and notes that it did.
        max_t=epochs + 1,
        grace_period=stops[0],
        reduction_factor=REDUCTION_FACTOR,
    )


class _NotedFirst(TrialScheduler):
    """Scheduler that stores the state of the sweep before a new trial starts."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self._noted: frozenset[str] = frozenset()

    def choose_trial_to_run(self, tune_controller: Any) -> Trial | None:
        trials = tune_controller.get_trials()
        waiting = {trial.trial_id for trial in trials if trial.status == Trial.PENDING}
        if not waiting <= self._noted:
            # A trial starts within milliseconds. One that is missing from the stored state of a
            # killed sweep would be drawn again on resume, and leave an orphaned run. Ray 2.60 has
            # no public way to store a sweep at a moment: TUNE_GLOBAL_CHECKPOINT_S is a period.
            tune_controller.checkpoint(force=True, wait=True)
            self._noted |= waiting
        return super().choose_trial_to_run(tune_controller)


class _ToTheEnd(_NotedFirst, FIFOScheduler):
    pass


class _ByRungs(_NotedFirst, ASHAScheduler):
    pass
