"""TensorBoard curves of a training run."""

import io
import platform
import time
import uuid
from typing import Any

from tensorboard.compat.proto import event_pb2, summary_pb2
from tensorboard.summary.writer.record_writer import RecordWriter

from raylab.arc.records import Epoch
from raylab.runs.run import Run

TENSORBOARD_DIRECTORY = "tensorboard"
# Protobuf makes these classes when it is imported.
Event: Any = vars(event_pb2)["Event"]
Summary: Any = vars(summary_pb2)["Summary"]
FILE_VERSION = "brain.Event:2"


class TensorBoard:
    """TensorBoard scalars of a run, in `<run>/tensorboard` on any filesystem.

    The event file is written whole after every epoch, so that the next write makes good one that
    failed. TensorBoard's own writer appends to local files only, and its thread dies of a failure.
    """

    def __init__(self, run: Run) -> None:
        """Begins an event file; a resumed run adds another."""
        self.run = run
        unique = f"{time.time():.0f}.{platform.node()}.{uuid.uuid4().hex}"
        self._name = f"{TENSORBOARD_DIRECTORY}/events.out.tfevents.{unique}"
        self._content = io.BytesIO()
        self._records = RecordWriter(self._content)
        self._last: Epoch | None = None
        self._append(Event(wall_time=time.time(), file_version=FILE_VERSION))

    def write(self, epoch: Epoch) -> None:
        """Writes the scalars of an epoch after those before it; the same epoch again adds none.

        Raises:
            RunError: The file cannot be written.
        """
        if epoch != self._last:
            self._last = epoch
            self._append(_event(epoch))
        (self.run / self._name).write(self._content.getvalue())

    def _append(self, event: Any) -> None:
        self._records.write(event.SerializeToString())


def _event(epoch: Epoch) -> Any:
    values = [
        Summary.Value(tag=name, simple_value=value)
        for name, value in epoch.row().items()
        if name != "epoch"
    ]
    return Event(wall_time=time.time(), step=epoch.epoch, summary=Summary(value=values))
