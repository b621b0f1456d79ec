"""Progress of a run in words: one line per epoch, and durations for people."""

from raylab.arc.records import Epoch
from raylab.grid_metrics import OBJECTIVE


def duration(seconds: float) -> str:
    """Returns a duration in words: 45 s, 12 min, 3 h 05 min."""
    minutes = round(seconds / 60)
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60:02d} min"


def epoch_line(epoch: Epoch, epochs: int) -> str:
    """Returns the progress line of an epoch.

    Args:
        epoch: The epoch that ended.
        epochs: Most epochs of the run; the ETA assumes that all are run.
    """
    left = (epochs - epoch.epoch) * (epoch.train_seconds + epoch.validation_seconds)
    measured = epoch.validation
    return (
        f"epoch {epoch.epoch:>{len(str(epochs))}}/{epochs}"
        f"  loss {epoch.train_loss:.4f}"
        f"  solved {100 * measured['solve_rate']:.2f} %"
        f"  grid {100 * measured['grid_accuracy']:.2f} %"
        f"  cell {100 * measured['cell_accuracy']:.2f} %"
        f"  objective {measured[OBJECTIVE]:.4f}"
        f"  {epoch.samples_per_second:.1f} samples/s"
        f"  ETA {duration(left)}"
    )
