"""Standard errors of means over items, from the choice of the items.

Tasks and topics are fixed strata: another choice of items has other items of the same ones. Items
of a declared cluster, such as the questions on one passage, vary together and come or go together.
A mean is a regression on the strata, and its standard error is CR2 (Bell and McCaffrey, Survey
Methodology 28, 2002; Pustejovsky and Tipton, J. Bus. Econ. Stat. 36, 2018): the squared sum of a
cluster's residuals is divided by its expectation if items were independent and varied alike. That
assumption also gives Satterthwaite's degrees of freedom. Where each item is its own cluster, this
is the textbook's stratified standard error.

Every figure that has an error uses it: means, differences, shifts, tau, reliability, headroom.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from raylab.benchmark.responses import Matrix
from raylab.core.stats import Array

FEW_CLUSTERS = 20
"""Number of clusters below which standard errors are uncertain."""
TINY = 1e-12


@dataclass(frozen=True)
class Means:
    """Means of rows of values, and how they vary with the choice of the items.

    Attributes:
        values: (rows,) weighted means; NaN for a row without items.
        parts: (rows, clusters) what each cluster adds to a mean's error; a covariance of two means
            is the sum of their products.
        freedom: (rows,) degrees of freedom of the standard errors; below 1 there is no error.
        clusters: (rows,) numbers of clusters with values.
    """

    values: Array
    parts: Array
    freedom: Array
    clusters: Array

    @cached_property
    def errors(self) -> Array:
        """(rows,) standard errors; NaN where they cannot be estimated."""
        squares = np.einsum("rc,rc->r", self.parts, self.parts)
        return np.where(self.freedom > 0, np.sqrt(squares), np.nan)


class SamplingDesign:
    """The strata and clusters of items, and the order in which their sums are fast.

    A stratum that missing values leave with one cluster is compared with all items.
    """

    def __init__(self, strata: NDArray[np.int64], clusters: NDArray[np.int64]) -> None:
        strata = merge_lone(strata, clusters)
        order = np.lexsort((clusters, strata))
        own, group = strata[order], clusters[order]
        starts = np.flatnonzero((np.diff(own, prepend=-1) != 0) | (np.diff(group, prepend=-1) != 0))
        self.order = None if np.array_equal(order, np.arange(len(order))) else order
        # One cell for each cluster in a stratum.
        self.cells = None if len(starts) == len(order) else starts
        self.stratum, cluster = own[starts], group[starts]
        self.strata = np.flatnonzero(np.diff(self.stratum, prepend=-1))
        across = np.argsort(cluster, kind="stable")
        self.across = None if len(np.unique(cluster)) == len(cluster) else across
        self.clusters = np.flatnonzero(np.diff(cluster[across], prepend=-1))

    @classmethod
    def of_matrix(cls, matrix: Matrix, clustered: bool = True) -> "SamplingDesign":
        """Returns the design of a matrix, or that of its items as if they were independent."""
        items = np.arange(len(matrix.items))
        return cls(matrix.strata, matrix.clusters if clustered else items)

    def estimate(self, values: Array, weights: Array) -> Means:
        """Estimates means over items.

        Args:
            values: (rows, items), 0 where missing.
            weights: (rows or 1, items), 0 where missing.
        """
        if self.order is not None:
            values, weights = values[:, self.order], weights[:, self.order]
        sums, own, squares = (
            array if self.cells is None else np.add.reduceat(array, self.cells, axis=1)
            for array in (values * weights, weights, weights**2)
        )
        totals, all_squares, number = (
            np.add.reduceat(array, self.strata, axis=1) for array in (own, squares, own > 0)
        )
        with np.errstate(invalid="ignore", divide="ignore"):
            total = totals.sum(axis=1, keepdims=True)
            mean = sums.sum(axis=1, keepdims=True) / total
            base = np.add.reduceat(sums, self.strata, axis=1) / totals
        parts = (all_squares**2 / np.maximum(number - 1, 1)).sum(axis=1)
        one_by_one = all_squares.sum(axis=1) ** 2 / np.maximum(parts, TINY**2)
        base = np.where(number > 1, base, mean)
        totals = np.where(number > 1, totals, total)
        all_squares = np.where(number > 1, all_squares, all_squares.sum(axis=1, keepdims=True))
        shares = own / np.maximum(totals, TINY)[:, self.stratum]
        expected = squares * (1 - 2 * shares) + shares**2 * all_squares[:, self.stratum]
        residuals = sums - own * np.nan_to_num(base)[:, self.stratum]
        cluster_squares, expected, residuals = map(self._by_cluster, (squares, expected, residuals))
        free = expected > TINY * cluster_squares
        scale = np.sqrt(np.where(free, cluster_squares, 0.0) / np.where(free, expected, 1.0))
        if self.cells is None and len(own) > 1:
            # The same for many rows of single items that weigh about alike in a stratum.
            freedom = one_by_one
        else:
            freedom = self._freedom(scale, squares, shares, all_squares, cluster_squares)
        rows, used = len(values), (cluster_squares > 0).sum(axis=1)
        return Means(
            values=mean[:, 0],
            parts=residuals * (scale / np.where(total > 0, total, 1.0)),
            freedom=np.broadcast_to(np.where(free.any(axis=1), freedom, 0.0), rows),
            clusters=np.broadcast_to(used, rows),
        )

    def _by_cluster(self, cells: Array) -> Array:
        if self.across is None:
            return cells
        return np.add.reduceat(cells[:, self.across], self.clusters, axis=1)

    def _freedom(
        self, scale: Array, squares: Array, shares: Array, all_squares: Array, clusters: Array
    ) -> Array:
        """Returns Satterthwaite's degrees of freedom.

        The error's square is a sum of squares of correlated normal variables: its expectation,
        squared, over the sum of all squared covariances. Two clusters of a stratum correlate by its
        mean, those of other strata do not.
        """
        if self.across is not None:
            numbers = np.empty(len(self.across), np.int64)
            numbers[self.across] = np.repeat(
                np.arange(len(self.clusters)), np.diff(self.clusters, append=len(self.across))
            )
            scale = scale[:, numbers]
        q, v = scale * squares, scale * shares
        own = v * (all_squares[:, self.stratum] * v - 2 * q)
        qq, vv, qv, diagonal = (
            np.add.reduceat(array, self.strata, axis=1) for array in (q * q, v * v, q * v, own**2)
        )
        whole = 2 * (qq * vv + qv**2) - 4 * all_squares * qv * vv + (all_squares * vv) ** 2
        between = np.maximum(whole - diagonal, 0.0).sum(axis=1)
        within = (clusters**2).sum(axis=1)
        return clusters.sum(axis=1) ** 2 / np.maximum(within + between, TINY**2)


def merge_lone(strata: NDArray[np.int64], clusters: NDArray[np.int64]) -> NDArray[np.int64]:
    """Returns numbers of strata from 0; those of one cluster, which show no variation, are one."""
    _, strata = np.unique(strata, return_inverse=True)
    cells = np.unique(np.stack([strata, clusters]), axis=1)
    lone = np.bincount(cells[0]) == 1
    return np.unique(np.where(lone[strata], -1, strata), return_inverse=True)[1]


def is_clustered(matrix: Matrix) -> bool:
    """Returns whether a user declared clusters."""
    return len(np.unique(matrix.clusters)) < len(matrix.items)


def present_weights(matrix: Matrix) -> Array:
    """Returns (models or 1, items) weights, 0 where a score is missing."""
    present = ~np.isnan(matrix.scores)
    return matrix.weights[None] if present.all() else present * matrix.weights
