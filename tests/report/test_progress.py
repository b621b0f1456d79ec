import pytest

from raylab.report.progress import duration, epoch_line
from tests.arc.measured import epoch

METRICS = {
    "dense_grid_objective": 0.25,
    "cell_accuracy": 0.5,
    "grid_accuracy": 0.125,
    "solve_rate": 0.1,
}
SPEED = {"samples_per_second": 31.25, "train_seconds": 50.0, "validation_seconds": 10.0}


def test_epoch_line_counts_the_epochs_left():
    # 7 epochs of a minute each are left.
    assert epoch_line(epoch(3, METRICS, train_loss=0.51234, **SPEED), 10) == (
        "epoch  3/10  loss 0.5123  solved 10.00 %  grid 12.50 %  cell 50.00 %  objective 0.2500"
        "  31.2 samples/s  ETA 7 min"
    )


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0 s"), (89, "89 s"), (90, "2 min"), (5340, "89 min"), (11100, "3 h 05 min")],
)
def test_durations_read_as_people_say_them(seconds: float, text: str):
    assert duration(seconds) == text
