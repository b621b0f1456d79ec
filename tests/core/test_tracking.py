"""Trackers of figures: files of TensorBoard, a database of MLflow, an offline run of W&B."""

import socket
import threading
import time
from collections.abc import Generator
from contextlib import suppress
from pathlib import Path

import pytest
from mlflow import MlflowClient
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from jobs.quality import run as run_quality
from raylab.arc.config.jobs import TrainConfig, TuneConfig
from raylab.arc.search import trial_config
from raylab.arc.sweep import Drawn, name_trial
from raylab.benchmark.config import QualityConfig, QualityEvalConfig
from raylab.core import tracking
from raylab.core.config import base
from raylab.core.config.compose import load_config
from raylab.core.errors import ConfigError
from raylab.core.runs.run import TRIALS, Run
from raylab.core.tracking import TensorBoard
from tests.benchmark.trees import SCORES, write_scores

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")


def begun(storage: Path, *trackers: str) -> tuple[TrainConfig, Run]:
    fields = {"storage": str(storage), "name": "run", "tracking": trackers, "resume": True}
    config = TrainConfig.model_validate(fields)
    return config, Run.open(config)


def logged(storage: Path, tracker: str, step: int, **figures: float) -> Run:
    """The run of one process that logs one step."""
    config, run = begun(storage, tracker)
    with tracking.tracking(config.tracking, run) as trackers:
        (only,) = trackers.values()
        only.log(step, figures)
    return run


def test_curves_can_be_read_back_while_the_run_goes_on(tmp_path: Path):
    curves = TensorBoard(Run.at(str(tmp_path / "run")))
    curves.log(3, {"train_loss": 0.51234})
    last = {"train_loss": 0.25, "val_grid_accuracy": 0.5}
    curves.log(4, last)
    # Made good after a failure: the step is there once.
    curves.log(4, last)
    events = EventAccumulator(str(tmp_path / "run" / "tensorboard"))
    events.Reload()
    points = [(point.step, point.value) for point in events.Scalars("train_loss")]
    assert points == [(3, pytest.approx(0.51234)), (4, pytest.approx(0.25))]
    (accuracy,) = events.Scalars("val_grid_accuracy")
    assert (accuracy.step, accuracy.value) == (4, 0.5)


def test_a_sweep_its_trials_and_quality_are_runs_of_mlflow_also_when_they_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    lr = {"lr": {"log_uniform": [1e-4, 1e-2]}}
    fields = {"space": {"model": {"champion": {}}, "training": lr}, "tracking": ["mlflow"]}
    config = TuneConfig.model_validate({**fields, "storage": str(tmp_path), "name": "sweep"})
    run = Run.open(config)
    with tracking.tracking(config.tracking, run, has_trainings=True) as trackers:
        for step, value in enumerate((0.001, 0.002, 0.001), 1):
            drawn: Drawn = {"architecture": "champion", "training.lr": value}
            name = name_trial(f"id{value}", drawn, config.space)
            trial = trial_config(config, drawn, storage=str(run / TRIALS), name=name)
            own = Run.open(trial)
            with tracking.tracking(trial.tracking, own) as below:
                below["mlflow"].log(step, {"loss": 1 / step, "undefined": float("nan")})
        trackers["mlflow"].log(2, {"trials": 2.0})
    scores = QualityEvalConfig(scores_root_dir=str(write_scores(tmp_path / "scores", SCORES)))
    measured = {"quality_eval_cfg": scores, "bootstrap": 0, "tracking": ("mlflow",)}
    run_quality(QualityConfig(storage=str(tmp_path), name="quality", **measured))
    client = MlflowClient(f"sqlite:///{tmp_path}/mlflow.db")
    experiment = client.get_experiment_by_name("raylab")
    assert experiment is not None
    tracked = {r.info.run_name: r for r in client.search_runs([experiment.experiment_id])}
    assert tracked["quality"].data.metrics["difficulty"] == pytest.approx(0.2)
    sweep = tracked["sweep"]
    assert sweep.data.metrics == {"trials": 2.0} and sweep.info.status == "FINISHED"
    assert sweep.data.tags["raylab.run_id"] == run.id
    assert sweep.data.params["space.training.lr.log_uniform"] == "[0.0001, 0.01]"
    trials = {name: trial for name, trial in tracked.items() if name and "champion" in name}
    assert {name: trial.data.params["training.lr"] for name, trial in trials.items()} == {
        "id0.001-champion-lr-0.001": "0.001",
        "id0.002-champion-lr-0.002": "0.002",
    }
    assert {t.data.tags["mlflow.parentRunId"] for t in trials.values()} == {sweep.info.run_id}
    again = trials["id0.001-champion-lr-0.001"]
    history = client.get_metric_history(again.info.run_id, "loss")
    assert [(metric.step, metric.value) for metric in history] == [(1, 1.0), (3, 1 / 3)]
    assert "undefined" not in again.data.metrics


def test_without_a_key_a_run_of_wandb_is_kept_offline_under_the_runs_id(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    for name in ("WANDB_API_KEY", "WANDB_MODE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    run = logged(tmp_path, "wandb", 1, loss=0.5)
    (file,) = Path(run.path).glob(f"wandb/offline-run-*-{run.id}/run-{run.id}.wandb")
    # A process of its own writes the file.
    deadline = time.monotonic() + 300
    while b"loss" not in file.read_bytes() and time.monotonic() < deadline:
        time.sleep(0.1)
    assert b"loss" in file.read_bytes()


def lines_of_trackers(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.name == tracking.LOGGER.name]


def test_a_tracker_that_is_out_of_reach_is_a_warning_at_once_and_one_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://user:hunter2@127.0.0.1:9")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    monkeypatch.setattr(tracking, "SERVER_SECONDS", 60)
    config, run = begun(tmp_path, "mlflow")
    with tracking.tracking(config.tracking, run, has_trainings=True) as trackers:
        for step in range(3):
            trackers["mlflow"].log(step, {"loss": 0.5})
    first, last = lines_of_trackers(caplog)
    assert "mlflow does not take the figures (MlflowException)" in first
    assert f"mlflow has not taken the figures of steps 0 to 2, which the files of {run} " in last
    assert "MLFLOW_TRACKING_URI" in last and "hunter2" not in caplog.text


@pytest.fixture
def silent_server() -> Generator[str]:
    """The address of a server that accepts connections and never answers."""
    accepted: list[socket.socket] = []
    with socket.create_server(("127.0.0.1", 0)) as server:

        def accept() -> None:
            with suppress(OSError):
                while True:
                    accepted.append(server.accept()[0])

        threading.Thread(target=accept, daemon=True).start()
        yield f"http://127.0.0.1:{server.getsockname()[1]}"
        server.shutdown(socket.SHUT_RDWR)
    for connection in accepted:
        connection.close()


def test_a_run_does_not_wait_for_a_tracker_that_does_not_answer(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    silent_server: str,
):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", silent_server)
    # Within the test the server never gives up.
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "600")
    monkeypatch.setattr(tracking, "SERVER_SECONDS", 0.2)
    config, run = begun(tmp_path, "tensorboard", "mlflow")
    with tracking.tracking(config.tracking, run, has_trainings=True) as trackers:
        for step in (1, 2):
            for tracker in trackers.values():
                tracker.log(step, {"loss": 0.5})
        assert not caplog.records
    (warning,) = lines_of_trackers(caplog)
    assert warning.startswith("mlflow has not taken the figures of steps 1 to 2, which the ")
    assert (run / "tensorboard").names()


class Moody:
    """A server that refuses its first start, and the first figures of step 2."""

    is_local, way_out = True, "look elsewhere"

    def __init__(self) -> None:
        self.refuses: list[object] = ["start", 2]
        self.took: list[object] = []
        self.refused = threading.Event()

    def take(self, what: object) -> None:
        if what in self.refuses:
            self.refuses.remove(what)
            if not self.refuses:
                self.refused.set()
            raise ConnectionError
        self.took.append(what)

    def begin(self) -> None:
        self.take("start")

    def log(self, step: int, seconds: float, figures: tracking.Figures) -> None:
        self.take(step)

    def end(self) -> None:
        self.take("end")


def test_figures_that_a_server_refuses_are_sent_again_before_later_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    server = Moody()
    monkeypatch.setattr(tracking, "_Mlflow", lambda run: server)
    config, run = begun(tmp_path, "mlflow")
    with tracking.tracking(config.tracking, run, has_trainings=True) as trackers:
        trackers["mlflow"].log(1, {})
        trackers["mlflow"].log(2, {})
        assert server.refused.wait(300)
        trackers["mlflow"].log(3, {})
    assert server.took == ["start", 1, 2, 3, "end"]
    assert not [line for line in lines_of_trackers(caplog) if "has not taken" in line]


def test_a_package_that_is_not_there_is_told(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(base.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"tracking=wandb .* pip install 'raylab\[wandb\]'"):
        base.require_trackers(("tensorboard", "wandb"))
    assert load_config(TrainConfig, ["tracking=mlflow"]).tracking == ("mlflow",)
    assert load_config(TrainConfig, ["tracking=[]"]).tracking == ()
