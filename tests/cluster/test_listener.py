"""What the driver does with the messages of a training, on a disk that is full for a moment."""

import errno
import os
from collections.abc import Callable
from pathlib import Path
from queue import Queue
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from raylab.arc.records import TrainingMetrics
from raylab.cluster.metrics import Meters
from raylab.cluster.train import _listen
from raylab.config.jobs import TrainConfig
from raylab.errors import RunError
from raylab.runs.run import Run
from tests.arc.measured import epoch, training_metrics

EPOCHS = 4
MEASURED = {"dense_grid_objective": 0.5, "cell_accuracy": 0.5, "grid_accuracy": 0.5}


@pytest.fixture
def full_disk(monkeypatch: pytest.MonkeyPatch) -> dict[str, bool]:
    """A switch: while it is on, no disk stores anything."""
    fsync, disk = os.fsync, {"full": False}

    def store(descriptor: int) -> None:
        if disk["full"]:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", store)
    return disk


def states() -> list[TrainingMetrics]:
    """The metrics after each epoch."""
    epochs = [epoch(number, MEASURED | {"solve_rate": 0.0}) for number in range(1, EPOCHS + 1)]
    return [training_metrics(*epochs[:number]) for number in range(1, EPOCHS + 1)]


def listen(run: Run, before: Callable[[int], None], fails_at: int = 0) -> list[int]:
    """Listens to a training; `before` is called when the listener asks for each epoch.

    Returns the epochs that were reported, of which that of one epoch fails the first time.
    """
    told, failing = list[int](), [fails_at]

    class Messages(Queue[Any]):
        def get(self, block: bool = True, timeout: float | None = None) -> Any:
            message = super().get(block, timeout)
            before(message.last.epoch if message else EPOCHS + 1)
            return message

    def report(metrics: TrainingMetrics) -> None:
        if metrics.last.epoch in failing:
            failing.clear()
            raise OSError("no room for the report")
        told.append(metrics.last.epoch)

    messages = Messages()
    for message in (*states(), None):
        messages.put(message)
    config = TrainConfig(storage=str(run.parent), name=run.name)
    _listen(messages, config, run, report, Meters(run.name))
    return told


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_disk_that_is_full_for_a_moment_costs_no_curve_and_no_report(
    tmp_path: Path,
    full_disk: dict[str, bool],
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    def before(number: int) -> None:
        full_disk["full"] = number in (2, 3)

    told = listen(Run.at(tmp_path / "run"), before, fails_at=EPOCHS)
    assert told == [1, 2, 3, 4]
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[1] for line in lines] == ["1/100", "2/100", "3/100", "4/100"]
    events = EventAccumulator(str(tmp_path / "run" / "tensorboard"))
    events.Reload()
    assert [point.step for point in events.Scalars("train_loss")] == [1, 2, 3, 4]
    warnings = [record.message.partition(":")[::2] for record in caplog.records]
    assert [name for name, _ in warnings] == ["tensorboard", "report"]
    assert "No space left on device" in warnings[0][1]


def test_a_disk_that_stays_full_is_the_error_of_the_run(
    tmp_path: Path, full_disk: dict[str, bool]
) -> None:
    def before(number: int) -> None:
        full_disk["full"] = number > 2

    with pytest.raises(RunError, match=r"tensorboard.* cannot be written: No space left on device"):
        listen(Run.at(tmp_path / "run"), before)
