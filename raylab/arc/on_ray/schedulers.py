"""The search and the scheduler of a sweep, as Ray Tune calls them."""

import pickle
from pathlib import Path
from typing import Any

import optuna
from ray.tune.experiment import Trial
from ray.tune.schedulers import ASHAScheduler, FIFOScheduler, TrialScheduler
from ray.tune.search import Searcher

from raylab.arc.config.jobs import TuneConfig
from raylab.arc.grid_metrics import mode_of
from raylab.arc.search import REDUCTION_FACTOR, Draws, rungs
from raylab.core.log import log_line

DRAWN = "drawn"
"""Key of the drawn values in Tune's configuration of a trial."""
SCORE = "score"
"""Key of the best monitored value so far, by which trials are stopped, drawn and ranked."""


class TuneSearcher(Searcher):
    """The draws of a sweep as a searcher of Ray Tune."""

    def __init__(self, config: TuneConfig) -> None:
        super().__init__(SCORE, mode_of(config.training.monitor))
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self._draws = Draws(config)

    def suggest(self, trial_id: str) -> Any:
        """Returns the values of a trial; `FINISHED` if there are no more."""
        drawn = self._draws.draw(trial_id)
        return Searcher.FINISHED if drawn is None else {DRAWN: drawn}

    def on_trial_complete(
        self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False
    ) -> None:
        """Records the score of a trial."""
        self._draws.tell(trial_id, None if error or result is None else result[SCORE])

    def save(self, checkpoint_path: str) -> None:
        """Writes the draws so far."""
        Path(checkpoint_path).write_bytes(pickle.dumps(self._draws))

    def restore(self, checkpoint_path: str) -> None:
        """Reads the draws that `save` wrote."""
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
    """Scheduler that stores the state of the sweep before a new trial starts.

    Tune stores it from time to time, and a trial starts within milliseconds. A trial missing from
    the stored state of a killed sweep would be drawn again on resume, and leave an orphaned run.
    """

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self._noted: frozenset[str] = frozenset()

    def choose_trial_to_run(self, tune_controller: Any) -> Trial | None:
        trials = tune_controller.get_trials()
        waiting = {trial.trial_id for trial in trials if trial.status == Trial.PENDING}
        if not waiting <= self._noted:
            # Ray 2.60 has no public way to store a sweep at a given moment:
            # TUNE_GLOBAL_CHECKPOINT_S is a period.
            tune_controller.checkpoint(force=True, wait=True)
            self._noted |= waiting
        return super().choose_trial_to_run(tune_controller)


class _ToTheEnd(_NotedFirst, FIFOScheduler):
    pass


class _ByRungs(_NotedFirst, ASHAScheduler):
    pass
