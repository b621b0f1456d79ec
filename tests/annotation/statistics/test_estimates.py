import math

import numpy as np
import pytest
from scipy import stats

from raylab.annotation.statistics.estimates import (
    Estimate,
    amount_mean,
    proportion,
    share_mean,
)


def test_wilson_interval():
    # z = 1.959964: 0 of 10 reaches z2 / (n + z2), as 10 of 10 begins at n / (n + z2).
    z2 = 1.959963984540054**2
    assert proportion(0, 10).interval == pytest.approx((0.0, z2 / (10 + z2)))
    assert proportion(10, 10).interval == pytest.approx((10 / (10 + z2), 1.0))
    assert (proportion(8, 10).value, proportion(8, 10).count) == (0.8, 10)
    assert proportion(0, 0) == Estimate(value=None, interval=None, count=0, reason="no cases")
    with pytest.raises(ValueError):
        proportion(1, 0)


def test_mean_of_zeros_and_ones_has_jeffreys_interval():
    found = share_mean({0.0: 4, 1.0: 36}, seed=1, draws=20_000)
    ends = stats.beta(36.5, 4.5).ppf([0.025, 0.975])
    assert found.value == 0.9 and found.interval == pytest.approx(ends, abs=4e-3)
    # Full agreement has a width too.
    full = share_mean({1.0: 40}, seed=1, draws=20_000)
    assert full.interval == pytest.approx(stats.beta(40.5, 0.5).ppf([0.025, 0.975]), abs=4e-3)


def test_mean_of_even_amounts_has_students_interval():
    # Without skewness nothing is corrected: 30 of 1 and of 3, standard deviation 1 times 60 / 59.
    half = stats.t.ppf(0.975, 59) * math.sqrt(60 / 59 / 60)
    assert amount_mean({1.0: 30, 3.0: 30}).interval == pytest.approx((2 - half, 2 + half))


def test_mean_of_skew_amounts_solves_halls_transformation():
    values = np.repeat([0.0, 4.0, 20.0], [40, 7, 3])
    found = amount_mean({0.0: 40, 4.0: 7, 20.0: 3})
    skewness, error = stats.skew(values), stats.sem(values)
    assert found.interval is not None and found.value == pytest.approx(values.mean())
    for end, side in zip(found.interval, (1, -1), strict=True):
        x = (values.mean() - end) / error / math.sqrt(50)
        moved = x + skewness / 3 * x**2 + skewness**2 / 27 * x**3 + skewness / 6 / 50
        assert moved * math.sqrt(50) == pytest.approx(side * stats.t.ppf(0.975, 49))
    # The longer tail is on the side of the few large amounts.
    low, high = found.interval
    assert high - values.mean() > values.mean() - low


def test_means_of_few_cases_have_no_interval():
    assert share_mean({0.5: 19}, seed=1).reason == "19 cases: an interval needs 20"
    assert share_mean({0.5: 99}, seed=1, draws=0).reason == "no replicates"
    assert (share_mean({}, seed=1).value, amount_mean({}).reason) == (None, "no cases")
    few = amount_mean({0.0: 98, 7.0: 2})
    assert (few.value, few.interval) == (pytest.approx(0.14), None)
    assert few.reason == "2 cases differ from the commonest: an interval needs 3"
