"""Reading checkpoints that may be corrupt, truncated or not ours."""

import io
import os
import pickle
import zipfile
import zlib
from dataclasses import dataclass
from typing import Any, cast

import torch
from pydantic import TypeAdapter, ValidationError
from torch import Tensor

from raylab.arc.models.base import GridModel
from raylab.config.models import ModelConfig
from raylab.errors import CheckpointError, DataError
from raylab.files import Place

CHECKPOINTS = "checkpoints"
"""Directory of a run with one directory a checkpoint."""
CHECKPOINT_FILE = "checkpoint.ckpt"
PREFIX = "model."
READ_ERRORS = (
    RuntimeError,
    EOFError,
    ValueError,
    KeyError,
    IndexError,
    zipfile.BadZipFile,
    zlib.error,
)
"""What zipfile and torch raise for files that are not, or no longer, checkpoints."""


def checkpoint_name(epoch: int) -> str:
    """Directory of the checkpoint after `epoch`, counted from 1."""
    return f"epoch-{epoch:04d}"


def checkpoint_path(epoch: int) -> str:
    """The file of that checkpoint, relative to the run directory."""
    return f"{CHECKPOINTS}/{checkpoint_name(epoch)}/{CHECKPOINT_FILE}"


@dataclass(frozen=True)
class Checkpoint:
    """A trained model as read from a file."""

    uri: str
    model: ModelConfig
    weights: dict[str, Tensor]
    trained_on: frozenset[str] | None
    """Ids of the tasks it was trained on; None where the file does not tell."""
    run_id: str | None = None
    """Id of the run that trained it; None where the file does not tell."""


def read_checkpoint(location: str | os.PathLike[str]) -> Checkpoint:
    """Read model configuration and weights; nothing in the file is executed.

    Args:
        location: path or URI of the file.

    Raises:
        CheckpointError: no such file, or it is truncated, corrupt, holds more than tensors and
            plain values, or was not written by raylab.
    """
    file = Place.at(location)
    try:
        stream = io.BytesIO(file.read())
        damaged = zipfile.ZipFile(stream).testzip()
        if damaged is not None:
            raise zipfile.BadZipFile(f"wrong checksum of {damaged}")
        stream.seek(0)
        content = torch.load(stream, map_location="cpu", weights_only=True)
    except DataError as error:
        raise CheckpointError(f"checkpoint {error}") from error
    except pickle.UnpicklingError as error:
        raise CheckpointError(
            f"{file} is corrupt or holds objects that are not plain tensors and values, and "
            "loading it could run foreign code: use a checkpoint written by raylab"
        ) from error
    except READ_ERRORS as error:
        reason = str(error).partition("\n")[0]
        raise CheckpointError(
            f"{file} cannot be read, it is truncated or no checkpoint ({reason}): "
            "take another checkpoint of the run"
        ) from error
    return _parse(str(file), content)


def load_weights(model: GridModel, config: ModelConfig, checkpoint: Checkpoint) -> None:
    """Copy the weights of `checkpoint` into `model`, built from `config`.

    Raises:
        CheckpointError: names what differs when the checkpoint is of another model.
    """
    theirs, ours = checkpoint.model.sizes(), config.sizes()
    differences = [
        f"{key}={theirs.get(key)} (here {ours.get(key)})"
        for key in sorted(theirs.keys() | ours.keys())
        if theirs.get(key) != ours.get(key)
    ]
    if differences:
        raise CheckpointError(
            f"{checkpoint.uri} is of another model: {', '.join(differences)}; choose model= and "
            "its keys as the checkpoint has them"
        )
    try:
        model.load_state_dict(checkpoint.weights)
    except RuntimeError as error:
        reason = str(error).partition("\n")[2].strip().partition("\n")[0]
        raise CheckpointError(
            f"{checkpoint.uri} does not hold the weights of the model it names: {reason}"
        ) from error


def _parse(uri: str, content: object) -> Checkpoint:
    foreign = CheckpointError(f"{uri} was not written by raylab: it names no raylab model")
    fields = cast("dict[str, Any]", content)
    if not isinstance(content, dict) or not isinstance(fields.get("state_dict"), dict):
        raise foreign
    try:
        model = TypeAdapter[ModelConfig](ModelConfig).validate_python(fields["raylab"]["model"])
        state = cast("dict[str, Tensor]", fields["state_dict"])
    except (KeyError, TypeError) as error:
        raise foreign from error
    except ValidationError as error:
        raise CheckpointError(
            f"{uri} holds a model that this version of raylab does not know: {error}"
        ) from error
    weights = {
        name.removeprefix(PREFIX): tensor
        for name, tensor in state.items()
        if name.startswith(PREFIX)
    }
    tasks, run_id = (fields["raylab"].get(key) for key in ("trained_on", "run_id"))
    return Checkpoint(uri, model, weights, _task_ids(tasks), run_id)


def _task_ids(listed: object) -> frozenset[str] | None:
    if not isinstance(listed, list):
        return None
    return frozenset(str(id_) for id_ in cast("list[object]", listed))
