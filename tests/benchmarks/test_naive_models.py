"""The baseline is another implementation of the same networks: given their weights, it agrees."""

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from raylab.arc.data.batching import BatchDataset, Draw, demonstration_table
from raylab.arc.data.store import store_pairs
from raylab.arc.data.tasks import PAD
from raylab.arc.models.base import build_model
from raylab.benchmarks.naive_models import build_naive_model, naive_batch
from raylab.config.models import ModelConfig
from tests.arc.conftest import SMALL_MODELS, make_tasks

RENAMED = {
    "attention.qkv.": "self_attn.in_proj_",
    "attention.out.": "self_attn.out_proj.",
    "feed_forward.wide": "linear1",
    "feed_forward.narrow": "linear2",
    "attention_norm": "norm1",
}


def layer_names(name: str, decoder: bool) -> str:
    """The name that torch.nn's encoder or decoder layer gives a weight of `Layer`."""
    for ours, theirs in RENAMED.items():
        if f".{ours}" in name and ".cross_" not in name:
            return name.replace(ours, theirs)
    name = name.replace("cross_attention.out.", "multihead_attn.out_proj.")
    return name.replace("cross_norm", "norm2").replace("ff_norm", "norm3" if decoder else "norm2")


def packed(weights: dict[str, Tensor], attention: str, naive: str) -> dict[str, Tensor]:
    """Query and key-value projections as torch.nn packs them."""
    return {
        f"{naive}.in_proj_{kind}": torch.cat(
            (weights.pop(f"{attention}.query.{kind}"), weights.pop(f"{attention}.key_value.{kind}"))
        )
        for kind in ("weight", "bias")
    }


def encoder_decoder_weights(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    result: dict[str, Tensor] = {}
    for name in [name for name in weights if name.endswith("cross_attention.query.weight")]:
        attention = name.removesuffix(".query.weight")
        naive = (
            attention
            if attention.startswith("context")
            else (attention.replace("cross_attention", "multihead_attn"))
        )
        result |= packed(weights, attention, naive)
    for name, tensor in weights.items():
        if name.startswith("context.") and not name.startswith("context.layer."):
            name = name.replace("cross_attention.out.", "cross_attention.out_proj.")
            name = name.replace("feed_forward.wide", "feed_forward.0")
            name = name.replace("feed_forward.narrow", "feed_forward.3")
        elif name.startswith(("encoder.", "decoder.", "context.layer.")):
            name = layer_names(name, name.startswith("decoder."))
        result[name] = tensor
    return result


def decoder_only_weights(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    result: dict[str, Tensor] = {}
    for name, tensor in weights.items():
        if ".attention.qkv." in name:
            for part, chunk in zip(("query", "key", "value"), tensor.chunk(3), strict=True):
                result[name.replace("attention.qkv", part)] = chunk
        else:
            name = name.replace("attention.out", "out").replace("feed_forward.", "")
            result[name] = tensor
    return result


def copy_weights(model: nn.Module, naive: nn.Module, decoder_only: bool) -> None:
    weights = dict(model.state_dict())
    convert = decoder_only_weights if decoder_only else encoder_decoder_weights
    naive.load_state_dict(convert(weights))


@pytest.mark.parametrize("name", ["champion", "encoder_decoder", "decoder_only"])
def test_same_weights_give_the_same_logits(name: str) -> None:
    config: ModelConfig = SMALL_MODELS[name]
    store = store_pairs(make_tasks(4, longest_side=5))
    pairs = np.arange(len(store.task_of))
    table = demonstration_table(store, pairs, config.context_pairs, None)
    complete = (table >= 0).all(axis=1)
    pairs, table = pairs[complete], table[complete]
    assert len(pairs) > 4
    model, naive = build_model(config).eval(), build_naive_model(config).eval()
    copy_weights(model, naive, name == "decoder_only")

    batch = BatchDataset(store)[Draw(pairs, table, None)]
    with torch.no_grad():
        ours, theirs = model(batch), naive(naive_batch(store, pairs, table))
    inside = batch.target.cells != PAD
    torch.testing.assert_close(ours.cells[inside], theirs.cells[inside], atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(ours.sizes, theirs.sizes, atol=1e-5, rtol=1e-4)
