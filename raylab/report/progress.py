"""Progress of a run in words: one line an epoch, and times as people say them."""

from collections.abc import Mapping
from typing import Any


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
