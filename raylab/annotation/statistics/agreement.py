"""Agreement of the annotators, with and beyond chance."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, TypeVar

import numpy as np

from raylab.annotation.statistics.estimates import (
    DRAWS,
    Array,
    Estimate,
    agreement,
    amount_mean,
    proportion,
    share_mean,
)
from raylab.annotation.statistics.frame import Tables, tally
from raylab.codebook import Categories, Label
from raylab.runs.measures import Measure
from raylab.runs.records import Part

TOLERANCE = 1e-9
SHARES = ("jaccard", "weighted", "composition", "levenshtein_normalised")
"""The measures of `Agreement` in [0, 1] that a run averages."""
EDITS = "levenshtein"

Category = TypeVar("Category", bound=str)
Answer = TypeVar("Answer")
SetDistance = Callable[[frozenset[Category], frozenset[Category]], float]
"""A distance of two non-empty sets of categories, in [0, 1]; a metric."""


class PairAgreement(Part):
    """Agreement of the two annotators; all estimates are over the cases with two codes."""

    cases: int
    both: int
    """Cases with two codes."""
    exact: Annotated[Estimate, Measure("equal composition (consensus)")]
    """Both gave the same roots, joined in the same way."""
    same_roots: Annotated[Estimate, Measure("equal set of roots")]
    """Both named the same roots, joined in any way."""
    kappa: Annotated[Estimate, Measure("Cohen's kappa, primary root", "number")]
    """Agreement on the first root beyond what guessing at the same rates would give: 0 is chance,
    1 is full agreement, below 0 is worse than chance."""
    alpha: Annotated[Estimate, Measure("Krippendorff's alpha, sets", "number")]
    """Agreement on the sets of roots beyond chance, where a near miss counts as less of a
    disagreement than a far one: 0 is chance, 1 is full agreement."""


class AgreementReport(PairAgreement):
    """Agreement of a run's annotators, with the means of the measures of single cases."""

    jaccard: Annotated[Estimate, Measure("Jaccard of the sets", "number")]
    """Roots that both named, as a share of all that either named; 1 is the same set."""
    weighted: Annotated[Estimate, Measure("weighted by distance", "number")]
    """1 minus the distance between the two sets of roots, so that a near miss costs less than a far
    one."""
    composition: Annotated[Estimate, Measure("composition", "number")]
    """1 for the same code, 0.5 for the same roots joined differently, else 0."""
    levenshtein: Annotated[Estimate, Measure("Levenshtein, edits", "number", "lower")]
    """Characters to change to turn one line, as written, into the other."""
    levenshtein_normalised: Annotated[Estimate, Measure("Levenshtein by length", "number", "lower")]
    """The same as a share of the longer line; 0 is equal."""


@dataclass(frozen=True)
class Pairs:
    """The codes of two sides for the same cases.

    Attributes:
        counts: Cases by the two labels, None for a missing code.
    """

    counts: Counter[tuple[Label | None, Label | None]]

    @property
    def cases(self) -> int:
        """The number of cases, with or without codes."""
        return self.counts.total()

    @property
    def both(self) -> int:
        """The number of cases with two codes."""
        return self.count(lambda row, column: True)

    @property
    def exact(self) -> int:
        """The number of cases with equal compositions."""
        return self.count(lambda row, column: row.composition == column.composition)

    @property
    def same_roots(self) -> int:
        """The number of cases with equal sets of roots."""
        return self.count(lambda row, column: row.categories == column.categories)

    @property
    def same_primary(self) -> int:
        """The number of cases with equal primary roots."""
        return self.count(lambda row, column: row.primary == column.primary)

    def count(self, equal: Callable[[Label, Label], bool]) -> int:
        """Returns the number of cases with two codes for which a function is true."""
        return sum(
            n for (row, column), n in self.counts.items() if row and column and equal(row, column)
        )

    def sets(self) -> Counter[tuple[Categories, Categories]]:
        """Returns the cases by the two sets of roots, empty for a missing code."""
        return self._by(lambda label: label.categories if label else frozenset[str]())

    def primaries(self) -> Counter[tuple[str | None, str | None]]:
        """Returns the cases by the two primary roots, None for a missing code."""
        return self._by(lambda label: label.primary if label else None)

    def _by(self, value: Callable[[Label | None], Answer]) -> Counter[tuple[Answer, Answer]]:
        found = Counter[tuple[Answer, Answer]]()
        for (row, column), n in self.counts.items():
            found[value(row), value(column)] += n
        return found


def pair_codes(tables: Tables, rows: str, columns: str) -> Pairs:
    """Returns the codes of two columns of the cases side by side."""
    counts = Counter[tuple[Label | None, Label | None]]()
    for (row, column), n in tally(tables.cases, rows, columns).items():
        counts[tables.label(row), tables.label(column)] += n
    return Pairs(counts)


def measure_pairs(tables: Tables, seed: int) -> PairAgreement:
    """Returns the agreement of A and B."""
    pairs = pair_codes(tables, "code_a", "code_b")
    return PairAgreement(
        cases=pairs.cases,
        both=pairs.both,
        exact=proportion(pairs.exact, pairs.both),
        same_roots=proportion(pairs.same_roots, pairs.both),
        kappa=cohen_kappa(pairs.primaries(), seed=seed),
        alpha=krippendorff_alpha(pairs.sets(), tables.codebook.distance, seed=seed),
    )


def measure_agreement(tables: Tables, seed: int) -> AgreementReport:
    """Returns the agreement of A and B, with the means of the measures of single cases."""
    both = tables.cases.dropna(subset=EDITS)
    means = {name: share_mean(tally(both, name), seed) for name in SHARES}
    return AgreementReport.model_validate(
        {
            **dict(measure_pairs(tables, seed)),
            **means,
            EDITS: amount_mean(tally(both, EDITS)),
        }
    )


def cohen_kappa(
    counts: Mapping[tuple[Category | None, Category | None], int],
    draws: int = DRAWS,
    seed: int = 307,
) -> Estimate:
    """Computes Cohen's kappa (1960) of two annotators' primary categories.

    In [-1, 1]; 1 is full agreement. Undefined if both always gave the same category, so that
    chance alone explains their agreement.

    Args:
        counts: Cases by the two answers, None for a missing one; those cases are left out.
        draws: Draws from the posterior for the interval; 0 leaves it out.
        seed: Seed of the draws.
    """
    answered = {(a, b): n for (a, b), n in counts.items() if a and b and n}
    values = sorted({value for pair in answered for value in pair})
    differences = 1.0 - np.eye(len(values))

    def kappa(cases: Array) -> Array:
        first, second = cases.sum(-1), cases.sum(-2)
        total = first.sum(-1)
        expected = 1.0 - (first * second).sum(-1) / total**2
        return _one_less((cases * differences).sum((-2, -1)) / total, expected)

    return agreement(_table(answered, values), kappa, draws, seed)


def krippendorff_alpha(
    counts: Mapping[tuple[frozenset[Category], frozenset[Category]], int],
    distance: SetDistance[Category],
    draws: int = DRAWS,
    seed: int = 307,
) -> Estimate:
    """Computes Krippendorff's alpha of two annotators' sets of categories.

    At most 1; 1 is full agreement. The difference function is the squared distance of the sets.
    Formula: Krippendorff, Computing Krippendorff's Alpha-Reliability (2011), for two observers.
    Undefined if all answers are the same set, so that no disagreement is expected.

    Args:
        counts: Cases by the two answers, an empty set for a missing one; those cases hold no
            pair of values and are left out.
        distance: Distance of two sets, in [0, 1].
        draws: Draws from the posterior for the interval; 0 leaves it out.
        seed: Seed of the draws.
    """
    answered = {(a, b): n for (a, b), n in counts.items() if a and b and n}
    values = sorted({answer for pair in answered for answer in pair}, key=sorted)
    differences = np.array([[distance(a, b) ** 2 for b in values] for a in values])

    def alpha(cases: Array) -> Array:
        margin = cases.sum(-1) + cases.sum(-2)
        size = margin.sum(-1)
        expected = ((margin @ differences) * margin).sum(-1) / (size * (size - 1))
        return _one_less((cases * differences).sum((-2, -1)) / (size / 2), expected)

    return agreement(_table(answered, values), alpha, draws, seed)


def _table(counts: Mapping[tuple[Answer, Answer], int], values: Sequence[Answer]) -> Array:
    """Returns the (values, values) numbers of cases, first annotator by second."""
    table = np.zeros((len(values), len(values)))
    for (first, second), count in counts.items():
        table[values.index(first), values.index(second)] = count
    return table


def _one_less(observed: Array, expected: Array) -> Array:
    """Returns 1 minus the ratio; NaN where the expectation is zero within `TOLERANCE`."""
    defined = expected > TOLERANCE
    return np.where(defined, 1.0 - observed / np.where(defined, expected, 1.0), np.nan)
