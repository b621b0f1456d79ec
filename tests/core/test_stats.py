import numpy as np
import pytest
from scipy import stats

from raylab.core import stats as estimates
from raylab.core.runs.records import Figure
from raylab.core.stats import holm, proportion, share_mean, wilson


def test_wilson_interval():
    # z = 1.959964: 0 of 10 reaches z2 / (n + z2), as 10 of 10 begins at n / (n + z2).
    z2 = 1.959963984540054**2
    assert proportion(0, 10).interval == pytest.approx((0.0, z2 / (10 + z2)))
    assert proportion(10, 10).interval == pytest.approx((10 / (10 + z2), 1.0))
    assert (proportion(8, 10).value, proportion(8, 10).count) == (0.8, 10)
    assert proportion(0, 0) == Figure(value=None, interval=None, count=0, reason="no cases")
    for successes, trials in ((1, 3), (37, 40), (499, 1000)):
        oracle = stats.binomtest(successes, trials).proportion_ci(method="wilson")
        expected = pytest.approx((oracle.low, oracle.high), rel=1e-14)
        assert wilson(successes / trials, trials) == expected
    with pytest.raises(ValueError, match="3 successes in 2 trials"):
        proportion(3, 2)


def test_p_values_are_adjusted_step_by_step():
    assert holm(np.array([0.01, 0.04, 0.03, 0.005])) == pytest.approx([0.03, 0.06, 0.06, 0.02])


def test_mean_of_zeros_and_ones_has_jeffreys_interval(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(estimates, "DRAWS", 20_000)
    for ones, zeros in ((36, 4), (40, 0)):
        figure = share_mean({0.0: zeros, 1.0: ones}, seed=1)
        ends = stats.beta(ones + 0.5, zeros + 0.5).ppf([0.025, 0.975])
        assert figure.value == ones / 40 and figure.interval == pytest.approx(ends, abs=4e-3)


def test_means_of_few_cases_have_no_interval():
    assert share_mean({0.5: 19}, seed=1).reason == "19 cases: an interval needs 20"
    assert share_mean({}, seed=1).value is None
