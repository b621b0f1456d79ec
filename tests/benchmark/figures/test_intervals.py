"""Intervals over tasks, on noise whose distribution is known."""

import numpy as np
import pytest

from raylab.benchmark.figures.intervals import deviations, maximum, mean_deviation, mean_distance
from raylab.core.runs.records import Figure

RNG = np.random.default_rng(5)
REPETITIONS = 100
"""`make coverage` takes thousands."""


def test_deviations_have_the_variance_of_the_mean():
    # Weights 1 0 and 0 2 of accuracies 0 and 1: replicates 0 and 1, mean .5; n / (n - 1) is 2.
    weights = np.array([[[1.0]], [[2.0]], [[0.0]]])
    weighted = np.array([[[0.0]], [[2.0]], [[0.0]]])
    noise = deviations(weighted, weights, np.array([[2.0]]))
    assert noise.ravel() == pytest.approx([-(0.5**0.5), 0.5**0.5])


@pytest.mark.parametrize("values", [[50.0], [0.0, 50.0, 1.0]])
def test_one_value_or_a_far_best_has_a_normal_interval(values: list[float]):
    noise = RNG.standard_normal((20_000, len(values)))
    assert maximum(np.array(values), noise) == pytest.approx((50 - 1.96, 50 + 1.96), abs=0.06)


def test_the_best_of_equal_values_is_taken_back():
    # P(max of 10 normals <= x) = .95 at Phi(x) = .95^(1/10), x = 2.57; the upper end never misses.
    noise = RNG.standard_normal((20_000, 10))
    low, _ = maximum(np.zeros(10), noise)
    assert low == pytest.approx(-2.57, abs=0.06)


def test_two_models_have_the_interval_of_their_difference():
    # Half the difference is .5 with a standard error of 1 / sqrt 2; t(19) has .025 above 2.093.
    noise = RNG.standard_normal((20_000, 2))
    estimated = mean_distance(np.array([1.0, 0.0]), noise, tasks=20)
    assert estimated.interval == pytest.approx((0.0, 0.5 + 2.093 / 2**0.5), abs=0.03)
    far = mean_distance(np.array([10.0, 0.0]), noise, tasks=100_000)
    assert far.interval == pytest.approx((5 - 1.96 / 2**0.5, 5 + 1.96 / 2**0.5), abs=0.03)
    alike = mean_distance(np.array([1.0, 1.0]), noise, tasks=100_000)
    assert alike.interval == pytest.approx((0, 1.96 / 2**0.5), abs=0.03)
    assert alike.corrected == pytest.approx(0, abs=0.03)


def test_without_noise_there_is_no_interval():
    for figure in (
        mean_distance(np.zeros(3), np.zeros((9, 3)), 20),
        mean_distance(np.array([0.1, 0.2]), np.zeros((9, 2)), 20),
        mean_deviation(np.zeros((3, 2)), np.zeros((9, 3, 2))),
    ):
        assert figure.interval is None and "chance cannot be estimated" in (figure.reason or "")


def assert_holds(estimates: list[Figure], truth: float, near_zero: bool) -> None:
    """95 % of the intervals hold the truth, and the corrected figures lie on both sides of it."""
    ends = np.array([estimate.interval for estimate in estimates])
    held = (ends[:, 0] - 1e-9 <= truth) & (truth <= ends[:, 1] + 1e-9)
    # Four standard errors of a share of 100 are .09; the noise is one sample of 200 too.
    assert held.mean() >= 0.85
    below = np.mean([(estimate.corrected or 0.0) <= truth + 1e-9 for estimate in estimates])
    assert below >= 0.25 and (near_zero or below <= 0.75)


@pytest.mark.parametrize("spread", [0.0, 0.5, 5.0])
def test_spreads_are_held_and_corrected(spread: float):
    true = spread * np.linspace(-1, 1, 6)
    grid = spread * np.tile([-1.0, 0.0, 1.0], (6, 1))
    noise = RNG.standard_normal((200, 6, 3))
    distances, moves = list[Figure](), list[Figure]()
    for _ in range(REPETITIONS):
        distances.append(mean_distance(true + RNG.standard_normal(6), noise[..., 0], 100))
        moves.append(mean_deviation(grid + RNG.standard_normal((6, 3)), noise))
    assert_holds(distances, float(np.abs(true).mean()), spread < 5)
    assert_holds(moves, spread, spread < 5)


@pytest.mark.parametrize("moving", [1, 3])
def test_the_moves_of_few_models_alone_are_held_and_corrected(moving: int):
    noise = RNG.standard_normal((200, 10, 3))
    # Sample standard deviation 6 each.
    grid = np.zeros((10, 3))
    grid[:moving] = [-6.0, 0.0, 6.0]
    moves = [mean_deviation(grid + RNG.standard_normal((10, 3)), noise) for _ in range(REPETITIONS)]
    assert_holds(moves, 0.6 * moving, near_zero=False)
