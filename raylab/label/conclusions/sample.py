"""The labels of models and people on the cases of a question, and fits to them."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from raylab.core.printable import pluralize
from raylab.core.stats import Array
from raylab.label.conclusions.estimates import Fit, fit
from raylab.label.conclusions.question import Target

MIN_CLUSTERS = 20
"""Clusters, or without them cases, below which no interval holds."""
Way = Literal["naive", "people", "corrected"]
WAYS: tuple[Way, ...] = ("naive", "people", "corrected")


@dataclass(frozen=True)
class LabelSample:
    """The cases of a question as arrays, (N,) each, in the same order.

    Attributes:
        weights: 1 / chance of each label of people, 0 without one.
        certain: True where people label every such case.
        labels: Labels of the models, or of people where models left the case to them.
        people: Means of the labels of people; 0 without one.
        predicted: The labels that people are expected to give.
    """

    target: Target
    weights: Array
    certain: NDArray[np.bool_]
    clusters: NDArray[np.int64]
    labels: Array
    people: Array
    predicted: Array

    @property
    def drawn(self) -> NDArray[np.bool_]:
        """Where a label of people is part of a sample; everywhere if people labelled all cases."""
        drawn = (self.weights > 0) & ~self.certain
        return drawn if drawn.any() else self.certain

    def fit(
        self, way: Way, build: Callable[[Array], tuple[Array, Array]], logistic: bool = False
    ) -> Fit:
        """Fits what `build` makes of labels: (N, K) covariates and (N,) outcomes."""
        judged, every = self.weights > 0, np.ones(len(self.labels), bool)
        people, weights = (self.people, judged), self.weights[judged]
        match way:
            case "naive":
                parts, weights = [(self.labels, every)], np.ones(len(every))
            case "people":
                parts = [people]
            case "corrected":
                parts = [(self.predicted, every), people]
                weights = np.concatenate((1 - self.weights, weights))
        built = [[part[rows] for part in build(labels)] for labels, rows in parts]
        design, outcome = (np.concatenate(part) for part in zip(*built, strict=True))
        clusters = np.concatenate([self.clusters[rows] for _, rows in parts])
        numbers = np.unique(clusters, return_inverse=True)[1]
        return fit(design, outcome, weights, numbers, logistic=logistic)

    def count(self, way: Way, rows: NDArray[np.bool_]) -> int:
        """Returns the number of cases of some rows that an estimate has labels of."""
        return int((rows if way == "naive" else rows & (self.weights > 0)).sum())

    def count_clusters(self, rows: NDArray[np.bool_]) -> int:
        """Returns the number of clusters of some rows; those of cases that are none are cases."""
        return len(np.unique(self.clusters[rows]))

    def freedom(self, way: Way, rows: NDArray[np.bool_], coefficients: int = 1) -> float:
        """Returns the degrees of freedom of an estimate from some rows: its clusters, less some."""
        used = rows if way == "naive" else rows & self.drawn
        return float(self.count_clusters(used) - coefficients)

    def lack(self, rows: NDArray[np.bool_], events: float) -> str:
        """Returns why the labels of people on some rows are too few; empty if they are not.

        Events are expected by the labels of models. Those that people gave would choose samples
        with many of them, whose intervals are off.
        """
        labels, clusters = int((rows & self.drawn).sum()), self.count_clusters(rows & self.drawn)
        if clusters < MIN_CLUSTERS:
            noun = "label" if clusters == labels else "cluster with labels"
            plural = "labels" if clusters == labels else "clusters with labels"
            counted = pluralize(clusters, noun, plural)
            return f"{counted} of people: {MIN_CLUSTERS} are needed"
        expected = labels * float(self.labels[rows].mean())
        if self.target.is_share and min(expected, labels - expected) < events:
            return (
                f"about {expected:.0f} of {labels} labels of people are expected to have it: "
                f"{events:g} with it and {events:g} without it are needed"
            )
        return ""
