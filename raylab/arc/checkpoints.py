"""Checkpoints: what raylab adds to Lightning's files, and how they are read."""

import hashlib
import io
import pickle
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeVar, cast

import torch
from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError
from torch import Tensor

from raylab.arc.config.models import CustomConfig, ModelConfig
from raylab.arc.data.content import Seen
from raylab.arc.models import build_model
from raylab.arc.models.base import GridModel
from raylab.core.bounded import open_zip
from raylab.core.errors import CheckpointError, DataError
from raylab.core.files import Place

CHECKPOINTS = "checkpoints"
"""Directory of a run that holds one directory per checkpoint."""
CHECKPOINT_FILE = "checkpoint.ckpt"
PREFIX = "model."
MAX_BYTES = 1 << 32
MAX_REASON = 300
DIGEST = "digest"
"""Entry of a checkpoint with the `digest` of all others."""

T = TypeVar("T")


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
    seen: Seen
    """The tasks that it was trained and chosen on."""


class ModelOrigin(BaseModel):
    """The entry that raylab adds to a checkpoint: the model, and the training that made it."""

    schema_version: Literal[1]
    """Version of what raylab adds to a checkpoint and reads of it."""
    model: ModelConfig
    seen: Seen
    run_id: str | None = None
    """Id of the training run."""


class _Content(BaseModel):
    """The entries of a checkpoint file that make a model."""

    model_config = ConfigDict(arbitrary_types_allowed=True)

    raylab: ModelOrigin
    state_dict: dict[str, Tensor]


CONTENT = TypeAdapter(_Content)
TENSORS = TypeAdapter(dict[str, Tensor], config=ConfigDict(arbitrary_types_allowed=True))


def read_checkpoint(location: str | Place) -> Checkpoint:
    """Reads model configuration and weights; nothing in the file is executed.

    Raises:
        CheckpointError: The file is missing, truncated or corrupt, holds more than tensors and
            plain values, or NaN, or was not written by raylab.
    """
    file = Place.at(location)
    content = _validate(CONTENT, str(file), load_content(file))
    weights = {
        name.removeprefix(PREFIX): tensor
        for name, tensor in content.state_dict.items()
        if name.startswith(PREFIX)
    }
    for name, tensor in weights.items():
        if tensor.layout is not torch.strided or tensor.is_meta or tensor.is_quantized:
            raise CheckpointError(
                f"{file} holds no plain numbers in {name}: take another checkpoint"
            )
        if bool(tensor.isnan().any()):
            raise CheckpointError(
                f"{file} holds weights that are not numbers, NaN, in {name}: take another "
                "checkpoint of the run, one from before its loss became NaN"
            )
    return Checkpoint(str(file), content.raylab.model, weights, content.raylab.seen)


def load_training(file: Place) -> dict[str, Any]:
    """Reads a whole checkpoint, to continue its training, if it is as the run wrote it."""
    content = load_content(file)
    _validate(CONTENT, str(file), content)
    written = content.pop(DIGEST, None)
    # The zip's own checksums say nothing about a file that was written again: an empty optimiser
    # would go on silently, with other figures.
    try:
        is_whole = written == digest(content)
    # Not all tensors have values that can be hashed.
    except RuntimeError:
        is_whole = False
    if not is_whole:
        raise CheckpointError(
            f"{file} is not as the run wrote it: put the file back, or start another run with "
            "init_from= a checkpoint"
        )
    return content


def digest(value: object) -> str:
    """Returns a hash of plain values and tensors, whatever objects hold them."""
    hashed = hashlib.sha256()

    def add(value: object) -> None:
        if isinstance(value, Tensor):
            hashed.update(f"{value.dtype}{[*value.shape]}".encode())
            hashed.update(value.detach().cpu().flatten().view(torch.uint8).numpy().tobytes())
        elif isinstance(value, Mapping):
            add([*cast("Mapping[object, object]", value).items()])
        elif isinstance(value, list | tuple):
            values = cast("list[object]", value)
            hashed.update(f"{len(values)}:".encode())
            for each in values:
                add(each)
        else:
            hashed.update(f"{value!r};".encode())

    add(value)
    return hashed.hexdigest()


def load_tensors(file: Place, most: int) -> dict[str, Tensor]:
    """Reads a file of plain tensors by name, of at most `most` bytes; nothing in it is executed."""
    return _validate(TENSORS, str(file), load_content(file, most))


def load_content(file: Place, most: int = MAX_BYTES) -> Any:
    """Returns the tensors and plain values of a file, after checking its checksums."""
    try:
        stream = io.BytesIO(file.read(most))
        with open_zip(stream, str(file)) as archive:
            if damaged := archive.testzip():
                raise DataError(f"{file} is damaged: wrong checksum of {damaged}")
        stream.seek(0)
        return torch.load(stream, map_location="cpu", weights_only=True)
    except DataError as error:
        raise CheckpointError(f"checkpoint {error}: take another checkpoint of the run") from error
    except pickle.UnpicklingError as error:
        raise CheckpointError(
            f"{file} is corrupt or holds objects that are not plain tensors and values, and "
            "loading it could run foreign code: use a checkpoint written by raylab"
        ) from error
    # What torch and zipfile raise for a damaged file has no common type.
    except Exception as error:
        reason = f"{type(error).__name__}: {error}".partition("\n")[0][:MAX_REASON]
        raise CheckpointError(
            f"{file} cannot be read, it is truncated or no checkpoint ({reason}): "
            "take another checkpoint of the run"
        ) from error


def _validate(kind: TypeAdapter[T], uri: str, content: object) -> T:
    try:
        return kind.validate_python(content)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(map(str, first["loc"]))[:60]
        reason = "missing" if first["type"] == "missing" else first["msg"][:MAX_REASON]
        raise CheckpointError(
            f"{uri} is no checkpoint as this version of raylab writes it: {place}: {reason}: use "
            "one that it wrote"
        ) from error


def load_weights(model: GridModel, config: ModelConfig, checkpoint: Checkpoint) -> None:
    """Copies the weights of `checkpoint` into `model`, built from `config`.

    Those of another model are a `CheckpointError` that names the differences.
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
    _require_fit(model, checkpoint)
    model.load_state_dict(checkpoint.weights)


def restore_model(checkpoint: Checkpoint) -> GridModel:
    """Returns the model of a checkpoint with its weights, if they fit and its class is imported."""
    model = checkpoint.model
    # A file must not choose which code runs.
    if isinstance(model, CustomConfig) and model.target.partition(":")[0] not in sys.modules:
        raise CheckpointError(
            f"{checkpoint.uri} is of the model class {model.target}, and checkpoints import no "
            f"code: set scoring.model_classes=[{model.target}] if you trust it"
        )
    # Without memory first, so that a model larger than its weights is never built.
    with torch.device("meta"):
        _require_fit(build_model(model), checkpoint)
    network = build_model(model)
    network.load_state_dict(checkpoint.weights)
    return network


def _require_fit(model: GridModel, checkpoint: Checkpoint) -> None:
    if reason := misfit(model.state_dict(), checkpoint.weights):
        raise CheckpointError(
            f"{checkpoint.uri} does not hold the weights of the model it names: {reason}"
        )


def misfit(ours: Mapping[str, Tensor], theirs: Mapping[str, Tensor]) -> str | None:
    """Returns the first difference in names, shapes and types of weights; None without any."""
    for name in {**ours, **theirs}:
        saved, built = (
            f"{[*weights[name].shape]} {weights[name].dtype}" if name in weights else "missing"
            for weights in (theirs, ours)
        )
        if saved != built:
            return f"{name} is {saved} there, {built} in the model"
    return None
