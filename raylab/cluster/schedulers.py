"""Schedulers of a sweep's trials: all to their end, or the best by rungs."""

from typing import Any

from ray.tune.experiment import Trial
from ray.tune.schedulers import ASHAScheduler, FIFOScheduler, TrialScheduler

from raylab.arc.search import rungs
from raylab.config.jobs import TuneConfig
from raylab.log import log_line

DRAWN = "drawn"
"""Key of what was drawn for a trial, in Tune's configuration of it."""


def scheduler_of(config: TuneConfig) -> TrialScheduler:
    """Returns the scheduler that the search of `config` needs."""
    epochs = config.training.epochs
    stops = rungs(config) if config.stop_early else ()
    if not stops:
        if config.stop_early:
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
        reduction_factor=config.reduction_factor,
    )


class _NotedFirst(TrialScheduler):
    """Scheduler that stores the state of the sweep before a new trial starts.

    Tune stores it from time to time, and a trial starts within milliseconds: one that a killed
    sweep has no note of would be drawn again on resume, and its run would belong to nobody.
    """

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self._noted: frozenset[str] = frozenset()

    def choose_trial_to_run(self, tune_controller: Any) -> Trial | None:
        trials = tune_controller.get_trials()
        waiting = {trial.trial_id for trial in trials if trial.status == Trial.PENDING}
        if not waiting <= self._noted:
            tune_controller.checkpoint(force=True, wait=True)
            self._noted |= waiting
        return super().choose_trial_to_run(tune_controller)


class _ToTheEnd(_NotedFirst, FIFOScheduler):
    pass


class _ByRungs(_NotedFirst, ASHAScheduler):
    pass
