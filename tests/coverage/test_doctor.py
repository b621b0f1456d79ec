"""Coverage of the intervals of means, differences, shifts, variance components and tau."""

from collections.abc import Sequence
from itertools import product
from typing import Any

import numpy as np
import pytest
from numpy.polynomial.hermite_e import hermegauss
from scipy import stats

from raylab.benchmark.checks.differences import compare_pairs
from raylab.benchmark.checks.forms import compare_forms
from raylab.benchmark.checks.models import estimate_means, measure_stability
from raylab.benchmark.checks.noise import measure_noise
from raylab.core.stats import Array
from tests.benchmark.checks.simulation import (
    NAMES,
    as_matrix,
    as_responses,
    logistic,
    random_effects,
)
from tests.coverage.table import MARKS, Figures, Measure, generator

pytestmark = MARKS

MODELS = (5, 12, 50)
ITEMS = (100, 1000)
SIMULATIONS_OF_TRUTH = 400_000
GAUSSIAN = {"spread": (0.1, 0.2, 0.15, 0.05, 0.05, 0.3), "equal": (0.0, 0.2, 0.15, 0.0, 0.0, 0.3)}
"""Standard deviations of the effects, in the order of `NAMES`."""
LOGISTIC = {"spread": (1.0, 1.0, 0.3, 0.2), "equal": (0.0, 1.0, 0.0, 0.0)}
"""Standard deviations of logits: models, items, generations, model x generation."""
RUNS = ((1, 1), (3, 2))
"""Generations and epochs."""
NODES = (24, 24, 8, 8)
"""Nodes of the quadrature over the logits of `LOGISTIC`."""


def logits(lie: str, models: int) -> Array:
    """The (models,) logits of models that lie so."""
    match lie:
        case "equal":
            return np.zeros(models)
        case "near":
            return np.linspace(-0.15, 0.15, models)
        case "one best":
            return np.append(np.zeros(models - 1), 1.5)
        case _:
            return np.linspace(-1.0, 1.0, models)


def logistic_variances(deviations: Sequence[float]) -> dict[str, float]:
    """The variance components of logistic answers, by Gauss-Hermite quadrature."""
    rules = [hermegauss(n) for n in NODES]
    axes = [s * nodes for s, (nodes, _) in zip(deviations, rules, strict=True)]
    whole = sum(np.meshgrid(*axes, indexing="ij", sparse=True), np.zeros(NODES))
    shares = [weights / weights.sum() for _, weights in rules]
    weights = np.einsum("a,b,c,d->abcd", *shares)
    chance = 1 / (1 + np.exp(-whole))

    def variance(*kept: int) -> float:
        away = tuple(axis for axis in range(4) if axis not in kept)
        joint = weights.sum(axis=away)
        means = (chance * weights).sum(axis=away) / joint
        return round(float((joint * means**2).sum() - (joint * means).sum() ** 2), 12)

    single = {name: variance(n) for n, name in enumerate(("models", "items", "generations"))}
    single["model x item"] = variance(0, 1) - single["models"] - single["items"]
    single["model x generation"] = variance(0, 2, 3) - single["models"] - single["generations"]
    total = float((weights * chance).sum())
    single["epochs"] = total * (1 - total) - sum(single.values())
    return single


def solve(draw: np.random.Generator, skills: Array, items: int) -> Array:
    """The (models, items) answers of models with these logits to items of normal ease."""
    chance = 1 / (1 + np.exp(-skills[:, None] - draw.standard_normal(items)))
    return (draw.random(chance.shape) < chance).astype(float)


def expected_tau(skills: Array, items: int, draw: np.random.Generator) -> float:
    """The mean tau-b between rankings by two sets of items."""
    if not np.ptp(skills):
        return 0.0
    rounds = min(max(SIMULATIONS_OF_TRUTH // (len(skills) * items), 300), 3000)
    means = [[solve(draw, skills, items).mean(axis=1) for _ in "ab"] for _ in range(rounds)]
    taus: list[Any] = [stats.kendalltau(*both) for both in means]
    return float(np.mean([np.nan_to_num(tau.statistic) for tau in taus]))


@pytest.mark.parametrize(
    ("lie", "models", "items", "clusters"),
    list(product(("equal", "spread"), MODELS, ITEMS, (None, 3, 12, 40))),
)
def test_intervals_of_differences_hold_the_truth(
    lie: str, models: int, items: int, clusters: int | None, measure: Measure
) -> None:
    """Items of a cluster share what each model finds easy."""
    draw, skills = generator(lie, models, items, clusters), logits(lie, models)
    wrong, rounds = 0, 0
    wide = np.hypot(1.0, 0.5 * bool(clusters))
    ease = wide * np.random.default_rng(0).standard_normal(200_000)
    chance = (1 / (1 + np.exp(-skills[:, None] - ease))).mean(axis=1)

    def simulate() -> Figures:
        nonlocal wrong, rounds
        group = np.arange(items) % (clusters or items)
        shared = draw.standard_normal((models, group.max() + 1))[:, group]
        logit = skills[:, None] + draw.standard_normal(items) + 0.5 * bool(clusters) * shared
        scores = (draw.random(logit.shape) < 1 / (1 + np.exp(-logit))).astype(float)
        table = compare_pairs(as_matrix(scores, group))
        wrong, rounds = wrong + bool(table["apart"].any()), rounds + 1
        row = table.iloc[int(draw.integers(len(table)))]
        interval = None if np.isnan(row["low"]) else (float(row["low"]), float(row["high"]))
        truth = float(chance[int(row["first"])] - chance[int(row["second"])])
        return {f"difference, {f'{clusters} clusters' if clusters else 'items'}": (interval, truth)}

    measure(simulate)
    if lie == "equal":
        assert wrong / rounds <= 0.05 + 2.5 * np.sqrt(0.05 * 0.95 / rounds)


@pytest.mark.parametrize(
    ("skill", "items", "strata", "clusters", "epochs"),
    list(product((0.0, 2.0, 4.0), (20, 200, 1000), (1, 4), (None, 3, 12, 40), (1, 4))),
)
def test_intervals_of_means_hold_the_truth(
    skill: float, items: int, strata: int, clusters: int | None, epochs: int, measure: Measure
) -> None:
    """Up to 96 % right; topics are unlike, and weigh 1 or 3."""
    draw = generator("mean", skill, items, strata, clusters, epochs)
    number = np.arange(items)
    group, topic = number % (clusters or items), number // (clusters or 1) % strata
    weights, topics = np.where(topic % 2, 3.0, 1.0), 1.5 * topic - 0.75 * (strata - 1)
    wide = np.hypot(1.0, 0.5 * bool(clusters)) * np.random.default_rng(0).standard_normal(100_000)
    truths = {each: float((1 / (1 + np.exp(-skill - each - wide))).mean()) for each in {*topics}}
    truth = float(np.average([truths[each] for each in topics], weights=weights))

    def simulate() -> Figures:
        shared = 0.5 * bool(clusters) * draw.standard_normal(items)[group]
        chance = 1 / (1 + np.exp(-skill - topics - shared - draw.standard_normal(items)))
        scores = draw.binomial(epochs, chance)[None] / epochs
        # Clusters cross topics.
        (mean,), _ = estimate_means(as_matrix(scores, group, weights, topic))
        return {f"mean, {f'{clusters} clusters' if clusters else 'items'}": (mean.interval, truth)}

    measure(simulate)


@pytest.mark.parametrize(
    ("alike", "shift", "models", "items", "clusters"),
    [
        (*form, *rest)
        for form in ((1.0, 0.0), (1.0, 0.3), (0.6, 0.3))
        for rest in product((5, 20), ITEMS, (None, 40))
    ],
)
def test_intervals_of_shifts_between_forms_hold_the_truth(
    alike: float, shift: float, models: int, items: int, clusters: int | None, measure: Measure
) -> None:
    """The logits of the models on the second form correlate so with those on the first."""
    draw, skills = generator("forms", shift, models, items, clusters), logits("spread", models)
    other = draw.standard_normal(models)
    other -= other.mean() + skills * (skills @ other) / (skills @ skills)
    other *= np.linalg.norm(skills) / np.linalg.norm(other)
    skills = np.stack([skills, alike * skills + (1 - alike**2) ** 0.5 * other - shift])
    ease = np.hypot(1.0, 0.5 * bool(clusters)) * np.random.default_rng(0).standard_normal(100_000)
    truths = [(1 / (1 + np.exp(-each[:, None] - ease))).mean(axis=1) for each in skills]

    def simulate() -> Figures:
        group = np.arange(items) % (clusters or items)
        shared = draw.standard_normal(items) + 0.5 * draw.standard_normal(items)[group]
        own = shared if clusters else draw.standard_normal(items)
        chances = 1 / (1 + np.exp(-skills[:, :, None] - own))
        forms = [as_matrix((draw.random(p.shape) < p) * 1.0, group) for p in chances]
        compared = compare_forms(*forms)
        first = next(each for each in compared.shifts if each.model == "m0000")
        moved = truths[1] - truths[0]
        true_correlation = float(np.corrcoef(truths)[0, 1])
        return {
            "shift of a model": (first.shift.interval, float(moved[0])),
            "shift of all": (compared.overall.shift.interval, float(moved.mean())),
            f"correlation of forms: {'1' if alike == 1 else 'less'}": (
                compared.correlation.interval,
                true_correlation,
            ),
        }

    measure(simulate)


@pytest.mark.parametrize(
    ("kind", "lie", "models", "items", "runs"),
    list(product(("gaussian", "logistic"), ("spread", "equal"), MODELS, ITEMS, RUNS)),
)
def test_intervals_of_variance_components_hold_the_truth(
    kind: str, lie: str, models: int, items: int, runs: tuple[int, int], measure: Measure
) -> None:
    draw, (generations, epochs) = generator(kind, lie, models, items, runs), runs
    deviations = (GAUSSIAN if kind == "gaussian" else LOGISTIC)[lie]
    if generations == 1:
        effects = (3, 4) if kind == "gaussian" else (2, 3)
        deviations = tuple(0.0 if n in effects else s for n, s in enumerate(deviations))
    squares = dict(zip(NAMES, np.square(deviations).tolist(), strict=False))
    truths = squares if kind == "gaussian" else logistic_variances(deviations)
    noise = truths["model x item"] / items + truths["model x generation"] / generations
    noise += truths["epochs"] / items / generations / epochs
    if runs == (1, 1):
        truths["epochs"] += truths.pop("model x item")

    def simulate() -> Figures:
        shape = (models, items, generations, epochs)
        scores = (random_effects if kind == "gaussian" else logistic)(draw, shape, deviations)
        measured = measure_noise(as_responses(scores))
        figures: Figures = {
            f"variance of {part.name}: {kind}": (part.variance.interval, truths[part.name])
            for part in measured.components
            if part.variance.value is not None
        }
        truth = float(np.sqrt(truths["models"] / noise))
        return {**figures, f"signal-to-noise: {kind}": (measured.signal_to_noise.interval, truth)}

    measure(simulate)


@pytest.mark.parametrize(
    ("lie", "models", "items"),
    list(product(("equal", "near", "one best", "spread"), MODELS, ITEMS)),
)
def test_intervals_of_tau_hold_the_truth(
    lie: str, models: int, items: int, measure: Measure
) -> None:
    draw, skills = generator("tau", lie, models, items), logits(lie, models)
    truth = expected_tau(skills, items // 2, draw)

    def simulate() -> Figures:
        matrix = as_matrix(solve(draw, skills, items))
        return {"tau of halves": (measure_stability(matrix).interval, truth)}

    measure(simulate)
