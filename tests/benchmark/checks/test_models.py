"""Means of models, over all items and by task and topic."""

import numpy as np
import pandas as pd
import pytest

from raylab.benchmark.checks.models import estimate_means, fit_items, measure_models
from raylab.benchmark.responses import make_responses
from raylab.core.stats import wilson
from tests.benchmark.checks.simulation import as_matrix


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
