"""Every way to decode writes the same grids, and the record of a small measurement."""

import numpy as np
import pytest
import torch

from raylab.arc.data.batching import BatchDataset, Draw, demonstration_table
from raylab.arc.data.store import store_pairs
from raylab.arc.models.autoregressive import AutoregressiveModel
from raylab.benchmarks import naive_decoding
from raylab.benchmarks.decode import (
    DECODING,
    VALIDATION,
    DecodeBenchmark,
    answer_input_size,
    untrained,
)
from raylab.benchmarks.naive_decoding import naive_decode
from raylab.config.models import ModelConfig
from tests.arc.conftest import SMALL_MODELS, make_tasks, small_model
from tests.benchmarks.conftest import Benchmark


@pytest.mark.parametrize("name", [name for name in SMALL_MODELS if name != "recursive"])
@pytest.mark.parametrize(("cache", "early_stop"), [(True, False), (False, True)])
def test_a_naive_way_writes_the_same_grids(name: str, cache: bool, early_stop: bool) -> None:
    config: ModelConfig = SMALL_MODELS[name]
    model = small_model(config, noise=0.3)
    assert isinstance(model, AutoregressiveModel)
    answer_input_size(model)
    store = store_pairs(make_tasks(2, demonstrations=3, longest_side=4))
    pairs = np.arange(len(store.task_of))
    table = demonstration_table(store, pairs, config.context_pairs, None)
    batch = BatchDataset(store)[Draw(pairs, table, None)]
    # The answers are of many sizes and colours, or else the comparison would show little.
    expected = model.answers(batch).grids
    assert expected.padded and len(expected.cells.unique()) > 3
    found = naive_decode(model, batch, cache=cache, early_stop=early_stop)
    for ours, theirs in zip(expected[:4], found[:4], strict=True):
        assert torch.equal(ours, theirs)


def test_the_untrained_network_answers_the_size_of_the_input() -> None:
    model = untrained(SMALL_MODELS["champion"])
    store = store_pairs(make_tasks(3))
    pairs = np.arange(len(store.task_of))
    batch = BatchDataset(store)[Draw(pairs, demonstration_table(store, pairs, 2, None), None)]
    assert torch.equal(model.answers(batch).grids.sizes, batch.source.sizes)


def test_every_way_is_measured(benchmark: Benchmark, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(naive_decoding, "MAX_CELLS", 20)
    data = {"tasks": ("0d3d703e", "25d8a9c8", "25ff71a9", "a85d4709", "d037b0a7")}
    sizes = {"decoded_pairs": 2, "rounds": 1}
    record = benchmark(DecodeBenchmark, "encoder_decoder", data, part="decode", **sizes)
    assert record.pairs == 2
    speeds = record.models["encoder_decoder"]
    assert (list(speeds.validation), list(speeds.decoding)) == (list(VALIDATION), list(DECODING))
    assert speeds.decoding["raylab"].times.median == 1.0
    assert all(way.cells_per_second.min > 0 for way in speeds.decoding.values())
