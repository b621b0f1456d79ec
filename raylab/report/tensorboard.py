"""TensorBoard curves of a training run."""

import tempfile
from pathlib import Path

from torch.utils.tensorboard import SummaryWriter

from raylab.arc.records import Epoch
from raylab.runs.run import Run

TENSORBOARD_DIRECTORY = "tensorboard"


class TensorBoard:
    """TensorBoard scalars of a run, in `<run>/tensorboard` on any filesystem.

    TensorBoard writes to local directories only, so events go to a temporary directory that is
    copied into the run after every epoch.
    """

    def __init__(self, run: Run) -> None:
        """Opens a new event file; a resumed run adds another."""
        self.run = run
        self._directory = tempfile.TemporaryDirectory(prefix="raylab-tensorboard-")
        self._writer = SummaryWriter(self._directory.name)

    def add(self, epoch: Epoch) -> None:
        """Adds the scalars of an epoch."""
        for name, value in epoch.row().items():
            if name != "epoch":
                self._writer.add_scalar(name, value, epoch.epoch)
        self._writer.flush()
        for events in Path(self._directory.name).iterdir():
            self.run.write_bytes(f"{TENSORBOARD_DIRECTORY}/{events.name}", events.read_bytes())

    def close(self) -> None:
        """Closes the event file and removes the temporary directory."""
        self._writer.close()
        self._directory.cleanup()
