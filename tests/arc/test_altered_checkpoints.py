"""Checkpoints that were altered or crafted: they are refused with a typed error."""

import io
import pickle
import zipfile
from collections import OrderedDict
from pathlib import Path
from typing import Any, cast

import pytest
import torch

from raylab.arc.checkpoints import read_checkpoint, restored, seen_content
from raylab.arc.models import build_model
from raylab.arc.seen import Seen, TaskSet
from raylab.config.models import DecoderOnlyConfig
from raylab.errors import CheckpointError
from tests.arc.conftest import SMALL_MODELS
from tests.fuzzing import try_altered
from tests.memory import MIB, memory

MODEL = cast("DecoderOnlyConfig", SMALL_MODELS["decoder_only"])


def content(model: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    weights = build_model(MODEL).state_dict()
    return {
        "state_dict": {f"model.{name}": tensor for name, tensor in weights.items()},
        "raylab": {
            "model": MODEL.model_dump(mode="json") | (model or {}),
            **seen_content(Seen(TaskSet(frozenset({"a"}), frozenset({7})))),
            "run_id": "r",
        },
        **more,
    }


def saved(value: object) -> bytes:
    file = io.BytesIO()
    torch.save(value, file)
    return file.getvalue()


def read(path: Path, given: bytes) -> None:
    path.write_bytes(given)
    restored(read_checkpoint(path))


def test_a_checkpoint_is_restored(tmp_path: Path) -> None:
    whole = content()
    (tmp_path / "x.ckpt").write_bytes(saved(whole))
    weights = restored(read_checkpoint(tmp_path / "x.ckpt")).state_dict()
    assert all(
        torch.equal(weights[k.removeprefix("model.")], v) for k, v in whole["state_dict"].items()
    )


@pytest.mark.parametrize(
    "model",
    [
        {"layers": 10**6},
        {"layers": 10**30},
        {"d_ff": 10**6},
        {"d_ff": 10**15},
        {"d_model": 2 * 10**6, "heads": 1},
        {"demonstrations": 10**9},
    ],
)
def test_a_model_that_is_larger_than_its_weights_is_never_built(
    tmp_path: Path, model: dict[str, int]
) -> None:
    given = saved(content(model))
    with memory(512 * MIB), pytest.raises(CheckpointError, match=r"x\.ckpt"):
        read(tmp_path / "x.ckpt", given)


SPREAD = torch.zeros(1).expand(10**6, 10**6)
SPARSE = torch.ones(10).to_sparse()
CRAFTED: dict[str, Any] = {
    "a list": [1, 2],
    "no state": {"raylab": {"model": {}}},
    "raylab is a text": content() | {"raylab": "model"},
    "raylab is a tensor": content() | {"raylab": torch.zeros(3)},
    "raylab is a list": content() | {"raylab": [1]},
    "the model is a list": content() | {"raylab": {"model": [1]}},
    "the model is a tensor": content() | {"raylab": {"model": torch.zeros(3)}},
    "keys are numbers": content() | {"state_dict": {1: torch.zeros(1)}},
    "weights are numbers": content() | {"state_dict": {"model.output.bias": 1}},
    "a weight spread out": content() | {"state_dict": {"model.output.bias": SPREAD}},
    "a weight without numbers": content()
    | {"state_dict": {"model.output.bias": torch.zeros(10, device="meta")}},
    "a sparse weight": content() | {"state_dict": {"model.output.bias": SPARSE}},
    "another architecture": content({"architecture": "perceptron"}),
    "a negative width": content({"d_model": -1}),
    "no weights": content() | {"state_dict": OrderedDict()},
    "no tasks": content() | {"raylab": {"model": MODEL.model_dump(mode="json")}},
    **{
        f"pairs are {value}": content()
        | {"raylab": content()["raylab"] | {"trained_on_pairs": value}}
        for value in (*map(torch.tensor, ([torch.nan], [torch.inf], [1j])), SPARSE, [1, 2])
    },
}


@pytest.mark.parametrize("value", CRAFTED.values(), ids=CRAFTED)
def test_a_checkpoint_of_another_shape_is_refused(tmp_path: Path, value: Any) -> None:
    with memory(512 * MIB), pytest.raises(CheckpointError, match=r"x\.ckpt"):
        read(tmp_path / "x.ckpt", saved(value))


def with_pickle(opcodes: bytes, method: int = zipfile.ZIP_STORED) -> bytes:
    """A checkpoint whose values are these opcodes."""
    file = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(saved(content()))) as whole, zipfile.ZipFile(file, "w") as made:
        for member in whole.infolist():
            is_pickle = member.filename.endswith("data.pkl")
            made.writestr(
                member.filename, opcodes if is_pickle else whole.read(member), compress_type=method
            )
    return file.getvalue()


@pytest.mark.parametrize(
    "opcodes",
    [
        b"",
        b"\x80\x02",
        b"\x80\x02.",
        b"\x80\x02K",
        b"\x80\x02X\xff",
        b"\x80\x02s.",
        b"\x80\x02h\x07.",
        b"\x80\x02Q.",
        b"\x80\x02K\x01Q.",
        b"\x80\x02(K\x01tQ.",
        b"\x80\x02cbuiltins\nbytearray\n\x8a\x08\0\0\0\0\0\1\0\0\x85R.",
        b"\x80\x02" + b"(" * 10**5 + b"l" * 10**5 + b".",
        pickle.dumps(print),
    ],
)
def test_crafted_pickles_are_refused(tmp_path: Path, opcodes: bytes) -> None:
    with memory(), pytest.raises(CheckpointError, match=r"x\.ckpt"):
        read(tmp_path / "x.ckpt", with_pickle(opcodes))


def test_a_compressed_checkpoint_is_refused(tmp_path: Path) -> None:
    given = with_pickle(b"\x80\x02" + bytes(16 * MIB), zipfile.ZIP_DEFLATED)
    with memory(), pytest.raises(CheckpointError, match="its members are compressed"):
        read(tmp_path / "x.ckpt", given)


def test_altered_checkpoints_give_models_or_typed_errors(tmp_path: Path) -> None:
    def read_pickle(opcodes: bytes) -> None:
        read(tmp_path / "x.ckpt", with_pickle(opcodes))

    whole = saved(content())
    with zipfile.ZipFile(io.BytesIO(whole)) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith("data.pkl"))
        opcodes = archive.read(name)
    # With its own checksum: what is altered reaches the unpickler.
    try_altered([opcodes], read_pickle, CheckpointError)
    try_altered([whole], lambda given: read(tmp_path / "x.ckpt", given), CheckpointError)
