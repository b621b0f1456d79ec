"""Reading and checking of checkpoints that may be corrupt, truncated or not ours."""

import io
import os
import pickle
import re
import sys
import zipfile
from collections.abc import Sequence, Set
from dataclasses import dataclass
from typing import Any, cast

import torch
from pydantic import TypeAdapter, ValidationError
from torch import Tensor

from raylab.arc.models import build_model
from raylab.arc.models.base import GridModel
from raylab.arc.seen import Seen, TaskSet
from raylab.bounded import opened_zip
from raylab.config.models import CustomConfig, ModelConfig
from raylab.errors import CheckpointError, DataError
from raylab.files import Place

CHECKPOINTS = "checkpoints"
"""Directory of a run that holds one directory per checkpoint."""
CHECKPOINT_FILE = "checkpoint.ckpt"
PREFIX = "model."
CHECKPOINT_BYTES = 1 << 32
LONGEST_REASON = 300
SEEN = ("trained_on", "chosen_on")
"""Fields of `Seen`, under the names that they have in files."""


WHOLE = (
    *("epoch", "global_step", "loops", "callbacks", "optimizer_states", "lr_schedulers"),
    "state_dict",
)
"""What Lightning writes of a training that goes on exactly."""
OTHER = "restore it from a copy, or start another run with init_from= an earlier checkpoint"


@dataclass(frozen=True)
class Training:
    """A training that goes on from a checkpoint.

    Attributes:
        run_id: Id of its run.
        config_hash: Hash of its configuration.
        seen: The tasks that it is made with.
        callbacks: Keys of the callbacks that have a state.
        shapes: Shapes of the weights, in the optimiser's order.
    """

    run_id: str | None
    config_hash: str
    seen: Seen
    callbacks: Set[str]
    shapes: Sequence[torch.Size]


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
    seen: Seen
    """The tasks that it was made with."""


def read_checkpoint(location: "str | os.PathLike[str] | Place") -> Checkpoint:
    """Reads model configuration and weights; nothing in the file is executed.

    Args:
        location: path, URI or place of the file.

    Raises:
        CheckpointError: the file is missing, truncated or corrupt, holds more than tensors and
            plain values, or was not written by raylab.
    """
    file = Place.at(location)
    return _parse(str(file), _as_torch(file, _content(file, CHECKPOINT_BYTES)))


def read_training(file: Place, wanted: Training) -> dict[str, Any]:
    """Returns what a training goes on from, in a file as it left it; nothing in it is executed.

    Raises:
        CheckpointError: The file is not whole, or of another run, configuration or split.
    """
    content = _as_torch(file, _content(file, CHECKPOINT_BYTES))
    _require_training(file, content, wanted)
    return cast("dict[str, Any]", content)


def load_tensors(file: Place, most: int) -> dict[str, Tensor]:
    """Reads a file of plain tensors by name; nothing in it is executed.

    Args:
        file: the file.
        most: bytes beyond which it is refused.

    Raises:
        CheckpointError: the file is missing or corrupt, or holds anything else.
    """
    content = _as_torch(file, _content(file, most))
    if not isinstance(content, dict):
        raise CheckpointError(f"{file} holds no tensors by name")
    named = cast("dict[object, object]", content).items()
    return {str(name): _tensor(str(file), str(name), tensor) for name, tensor in named}


def _content(file: Place, most: int) -> bytes:
    try:
        return file.read(most)
    except DataError as error:
        raise CheckpointError(f"checkpoint {error}: take another checkpoint of the run") from error


def _as_torch(file: Place, content: bytes) -> object:
    try:
        return _loaded(content, str(file))
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
        raise _of_another_model(checkpoint, reason) from error


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
    return Checkpoint(uri, model, weights, Seen(*(_task_set(uri, own, name) for name in SEEN)))


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


def seen_content(seen: Seen) -> dict[str, object]:
    """Returns what a checkpoint file holds of the tasks that a model was made with."""
    content: dict[str, object] = {}
    for name in SEEN:
        tasks: TaskSet = getattr(seen, name)
        content[name] = sorted(tasks.ids)
        content[f"{name}_pairs"] = torch.tensor(sorted(tasks.pairs), dtype=torch.int64)
    return content


def _task_set(uri: str, own: dict[object, object], name: str) -> TaskSet:
    ids, pairs = own.get(name), _tensor(uri, f"{name}_pairs", own.get(f"{name}_pairs"))
    if not isinstance(ids, list) or pairs.dtype != torch.int64 or pairs.dim() != 1:
        raise CheckpointError(f"{uri} was not written by raylab: {name} is no list of tasks")
    listed = map(str, cast("list[object]", ids))
    return TaskSet(frozenset(listed), frozenset(pairs.tolist()))


# What a training goes on with.


def _require_training(file: Place, content: object, wanted: Training) -> None:
    """Refuses what Lightning would restore in part, wrongly or by a crash."""
    checkpoint = _parse(str(file), content)
    whole = cast("dict[str, Any]", content)
    own = whole["raylab"]
    for key, what in (("run_id", "run"), ("config_hash", "configuration")):
        if own.get(key) != getattr(wanted, key):
            raise CheckpointError(
                f"{file} is of another {what} ({own.get(key)!r}): put back the checkpoint of this "
                "run, or start another run with init_from= that file"
            )
    if checkpoint.seen.trained_on.ids != wanted.seen.trained_on.ids:
        raise CheckpointError(
            f"{file} was trained on {len(checkpoint.seen.trained_on.ids)} tasks, and now it would "
            f"be {len(wanted.seen.trained_on.ids)} or others: set data= as the run began with it"
        )
    if lacking := [key for key in WHOLE if key not in whole]:
        raise CheckpointError(f"{file} is not whole, it lacks {', '.join(lacking)}: {OTHER}")
    if lacking := sorted(key for key in wanted.callbacks if not whole["callbacks"].get(key)):
        raise CheckpointError(f"{file} is not whole, it lacks {lacking[0]}: {OTHER}")
    if _epochs_of(whole["loops"]) != whole["epoch"] + 1:
        raise CheckpointError(f"{file} is not whole, its loops are of another epoch: {OTHER}")
    _require_optimiser(file, whole["optimizer_states"], wanted.shapes)


def _epochs_of(loops: Any) -> int | None:
    """Returns the epochs that Lightning's loops have processed; None if they do not tell."""
    try:
        return loops["fit_loop"]["epoch_progress"]["current"]["processed"]
    except (KeyError, TypeError):
        return None


def _require_optimiser(file: Place, states: Any, shapes: Sequence[torch.Size]) -> None:
    """Refuses the state of an optimiser of other weights, by which its kernels would crash."""
    wrong = CheckpointError(f"{file} has an optimiser's state of other weights: {OTHER}")
    try:
        (state,) = states
        moments = {index: list(of.values()) for index, of in state["state"].items()}
        groups = sum(len(group["params"]) for group in state["param_groups"])
        fits = all(
            tensor.dim() == 0 or tensor.shape == shapes[index]
            for index, tensors in moments.items()
            for tensor in tensors
            if isinstance(tensor, Tensor)
        )
    except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
        raise wrong from error
    if groups != len(shapes) or not moments or not fits:
        raise wrong
