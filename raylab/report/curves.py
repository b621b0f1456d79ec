"""TensorBoard curves of a training run."""

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch.utils.tensorboard import SummaryWriter

from raylab.runs.run import Run

TENSORBOARD_DIRECTORY = "tensorboard"


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
        for events in Path(self._directory.name).iterdir():
            self.run.write_bytes(f"{TENSORBOARD_DIRECTORY}/{events.name}", events.read_bytes())

    def close(self) -> None:
        """Close the event file and drop the temporary directory."""
        self._writer.close()
        self._directory.cleanup()
