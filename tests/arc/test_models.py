from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from raylab.arc.config.models import ALL_MODELS, ModelConfig
from raylab.arc.data.batching import Batch, Grids
from raylab.arc.data.tasks import COLOURS, PAD, Pair, PairStore, Task, store_pairs
from raylab.arc.loss import loss_sums
from raylab.arc.models import build_model
from raylab.arc.models.base import GridModel, Logits
from raylab.arc.models.layers import AxialRotary, Dropout, Layer, Rotary
from tests.arc.conftest import QUERIES, SMALL_MODELS, batch_of, make_tasks, small_model

TOLERANCE = 1e-5
"""For float32 sums taken in another order."""
EFFECT = 1e-3
"""What a real influence moves at least: hundreds of times the tolerance."""


@pytest.fixture
def model(small_config: ModelConfig) -> GridModel:
    return small_model(small_config)


@pytest.fixture
def batch(store: PairStore, small_config: ModelConfig) -> Batch:
    return batch_of(store, QUERIES, small_config.context_pairs)


@torch.no_grad()
def predicted(model: GridModel, batch: Batch) -> Logits:
    return model(batch)


def lengths_of(grids: Grids) -> list[int]:
    return (grids.cells != PAD).sum(1).tolist()


def recoloured(grids: Grids, change: Callable[[Tensor], Tensor]) -> Grids:
    """`grids` with their cells, not their padding, changed."""
    cells = torch.where(grids.cells == PAD, PAD, change(grids.cells))
    return grids._replace(cells=cells)


def next_colour(cells: Tensor) -> Tensor:
    return (cells + 1) % COLOURS


def close(a: Tensor, b: Tensor) -> bool:
    return torch.allclose(a, b, rtol=0, atol=TOLERANCE)


def differ(a: Tensor, b: Tensor) -> bool:
    return float((a - b).abs().max()) > EFFECT


# Size


@pytest.mark.parametrize("config", ALL_MODELS)
def test_parameters_are_matched(config: ModelConfig) -> None:
    parameters = sum(parameter.numel() for parameter in build_model(config).parameters())
    assert parameters == pytest.approx(1.7295e6, rel=0.005)


# What a cell may see


def test_a_target_cell_is_seen_by_later_cells_alone(model: GridModel, batch: Batch) -> None:
    """Of a model that is never told a true cell it is seen by none."""
    before = predicted(model, batch).cells
    lengths = lengths_of(batch.target)
    for t in range(max(lengths)):
        cells = batch.target.cells.clone()
        cells[:, t] = torch.where(cells[:, t] == PAD, PAD, next_colour(cells[:, t]))
        after = predicted(model, batch._replace(target=batch.target._replace(cells=cells))).cells
        unseen = slice(t + 1) if model.teacher_forced else slice(None)
        assert close(after[:, unseen], before[:, unseen])
        for query, length in enumerate(lengths):
            if model.teacher_forced and t + 1 < length:
                assert differ(after[query, t + 1 : length], before[query, t + 1 : length])


def test_sizes_are_predicted_without_the_target(
    model: GridModel, batch: Batch, store: PairStore, small_config: ModelConfig
) -> None:
    others = [pair + 1 for pair in QUERIES]
    other = batch_of(store, others, small_config.context_pairs).target
    assert not torch.equal(other.sizes, batch.target.sizes)
    sizes = predicted(model, batch).sizes
    assert close(predicted(model, batch._replace(target=other)).sizes, sizes)
    assert differ(
        predicted(model, batch._replace(source=recoloured(batch.source, next_colour))).sizes, sizes
    )


def test_every_source_cell_is_seen_by_the_first_output_cell(model: GridModel, batch: Batch) -> None:
    before = predicted(model, batch).cells[:, 0]
    for place in range(batch.source.cells.shape[1]):
        cells = batch.source.cells.clone()
        inside = cells[:, place] != PAD
        cells[inside, place] = next_colour(cells[inside, place])
        after = predicted(model, batch._replace(source=batch.source._replace(cells=cells)))
        moved = (after.cells[:, 0] - before).abs().amax(dim=1)
        assert (moved[inside] > 1e-4).all()
        assert (moved[~inside] < TOLERANCE).all()


@pytest.mark.parametrize("side", ["demo_inputs", "demo_outputs"])
@pytest.mark.parametrize("name", ["champion", "decoder_only_with_context"])
def test_demonstrations_matter(store: PairStore, name: str, side: str) -> None:
    model, batch = small_model(SMALL_MODELS[name]), batch_of(store, QUERIES, 2)
    changed = recoloured(getattr(batch, side), next_colour)
    before, after = predicted(model, batch), predicted(model, batch._replace(**{side: changed}))
    for query, length in enumerate(lengths_of(batch.target)):
        assert differ(after.cells[query, :length], before.cells[query, :length])
        assert differ(after.sizes[query], before.sizes[query])


def test_every_architecture_is_told_the_size_that_it_writes(small_config: ModelConfig) -> None:
    """The same six cells are written in a grid of 2 x 3 and in one of 3 x 2."""
    grid = np.arange(6, dtype=np.uint8).reshape(2, 3)
    pairs = Pair(grid, grid), Pair(grid, grid.reshape(3, 2)), Pair(grid.T, grid.T)
    store, model = store_pairs([Task("t", pairs)]), small_model(small_config)
    wide, tall = (
        predicted(model, batch_of(store, [pair], small_config.context_pairs)) for pair in (0, 1)
    )
    assert differ(wide.cells[:, 0], tall.cells[:, 0])
    assert close(wide.sizes, tall.sizes)


# Padding and the other samples of a batch


def test_a_sample_alone_is_predicted_as_in_a_batch(
    model: GridModel, batch: Batch, store: PairStore, small_config: ModelConfig
) -> None:
    together = predicted(model, batch)
    for query, (pair, length) in enumerate(zip(QUERIES, lengths_of(batch.target), strict=True)):
        own = batch_of(store, [pair], small_config.context_pairs)
        assert not own.source.padded and not own.target.padded
        alone = predicted(model, own)
        assert close(together.cells[query, :length], alone.cells[0])
        assert close(together.sizes[query], alone.sizes[0])


@pytest.mark.parametrize("name", ["champion", "decoder_only_with_context"])
def test_a_query_without_demonstrations_is_predicted_alone_and_beside_others(name: str) -> None:
    (lonely,) = make_tasks(1, demonstrations=1, questions=0, seed=5)
    few = make_tasks(2, demonstrations=2, questions=0)
    # Pair 0 has no demonstration, pairs 1 to 4 one each, where two are asked for.
    store = store_pairs([Task("lonely", lonely.demonstrations), *few])
    model = small_model(SMALL_MODELS[name])
    together = predicted(model, batch_of(store, range(5), 2))
    for query in range(5):
        alone = predicted(model, batch_of(store, [query], 2))
        length = int(store.lengths[query, 1])
        assert close(together.cells[query, :length], alone.cells[0])
        assert close(together.sizes[query], alone.sizes[0])


# Colours and coordinates


@pytest.mark.parametrize("axis", ["rows", "cols"])
@pytest.mark.parametrize("side", ["source", "target", "demo_inputs", "demo_outputs"])
def test_the_champion_sees_rows_and_columns(store: PairStore, side: str, axis: str) -> None:
    champion, batch = small_model(SMALL_MODELS["champion"]), batch_of(store, QUERIES, 2)
    grids = getattr(batch, side)
    moved = torch.where(grids.cells == PAD, 0, getattr(grids, axis) + 1)
    changed = batch._replace(**{side: grids._replace(**{axis: moved})})
    assert differ(predicted(champion, changed).cells, predicted(champion, batch).cells)


# Training


def gradients(model: GridModel, batch: Batch) -> dict[str, Tensor | None]:
    sums = [
        part
        for prediction in model.train().training_logits(batch)
        for part in loss_sums(prediction, batch.target.cells, batch.target.sizes)
    ]
    torch.stack(sums).sum().backward()
    return {name: parameter.grad for name, parameter in model.named_parameters()}


def test_the_gradient_reaches_every_weight(model: GridModel, batch: Batch) -> None:
    reached = gradients(model, batch)
    assert [name for name, gradient in reached.items() if gradient is None] == []
    # A bias may have a gradient of zero: softmax does not see one added to all scores.
    idle = [
        name
        for name, gradient in reached.items()
        if gradient is not None and gradient.dim() > 1 and not gradient.any()
    ]
    assert idle == []


def test_every_parameter_has_a_gradient_without_any_demonstration(
    small_config: ModelConfig,
) -> None:
    store = store_pairs(make_tasks(3, demonstrations=1, questions=0))
    batch = batch_of(store, range(3), small_config.context_pairs)
    assert len(batch.demo_inputs.cells) == 0
    reached = gradients(small_model(small_config), batch)
    assert [name for name, gradient in reached.items() if gradient is None] == []
    assert all(gradient.isfinite().all() for gradient in reached.values() if gradient is not None)


# The Dropout module


@pytest.mark.parametrize("rate", [0.015, 0.167, 0.9])
def test_dropout_drops_at_its_rate_and_keeps_the_mean(rate: float) -> None:
    torch.manual_seed(0)
    n = 1_000_003  # no multiple of four
    dropout = Dropout(rate)
    out = dropout(torch.ones(n))
    assert not torch.equal(dropout(torch.ones(n)), out)
    assert torch.equal(dropout.eval()(torch.ones(n)), torch.ones(n))
    kept = out != 0
    # The standard error of a share of n is sqrt(rate (1 - rate) / n), of the mean that of the
    # share of kept over 1 - rate.
    error = (rate * (1 - rate) / n) ** 0.5
    assert abs(1 - float(kept.double().mean()) - rate) < 4 * error + 2**-17
    assert abs(float(out.double().mean()) - 1) < 4 * error / (1 - rate)
    assert torch.allclose(out[kept], torch.tensor(1 / (1 - rate)), rtol=2e-4)


# Layers beside torch's own

WIDTH, HEADS, D_FF = 12, 3, 17


def weights_for_torch(layer: Layer) -> dict[str, Tensor]:
    """The weights of a layer by the names of `nn.TransformerDecoderLayer`."""
    names = {
        "attention.qkv.": "self_attn.in_proj_",
        "attention.out.": "self_attn.out_proj.",
        "attention_norm.": "norm1.",
        "cross_attention.out.": "multihead_attn.out_proj.",
        "cross_norm.": "norm2.",
        "ff_norm.": "norm3.",
        "feed_forward.wide.": "linear1.",
        "feed_forward.narrow.": "linear2.",
    }
    weights, renamed = layer.state_dict(), dict[str, Tensor]()
    for name, tensor in weights.items():
        ours = next((ours for ours in names if name.startswith(ours)), "")
        if ours:
            renamed[names[ours] + name.removeprefix(ours)] = tensor
    for kind in ("weight", "bias"):
        parts = (weights[f"cross_attention.{part}.{kind}"] for part in ("query", "key_value"))
        renamed[f"multihead_attn.in_proj_{kind}"] = torch.cat(tuple(parts))
    return renamed


def places(*lengths: int) -> Tensor:
    """(B, L) bool, True in the padding of samples of these lengths."""
    return torch.arange(max(lengths)) >= torch.tensor(lengths)[:, None]


@torch.no_grad()
def test_a_layer_that_reads_a_memory_is_that_of_torch() -> None:
    torch.manual_seed(0)
    layer = Layer(WIDTH, HEADS, D_FF, 0.3, cross=True).eval()
    theirs = nn.TransformerDecoderLayer(
        WIDTH, HEADS, D_FF, activation="gelu", batch_first=True, norm_first=True
    ).eval()
    theirs.load_state_dict(weights_for_torch(layer))
    x, memory, padding = torch.randn(3, 5, WIDTH), torch.randn(3, 7, WIDTH), places(7, 4, 1)
    after = torch.ones(5, 5, dtype=torch.bool).triu(1)
    expected = theirs(x, memory, tgt_mask=after, memory_key_padding_mask=padding)
    remembered = layer.remember(memory, ~padding[:, None, None])
    assert close(layer(x, causal=True, memory=remembered), expected)


def test_rotary_positions_turn_pairs_of_dimensions() -> None:
    """As complex numbers, dimension j and its partner turn by theta ** (-2j / D) a position."""
    torch.manual_seed(0)
    x, positions, theta = torch.randn(2, HEADS, 6, 5), torch.tensor([4, 0, 1, 9, 2, 2]), 100.0
    ours = Rotary(5, 10, theta)(x, positions)
    rates = torch.tensor([1.0, theta ** (-2 / 5)])
    turns = torch.polar(torch.ones(6, 2), positions[:, None] * rates)
    turned = torch.complex(x[..., :2], x[..., 2:4]) * turns
    assert close(ours, torch.cat((turned.real, turned.imag, x[..., 4:]), dim=-1))


@pytest.mark.parametrize(("d_head", "angles"), [(17, (3, 3, 2)), (6, (1, 1, 1)), (2, (0, 0, 1))])
def test_axial_rotary_positions_turn_parts_of_a_head_by_row_column_and_role(
    d_head: int, angles: tuple[int, int, int]
) -> None:
    by_row, by_col, by_role = angles
    store = store_pairs(make_tasks(2))
    source, target, *_ = batch_of(store, [0, 6], 0)
    rotary = AxialRotary(d_head)
    length = source.cells.shape[1] + target.cells.shape[1]
    x = torch.randn(2, 3, length, d_head, dtype=torch.float64)
    ours = rotary(x, rotary.places((source, target)))
    row, col = (torch.cat((source[at], target[at]), dim=1).double() for at in (1, 2))
    role = (torch.arange(length) >= source.cells.shape[1]).double().expand(2, -1)
    turns = [row * 100 ** (-n / by_row) for n in range(by_row)]
    turns += [col * 100 ** (-n / by_col) for n in range(by_col)]
    turns += [role * (1.5 - 1.125 * n / max(by_role - 1, 1)) for n in range(by_role)]
    pairs = len(turns)
    first, second = x[..., :pairs], x[..., pairs : 2 * pairs]
    angle = torch.stack(turns, dim=-1)[:, None]
    turned = torch.complex(first, second) * torch.polar(torch.ones_like(angle), angle)
    expected = torch.cat((turned.real, turned.imag, x[..., 2 * pairs :]), dim=-1)
    torch.testing.assert_close(ours, expected, atol=1e-5, rtol=1e-5)
