"""Fixtures of the ARC tests."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch import nn

from raylab.arc.config.jobs import TrainConfig
from raylab.arc.config.models import (
    ChampionConfig,
    DecoderOnlyConfig,
    EncoderDecoderConfig,
    ModelConfig,
    RecursiveConfig,
)
from raylab.arc.config.sections import DataConfig
from raylab.arc.data.batching import Batch, Draw, build_batch, demonstration_table
from raylab.arc.data.content import fingerprint_tasks
from raylab.arc.data.tasks import MAX_SIDE, Grid, Indices, Pair, PairStore, Task, store_pairs
from raylab.arc.models import build_model
from raylab.arc.models.base import GridModel
from raylab.core.config.base import ClusterConfig


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    """Computes on one thread: tensors are so small that more of them wait for each other."""
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The directory of the maintainers' archives, which are not part of the project."""
    beside_checkout = Path(__file__).parents[3] / "shared" / "data"
    folder = Path(os.environ.get("RAYLAB_TEST_DATA", beside_checkout))
    if not folder.is_dir():
        pytest.skip("RAYLAB_TEST_DATA names no directory")
    return folder


def make_tasks(
    count: int = 9,
    *,
    demonstrations: int = 4,
    questions: int = 1,
    longest_side: int = 7,
    seed: int = 0,
) -> tuple[Task, ...]:
    """Tasks of random grids, each grid of its own height and width."""
    rng = np.random.default_rng(seed)

    def grid() -> Grid:
        height, width = rng.integers(1, longest_side + 1, 2)
        return rng.integers(0, 10, (height, width), dtype=np.uint8)

    def pairs(number: int) -> tuple[Pair, ...]:
        return tuple(Pair(grid(), grid()) for _ in range(number))

    return tuple(
        Task(f"task{index}", pairs(demonstrations), pairs(questions)) for index in range(count)
    )


def fingerprint(pair: Pair) -> int:
    """The number that tells a pair."""
    return fingerprint_tasks([Task("t", (pair,))])["t"][0]


def least_form(pair: Pair) -> bytes:
    """The least of eight symmetries of a pair, its colours numbered as they first occur."""
    forms: list[bytes] = []
    for symmetry in range(8):
        turned = [np.rot90(grid, symmetry % 4) for grid in (pair.input, pair.output)]
        grids = [grid.T if symmetry >= 4 else grid for grid in turned]
        numbers: dict[int, int] = {}
        cells = [numbers.setdefault(int(c), len(numbers)) for grid in grids for c in grid.flat]
        forms.append(bytes([*grids[0].shape, *grids[1].shape, *cells]))
    return min(forms)


SMALL_MODELS: dict[str, ModelConfig] = {
    "champion": ChampionConfig(d_model=20, d_ff=23, heads=5, encoder_layers=2, decoder_layers=2),
    "encoder_decoder": EncoderDecoderConfig(
        d_model=30, d_ff=37, heads=3, encoder_layers=2, decoder_layers=2
    ),
    # An odd width of heads: the last dimension is not rotated.
    "decoder_only": DecoderOnlyConfig(d_model=22, d_ff=29, heads=2, layers=2),
    "decoder_only_with_context": DecoderOnlyConfig(
        d_model=22, d_ff=29, heads=2, layers=2, demonstrations=2
    ),
    "recursive": RecursiveConfig(
        d_model=20,
        d_ff=23,
        heads=5,
        layers=1,
        latent_steps=2,
        steps=3,
        encoder_dropout=0.1,
        embedding_dropout=0.167,
    ),
}
"""Every architecture, small, in sizes that differ wherever a mistake could exchange them."""


TINY = EncoderDecoderConfig(d_model=16, d_ff=32, heads=2, decoder_layers=1)


def small_training(
    storage: Path, name: str = "run", fields: Mapping[str, Any] | None = None, **training: Any
) -> TrainConfig:
    """A training of `TINY` on five tasks of ARC-AGI-1, which begins or goes on."""
    settings = {"epochs": 4, "batch_size": 4, "patience": None, "keep_checkpoints": 1} | training
    given = {"model": TINY, "data": DataConfig(every=80), "storage": str(storage), "name": name}
    given |= {"cluster": ClusterConfig(cpus_per_worker=1), "resume": True, "training": settings}
    return TrainConfig.model_validate(given | dict(fields or {}))


QUERIES = [0, 7, 13, 21, 24, 36]
"""Pairs of six tasks of `store`, among them a question (24)."""


@pytest.fixture(scope="session")
def store() -> PairStore:
    """Five pairs a task, sides 1 to 4, so that the queries differ in size."""
    return store_pairs(make_tasks(8, longest_side=4))


@pytest.fixture(params=SMALL_MODELS)
def small_config(request: pytest.FixtureRequest) -> ModelConfig:
    return SMALL_MODELS[request.param]


def small_model(config: ModelConfig, noise: float = 0.1) -> GridModel:
    """A model in evaluation mode; the more noise in its weights, the more its outputs vary."""
    torch.manual_seed(0)
    model = build_model(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += noise * torch.randn_like(parameter)
    return model


def size_head(model: GridModel) -> nn.Linear:
    return cast(Any, model).size_head.linear


@torch.no_grad()
def limit_sides(model: GridModel, longest: int) -> GridModel:
    """Lets `model` predict sides up to `longest` alone; returns it."""
    size_head(model).bias.view(2, MAX_SIDE)[:, longest:] -= 1e4
    return model


def batch_of(
    store: PairStore, pairs: Sequence[int], demonstrations: int = 0, colours: Indices | None = None
) -> Batch:
    """The named pairs in one batch, with the first demonstrations of their tasks."""
    queries = np.array(pairs)
    table = demonstration_table(store, queries, demonstrations, None)
    return build_batch(store, Draw(queries, table, colours))
