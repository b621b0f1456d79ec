"""Traps: cases where execution details or marketing suggest a wrong root."""

from collections import Counter
from typing import Annotated

from raylab.annotation.outcome import Outcome
from raylab.annotation.statistics.estimates import Estimate, proportion
from raylab.codebook import Categories, Codebook, Label
from raylab.runs.measures import Measure
from raylab.runs.records import Part


class TrapReport(Part):
    """One side's codes on the traps with gold."""

    answered: int
    bait_named: int
    """Traps whose `meta.bait` names the roots that they bait; the others bait the codebook's."""
    wrong: Annotated[Estimate, Measure("wrong in any way", better="lower")]
    """Another set of roots than gold."""
    taken: Annotated[Estimate, Measure("traps that were taken", better="lower")]
    """Names a root that the trap baits and gold lacks."""
    taken_for: dict[str, int]
    """Cases by that root."""


class Traps:
    """Counts of one side's codes on the traps."""

    def __init__(self, codebook: Codebook) -> None:
        self._codebook = codebook
        self._answered = self._wrong = self._taken = self._baited = 0
        self._roots: Counter[str] = Counter()

    def add(self, outcome: Outcome, label: Label | None) -> None:
        """Counts a trap with gold and a code; `meta` names what the trap baits, see `Case`."""
        if not outcome.trap or outcome.gold_label is None or label is None:
            return
        gold, answer = outcome.gold_label.categories, label.categories
        named: Categories = frozenset(outcome.meta.get("bait") or ())
        taken = (answer - gold) & (named or self._codebook.execution_bait)
        self._answered += 1
        self._baited += bool(named)
        self._wrong += answer != gold
        self._taken += bool(taken)
        self._roots.update(taken)

    def summary(self) -> TrapReport:
        """Returns what was counted."""
        return TrapReport(
            answered=self._answered,
            bait_named=self._baited,
            wrong=proportion(self._wrong, self._answered),
            taken=proportion(self._taken, self._answered),
            taken_for={
                root: self._roots[root] for root in self._codebook.categories if self._roots[root]
            },
        )
