"""Means of models, over all items and by task and topic, and what they took."""

import numpy as np
import pandas as pd
import pytest

from raylab.benchmark.checks.models import (
    estimate_means,
    fit_items,
    measure_models,
    measure_usage,
)
from raylab.benchmark.responses import Responses, make_responses
from raylab.core.stats import wilson
from tests.benchmark.checks.simulation import as_matrix

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
