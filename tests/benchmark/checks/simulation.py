"""Simulated responses: scores with random effects, and logistic answers."""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from raylab.benchmark.responses import Matrix, Responses, make_responses
from raylab.core.stats import Array

NAMES = ("models", "items", "model x item", "generations", "model x generation", "epochs")


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
