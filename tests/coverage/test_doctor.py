"""Coverage of the intervals of differences, variance components, tau and signal-to-noise."""

from itertools import product

import numpy as np
import pytest

from raylab.benchmark.checks.differences import compare_pairs
from raylab.benchmark.checks.noise import measure_noise
from raylab.benchmark.checks.stability import compare_with_priors, kendall, measure_stability
from raylab.core.stats import Array
from tests.benchmark.checks.simulation import (
    NAMES,
    as_matrix,
    as_responses,
    logistic,
    logistic_variances,
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
    return float(np.mean([kendall(*both) for both in means]))


@pytest.mark.parametrize(
    ("lie", "models", "items", "groups"),
    list(product(("equal", "spread"), MODELS, ITEMS, (None, 25))),
)
def test_intervals_of_differences_hold_the_truth(
    lie: str, models: int, items: int, groups: int | None, measure: Measure
) -> None:
    """Items of a group share what each model finds easy."""
    draw, skills = generator(lie, models, items, groups), logits(lie, models)
    wrong, rounds = 0, 0
    wide = np.hypot(1.0, 0.5 * bool(groups))
    ease = wide * np.random.default_rng(0).standard_normal(200_000)
    chance = (1 / (1 + np.exp(-skills[:, None] - ease))).mean(axis=1)

    def simulate() -> Figures:
        nonlocal wrong, rounds
        group = np.arange(items) if groups is None else draw.integers(0, groups, items)
        shared = draw.standard_normal((models, group.max() + 1))[:, group]
        logit = skills[:, None] + draw.standard_normal(items) + 0.5 * bool(groups) * shared
        scores = (draw.random(logit.shape) < 1 / (1 + np.exp(-logit))).astype(float)
        table = compare_pairs(as_matrix(scores, group))
        wrong, rounds = wrong + bool(table["apart"].any()), rounds + 1
        row = table.iloc[int(draw.integers(len(table)))]
        interval = None if np.isnan(row["low"]) else (float(row["low"]), float(row["high"]))
        truth = float(chance[int(row["first"])] - chance[int(row["second"])])
        return {f"difference: {'in groups' if groups else 'single items'}": (interval, truth)}

    measure(simulate)
    if lie == "equal":
        assert wrong / rounds <= 0.05 + 2.5 * np.sqrt(0.05 * 0.95 / rounds)


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
        return {"tau of halves": (measure_stability(matrix).tau.interval, truth)}

    measure(simulate)


@pytest.mark.parametrize(("lie", "models"), list(product(("equal", "near", "spread"), MODELS)))
def test_intervals_of_agreement_with_priors_hold_the_truth(
    lie: str, models: int, measure: Measure
) -> None:
    draw, skills = generator("prior", lie, models), logits(lie, models)
    truth = expected_tau(skills, 100, draw)

    def simulate() -> Figures:
        matrix, prior = (as_matrix(solve(draw, skills, 100)) for _ in range(2))
        (agreement,) = compare_with_priors(matrix, {"prior": prior})
        return {"tau with a prior": (agreement.tau.interval, truth)}

    measure(simulate)
