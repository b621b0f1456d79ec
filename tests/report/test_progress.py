from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from raylab.report.progress import Curves, duration, epoch_line
from raylab.runs import Run

ROW = {
    "epoch": 3,
    "train_loss": 0.51234,
    "val_dense_grid_objective": 0.25,
    "val_cell_accuracy": 0.5,
    "val_grid_accuracy": 0.125,
    "val_solve_rate": 0.1,
    "samples_per_second": 31.25,
    "train_seconds": 50.0,
    "validation_seconds": 10.0,
}


def test_epoch_line_counts_the_epochs_left():
    # 7 epochs of a minute each are left.
    assert epoch_line(ROW, 10) == (
        "epoch  3/10  loss 0.5123  objective 0.2500  cell 50.00 %  grid 12.50 %  solved 10.00 %"
        "  31.2 samples/s  ETA 7 min"
    )


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0 s"), (89, "89 s"), (90, "2 min"), (5340, "89 min"), (11100, "3 h 05 min")],
)
def test_durations_read_as_people_say_them(seconds: float, text: str):
    assert duration(seconds) == text


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_curves_can_be_read_back_while_the_run_goes_on(tmp_path: Path):
    curves = Curves(Run.at(str(tmp_path / "run")))
    curves.add(ROW)
    curves.add(ROW | {"epoch": 4, "train_loss": 0.25})
    events = EventAccumulator(str(tmp_path / "run" / "tensorboard"))
    events.Reload()
    points = [(point.step, point.value) for point in events.Scalars("train_loss")]
    assert points == [(3, pytest.approx(0.51234)), (4, pytest.approx(0.25))]
    curves.close()
