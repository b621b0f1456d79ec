"""The label that people would give a case, predicted from the answers of models."""

import numpy as np
from numpy.typing import NDArray

from raylab.core.stats import Array

FOLDS = 10
PENALTY = 1.0
"""Labels that the penalty of the ridge regression is worth."""


def predict(
    features: Array, labels: Array, weights: Array, clusters: NDArray[np.int64], seed: int
) -> Array:
    """Returns (N,) predictions, each by a regression on the labels of other clusters alone.

    Because no case takes part in its own prediction, the predictions do not bias what they correct,
    and the errors on the labelled cases are those on all (cross-fitting: Zrnic and Candès 2024,
    arXiv 2309.16598).

    Args:
        features: (N, F)
        labels: (N,), NaN without a label.
        weights: (N,), those of the labelled cases > 0.
        clusters: (N,) numbers of the clusters.
        seed: Draws the folds.
    """
    generator = np.random.default_rng(seed)
    folds = generator.permutation(int(clusters.max()) + 1)[clusters] % FOLDS
    spread = features.std(0)
    scaled = (features - features.mean(0)) / np.where(spread > 0, spread, 1.0)
    labelled, predictions = ~np.isnan(labels), np.zeros(len(labels))
    for fold in range(FOLDS):
        rows, held_out = labelled & (folds != fold), folds == fold
        if not rows.any():
            continue
        own = weights[rows] / weights[rows].mean()
        centre, middle = np.average(scaled[rows], 0, own), np.average(labels[rows], weights=own)
        x, y = scaled[rows] - centre, labels[rows] - middle
        gram = (x * own[:, None]).T @ x + PENALTY * np.eye(x.shape[1])
        slopes = np.linalg.solve(gram, (x * own[:, None]).T @ y)
        predictions[held_out] = middle + (scaled[held_out] - centre) @ slopes
    return predictions
