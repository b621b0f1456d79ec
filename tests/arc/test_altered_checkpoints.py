"""Checkpoints that were altered or crafted: they are refused with a typed error."""

import io
import zipfile
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from torch import Tensor

from raylab.arc.checkpoints import ModelOrigin, digest, read_checkpoint, restore_model
from raylab.arc.config.models import DecoderOnlyConfig
from raylab.arc.data.content import Seen, TaskSet
from raylab.arc.models import build_model
from raylab.arc.training.loop import CheckpointFiles
from raylab.core.errors import CheckpointError
from tests.fuzzing import try_altered
from tests.memory import MIB, memory


def content(**model: Any) -> dict[str, Any]:
    """A checkpoint that makes a model, with other values in its configuration."""
    torch.manual_seed(0)
    config = DecoderOnlyConfig(d_model=4, d_ff=3, heads=2, layers=1)
    seen = Seen(TaskSet(frozenset({"a"}), frozenset({-(2**63), 2**63 - 1})))
    origin = ModelOrigin(schema_version=1, model=config, seen=seen, run_id="r")
    raylab = origin.model_dump(mode="json")
    return {
        "state_dict": {f"model.{name}": w for name, w in build_model(config).state_dict().items()},
        "raylab": raylab | {"model": raylab["model"] | model},
    }


def training() -> dict[str, Any]:
    """A checkpoint with all that a training continues with."""
    moments = {"step": torch.tensor(8.0), "exp_avg": torch.ones(3, 2), "exp_avg_sq": torch.ones(3)}
    return content() | {
        "epoch": 1,
        "global_step": 8,
        "loops": {"fit_loop": {"epoch_progress": {"current": {"completed": 2}}}},
        "callbacks": {"EarlyStopping": {"wait_count": 1, "best_score": torch.tensor(0.5)}},
        "optimizer_states": [{"state": {0: moments}, "param_groups": [{"lr": 0.1, "params": [0]}]}],
        "lr_schedulers": [{"T_0": 6, "last_epoch": 2, "_last_lr": [0.1]}],
        "current_model_state": {name: w + 1 for name, w in content()["state_dict"].items()},
    }


def saved(value: object, **how: Any) -> bytes:
    file = io.BytesIO()
    torch.save(value, file, **how)
    return file.getvalue()


def with_pickle(opcodes: bytes) -> bytes:
    """A checkpoint whose values are these opcodes, with their own checksum."""
    file = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(saved(content()))) as whole, zipfile.ZipFile(file, "w") as made:
        for member in whole.infolist():
            is_pickle = member.filename.endswith("data.pkl")
            made.writestr(member.filename, opcodes if is_pickle else whole.read(member))
    return file.getvalue()


def damaged(value: Any) -> Iterator[Any]:
    """Copies in which one part is missing, or has another value, form or type."""
    if isinstance(value, Tensor):
        yield from (value * torch.nan, value.double(), value.flatten()[1:])
        yield from (value.to("meta"), value.to_sparse())
    elif isinstance(value, dict | list):
        parts = dict(value.items() if isinstance(value, dict) else enumerate(value))
        # One weight stands for all.
        is_weights = len(parts) > 3 and all(isinstance(part, Tensor) for part in parts.values())
        for key in [*parts][:1] if is_weights else parts:
            for part in ("x", *damaged(parts[key])):
                changed = parts | {key: part}
                yield changed if isinstance(value, dict) else [*changed.values()]
            rest = {name: part for name, part in parts.items() if name != key}
            yield rest if isinstance(value, dict) else [*rest.values()]
        if isinstance(value, dict):
            yield parts | {"x": torch.zeros(1)}
    else:
        yield from (f"{value} ", 9)


def check_refused(path: Path, weights: Mapping[str, Tensor]) -> None:
    """No training goes on with the file; whoever takes its model gets its weights, or none."""
    with pytest.raises(CheckpointError, match=r"x\.ckpt") as caught:
        CheckpointFiles().load_checkpoint(path)
    assert len(str(caught.value).splitlines()) == 1
    try:
        model = restore_model(read_checkpoint(path)).state_dict()
    except CheckpointError as error:
        assert "x.ckpt" in str(error)
        return
    assert all(torch.equal(weight, weights[f"model.{name}"]) for name, weight in model.items())


def test_a_checkpoint_of_a_run_is_read_whole_or_refused_in_one_sentence(tmp_path: Path) -> None:
    path = tmp_path / "x.ckpt"
    CheckpointFiles().save_checkpoint(training(), path)
    whole = path.read_bytes()
    assert digest(CheckpointFiles().load_checkpoint(path)) == digest(training())
    written = cast("dict[str, Any]", torch.load(io.BytesIO(whole), weights_only=True))
    one_bit = whole.replace(b"\x00\x00\x80\x3f", b"\x00\x00\x80\x3e", 1)
    legacy = saved(training(), _use_new_zipfile_serialization=False)
    for wrong in (b"", b"weights", whole[: len(whole) // 2], whole[:-1], one_bit, legacy):
        path.write_bytes(wrong)
        check_refused(path, written["state_dict"])
    values = [*damaged(written)]
    assert len(values) > 200
    for value in ([1, 2], training(), *values):
        path.write_bytes(saved(value))
        check_refused(path, written["state_dict"])


@pytest.mark.parametrize(
    "changes",
    [
        {"state_dict": OrderedDict()},
        {"state_dict": {1: torch.zeros(1)}},
        {"raylab": content(architecture="perceptron")["raylab"]},
        {"raylab": content(architecture="champion")["raylab"]},
        {"raylab": content(d_model=1 << 14, d_ff=1 << 14)["raylab"]},
        {"raylab": content()["raylab"] | {"seen": {"trained_on": {"ids": [], "pairs": [1.5]}}}},
    ],
    ids="no weights,numbers as keys,no architecture,another one,too large,no pairs".split(","),
)
def test_a_crafted_checkpoint_gives_no_model(tmp_path: Path, changes: dict[str, Any]) -> None:
    path = tmp_path / "x.ckpt"
    path.write_bytes(saved(content() | changes))
    with memory(512 * MIB), pytest.raises(CheckpointError, match=r"x\.ckpt"):
        restore_model(read_checkpoint(path))


def test_altered_checkpoints_give_models_or_typed_errors(tmp_path: Path) -> None:
    unaltered, path = content(), tmp_path / "x.ckpt"
    whole = saved(unaltered)
    with zipfile.ZipFile(io.BytesIO(whole)) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith("data.pkl"))
        opcodes = archive.read(name)

    def read(given: bytes) -> dict[str, Tensor]:
        path.write_bytes(given)
        return restore_model(read_checkpoint(path)).state_dict()

    def read_unaltered(given: bytes) -> None:
        for name, weight in read(given).items():
            assert torch.equal(weight, unaltered["state_dict"][f"model.{name}"])

    try_altered([whole], read_unaltered, CheckpointError)
    # What is altered reaches the unpickler.
    try_altered([opcodes], lambda given: read(with_pickle(given)), CheckpointError)
