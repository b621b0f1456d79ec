"""Model FLOPs of small networks, derived by hand, and the peaks that they are compared with."""

import numpy as np
import pytest
import torch

from raylab.arc.data.store import store_pairs
from raylab.arc.data.tasks import Pair, Task
from raylab.benchmarks.hardware import device_peak, resident_bytes, with_peak_memory
from raylab.benchmarks.model_flops import flops_per_sample
from raylab.config.arc import Precision
from raylab.config.models import DecoderOnlyConfig, EncoderDecoderConfig

COLOURS, SIZES = 10, 60


def task(source: int, target: int) -> Task:
    """A task of one pair of so many cells."""
    grids = (np.zeros((1, cells), dtype=np.uint8) for cells in (source, target))
    return Task("a", (Pair(*grids),))


def product(rows: int, inner: int, columns: int) -> int:
    """FLOPs of a product of matrices: a multiplication and an addition for each term."""
    return 2 * rows * inner * columns


def layer(length: int, width: int, d_ff: int) -> int:
    """FLOPs of self-attention and feed-forward: 8 L D², 4 L² D and 4 L D F."""
    projections = 4 * product(length, width, width)
    attention = 2 * product(length, width, length)
    return projections + attention + 2 * product(length, width, d_ff)


def test_decoder_only_by_hand() -> None:
    config = DecoderOnlyConfig(d_model=8, d_ff=12, heads=2, layers=3)
    store = store_pairs([task(5, 7)])
    # Five cells, a separator, and a token for each of seven cells to predict.
    forward = 3 * layer(5 + 1 + 7, 8, 12) + product(7, 8, COLOURS)
    sizes = product(1, 8 + SIZES, SIZES)
    # The backward pass multiplies twice: for the gradient of each factor.
    assert flops_per_sample(config, store, np.array([0])) == 3 * (forward + sizes)


def test_encoder_decoder_by_hand() -> None:
    config = EncoderDecoderConfig(d_model=8, d_ff=12, heads=2, encoder_layers=1, decoder_layers=2)
    store = store_pairs([task(5, 7)])
    cross = product(7, 8, 8) + product(5, 8, 16) + 2 * product(7, 8, 5) + product(7, 8, 8)
    decoder = 2 * (layer(7, 8, 12) + cross)
    forward = layer(5, 8, 12) + decoder + product(7, 8, COLOURS) + product(1, 8 + SIZES, SIZES)
    # The mean over the cells is a product with constant weights, which have no gradient.
    mean = product(1, 5, 8)
    assert flops_per_sample(config, store, np.array([0])) == 3 * forward + 2 * mean


def test_a_sample_is_the_mean_of_the_pairs() -> None:
    config = DecoderOnlyConfig(d_model=8, d_ff=12, heads=2, layers=1)
    store = store_pairs([task(1, 1), task(5, 7)])
    one, other = (flops_per_sample(config, store, np.array([pair])) for pair in (0, 1))
    assert flops_per_sample(config, store, np.arange(2)) == (one + other) / 2


@pytest.mark.parametrize(
    ("name", "peak"),
    [("NVIDIA H200", 989.4e12), ("NVIDIA H100 PCIe", 756e12), ("NVIDIA A100-SXM4-80GB", 312e12)],
)
def test_a_gpu_has_the_peak_of_its_data_sheet(
    name: str, peak: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: name)
    found = device_peak(torch.device("cuda"), Precision.BFLOAT16)
    assert (found.flops_per_second, found.source) == (peak, "data sheet")


def test_peak_memory_counts_what_was_freed_again() -> None:
    before = resident_bytes()
    size = 64 * 2**20
    _, peak = with_peak_memory(
        lambda: torch.ones(size, dtype=torch.uint8)[0].item(), torch.device("cpu"), before
    )
    # The system counts pages in batches, and gives some back meanwhile.
    assert peak is None or 0.9 * size < peak < 2 * size
