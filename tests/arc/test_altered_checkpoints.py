"""Checkpoints that were altered or crafted: they are refused with a typed error."""

import io
import zipfile
from collections import OrderedDict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast

import pytest
import torch

from raylab.arc.checkpoints import ModelOrigin, digest, read_checkpoint, restore_model
from raylab.arc.config.models import DecoderOnlyConfig
from raylab.arc.data.content import Seen, TaskSet
from raylab.arc.models import build_model
from raylab.arc.training.loop import CheckpointFiles
from raylab.core.errors import CheckpointError
from tests.arc.conftest import SMALL_MODELS
from tests.fuzzing import try_altered
from tests.memory import MIB, memory

MODEL = cast("DecoderOnlyConfig", SMALL_MODELS["decoder_only"])


def content(**model: Any) -> dict[str, Any]:
    torch.manual_seed(0)
    weights = build_model(MODEL).state_dict()
    seen = Seen(TaskSet(frozenset({"a"}), frozenset({-(2**63), 2**63 - 1})))
    origin = ModelOrigin(schema_version=1, model=MODEL, seen=seen, run_id="r").model_dump(
        mode="json"
    )
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


def training() -> dict[str, Any]:
    """A checkpoint with all that a training continues with."""
    weights = content()["state_dict"]
    moments = {"step": torch.tensor(8.0), "exp_avg": torch.ones(3, 2), "exp_avg_sq": torch.ones(3)}
    return content() | {
        "epoch": 1,
        "global_step": 8,
        "loops": {"fit_loop": {"epoch_progress": {"current": {"completed": 2}}}},
        "callbacks": {"EarlyStopping": {"wait_count": 1, "best_score": torch.tensor(0.5)}},
        "optimizer_states": [{"state": {0: moments}, "param_groups": [{"lr": 0.1, "params": [0]}]}],
        "lr_schedulers": [{"T_0": 6, "last_epoch": 2, "_last_lr": [0.1]}],
        "current_model_state": {name: weight + 1 for name, weight in weights.items()},
    }


def damaged(path: str, value: Any) -> dict[str, Any]:
    """The checkpoint of a training with a value, or the function of one, at a dotted path."""
    whole = torch.load(io.BytesIO(RUN), weights_only=True)
    *parents, last = (int(key) if key.isdigit() else key for key in path.split("."))
    at: Any = whole
    for key in parents:
        at = at[key]
    last = next(iter(at)) if last == "first" else last
    if value is None:
        del at[last]
    else:
        at[last] = value(at[last]) if callable(value) else value
    return whole


def run_checkpoint(value: dict[str, Any]) -> bytes:
    with TemporaryDirectory() as folder:
        path = Path(folder, "x.ckpt")
        CheckpointFiles().save_checkpoint(value, path)
        return path.read_bytes()


def legacy(value: object) -> bytes:
    file = io.BytesIO()
    torch.save(value, file, _use_new_zipfile_serialization=False)
    return file.getvalue()


RUN = run_checkpoint(training())
OPTIMISER, SCHEDULE = "optimizer_states.0", "lr_schedulers.0"
CALLBACK, WEIGHT = "callbacks.EarlyStopping", "state_dict.first"
NAN = torch.full((), torch.nan)
DAMAGED: dict[str, Any] = {
    "no file content": b"",
    "a text": b"weights",
    "cut in the middle": RUN[: len(RUN) // 2],
    "cut at the end": RUN[:-1],
    "a bit of a weight": RUN.replace(b"\x00\x00\x80\x3f", b"\x00\x00\x80\x3e", 1),
    "the format before zips": legacy(training()),
    "a list": [1, 2],
    "no digest": training(),
    **{f"no {key}": damaged(key, None) for key in training()},
    "no optimiser": damaged("optimizer_states", []),
    "an empty optimiser": damaged(OPTIMISER, {}),
    "an optimiser without moments": damaged(f"{OPTIMISER}.state", {}),
    "moments of another shape": damaged(f"{OPTIMISER}.state.0.exp_avg", torch.zeros(2, 3)),
    "moments that are not numbers": damaged(f"{OPTIMISER}.state.0.exp_avg_sq", lambda x: x * NAN),
    "moments of another type": damaged(f"{OPTIMISER}.state.0.exp_avg", lambda x: x.half()),
    "another learning rate": damaged(f"{OPTIMISER}.param_groups.0.lr", 0.2),
    "no schedule": damaged("lr_schedulers", []),
    "an empty schedule": damaged(SCHEDULE, {}),
    "a schedule at another epoch": damaged(f"{SCHEDULE}.last_epoch", 3),
    "no callback": damaged("callbacks", {}),
    "an empty callback": damaged(CALLBACK, {}),
    "a count that is a text": damaged(f"{CALLBACK}.wait_count", "1"),
    "empty loops": damaged("loops", {}),
    "another step": damaged("global_step", 9),
    "no weight of the average": damaged("current_model_state.first", None),
    "no weight": damaged(WEIGHT, None),
    "a weight of another shape": damaged(WEIGHT, lambda x: x[..., :1]),
    "a weight of another type": damaged(WEIGHT, lambda x: x.double()),
    "a weight that is not a number": damaged(WEIGHT, lambda x: x * NAN),
    "a weight without values": damaged(WEIGHT, lambda x: x.to("meta")),
    "a sparse weight": damaged(WEIGHT, lambda x: x.to_sparse()),
    "another weight": damaged("state_dict", lambda x: x | {"model.x": torch.zeros(1)}),
    "another schema": damaged("raylab.schema_version", 2),
    "another architecture": damaged("raylab.model.architecture", "champion"),
    "other seen tasks": damaged("raylab.seen.trained_on.ids", ["b"]),
}


@pytest.mark.parametrize("value", DAMAGED.values(), ids=DAMAGED)
def test_a_damaged_checkpoint_of_a_run_is_refused_in_one_sentence(
    tmp_path: Path, value: Any
) -> None:
    path = tmp_path / "x.ckpt"
    path.write_bytes(value if isinstance(value, bytes) else saved(value))
    with pytest.raises(CheckpointError, match=r"x\.ckpt") as caught:
        CheckpointFiles().load_checkpoint(path)
    assert len(str(caught.value).splitlines()) == 1
    # Whoever takes its model alone gets the weights that were saved, or none.
    try:
        weights = restore_model(read_checkpoint(path)).state_dict()
    except CheckpointError:
        return
    for name, weight in training()["state_dict"].items():
        assert torch.equal(weights[name.removeprefix("model.")], weight)


def test_a_whole_checkpoint_of_a_run_is_read_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "x.ckpt"
    path.write_bytes(RUN)
    read_again = CheckpointFiles().load_checkpoint(path)
    assert digest(read_again) == digest(training())


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
