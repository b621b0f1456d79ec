"""The diversity of the texts of a benchmark's items, and their distance from earlier benchmarks.

The three figures follow the quality script of Vector's automated_capability_evaluation (April 2026,
default settings), so that they can be compared with its results: proxy A-distance and maximum mean
discrepancy of arXiv 2511.03928, and the mean distance to a medoid. None has an interval.
"""

from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

from raylab.benchmark.checks.figures import BenchmarkFigure, make_figure, missing_figure
from raylab.core.runs.records import Part

Vectors = NDArray[np.float64]

CLUSTERS = 5
FEWEST_TEXTS = 10
"""Fewest texts on each side for a distance: a fifth of them tests the classifier."""
SEED = 42
NO_INTERVAL = "its definition has none"


class PriorDistance(Part):
    """The distance of an earlier benchmark's texts from those of this one."""

    name: str
    texts: int
    proxy_a_distance: BenchmarkFigure
    """In [-2, 2]: 2 if a linear classifier tells the two apart, 0 if it guesses."""
    discrepancy: BenchmarkFigure
    """Squared maximum mean discrepancy, at least 0, with a polynomial kernel of degree 3."""


class Diversity(Part):
    """The diversity of items' texts, by an embedding model."""

    model: str
    texts: int
    distance_to_medoid: BenchmarkFigure
    """Mean Euclidean distance from a text to the medoid of its cluster, at least 0."""
    priors: tuple[PriorDistance, ...]


def measure_diversity(model: str, vectors: Vectors, priors: Mapping[str, Vectors]) -> Diversity:
    """Measures the diversity of texts and their distance from those of earlier benchmarks.

    Args:
        model: Name of the embedding model.
        vectors: (texts, dimensions), at least one text.
        priors: The same of each earlier benchmark, by name; may have no text.
    """
    distance = mean_distance_to_medoid(vectors)
    return Diversity(
        model=model,
        texts=len(vectors),
        distance_to_medoid=make_figure(
            distance,
            None,
            f"The mean distance from a text to the medoid of its cluster is {distance:.3f}, over "
            f"{min(CLUSTERS, len(vectors))} clusters: a larger distance means more varied items.",
            NO_INTERVAL,
        ),
        priors=tuple(_compare(name, vectors, prior) for name, prior in priors.items()),
    )


def _compare(name: str, vectors: Vectors, prior: Vectors) -> PriorDistance:
    def measure(
        figure: str, distance: Callable[[Vectors, Vectors], float], scale: str
    ) -> BenchmarkFigure:
        title = f"The {figure} from {name}"
        if min(len(vectors), len(prior)) < FEWEST_TEXTS:
            return missing_figure(title, f"each side needs {FEWEST_TEXTS} texts")
        value = distance(vectors, prior)
        return make_figure(value, None, f"{title} is {value:.3f}: {scale}.", NO_INTERVAL)

    return PriorDistance(
        name=name,
        texts=len(prior),
        proxy_a_distance=measure(
            "proxy A-distance",
            proxy_a_distance,
            "0 if a classifier of the texts guesses, 2 if it is perfect",
        ),
        discrepancy=measure(
            "maximum mean discrepancy",
            maximum_mean_discrepancy,
            "0 if the texts are distributed alike",
        ),
    )


def proxy_a_distance(vectors: Vectors, prior: Vectors) -> float:
    """Returns 2 (1 - 2 e), where e is the mean absolute error of a classifier's probabilities.

    A logistic regression is trained on four fifths of the texts and tested on the rest.

    Args:
        vectors: (texts, dimensions).
        prior: (texts, dimensions).
    """
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import train_test_split

    labels = np.repeat([0.0, 1.0], [len(vectors), len(prior)])
    learnt, tested, learnt_labels, tested_labels = train_test_split(
        np.concatenate([vectors, prior]), labels, test_size=0.2, random_state=SEED
    )
    classifier = LogisticRegression(max_iter=1000).fit(learnt, learnt_labels)
    error = np.abs(classifier.predict_proba(tested)[:, 1] - tested_labels).mean()
    return float(2 * (1 - 2 * error))


def maximum_mean_discrepancy(vectors: Vectors, prior: Vectors) -> float:
    """Returns the squared discrepancy by the kernel (x y / dimensions + 1)^3.

    Args:
        vectors: (texts, dimensions).
        prior: (texts, dimensions).
    """
    from sklearn.metrics.pairwise import polynomial_kernel

    own, other, across = (
        float(polynomial_kernel(left, right).mean())
        for left, right in ((vectors, vectors), (prior, prior), (vectors, prior))
    )
    return max(0.0, own + other - 2 * across)


def mean_distance_to_medoid(vectors: Vectors) -> float:
    """Returns the mean over clusters of their texts' mean distance to the medoid.

    Args:
        vectors: (texts, dimensions), at least one text.
    """
    import kmedoids
    from sklearn.metrics import pairwise_distances

    distances = pairwise_distances(vectors)
    clusters = kmedoids.fasterpam(distances, min(CLUSTERS, len(vectors)), random_state=SEED)
    to_medoid = distances[np.arange(len(vectors)), clusters.medoids[clusters.labels]]
    means = np.bincount(clusters.labels, to_medoid) / np.bincount(clusters.labels)
    return float(means.mean())
