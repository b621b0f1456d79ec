"""The codes of two sides for the same cases: agreement, or accuracy against gold."""

from collections import Counter
from typing import Annotated

from raylab.annotation.outcome import Outcome
from raylab.annotation.roles import SIDES
from raylab.annotation.statistics.agreement import cohen_kappa, krippendorff_alpha
from raylab.annotation.statistics.confusion import (
    ConfusionPanel,
    RootFigures,
    by_root,
    primary_confusion,
    set_confusion,
)
from raylab.annotation.statistics.estimates import Estimate, amount_mean, proportion, share_mean
from raylab.codebook import Agreement, Categories, Codebook, Label, SetDistance, compare
from raylab.runs.measures import Measure
from raylab.runs.records import Part

SHARES = ("jaccard", "weighted", "composition", "levenshtein_normalised")
"""The measures of `Agreement` in [0, 1] that a run averages."""
EDITS = "levenshtein"


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


class GoldReport(Part):
    """Shares of right codes, over the cases with gold and an answer.

    An answer without a readable code counts as wrong.
    """

    cases: int
    left_out: int
    """Cases with gold and no answer or decision."""
    without_code: int
    """Answers without a readable code."""
    roots: Annotated[Estimate, Measure("set of roots")]
    """The right set of roots."""
    exact: Annotated[Estimate, Measure("composition")]
    """The right composition."""
    primary: Annotated[Estimate, Measure("primary root")]
    """The right first root."""
    by_root: dict[str, RootFigures]


class Pairs:
    """Counts of the codes of two sides."""

    def __init__(self, codebook: Codebook) -> None:
        self._codebook = codebook
        self._sets: Counter[tuple[Categories, Categories]] = Counter()
        self._primaries: Counter[tuple[str | None, str | None]] = Counter()
        self._both = self._exact = self._same_roots = 0

    def add(self, row: Label | None, column: Label | None) -> None:
        """Counts a case by its two labels, None for a missing code."""
        nothing: Categories = frozenset()
        sets = (row.categories if row else nothing, column.categories if column else nothing)
        self._sets[sets] += 1
        self._primaries[row.primary if row else None, column.primary if column else None] += 1
        if row and column:
            self._both += 1
            self._exact += row.composition == column.composition
            self._same_roots += row.categories == column.categories

    @property
    def cases(self) -> int:
        """The number of cases, with or without codes."""
        return self._sets.total()

    @property
    def _categories(self) -> tuple[str, ...]:
        return tuple(self._codebook.categories)

    def panel(self, rows: str, columns: str) -> ConfusionPanel:
        """Returns the confusion matrices under the names of the two sides."""
        return ConfusionPanel(
            rows=rows,
            columns=columns,
            sets=set_confusion(self._sets, self._categories),
            primary=primary_confusion(self._primaries, self._categories),
        )

    def agreement(self, seed: int) -> PairAgreement:
        """Returns the agreement of two annotators."""
        return PairAgreement(
            cases=self.cases,
            both=self._both,
            exact=proportion(self._exact, self._both),
            same_roots=proportion(self._same_roots, self._both),
            kappa=cohen_kappa(self._primaries, seed=seed),
            alpha=krippendorff_alpha(self._sets, self._codebook.distance, seed=seed),
        )

    def against_gold(self, with_gold: int) -> GoldReport:
        """Returns the accuracy of the columns, where the rows are gold.

        Args:
            with_gold: Cases with gold, including those without an answer.
        """
        primary = sum(n for (r, c), n in self._primaries.items() if r == c)
        return GoldReport(
            cases=self.cases,
            left_out=with_gold - self.cases,
            without_code=self.cases - self._both,
            roots=proportion(self._same_roots, self.cases),
            exact=proportion(self._exact, self.cases),
            primary=proportion(primary, self.cases),
            by_root=by_root(set_confusion(self._sets, self._categories), self._categories),
        )


class CaseMeasures:
    """The measures of agreement of single cases, to be averaged over a run."""

    def __init__(self, distance: SetDistance) -> None:
        self._distance = distance
        self._values = {name: Counter[float]() for name in (*SHARES, EDITS)}

    def add(self, outcome: Outcome) -> None:
        """Counts a case; measures with another distance are computed again."""
        record = agreement_of(outcome, self._distance)
        if record is None:
            return
        for name, values in self._values.items():
            values[getattr(record, name)] += 1

    def with_means(self, agreement: PairAgreement, seed: int) -> AgreementReport:
        """Returns an agreement extended by the mean of each measure."""
        means = {name: share_mean(self._values[name], seed) for name in SHARES}
        means[EDITS] = amount_mean(self._values[EDITS])
        return AgreementReport.model_validate({**dict(agreement), **means})


def agreement_of(outcome: Outcome, distance: SetDistance) -> Agreement | None:
    """Returns the agreement of A and B on a case; None unless both gave a code.

    With another distance than the archived one, only what depends on it is computed again:
    archived labels are canonical, and the edits are those of the lines as written.
    """
    a, b = (outcome.label_of(side) for side in SIDES)
    if a is None or b is None:
        return None
    record, now = outcome.agreement, distance.version
    if record is None:
        return compare(a, b, distance)
    if record.distance == now:
        return record
    weighted = 1.0 - distance(a.categories, b.categories)
    return record.model_copy(update={"weighted": weighted, "distance": now})
