"""Reading and checking of checkpoints that may be corrupt, truncated or not ours."""

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
"""Directory of a run that holds one directory per checkpoint."""
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
"""Errors that zipfile and torch raise for damaged files and files that are no checkpoints."""


def checkpoint_name(epoch: int) -> str:
    """Returns the directory of the checkpoint after `epoch`, counted from 1."""
    return f"epoch-{epoch:04d}"


def checkpoint_path(epoch: int) -> str:
    """Returns the file of the checkpoint after `epoch`, relative to the run directory."""
    return f"{CHECKPOINTS}/{checkpoint_name(epoch)}/{CHECKPOINT_FILE}"


@dataclass(frozen=True)
class Checkpoint:
    """A trained model, read from a file."""

    uri: str
    model: ModelConfig
    weights: dict[str, Tensor]
    trained_on: frozenset[str] | None
    """Ids of the tasks it was trained on; None if the file does not record it."""
    run_id: str | None = None
    """Id of the run that trained it; None if the file does not record it."""


def read_checkpoint(location: str | os.PathLike[str]) -> Checkpoint:
    """Reads model configuration and weights; nothing in the file is executed.

    Args:
        location: path or URI of the file.

    Raises:
        CheckpointError: the file is missing, truncated or corrupt, holds more than tensors and
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
    """Copies the weights of `checkpoint` into `model`, built from `config`.

    Raises:
        CheckpointError: the checkpoint is of another model; the message names the differences.
    """
    theirs, ours = checkpoint.model.sizes(), config.sizes()
    differences = [
        f"{key}={theirs.get(key)} (here {ours.get(key)})"
        for key in sorted(theirs.keys() | ours.keys())
        if theirs.get(key) != ours.get(key)
    ]
    if differences:
        raise CheckpointError(
            f"{checkpoint.uri} is of another model: {', '.join(differences)}; set model= and "
            "its keys as in the checkpoint"
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
