"""Progress of a training run: one line an epoch, and TensorBoard curves."""

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pyarrow import fs
from torch.utils.tensorboard import SummaryWriter

from raylab.runs import Run

TENSORBOARD_DIRECTORY = "tensorboard"


def duration(seconds: float) -> str:
    """Seconds as people say them: 45 s, 12 min, 3 h 05 min."""
    minutes = round(seconds / 60)
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60:02d} min"


def epoch_line(row: Mapping[str, Any], epochs: int) -> str:
    """What a user reads after each epoch.

    Args:
        row: metrics of the epoch, with `epoch` counted from 1 and times in seconds.
        epochs: epochs the run may take; the ETA supposes that all are run.
    """
    left = (epochs - row["epoch"]) * (row["train_seconds"] + row["validation_seconds"])
    return (
        f"epoch {row['epoch']:>{len(str(epochs))}}/{epochs}"
        f"  loss {row['train_loss']:.4f}"
        f"  objective {row['val_dense_grid_objective']:.4f}"
        f"  cell {100 * row['val_cell_accuracy']:.2f} %"
        f"  grid {100 * row['val_grid_accuracy']:.2f} %"
        f"  solved {100 * row['val_solve_rate']:.2f} %"
        f"  {row['samples_per_second']:.1f} samples/s"
        f"  ETA {duration(left)}"
    )


class Curves:
    """TensorBoard scalars of a run, in `<run>/tensorboard` on any filesystem.

    TensorBoard writes to local directories alone, so events go to a temporary one that is copied
    into the run after every epoch.
    """

    def __init__(self, run: Run) -> None:
        """Open a new event file; a resumed run adds one to those it has."""
        self.run = run
        self._directory = tempfile.TemporaryDirectory(prefix="raylab-tensorboard-")
        self._writer = SummaryWriter(self._directory.name)

    def add(self, row: Mapping[str, Any]) -> None:
        """Add the scalars of an epoch."""
        for name, value in row.items():
            if name != "epoch" and isinstance(value, int | float):
                self._writer.add_scalar(name, value, row["epoch"])
        self._writer.flush()
        target = f"{self.run.path}/{TENSORBOARD_DIRECTORY}"
        self.run.filesystem.create_dir(target, recursive=True)
        for events in Path(self._directory.name).iterdir():
            fs.copy_files(
                str(events),
                f"{target}/{events.name}",
                source_filesystem=fs.LocalFileSystem(),
                destination_filesystem=self.run.filesystem,
            )

    def close(self) -> None:
        """Close the event file and drop the temporary directory."""
        self._writer.close()
        self._directory.cleanup()
