"""TensorBoard curves of a training run."""

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pyarrow import fs
from torch.utils.tensorboard import SummaryWriter

from raylab.runs import Run

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
