from collections import Counter

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy import stats
from torch import Tensor

from raylab.arc.data.tasks import PAD
from raylab.arc.grid_metrics import Count
from raylab.arc.metrics import (
    GridMetrics,
    as_floats,
    compute_copy_metrics_on_batch,
    compute_dense_grid_objective,
    compute_grid_metrics,
    grid_counts,
    task_intervals,
)

Grid = NDArray[np.int64]
Sample = tuple[Grid, Grid, Grid, int, bool, bool]
"""Source, target, prediction, group, solved, right shape."""


# Grid metrics on hand cases


def test_a_two_dimensional_tensor_is_one_grid() -> None:
    # One wrong cell of four spoils one row of two and one column of two.
    # Read as two grids, grid_accuracy would be 0.5.
    prediction, target = torch.tensor([[1, 2], [3, 4]]), torch.tensor([[1, 2], [3, 5]])
    assert as_floats(compute_grid_metrics(prediction, target)) == {
        "cell_accuracy": 0.75,
        "grid_accuracy": 0.0,
        "grid_tol_0p90": 0.0,
        "grid_tol_0p95": 0.0,
        "grid_tol_0p99": 0.0,
        "row_all_correct_rate": 0.5,
        "col_all_correct_rate": 0.5,
        "dense_grid_objective": 0.0,
    }


def test_tolerances_for_every_count_of_right_cells() -> None:
    # Integer arithmetic: correct / cells >= p / 100 just when 100 correct >= p cells.
    for cells in (*range(1, 21), 99, 100, 101, 900):
        # One grid of one row for each number of right cells.
        prediction = torch.ones(cells + 1, cells).tril(-1).long()[:, None]
        values = compute_grid_metrics(prediction, torch.ones_like(prediction))
        for name, percent in (("grid_tol_0p90", 90), ("grid_tol_0p95", 95), ("grid_tol_0p99", 99)):
            reaching = sum(100 * correct >= percent * cells for correct in range(cells + 1))
            assert float(values[name]) == pytest.approx(reaching / (cells + 1)), (name, cells)


# Change metrics on hand cases


@pytest.mark.parametrize(
    ("target", "prediction", "values"),
    [
        # No cell, so nothing to change and nothing copied.
        ([PAD, PAD], [1, 1], (1.0, 1.0, 1.0, 0.0)),
        # Nothing to change, nothing changed.
        ([0, 0], [0, 0], (1.0, 1.0, 1.0, 1.0)),
        # Nothing to change, one cell changed.
        ([0, 0], [0, 5], (1.0, 0.0, 0.0, 0.5)),
        # One cell to change, nothing changed.
        ([0, 5], [0, 0], (0.0, 1.0, 0.0, 1.0)),
        # One to change, another changed.
        ([0, 5], [5, 0], (0.0, 0.0, 0.0, 0.5)),
    ],
)
def test_zero_denominators(
    target: list[int], prediction: list[int], values: tuple[float, ...]
) -> None:
    grids = (torch.tensor([row]) for row in ([0, 0], target, prediction))
    names = ("change_recall", "change_precision", "transformation_f1", "copy_rate")
    expected = dict(zip(names, values, strict=True))
    assert as_floats(compute_copy_metrics_on_batch(*grids)) == expected


def test_the_objective_is_a_weighted_sum() -> None:
    values = (torch.tensor(0.9), torch.tensor(0.5), torch.tensor(0.25))
    # 0.5 * 0.9 + 0.25 * 0.5 + 0.25 * 0.25 = 0.6375
    weighted = compute_dense_grid_objective(*values, w_cell=0.5, w_tol=0.25, w_ex=0.25)
    assert weighted.shape == () and float(weighted) == pytest.approx(0.6375)


@pytest.mark.parametrize(
    ("prediction", "target"),
    [((2, 3), (3, 2)), ((1, 2, 3), (2, 2, 3)), ((3,), (3,))],
)
def test_wrong_shapes_are_refused(prediction: tuple[int, ...], target: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="shape"):
        compute_grid_metrics(torch.zeros(prediction).long(), torch.zeros(target).long())
    with pytest.raises(ValueError):
        grids = (torch.zeros(shape).long() for shape in (target, target, prediction))
        compute_copy_metrics_on_batch(*grids)


# Against an implementation by loops over cells


def random_samples(seed: int, count: int) -> list[Sample]:
    """Grids of unlike sizes; predictions right, nearly right, copies or noise."""
    rng = np.random.default_rng(seed)
    samples: list[Sample] = []
    for _ in range(count):
        height, width = rng.integers(1, 8, 2)
        target = rng.integers(0, 4, (height, width))
        shape = (height, width) if rng.random() < 0.5 else rng.integers(1, 8, 2)
        source = rng.integers(0, 4, shape)
        common = (min(height, shape[0]), min(width, shape[1]))
        source[: common[0], : common[1]] = np.where(
            rng.random(common) < 0.6,
            target[: common[0], : common[1]],
            source[: common[0], : common[1]],
        )
        wrong = rng.random(target.shape) < rng.choice([0.0, 0.05, 0.3, 0.9])
        prediction = np.where(wrong, rng.integers(0, 10, target.shape), target)
        group, solved, shaped = int(rng.integers(3)), rng.random() < 0.3, rng.random() < 0.6
        samples.append((source, target, prediction, group, bool(solved), bool(shaped)))
    return samples


def looped_metrics(samples: list[Sample]) -> dict[str, float]:
    """The formulas cell by cell, on the grids before any padding."""
    n = Counter[str]()
    for source, target, prediction, *_ in samples:
        height, width = target.shape
        hit = prediction == target
        right = int(hit.sum())
        n["cells"] += height * width
        n["right"] += right
        n["exact"] += right == height * width
        for percent in (90, 95, 99):
            n[f"t{percent}"] += right * 100 >= percent * height * width
        n["rows"] += height
        n["rows_right"] += sum(all(row) for row in hit)
        n["cols"] += width
        n["cols_right"] += sum(all(column) for column in hit.T)
        for r, c in np.ndindex(target.shape):
            inside = r < source.shape[0] and c < source.shape[1]
            to_change = not inside or target[r, c] != source[r, c]
            changed = not inside or prediction[r, c] != source[r, c]
            n["changed"] += bool(to_change)
            n["predicted"] += bool(changed)
            n["both"] += bool(to_change and changed)
            n["copied"] += not changed
    grids = len(samples)
    recall = n["both"] / n["changed"]
    precision = n["both"] / n["predicted"]
    return {
        "cell_accuracy": n["right"] / n["cells"],
        "grid_accuracy": n["exact"] / grids,
        "grid_tol_0p90": n["t90"] / grids,
        "grid_tol_0p95": n["t95"] / grids,
        "grid_tol_0p99": n["t99"] / grids,
        "row_all_correct_rate": n["rows_right"] / n["rows"],
        "col_all_correct_rate": n["cols_right"] / n["cols"],
        "change_recall": recall,
        "change_precision": precision,
        "transformation_f1": 2 * recall * precision / (recall + precision),
        "copy_rate": n["copied"] / n["cells"],
        "dense_grid_objective": 0.8 * n["t95"] / grids + 0.2 * n["exact"] / grids,
        "solve_rate": sum(sample[4] for sample in samples) / grids,
        "shape_accuracy": sum(sample[5] for sample in samples) / grids,
        "shapes_by_rule": sum(sample[4] ^ sample[5] for sample in samples) / grids,
    }


def padded(grids: list[Grid], extra: int = 0) -> Tensor:
    height = max(grid.shape[0] for grid in grids) + extra
    width = max(grid.shape[1] for grid in grids) + 2 * extra
    batch = torch.full((len(grids), height, width), PAD)
    for image, grid in zip(batch, grids, strict=True):
        image[: grid.shape[0], : grid.shape[1]] = torch.from_numpy(grid)
    return batch


def count(metrics: GridMetrics, samples: list[Sample], extra: int = 0) -> None:
    """Update with one batch of `samples`."""
    counts = grid_counts(
        *(padded([sample[part] for sample in samples], extra) for part in range(3)),
        solved=torch.tensor([sample[4] for sample in samples]),
        shape_correct=torch.tensor([sample[5] for sample in samples]),
        shape_by_rule=torch.tensor([sample[4] ^ sample[5] for sample in samples]),
    )
    metrics.update(counts, torch.tensor([sample[3] for sample in samples]))


@pytest.mark.parametrize(
    ("seed", "batch_size", "extra"), [(0, 60, 0), (0, 1, 0), (1, 7, 0), (1, 7, 5)]
)
def test_metrics_agree_with_loops_for_any_batches_and_padding(
    seed: int, batch_size: int, extra: int
) -> None:
    samples = random_samples(seed, 60)
    metrics = GridMetrics(("a", "b", "c"), torch.arange(3))
    for start in range(0, len(samples), batch_size):
        count(metrics, samples[start : start + batch_size], extra)
    values = as_floats(metrics.compute())
    values.pop("compositional_gap_rate")
    expected = looped_metrics(samples)
    assert values == pytest.approx(expected, abs=1e-7)
    source, target, prediction = (padded([s[i] for s in samples], extra) for i in range(3))
    batch = as_floats(
        compute_grid_metrics(prediction, target)
        | compute_copy_metrics_on_batch(source, target, prediction)
    )
    assert batch == pytest.approx({name: expected[name] for name in batch}, abs=1e-7)
    for position, figures in enumerate(metrics.by_group().values()):
        own = [sample for sample in samples if sample[3] == position]
        expected = looped_metrics(own)
        expected["compositional_gap"] = expected["cell_accuracy"] - expected["grid_accuracy"]
        formal = expected["cell_accuracy"] > 0.8 and expected["grid_accuracy"] < 0.1
        expected["compositional_gap_rate"] = float(formal)
        assert figures.grids == len(own)
        assert figures.metrics == pytest.approx(expected, abs=1e-6)


def test_the_formal_gap_is_a_share_of_tasks() -> None:
    # Tasks 0 and 1 in group a, tasks 2 and 3 in b; 10 cells a grid.
    # Task 0: 9 of 10 cells, no grid: a gap. Task 1: 8 of 10 cells, not over 80 %: none.
    # Task 2: ten grids, nine with 9 cells right and one whole, 10 %: none. Task 3 has no grid.
    metrics = GridMetrics(("a", "b"), torch.tensor([0, 0, 1, 1]))
    target = np.ones((1, 10), dtype=np.int64)

    def with_wrong(wrong: int, task: int) -> Sample:
        prediction = np.where(np.arange(10) < wrong, 2, target)
        return (target, target, prediction, task, False, True)

    count(metrics, [with_wrong(1, 0), with_wrong(2, 1), *[with_wrong(1, 2)] * 9, with_wrong(0, 2)])
    assert float(metrics.compute()["compositional_gap_rate"]) == pytest.approx(1 / 3)
    table = metrics.by_group()
    assert table["a"].metrics["compositional_gap_rate"] == 0.5
    assert table["b"].metrics["compositional_gap_rate"] == 0.0
    assert (table["a"].grids, table["b"].grids) == (2, 10)


def test_intervals_are_for_the_choice_of_tasks() -> None:
    """Four tasks of ten grids; two are solved whole, and one grid of the third."""
    counts = torch.zeros(5, len(Count), dtype=torch.int64)
    counts[:4, Count.GRIDS] = 10
    counts[:4, Count.SOLVED] = torch.tensor([10, 10, 1, 0])
    # Tasks weigh the same, so the error is that of the mean of 1, 1, 0.1 and 0.
    shares = np.array([1, 1, 0.1, 0])
    draws = 0.525 * 0.475 / (shares.var(ddof=1) / 4)
    draws *= (stats.norm.ppf(0.975) / stats.t.ppf(0.975, 3)) ** 2
    low = stats.beta.ppf(0.025, 0.525 * draws, 0.475 * draws + 1)
    high = stats.beta.ppf(0.975, 0.525 * draws + 1, 0.475 * draws)
    intervals = task_intervals(counts)
    assert intervals["solve_rate"] == pytest.approx((low, high), abs=1e-6)
    # Of four draws, 0.025 = (1 - high)^4.
    assert intervals["grid_accuracy"] == pytest.approx((0.0, 1 - 0.025**0.25))
    assert "cell_accuracy" not in intervals and task_intervals(counts[:1]) == {}
