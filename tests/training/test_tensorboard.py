from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from raylab.runs.run import Run
from raylab.training.tensorboard import TensorBoard
from tests.arc.measured import epoch


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_curves_can_be_read_back_while_the_run_goes_on(tmp_path: Path):
    curves = TensorBoard(Run.at(str(tmp_path / "run")))
    curves.write(epoch(3, {}, train_loss=0.51234))
    last = epoch(4, {"grid_accuracy": 0.5}, train_loss=0.25)
    curves.write(last)
    # Made good after a failure: the epoch is there once.
    curves.write(last)
    events = EventAccumulator(str(tmp_path / "run" / "tensorboard"))
    events.Reload()
    points = [(point.step, point.value) for point in events.Scalars("train_loss")]
    assert points == [(3, pytest.approx(0.51234)), (4, pytest.approx(0.25))]
    (accuracy,) = events.Scalars("val_grid_accuracy")
    assert (accuracy.step, accuracy.value) == (4, 0.5)
    with pytest.raises(KeyError):
        events.Scalars("epoch")
