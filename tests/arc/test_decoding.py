from typing import Any, cast

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from raylab.arc.config.models import ModelConfig
from raylab.arc.data.batching import Batch, Grids, pad_grids
from raylab.arc.data.tasks import PAD, Grid, Pair, PairStore, Task, store_pairs
from raylab.arc.grid_metrics import Count
from raylab.arc.models.base import AutoregressiveModel, GridModel, exact_matches
from raylab.arc.scoring.evaluation import count_batch
from tests.arc.conftest import batch_of, limit_sides, make_tasks, size_head, small_model

QUERIES = [0, 7, 13, 21, 24, 36]


@pytest.fixture(scope="module")
def store() -> PairStore:
    return store_pairs(make_tasks(8))


@torch.no_grad()
def centre(model: GridModel, batch: Batch) -> None:
    """Take from the logits their mean, so that no colour and no side is likeliest everywhere."""
    prediction = model(batch)
    inside = batch.target.cells != PAD
    cast(Any, model).output.bias -= prediction.cells[inside].mean(dim=0)
    size_head(model).bias -= prediction.sizes.mean(dim=0).flatten()


@pytest.fixture
def model(small_config: ModelConfig, batch: Batch) -> GridModel:
    """Its outputs are small and differ in size and cells from query to query."""
    model = small_model(small_config, noise=0.3)
    centre(model, batch)
    limit_sides(model, 5)
    return model


@pytest.fixture
def batch(store: PairStore, small_config: ModelConfig) -> Batch:
    return batch_of(store, QUERIES, small_config.context_pairs)


@torch.no_grad()
def slow_decode(model: GridModel, batch: Batch) -> NDArray[np.int64]:
    """The output for a batch of one query: the whole forward pass again for every cell."""
    height, width = model.choose_sizes(batch, model(batch).sizes).sides[0].tolist()
    target = as_targets([np.zeros((height, width), np.uint8)])
    for t in range(height * width):
        logits = model(batch._replace(target=target)).cells
        target.cells[0, t] = logits[0, t].argmax()
    return target.cells[0].view(height, width).numpy()


def images(grids: Grids) -> list[Grid]:
    """Each grid, after checking its coordinates and padding."""
    outputs: list[Grid] = []
    for cells, rows, cols, size in zip(*grids[:4], strict=True):
        height, width = size.tolist()
        area = height * width
        assert rows[:area].tolist() == [row for row in range(height) for _ in range(width)]
        assert cols[:area].tolist() == list(range(width)) * height
        assert (cells[area:] == PAD).all()
        outputs.append(cells[:area].view(height, width).numpy().astype(np.uint8))
    return outputs


def as_targets(outputs: list[Grid]) -> Grids:
    store = store_pairs([Task("t", tuple(Pair(o, o) for o in outputs))])
    return pad_grids(store, 2 * np.arange(len(outputs)))


# Greedy decoding


def test_decoding_with_a_cache_equals_decoding_without(
    model: GridModel, batch: Batch, store: PairStore, small_config: ModelConfig
) -> None:
    decoded = images(model.answers(batch).grids)
    assert len({output.shape for output in decoded}) > 2
    assert len({output.tobytes() for output in decoded}) >= len(QUERIES) - 1
    assert max(len(np.unique(output)) for output in decoded) > 2
    for pair, output in zip(QUERIES, decoded, strict=True):
        alone = batch_of(store, [pair], small_config.context_pairs)
        np.testing.assert_array_equal(output, slow_decode(model, alone))


def test_decoding_never_reads_the_target(model: GridModel, batch: Batch) -> None:
    decoded = model.answers(batch).grids
    blind = model.answers(batch._replace(target=cast(Any, None))).grids
    assert torch.equal(blind.cells, decoded.cells)
    assert torch.equal(blind.sizes, decoded.sizes)


# Solved grids


def variants_of(output: Grid) -> list[tuple[Grid, bool]]:
    """Targets near an output, and whether the output solves them."""
    first, last = output.copy(), output.copy()
    first[0, 0] = (first[0, 0] + 1) % 10
    last[-1, -1] = (last[-1, -1] + 1) % 10
    height, width = output.shape
    turned = output.reshape(width, height)
    return [
        (output, True),
        (first, False),
        (last, False),
        (turned, height == width),
        (np.vstack([output, output[-1:]]), False),
        (output[:, :1], width == 1),
    ]


def test_candidates_alone_give_the_answer_for_all(
    model: GridModel, store: PairStore, small_config: ModelConfig
) -> None:
    if not isinstance(model, AutoregressiveModel):
        assert not model.teacher_forced
        return
    outputs = images(model.answers(batch_of(store, QUERIES, small_config.context_pairs)).grids)
    cases = [
        (pair, target, right)
        for pair, output in zip(QUERIES, outputs, strict=True)
        for target, right in variants_of(output)
    ]
    expected = [right for _, _, right in cases]
    batch = batch_of(store, [pair for pair, _, _ in cases], small_config.context_pairs)
    batch = batch._replace(target=as_targets([target for _, target, _ in cases]))
    everything = exact_matches(model.answers(batch).grids, batch.target)
    assert everything.tolist() == expected
    with torch.no_grad():
        assert count_batch(model, batch)[:, Count.SOLVED].tolist() == expected
