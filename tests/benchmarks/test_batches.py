"""The evenness of training steps, derived by hand, and the record of a small measurement."""

from collections.abc import Iterator

import numpy as np
import pytest

from raylab.arc.data.batching import Draw
from raylab.arc.data.store import store_pairs
from raylab.arc.data.tasks import Pair, Task
from raylab.benchmarks.batches import WAYS, BatchesBenchmark, Workload, evenness
from tests.arc.conftest import SMALL_MODELS
from tests.benchmarks.conftest import Benchmark


def pair(cells: int) -> Pair:
    return Pair(np.zeros((1, 1), dtype=np.uint8), np.zeros((1, cells), dtype=np.uint8))


@pytest.fixture
def work() -> Workload:
    """Tasks with outputs of 1 and 1, 2 and 2, and 12 cells."""
    tasks = [
        Task("a", (pair(1), pair(1))),
        Task("b", (pair(2), pair(2))),
        Task("c", (pair(12),)),
    ]
    store = store_pairs(tasks)
    pairs = np.arange(5)
    return Workload(store, pairs, pairs, SMALL_MODELS["encoder_decoder"], batch_size=2)


def test_evenness_by_hand(work: Workload) -> None:
    nothing = np.empty((0, 0), dtype=np.int64)

    def steps(work: Workload, seed: int) -> Iterator[tuple[Draw, ...]]:
        for pairs in ([0, 2], [1, 3], [4]):
            yield tuple(Draw(np.array([pair]), nothing, None) for pair in pairs)

    found = evenness(work, steps)
    # Cells 3, 3 and 12. Shares of the tasks 1/3 and 2/3: effectively 1 / (1/9 + 4/9) = 1.8 tasks.
    assert (found.steps, found.tasks) == (3, 2.0)
    assert found.effective_tasks == pytest.approx(1.8)
    # Weights of a cell 1/3, 1/3 and 1/12; their mean over the 18 cells is 3/18.
    assert found.weight_max == pytest.approx(2.0)
    # The 95th percentile of 1/2, 2 and 2.
    assert found.weight_p95 == pytest.approx(2.0)
    # A third of the mean of 6 cells is 2.
    assert found.few_cells == 0.0


def test_raylabs_steps_weigh_every_cell_alike(work: Workload) -> None:
    found = evenness(work, WAYS["even"])
    assert (found.weight_p95, found.weight_max) == (1.0, 1.0)


def test_every_way_is_measured(benchmark: Benchmark) -> None:
    data = {"every": 80, "pairs_per_task": 2}
    sizes = {"batch_size": 4, "batches": 1, "rounds": 2, "curve_steps": 5}
    record = benchmark(BatchesBenchmark, "encoder_decoder", data, part="batches", **sizes)
    assert list(record.ways) == list(WAYS)
    for figures in record.ways.values():
        assert figures.samples_per_second.min > 0
        assert [curve.seed for curve in figures.curves] == [307, 308]
        for curve in figures.curves:
            assert len(curve.train) == len(curve.held_out) == 5
            # Guessing one of ten colours costs ln 10.
            assert 0 < curve.held_out[-1] < 2 * np.log(10)
