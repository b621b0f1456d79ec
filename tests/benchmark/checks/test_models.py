"""Models: their means, what they took, how stable their ranking is, and shifts to another form."""

from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from raylab.benchmark.checks.forms import compare_forms
from raylab.benchmark.checks.models import (
    estimate_means,
    fit_items,
    measure_models,
    measure_stability,
    measure_usage,
)
from raylab.benchmark.responses import Responses, make_responses
from raylab.core.errors import DataError
from raylab.core.stats import wilson
from tests.benchmark.checks.simulation import as_matrix, logistic

NAN = float("nan")


@pytest.mark.parametrize("right", [0, 1, 20, 39, 40])
def test_the_interval_of_single_items_is_wilsons(right: int) -> None:
    (mean,), means = estimate_means(as_matrix(np.arange(40)[None] * 1.0 < right))
    assert mean.value == right / 40
    # statsmodels, cov_type="HC2" of a constant: the sample standard deviation over sqrt(n).
    assert means.errors[0] == pytest.approx(np.std(np.arange(40) < right, ddof=1) / 40**0.5)
    assert mean.interval == pytest.approx(wilson(right / 40, 40), abs=2e-3)


def test_results_are_by_task_and_topic_and_the_best_leads() -> None:
    rows = [
        (model, task, f"{task}/{topic}{n}", topic, float(n < right + bonus))
        for model, bonus in (("weak", 0), ("strong", 2))
        for task, topic, right in (("law", "", 4), ("maths", "sums", 6), ("maths", "proofs", 2))
        for n in range(10)
    ]
    table = pd.DataFrame(rows, columns=["model", "task", "item", "group", "score"])
    means, slices = measure_models(make_responses(table))
    assert [(mean.model, mean.mean.value) for mean in means] == [
        ("strong", pytest.approx(18 / 30)),
        ("weak", pytest.approx(12 / 30)),
    ]
    assert {(each.task, each.topic): each.means["weak"].value for each in slices} == {
        ("law", ""): 0.4,
        ("maths", ""): 0.4,
        ("maths", "proofs"): 0.2,
        ("maths", "sums"): 0.6,
    }
    # Fixed strata of ten: p (1 - p) / 9 each, a ninth of the sum is the variance of their mean.
    variance = sum(p * (1 - p) / 9 for p in (0.4, 0.6, 0.2)) / 9
    assert means[1].error == pytest.approx(variance**0.5)


def test_a_fit_of_models_and_items_takes_back_which_items_were_answered() -> None:
    draw = np.random.default_rng(0)
    skills, ease = np.linspace(-0.1, 0.1, 4), draw.normal(0, 0.2, 50)
    scores = 0.5 + skills[:, None] + ease
    whole = scores.mean(axis=1)
    scores[1:][draw.random((3, 50)) < 0.5] = np.nan
    adjusted, items = fit_items(as_matrix(scores))
    assert adjusted == pytest.approx(whole)
    assert items == pytest.approx(ease - ease.mean())


def responses(logs: dict[str, list[object]]) -> Responses:
    """Four models with two items each; `d` is right on none, `a` and `b` on both, `c` on one."""
    scores = {"a": (1.0, 1.0), "b": (1.0, 1.0), "c": (1.0, 0.0), "d": (0.0, 0.0)}
    rows = [(m, n, score) for m, own in scores.items() for n, score in enumerate(own)]
    frame = pd.DataFrame(rows, columns=["model", "item", "score"])
    return make_responses(frame, logs=pd.DataFrame(logs))


def test_what_a_model_took_is_by_response_and_unbeaten_where_no_cheaper_one_is_as_good() -> None:
    # `a` has two logs; one of `d` does not say what it cost.
    logs: dict[str, list[object]] = {
        "model": ["a", "a", "b", "c", "d", "d"],
        "sampled": [True] * 6,
        "cost": [1.0, 3.0, 8.0, 1.0, 1.0, NAN],
        "tokens": [100.0, 100.0, 500.0, 50.0, 10.0, 10.0],
        "seconds": [NAN] * 6,
    }
    usage = measure_usage(responses(logs))
    assert [(each.model, each.cost, each.tokens, each.unbeaten) for each in usage] == [
        ("a", 2.0, 100.0, True),
        ("b", 4.0, 250.0, False),
        ("c", 0.5, 25.0, True),
        ("d", None, 10.0, False),
    ]
    assert all(each.seconds is None for each in usage)


def test_logs_that_say_nothing_have_no_usage() -> None:
    logs = {"model": ["a"], "sampled": [True], "cost": [NAN], "tokens": [NAN], "seconds": [NAN]}
    assert (
        measure_usage(responses(logs)) == measure_usage(make_responses(responses({}).table)) == ()
    )


@pytest.mark.parametrize("spread", [0.0, 0.3, 1.0])
def test_tau_is_that_of_halves_of_the_items(spread: float) -> None:
    scores = logistic(np.random.default_rng(3), (8, 200, 1, 1), (spread, 1, 0, 0))[:, :, 0, 0]
    tau, draw, taus = measure_stability(as_matrix(scores)), np.random.default_rng(0), list[float]()
    value, (low, high) = tau.value or 0.0, tau.interval or (1.0, 0.0)
    for _ in range(100):
        halves = np.split(scores[:, draw.permutation(200)], 2, axis=1)
        result: Any = stats.kendalltau(*(half.mean(axis=1) for half in halves))
        taus.append(result.statistic)
    assert low <= value <= high
    assert value == pytest.approx(max(float(np.nanmean(taus)), 0.0), abs=0.08)


@pytest.mark.parametrize("shape", [(1, 1), (1, 30), (2, 2), (3, 30)])
@pytest.mark.parametrize("score", [0.0, 1.0])
def test_a_ranking_that_cannot_be_stable_has_a_reason(shape: tuple[int, int], score: float) -> None:
    tau = measure_stability(as_matrix(np.full(shape, score)))
    assert tau.value is None and tau.reason


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
    chances = [item.by_chance for item in forms.broken]
    assert chances == sorted(chances)
    assert forms.broken_items == sum(item.by_chance < 0.41 for item in forms.broken) == 5


def test_forms_without_common_items_are_refused() -> None:
    first = as_matrix(np.ones((2, 3)))
    with pytest.raises(DataError, match="no model in common"):
        compare_forms(first, type(first)(**{**vars(first), "models": ("a", "b")}))
