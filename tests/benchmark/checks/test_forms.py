"""Two forms of one benchmark: shifts, correlation without noise, and items that broke."""

import numpy as np
import pytest
from scipy import stats

from raylab.benchmark.checks.forms import compare_forms
from raylab.core.errors import DataError
from tests.benchmark.checks.simulation import as_matrix


def test_shifts_are_those_of_paired_tests() -> None:
    draw = np.random.default_rng(0)
    first = draw.random((3, 60))
    second = first + np.array([[-0.2], [0.0], [0.02]]) + draw.normal(0, 0.1, (3, 60))
    forms = compare_forms(as_matrix(first), as_matrix(second[:, :50]))
    assert (forms.models, forms.items, forms.only) == (3, 50, (10, 0))
    assert forms.shifts[0].model == "m0000"
    for shift in forms.shifts:
        row = int(shift.model[1:])
        expected = stats.ttest_rel(second[row, :50], first[row, :50])
        assert shift.p == pytest.approx(max(expected.pvalue, 2.0**-49))
        assert shift.shift.interval == pytest.approx(tuple(expected.confidence_interval()))
    expected = stats.ttest_1samp((second - first)[:, :50].mean(axis=0), 0)
    assert forms.overall.shift.interval == pytest.approx(tuple(expected.confidence_interval()))
    assert forms.correlation.reason == "it needs 5 models"


def test_the_correlation_of_noisy_means_is_corrected_and_broken_items_lead() -> None:
    draw = np.random.default_rng(1)
    chance = np.clip(np.linspace(0.45, 0.55, 10)[:, None] + draw.normal(0, 0.15, 400), 0, 1)
    first, second = ((draw.random(chance.shape) < chance) * 1.0 for _ in "ab")
    first[:, :3], second[:, :3] = 1.0, 0.0
    forms = compare_forms(as_matrix(first), as_matrix(second))
    measured = np.corrcoef(first.mean(axis=1), second.mean(axis=1))[0, 1]
    assert forms.correlation.value == pytest.approx(measured)
    low, high = forms.correlation.interval or (1.0, 0.0)
    assert measured < (forms.correlation.corrected or 0.0) <= 1 and low < 1 == pytest.approx(high)
    assert {item.item for item in forms.broken[:3]} == {"i00000", "i00001", "i00002"}
    assert (forms.broken[0].lost, forms.broken[0].won, forms.broken[0].change) == (10, 0, -1.0)
    # Nothing gained as much; chance breaks items that lost two models.
    assert forms.broken[0].by_chance == pytest.approx(1 / 3) and forms.broken[-1].by_chance > 0.5
    # Two more lost as many models as one won: (1 + 1) / 5.
    assert forms.broken_items == sum(item.by_chance < 0.41 for item in forms.broken) == 5


def test_forms_without_common_items_are_refused() -> None:
    first = as_matrix(np.ones((2, 3)))
    with pytest.raises(DataError, match="no model in common"):
        compare_forms(first, type(first)(**{**vars(first), "models": ("a", "b")}))
