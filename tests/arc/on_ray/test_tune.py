"""Trials without a cluster: Tune's session and the training itself are stood in for."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from raylab.arc.config.jobs import TrainConfig, TuneConfig
from raylab.arc.on_ray import tune as tune_module
from raylab.arc.on_ray.tune import TuneSearcher
from raylab.arc.records import TrainingMetrics
from raylab.arc.sweep import TrialFailure
from raylab.arc.training.reporter import EpochListener
from raylab.core.errors import NonFiniteLossError, WorkersLostError
from raylab.core.runs.run import Run
from tests.arc.measured import epoch, training_metrics

NAME = "aa_01-encoder_decoder-lr-0.001"
SCORES = (0.25, 0.5, 0.125, 0.375)
DRAWN = {"architecture": "encoder_decoder", "training.lr": 0.001}
SETTINGS: dict[str, Any] = {
    "space": {"model": {"encoder_decoder": {}}, "training": {"lr": {"log_uniform": [1e-4, 1e-2]}}},
    "training": {"epochs": 4},
}


class Session:
    """What Tune tells a trial and what it is told, and the trainings that the trial asks for."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.reports: list[dict[str, Any]] = []
        self.trained: list[TrainConfig] = []
        self.error: Exception | None = None

    def fit(
        self, config: TrainConfig, run: Run, sides: None, on_epoch: EpochListener, **place: object
    ) -> TrainingMetrics:
        if self.error is not None:
            raise self.error
        self.trained.append(config)
        for number, score in enumerate(SCORES, 1):
            measured = {"dense_grid_objective": score, "loss": 1 / score}
            on_epoch(epoch(number, measured).row(), max(SCORES[:number]))
        return training_metrics()

    def run(self, trial: str, **models: dict[str, Any]) -> list[int]:
        """Runs a trial as Tune does, beside more models; returns the epochs that it reported."""
        before = len(self.reports)
        space = {**SETTINGS["space"], "model": SETTINGS["space"]["model"] | models}
        config = TuneConfig.model_validate({**SETTINGS, "space": space})
        context = SimpleNamespace(get_trial_id=lambda: trial)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("ray.tune.get_context", lambda: context)
            patch.setattr("ray.tune.report", self.reports.append)
            patch.setattr(tune_module, "fit", self.fit)
            uri = str(self.path / "sweep")
            tune_module._trial({"drawn": DRAWN}, config=config, uri=uri, sides=None)
        return [report["epoch"] for report in self.reports[before:]]


@pytest.fixture
def session(tmp_path: Path) -> Session:
    return Session(tmp_path)


def test_the_score_of_a_trial_is_its_best_epoch_so_far_as_trials_are_ranked(session: Session):
    assert session.run("aa_01") == [1, 2, 3, 4]
    assert [report["score"] for report in session.reports] == [0.25, 0.5, 0.5, 0.5]
    last = [report["val_dense_grid_objective"] for report in session.reports]
    assert last == list(SCORES)


def test_equal_trials_of_both_kinds_are_told_apart_by_their_loss(session: Session):
    session.run("aa_01", recursive={})
    assert [config.training.monitor for config in session.trained] == ["val_solve_rate"]
    # The lower the loss of 4, 2, 8 and 8/3, the more it adds, but never a grid.
    scores = [report["score"] for report in session.reports]
    ties = [0.25 + 1e-6 / 5, 0.5 + 1e-6 / 3, 0.5 + 1e-6 / 9, 0.5 + 1e-6 / (11 / 3)]
    assert scores == pytest.approx(ties, abs=1e-12)


def test_a_sweep_that_goes_on_draws_nothing_again(tmp_path: Path):
    domains = {"demonstrations": {"choice": [1, 2]}, "heads": {"choice": [2, 4]}}
    space = {"model": {"champion": domains}}
    config = TuneConfig.model_validate({"space": space, "search": "random", "trials": 4})
    before, after = TuneSearcher(config), TuneSearcher(config)
    drawn = [before.suggest("a"), before.suggest("b")]
    before.on_trial_complete("a", {"score": 0.5})
    before.save(str(tmp_path / "draws"))
    after.restore(str(tmp_path / "draws"))
    after.on_trial_complete("b", error=True)
    drawn += [after.suggest("c"), after.suggest("d")]
    # One that died and is tried again has been told before.
    after.on_trial_complete("b", {"score": 0.5})
    assert len({str(each) for each in drawn}) == 4
    assert after.suggest("e") == TuneSearcher.FINISHED


def test_a_trial_that_cannot_be_trained_is_a_result_and_one_that_lost_its_workers_is_none(
    session: Session,
):
    run = Run.at(f"{session.path}/sweep/trials/{NAME}")
    session.error = WorkersLostError("a node died")
    with pytest.raises(WorkersLostError):
        session.run("aa_01")
    assert not session.reports and run.read_record(TrialFailure) is None
    session.error = NonFiniteLossError("loss is nan")
    assert session.run("aa_01") == [4]
    assert session.reports == [{"failure": "loss is nan", "score": 0.0, "epoch": 4}]
    assert run.read_record(TrialFailure) == TrialFailure(message="loss is nan")


def test_a_process_that_has_grown_takes_no_further_trial(
    session: Session, monkeypatch: pytest.MonkeyPatch
):
    grown = tune_module.GROWTH_BYTES
    memory = iter(SimpleNamespace(rss=rss) for rss in (100, 100 + grown, 101 + grown))
    process = SimpleNamespace(memory_info=lambda: next(memory))
    monkeypatch.setattr(tune_module.psutil, "Process", lambda: process)
    monkeypatch.setattr(tune_module, "_memory_of_first_trial", lambda: 100)
    assert session.run("aa_01") == session.run("bb_02") == [1, 2, 3, 4]
    with pytest.raises(WorkersLostError, match="starts in a new one"):
        session.run("cc_03")
    assert [config.name for config in session.trained] == [NAME, NAME.replace("aa_01", "bb_02")]


def test_the_progress_tells_the_trials_that_have_ended_and_the_best_score(
    monkeypatch: pytest.MonkeyPatch,
):
    def tell(message: str, **fields: Any) -> None:
        told.append((fields["done"], fields["figures"]))

    measured = ("dense_grid_objective", "cell_accuracy", "grid_accuracy", "solve_rate")
    row = epoch(1, dict.fromkeys(measured, 0.5)).row()

    def trial(name: str, ended: bool, best: float) -> SimpleNamespace:
        state = {"last_result": {"score": best}, "is_finished": lambda: ended}
        return SimpleNamespace(trial_id=name, config={"drawn": DRAWN}, **state)

    # Tune calls a trial ended, and keeps its last result, only after these calls.
    now = trial("now", False, 0.25)
    trials = [now, trial("waits", False, 0.0), trial("done", True, 0.5)]
    told: list[tuple[int, str]] = []
    monkeypatch.setattr(tune_module, "log_progress", tell)
    progress = tune_module._Progress(TuneConfig.model_validate(SETTINGS))
    progress.on_trial_result(1, trials, now, {**row, "score": 0.75})
    progress.on_trial_complete(2, trials, now)
    progress.on_trial_result(3, trials, now, {**row, "score": 0.125})
    assert told == [
        (1, "best dense grid objective 0.7500  trial now 0.7500"),
        (2, ""),
        (1, "best dense grid objective 0.5000  trial now 0.1250"),
    ]
