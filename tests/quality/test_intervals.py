"""Intervals over tasks, on noise whose distribution is known."""

import numpy as np
import pytest

from raylab.quality.intervals import deviations, maximum, mean_deviation, mean_distance

RNG = np.random.default_rng(5)


def test_deviations_have_the_variance_of_the_mean():
    # Weights 1 0 and 0 2 of accuracies 0 and 1: replicates 0 and 1, mean .5; n / (n - 1) is 2.
    weights = np.array([[[1.0]], [[2.0]], [[0.0]]])
    weighted = np.array([[[0.0]], [[2.0]], [[0.0]]])
    found = deviations(weighted, weights, np.array([[2.0]]))
    assert found.ravel() == pytest.approx([-(0.5**0.5), 0.5**0.5])


def test_one_value_has_a_normal_interval():
    noise = RNG.standard_normal((20_000, 1))
    assert maximum(np.array([0.5]), noise) == pytest.approx((0.5 - 1.96, 0.5 + 1.96), abs=0.06)


def test_a_far_best_value_is_alone():
    noise = RNG.standard_normal((20_000, 3))
    low, high = maximum(np.array([0.0, 50.0, 1.0]), noise)
    assert (low, high) == pytest.approx((50 - 1.96, 50 + 1.96), abs=0.06)


def test_the_best_of_equal_values_is_taken_back():
    # P(max of 10 normals <= x) = .95 at Phi(x) = .95^(1/10), x = 2.57; the upper end never misses.
    noise = RNG.standard_normal((20_000, 10))
    low, _ = maximum(np.zeros(10), noise)
    assert low == pytest.approx(-2.57, abs=0.06)


@pytest.mark.parametrize("spread", [0.0, 0.5, 5.0])
def test_spreads_are_covered_and_corrected(spread: float):
    true = spread * np.linspace(-1, 1, 6)
    grid = spread * np.tile([-1.0, 0.0, 1.0], (6, 1))
    noise = RNG.standard_normal((400, 6, 3))
    distances, sds, below, low = [], [], 0, 0
    distance, deviation = np.abs(true).mean(), spread
    for _ in range(300):
        first = mean_distance(true + RNG.standard_normal(6), noise[..., 0])
        second = mean_deviation(grid + RNG.standard_normal((6, 3)), noise)
        distances.append(first.interval[0] - 1e-9 <= distance <= first.interval[1] + 1e-9)
        sds.append(second.interval[0] - 1e-9 <= deviation <= second.interval[1] + 1e-9)
        below += (first.corrected or 0.0) <= distance + 1e-9
        low += (second.corrected or 0.0) <= deviation + 1e-9
    # Four standard errors of a share of 300 are .05; the noise is one sample of 400 too.
    for covered in (distances, sds):
        assert 0.89 <= np.mean(covered) <= 1.0
    # Median-unbiased: half of the corrected figures lie below the truth, more only at the end.
    assert 0.35 <= below / 300 and 0.35 <= low / 300
    if spread == 5.0:
        assert below / 300 <= 0.65 and low / 300 <= 0.65
