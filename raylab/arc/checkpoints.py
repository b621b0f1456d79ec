"""Reading and checking of checkpoints that may be corrupt, truncated or not ours."""

import io
import os
import pickle
import re
import sys
import zipfile
from dataclasses import dataclass
from typing import cast

import torch
from pydantic import TypeAdapter, ValidationError
from torch import Tensor

from raylab.arc.data.tasks import MAX_SIDE
from raylab.arc.models.base import GridModel, build_model
from raylab.arc.seen import Seen, TaskSet
from raylab.bounded import opened_zip
from raylab.config.models import (
    ChampionConfig,
    CustomConfig,
    DecoderOnlyConfig,
    EncoderDecoderConfig,
    ModelConfig,
)
from raylab.errors import CheckpointError, DataError
from raylab.files import Place

CHECKPOINTS = "checkpoints"
"""Directory of a run that holds one directory per checkpoint."""
CHECKPOINT_FILE = "checkpoint.ckpt"
PREFIX = "model."
SIZE_CODE = "size_code.table"
"""Weight that tells the size of the output; checkpoints of earlier versions lack it."""
CHECKPOINT_BYTES = 1 << 32
PUBLISHED = (ChampionConfig, EncoderDecoderConfig, DecoderOnlyConfig)
"""The architectures that have checkpoints of earlier versions."""
LONGEST_REASON = 300
SEEN = ("trained_on", "chosen_on")
"""Fields of `Seen`, under the names that they have in files."""


def checkpoint_name(epoch: int) -> str:
    """Returns the directory of the checkpoint after `epoch`, counted from 1."""
    return f"epoch-{epoch:04d}"


def epoch_of(name: str) -> int | None:
    """Returns the epoch of a checkpoint by the name of its directory; None for another name."""
    named = re.fullmatch(r"epoch-(\d{4,})", name)
    return named and int(named[1])


def checkpoint_path(epoch: int) -> str:
    """Returns the file of the checkpoint after `epoch`, relative to the run directory."""
    return f"{CHECKPOINTS}/{checkpoint_name(epoch)}/{CHECKPOINT_FILE}"


@dataclass(frozen=True)
class Checkpoint:
    """A trained model, read from a file."""

    uri: str
    model: ModelConfig
    weights: dict[str, Tensor]
    seen: Seen | None
    """The tasks that it was made with; None if the file does not record them."""
    run_id: str | None = None
    """Id of the run that trained it; None if the file does not record it."""


def read_checkpoint(location: "str | os.PathLike[str] | Place") -> Checkpoint:
    """Reads model configuration and weights; nothing in the file is executed.

    Args:
        location: path, URI or place of the file.

    Raises:
        CheckpointError: the file is missing, truncated or corrupt, holds more than tensors and
            plain values, or was not written by raylab.
    """
    file = Place.at(location)
    content = _read_torch(file, CHECKPOINT_BYTES)
    return _parse(str(file), content)


def load_tensors(file: Place, most: int) -> dict[str, Tensor]:
    """Reads a file of plain tensors by name; nothing in it is executed.

    Args:
        file: the file.
        most: bytes beyond which it is refused.

    Raises:
        CheckpointError: the file is missing or corrupt, or holds anything else.
    """
    content = _read_torch(file, most)
    if not isinstance(content, dict):
        raise CheckpointError(f"{file} holds no tensors by name")
    named = cast("dict[object, object]", content).items()
    return {str(name): _tensor(str(file), str(name), tensor) for name, tensor in named}


def _read_torch(file: Place, most: int) -> object:
    try:
        return _loaded(file.read(most), str(file))
    except DataError as error:
        raise CheckpointError(f"checkpoint {error}: take another checkpoint of the run") from error
    except pickle.UnpicklingError as error:
        raise CheckpointError(
            f"{file} is corrupt or holds objects that are not plain tensors and values, and "
            "loading it could run foreign code: use a checkpoint written by raylab"
        ) from error
    # What torch raises for a damaged or crafted file has no common type.
    except Exception as error:
        reason = f"{type(error).__name__}: {error}".partition("\n")[0][:LONGEST_REASON]
        raise CheckpointError(
            f"{file} cannot be read, it is truncated or no checkpoint ({reason}): "
            "take another checkpoint of the run"
        ) from error


def _loaded(content: bytes, where: str) -> object:
    """Returns what torch reads from a file of which every byte is checked first."""
    stream = io.BytesIO(content)
    with opened_zip(stream, where) as archive:
        members = archive.infolist()
        # As torch writes them. So what is read is no larger than the file.
        if any(member.compress_type != zipfile.ZIP_STORED for member in members) or (
            sum(member.file_size for member in members) > len(content)
        ):
            raise zipfile.BadZipFile("its members are compressed or overlap")
        damaged = archive.testzip()
        if damaged is not None:
            raise zipfile.BadZipFile(f"wrong checksum of {damaged}")
    stream.seek(0)
    return torch.load(stream, map_location="cpu", weights_only=True)


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


def restored(checkpoint: Checkpoint) -> GridModel:
    """Returns the model of a checkpoint with its weights.

    Raises:
        CheckpointError: The weights are not those of the model that the checkpoint names, or it
            names a class that no configuration does.
    """
    if isinstance(checkpoint.model, CustomConfig):
        _refuse_foreign_class(checkpoint.uri, checkpoint.model.target)
    layers = [size for key, size in checkpoint.model.sizes().items() if key.endswith("layers")]
    # Without its memory the model is built in no time, unless it has too many layers.
    if sum(layers) > len(checkpoint.weights):
        raise _of_another_model(checkpoint, f"{sum(layers)} layers")
    with torch.device("meta"):
        outline = build_model(checkpoint.model).state_dict()
    for name in sorted(outline.keys() | checkpoint.weights.keys()):
        wanted, given = outline.get(name), checkpoint.weights.get(name)
        if wanted is None or given is None or wanted.shape != given.shape:
            raise _of_another_model(checkpoint, name)
    model = build_model(checkpoint.model)
    load_weights(model, checkpoint.model, checkpoint)
    return model


def _refuse_foreign_class(uri: str, target: str) -> None:
    """Refuses a class that nothing has imported: a file must not choose what code is run."""
    if target.partition(":")[0] not in sys.modules:
        raise CheckpointError(
            f"{uri} is of the model class {target}, which is imported only if it is named: set "
            f"scoring.model_classes=[{target}] if its code is to be run"
        )


def _of_another_model(checkpoint: Checkpoint, what: str) -> CheckpointError:
    return CheckpointError(
        f"{checkpoint.uri} does not hold the weights of the model it names: {what}"
    )


def _parse(uri: str, content: object) -> Checkpoint:
    foreign = CheckpointError(f"{uri} was not written by raylab: it names no raylab model")
    fields = cast("dict[object, object]", content) if isinstance(content, dict) else {}
    own, state = fields.get("raylab"), fields.get("state_dict")
    if not isinstance(own, dict) or not isinstance(state, dict) or "model" not in own:
        raise foreign
    own = cast("dict[object, object]", own)
    try:
        model = TypeAdapter[ModelConfig](ModelConfig).validate_python(own["model"])
    except ValidationError as error:
        raise CheckpointError(
            f"{uri} holds a model that this version of raylab does not know: "
            f"{str(error)[:LONGEST_REASON]}"
        ) from error
    weights = {
        name.removeprefix(PREFIX): _tensor(uri, name, tensor)
        for name, tensor in cast("dict[object, object]", state).items()
        if isinstance(name, str) and name.startswith(PREFIX)
    }
    weights = _told_sizes(model, weights)
    run_id = own.get("run_id")
    return Checkpoint(
        uri,
        model,
        weights,
        _seen(uri, own),
        run_id if isinstance(run_id, str) else None,
    )


def _told_sizes(model: ModelConfig, weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Returns the weights with a size code of zeros if they are from before models were told sizes.

    With zeros the model computes what it computed before.
    """
    colours = weights.get("colours.weight")
    if SIZE_CODE in weights or colours is None or not isinstance(model, PUBLISHED):
        return weights
    if colours.shape[1:] != (model.d_model,):
        return weights
    return {**weights, SIZE_CODE: colours.new_zeros(2, MAX_SIDE, model.d_model)}


def _tensor(uri: str, name: str, value: object) -> Tensor:
    """Checks that a weight is plain numbers, each of them in the file."""
    if (
        not isinstance(value, Tensor)
        or value.layout != torch.strided
        or value.device.type != "cpu"
        or value.is_quantized
        or value.nbytes > value.untyped_storage().nbytes()
    ):
        raise CheckpointError(f"{uri} was not written by raylab: {name[:60]!r} is no plain tensor")
    return value


def seen_content(seen: Seen | None) -> dict[str, object]:
    """Returns what a checkpoint file holds of the tasks that a model was made with."""
    if seen is None:
        return {}
    content: dict[str, object] = {}
    for name in SEEN:
        tasks: TaskSet = getattr(seen, name)
        content[name] = sorted(tasks.ids)
        content[f"{name}_pairs"] = torch.tensor(sorted(tasks.pairs), dtype=torch.int64)
    return content


def _seen(uri: str, own: dict[object, object]) -> Seen | None:
    if not isinstance(own.get("trained_on"), list):
        return None
    return Seen(*(_task_set(uri, own, name) for name in SEEN))


def _task_set(uri: str, own: dict[object, object], name: str) -> TaskSet:
    ids, pairs = own.get(name), own.get(f"{name}_pairs")
    listed = cast("list[object]", ids) if isinstance(ids, list) else []
    known = torch.empty(0) if pairs is None else _tensor(uri, f"{name}_pairs", pairs)
    return TaskSet(frozenset(map(str, listed)), frozenset(map(int, known.flatten().tolist())))
