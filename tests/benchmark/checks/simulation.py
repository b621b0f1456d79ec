"""Simulated responses whose truth is computed: scores with random effects, and logistic answers."""

from collections.abc import Sequence

import numpy as np
import pandas as pd
from numpy.polynomial.hermite_e import hermegauss

from raylab.benchmark.responses import Matrix, Responses, make_responses
from raylab.core.stats import Array

NAMES = ("models", "items", "model x item", "generations", "model x generation", "epochs")
NODES = (24, 24, 8, 8)


def as_matrix(
    scores: Array, clusters: object = None, weights: object = None, strata: object = None
) -> Matrix:
    """A matrix of (models, items) scores; each item is a cluster and weighs 1 by default."""
    models, items = scores.shape
    return Matrix(
        scores=scores,
        models=tuple(f"m{n:04}" for n in range(models)),
        items=tuple(f"i{n:05}" for n in range(items)),
        strata=np.zeros(items, np.int64) if strata is None else np.asarray(strata, np.int64),
        clusters=np.arange(items) if clusters is None else np.asarray(clusters, np.int64),
        weights=np.ones(items) if weights is None else np.asarray(weights, float),
    )


def as_responses(scores: Array, clusters: object = "", topics: object = "") -> Responses:
    """Responses of (models, items, generations, epochs) scores, without those that are NaN."""
    items = scores.shape[1]
    declared = {
        name: np.broadcast_to(np.asarray(values).astype(str), items)[np.indices(scores.shape)[1]]
        for name, values in {"cluster": clusters, "group": topics}.items()
    }
    places = [axis.ravel() for axis in np.indices(scores.shape)]
    table = pd.DataFrame({name: values.ravel() for name, values in declared.items()})
    for name, codes, size in zip(
        ("model", "item", "generation"), places, scores.shape, strict=False
    ):
        labels = [f"{name[0]}{n:05}" for n in range(size)]
        table[name] = pd.Categorical.from_codes(codes, labels)
    table = table.assign(epoch=places[3] + 1, score=scores.ravel())
    return make_responses(table[table["score"].notna()])


def random_effects(
    draw: np.random.Generator, shape: tuple[int, int, int, int], deviations: Sequence[float]
) -> Array:
    """(models, items, generations, epochs) scores; standard deviations are in order of NAMES."""
    models, items, generations, _ = shape
    shapes = [(models, 1, 1, 1), (1, items, 1, 1), (models, items, 1, 1)]
    shapes += [(1, 1, generations, 1), (models, 1, generations, 1), shape]
    effects = zip(deviations, shapes, strict=True)
    return 0.5 + sum((s * draw.standard_normal(size) for s, size in effects), np.zeros(shape))


def logistic(
    draw: np.random.Generator, shape: tuple[int, int, int, int], deviations: Sequence[float]
) -> Array:
    """(models, items, generations, epochs) answers that are 0 or 1.

    The logit is normal: models, items, generations and model x generation have these deviations.
    """
    models, items, generations, moves = deviations
    effects = (models, items, 0.0, generations, moves, 0.0)
    logits = random_effects(draw, (*shape[:3], 1), effects) - 0.5
    return (draw.random(shape) < 1 / (1 + np.exp(-logits))).astype(float)


def logistic_variances(deviations: Sequence[float]) -> dict[str, float]:
    """The variance components of logistic answers, by Gauss-Hermite quadrature."""
    rules = [hermegauss(n) for n in NODES]
    axes = [s * nodes for s, (nodes, _) in zip(deviations, rules, strict=True)]
    logits = sum(np.meshgrid(*axes, indexing="ij", sparse=True), np.zeros(NODES))
    shares = [weights / weights.sum() for _, weights in rules]
    weights = np.einsum("a,b,c,d->abcd", *shares)
    chance = 1 / (1 + np.exp(-logits))

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
