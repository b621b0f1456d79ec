"""Standard errors of means over items, from the choice of the items.

Tasks and topics are fixed strata: another choice of items has other items of the same ones. Items
of a declared cluster, such as the questions on one passage, vary together and come or go together.
A mean is a regression on the strata, and its standard error is CR2 (Bell and McCaffrey, Survey
Methodology 28, 2002; Pustejovsky and Tipton, J. Bus. Econ. Stat. 36, 2018): the squared sum of a
cluster's residuals is divided by its expectation if items were independent and varied alike. That
assumption also gives Satterthwaite's degrees of freedom. Where each item is its own cluster, this
is the textbook's stratified standard error.

Every figure that has an error uses it: means, differences, shifts, tau. The variance components
have the same strata and clusters.
"""

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

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
        unclustered: (rows,) standard errors as if all items were independent; NaN where no cluster
            is declared.
    """

    values: Array
    parts: Array
    freedom: Array
    clusters: Array
    unclustered: Array

    @cached_property
    def errors(self) -> Array:
        """(rows,) standard errors; NaN where they cannot be estimated."""
        squares = np.einsum("rc,rc->r", self.parts, self.parts)
        return np.where(self.freedom > 0, np.sqrt(squares), np.nan)

    @cached_property
    def covariance(self) -> Array:
        """(rows, rows) covariance of the means."""
        return self.parts @ self.parts.T


class SamplingDesign:
    """The strata and clusters of a matrix's items, and the order in which their sums are fast.

    A stratum of one cluster shows no variation, so all such strata are one. A stratum that missing
    values leave with one cluster is compared with all items.

    Attributes:
        order: (items,) places of the items, sorted by stratum and cluster.
        strata: The first place of each stratum in that order.
        cells: The first place of each cluster in a stratum.
    """

    def __init__(self, matrix: Matrix) -> None:
        clusters, items = matrix.clusters, np.arange(len(matrix.items))
        self._independent = (
            SamplingDesign(replace(matrix, clusters=items)) if is_clustered(matrix) else None
        )
        _, strata = np.unique(matrix.strata, return_inverse=True)
        pairs = np.unique(np.stack([strata, clusters]), axis=1)
        lone = np.bincount(pairs[0]) == 1
        strata = np.where(lone[strata], -1, strata)
        self.order = np.lexsort((clusters, strata))
        strata, clusters = strata[self.order], clusters[self.order]
        first = np.diff(strata, prepend=-2) != 0
        self.strata = np.flatnonzero(first)
        self.cells = np.flatnonzero(first | (np.diff(clusters, prepend=-1) != 0))
        # The same for cells, in whose order a cluster may be in several strata.
        self._starts = np.flatnonzero(first[self.cells])
        self._stratum = np.cumsum(first[self.cells]) - 1 if len(self.strata) > 1 else slice(None)
        names, self._cluster = np.unique(clusters[self.cells], return_inverse=True)
        self._across = np.argsort(self._cluster, kind="stable")
        self._clusters = np.flatnonzero(np.diff(self._cluster[self._across], prepend=-1))
        self._is_sorted = np.array_equal(self.order, items)
        self._is_single = len(self.cells) == len(items)
        self._is_nested = len(names) == len(self.cells)

    def estimate(self, values: Array, weights: Array) -> Means:
        """Estimates means over items.

        Args:
            values: (rows, items), 0 where missing.
            weights: (rows or 1, items), 0 where missing.
        """
        unclustered = np.full(len(values), np.nan)
        if self._independent is not None:
            unclustered = self._independent.estimate(values, weights).errors
        if not self._is_sorted:
            values, weights = values[:, self.order], weights[:, self.order]
        sums, own, squares = (
            each if self._is_single else np.add.reduceat(each, self.cells, axis=1)
            for each in (values * weights, weights, weights**2)
        )
        totals, all_squares = map(self._by_stratum, (own, squares))
        number = np.add.reduceat(own > 0, self._starts, axis=1)
        total = totals.sum(axis=1, keepdims=True)
        with np.errstate(invalid="ignore", divide="ignore"):
            mean = sums.sum(axis=1, keepdims=True) / total
            base = np.where(number > 1, self._by_stratum(sums) / totals, mean)
        alone = (all_squares**2 / np.maximum(number - 1, 1)).sum(axis=1)
        freedom = all_squares.sum(axis=1) ** 2 / np.maximum(alone, TINY**2)
        totals = np.where(number > 1, totals, total)
        all_squares = np.where(number > 1, all_squares, all_squares.sum(axis=1, keepdims=True))
        shares = own / np.maximum(totals, TINY)[:, self._stratum]
        residuals = sums - own * np.nan_to_num(base)[:, self._stratum]
        expected = squares * (1 - 2 * shares) + shares**2 * all_squares[:, self._stratum]
        residuals, expected, whole = (
            each
            if self._is_nested
            else np.add.reduceat(each[:, self._across], self._clusters, axis=1)
            for each in (residuals, expected, squares)
        )
        free = expected > TINY * whole
        scale = np.sqrt(np.divide(whole, expected, out=np.zeros_like(whole), where=free))
        # Many rows of single items weigh about alike in a stratum, which gives the same.
        if not self._is_single or len(own) == 1:
            # Satterthwaite's degrees of freedom. The square of the error sums squares of correlated
            # normal variables: its expectation, squared, over the sum of all squared covariances.
            # Two clusters of a stratum correlate by its mean, those of other strata do not.
            adjust = scale if self._is_nested else scale[:, self._cluster]
            q, v = adjust * squares, adjust * shares
            itself = (v * (all_squares[:, self._stratum] * v - 2 * q)) ** 2
            qq, vv, qv, diagonal = map(self._by_stratum, (q * q, v * v, q * v, itself))
            every = 2 * (qq * vv + qv**2) - 4 * all_squares * qv * vv + (all_squares * vv) ** 2
            between = np.maximum(every - diagonal, 0.0).sum(axis=1)
            within = (whole**2).sum(axis=1)
            freedom = whole.sum(axis=1) ** 2 / np.maximum(within + between, TINY**2)
        return Means(
            values=mean[:, 0],
            parts=residuals * (scale / np.where(total > 0, total, 1.0)),
            freedom=np.broadcast_to(np.where(free.any(axis=1), freedom, 0.0), len(values)),
            clusters=np.broadcast_to((whole > 0).sum(axis=1), len(values)),
            unclustered=unclustered,
        )

    def _by_stratum(self, cells: Array) -> Array:
        return np.add.reduceat(cells, self._starts, axis=1)


def is_clustered(matrix: Matrix) -> bool:
    """Returns whether a user declared clusters."""
    return len(np.unique(matrix.clusters)) < len(matrix.items)


def present_weights(matrix: Matrix) -> Array:
    """Returns (models or 1, items) weights, 0 where a score is missing."""
    present = ~np.isnan(matrix.scores)
    return matrix.weights[None] if present.all() else present * matrix.weights
