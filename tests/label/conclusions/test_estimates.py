"""Estimates against statsmodels 0.15.0 and ppi-python 0.2.3, whose figures are constants here."""

import numpy as np
import pytest

from raylab.core.runs.records import Figure
from raylab.core.stats import Array, wilson
from raylab.label.conclusions.estimates import (
    NoEstimateError,
    difference_interval,
    fit,
    predict,
    share_interval,
)

PLACES = np.arange(400)
X = (PLACES * 37 % 101) / 100
DESIGN = np.column_stack((np.ones(400), X))
Y = ((PLACES * 53 % 97) / 97 < 0.25 + 0.5 * X).astype(float)
PREDICTED = np.clip(0.8 * Y + 0.15 * ((PLACES * 29 % 89) / 89), 0, 1)
LABELLED = PLACES % 5 == 2
WEIGHTS = np.where(LABELLED, 5.0, 0.0)


def corrected(design: Array, *, logistic: bool = False) -> Array:
    """The coefficients from all predictions and a fifth of the labels."""
    return fit(
        np.vstack((design, design[LABELLED])),
        np.concatenate((PREDICTED, Y[LABELLED])),
        np.concatenate((1 - WEIGHTS, WEIGHTS[LABELLED])),
        np.concatenate((PLACES, PLACES[LABELLED])),
        logistic=logistic,
    ).coefficients


@pytest.mark.parametrize(
    ("weights", "logistic", "coefficients", "errors"),
    [
        (1 + 0 * PLACES, False, (0.29728368, 0.36609161), (0.03346908, 0.06230717)),
        (1 + 0 * PLACES, True, (-0.83690106, 1.50878855), (0.14721153, 0.27196580)),
        (1 + PLACES * 17 % 5, False, (0.29432477, 0.37588640), (0.03913719, 0.07407799)),
    ],
)
def test_regressions_have_the_errors_of_statsmodels_clusters(
    weights: Array, logistic: bool, coefficients: tuple[float, ...], errors: tuple[float, ...]
) -> None:
    own = fit(DESIGN, Y, weights.astype(float), PLACES // 8, logistic=logistic)
    assert own.coefficients == pytest.approx(coefficients, abs=1e-7)
    # statsmodels has no correction for the number of clusters here.
    measured = np.sqrt(np.diag(own.covariance) * 49 / 50)
    assert measured == pytest.approx(errors, abs=1e-7)
    # Of years, incomes and seconds the slope is that of X by their unit.
    for start, unit in ((2018.0, 5.0), (0.0, 1e12), (1.6e9, 86400.0)):
        moved = np.column_stack((np.ones(400), start + unit * X))
        same = fit(moved, Y, weights.astype(float), PLACES // 8, logistic=logistic)
        slope, error = same.contrast(np.array([0.0, unit]))
        assert (slope, error * np.sqrt(49 / 50)) == pytest.approx(
            (coefficients[1], errors[1]), abs=1e-7
        )


def test_corrected_estimates_are_those_of_prediction_powered_inference() -> None:
    assert corrected(np.ones((400, 1))) == pytest.approx([0.4815], abs=1e-9)
    assert corrected(DESIGN, logistic=True) == pytest.approx([-0.85131059, 1.54989086], abs=1e-6)
    # ppi-python weights the errors by the covariates of the labelled cases alone.
    assert corrected(DESIGN) == pytest.approx([0.29337164, 0.37651658], abs=2e-3)


def test_equations_without_a_single_solution_are_refused() -> None:
    wide = np.vander(np.arange(1.0, 4.0), 4)
    for design in (np.ones((9, 2)), np.zeros((9, 1)), wide):
        rows = np.arange(len(design))
        with pytest.raises(NoEstimateError):
            fit(design, rows.astype(float), np.ones(len(rows)), rows)
    split = np.column_stack((np.ones(9), np.arange(9)))
    with pytest.raises(NoEstimateError):
        fit(split, (np.arange(9) > 4).astype(float), np.ones(9), np.arange(9), logistic=True)


def test_intervals_of_shares_have_the_size_that_their_error_is_worth() -> None:
    error = np.sqrt(0.3 * 0.7 / 250)
    assert share_interval(0.3, float(error), 1e9, 40) == pytest.approx(wilson(0.3, 250), abs=1e-6)
    assert share_interval(0.0, 0.0, 39, 40) == wilson(0.0, 40)


def test_interval_of_a_difference_is_newcombes_without_correlation() -> None:
    """The example of Newcombe 1998, Stat. Med. 17:873, method 10: 56/70 and 48/80."""
    first = Figure(value=56 / 70, interval=wilson(56 / 70, 70))
    second = Figure(value=48 / 80, interval=wilson(48 / 80, 80))
    assert difference_interval(first, second, 0.0) == pytest.approx((0.0524, 0.3339), abs=5e-5)
    # Only what the intervals lack in symmetry is left of two estimates that are one.
    low, high = difference_interval(first, first, 1.0)
    assert -0.05 < low <= 0 <= high < 0.05


def test_no_case_takes_part_in_its_own_prediction() -> None:
    generator = np.random.default_rng(0)
    features, noise = generator.normal(size=(300, 3)), generator.normal(size=300)
    labels = np.where(PLACES[:300] % 2, features[:, 0] + 0.1 * noise, np.nan)
    clusters = PLACES[:300] // 3
    before = predict(features, labels, np.ones(300), clusters, 1)
    assert np.corrcoef(before, features[:, 0])[0, 1] > 0.99
    labels[1] += 100
    after = predict(features, labels, np.ones(300), clusters, 1)
    assert np.array_equal(before[:3], after[:3]) and not np.allclose(before[3:], after[3:])
