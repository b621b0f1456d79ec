"""Checkpoints that were altered or crafted: they are refused with a typed error."""

import io
import zipfile
from collections import OrderedDict
from pathlib import Path
from typing import Any, cast

import pytest
import torch

from raylab.arc.checkpoints import ModelOrigin, read_checkpoint, restore_model
from raylab.arc.config.models import DecoderOnlyConfig
from raylab.arc.data.content import Seen, TaskSet
from raylab.arc.models import build_model
from raylab.core.errors import CheckpointError
from tests.arc.conftest import SMALL_MODELS
from tests.fuzzing import try_altered
from tests.memory import MIB, memory

MODEL = cast("DecoderOnlyConfig", SMALL_MODELS["decoder_only"])


def content(**model: Any) -> dict[str, Any]:
    weights = build_model(MODEL).state_dict()
    seen = Seen(TaskSet(frozenset({"a"}), frozenset({-(2**63), 2**63 - 1})))
    origin = ModelOrigin(model=MODEL, seen=seen, run_id="r").model_dump(mode="json")
    return {
        "state_dict": {f"model.{name}": tensor for name, tensor in weights.items()},
        "raylab": origin | {"model": origin["model"] | model},
    }


def saved(value: object) -> bytes:
    file = io.BytesIO()
    torch.save(value, file)
    return file.getvalue()


def read(path: Path, given: bytes) -> None:
    path.write_bytes(given)
    restore_model(read_checkpoint(path))


CRAFTED: dict[str, Any] = {
    "no state": {"raylab": content()["raylab"]},
    "raylab is a text": content() | {"raylab": "model"},
    "keys are numbers": content() | {"state_dict": {1: torch.zeros(1)}},
    "weights are numbers": content() | {"state_dict": {"model.output.bias": 1}},
    "another architecture": content(architecture="perceptron"),
    "a model larger than its weights": content(d_ff=10**9),
    "no weights": content() | {"state_dict": OrderedDict()},
    "pairs are no numbers": content()
    | {"raylab": content()["raylab"] | {"seen": {"trained_on": {"ids": [], "pairs": [1.5]}}}},
}


@pytest.mark.parametrize("value", CRAFTED.values(), ids=CRAFTED)
def test_a_checkpoint_of_another_shape_is_refused(tmp_path: Path, value: Any) -> None:
    with memory(512 * MIB), pytest.raises(CheckpointError, match=r"x\.ckpt"):
        read(tmp_path / "x.ckpt", saved(value))


def with_pickle(opcodes: bytes) -> bytes:
    """A checkpoint whose values are these opcodes."""
    file = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(saved(content()))) as whole, zipfile.ZipFile(file, "w") as made:
        for member in whole.infolist():
            is_pickle = member.filename.endswith("data.pkl")
            made.writestr(member.filename, opcodes if is_pickle else whole.read(member))
    return file.getvalue()


def test_altered_checkpoints_give_models_or_typed_errors(tmp_path: Path) -> None:
    def read_pickle(opcodes: bytes) -> None:
        read(tmp_path / "x.ckpt", with_pickle(opcodes))

    unaltered = content()
    whole = saved(unaltered)
    with zipfile.ZipFile(io.BytesIO(whole)) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith("data.pkl"))
        opcodes = archive.read(name)
    # With its own checksum: what is altered reaches the unpickler.
    try_altered([opcodes], read_pickle, CheckpointError)

    def read_saved(given: bytes) -> None:
        (tmp_path / "x.ckpt").write_bytes(given)
        checkpoint = read_checkpoint(tmp_path / "x.ckpt")
        for name, weight in restore_model(checkpoint).state_dict().items():
            assert torch.equal(weight, unaltered["state_dict"][f"model.{name}"])

    try_altered([whole], read_saved, CheckpointError)
