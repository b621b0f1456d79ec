"""Statistics of people's decisions on the cases that the protocol left to them."""

from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

from raylab.annotation.outcome import HumanDecision, Outcome
from raylab.annotation.statistics.texts import Texts
from raylab.annotation.statistics.usage import CallUsage, Spending
from raylab.codebook import Label
from raylab.runs.records import Part


class DecisionReport(Part):
    """Counts of people's decisions; the latest on each case holds, and an undo removes it."""

    actions: dict[str, int]
    """All decisions and undos, including those that no longer hold."""
    cases: int
    """Cases with a decision that holds."""
    choices: dict[str, int]
    """Cases by choice: A, B or an own code."""
    confirmed: int
    """Codes that the evaluator confirmed."""
    refused: int
    """Codes that the evaluator refused."""
    unconfirmed: int
    """Codes that were not evaluated."""
    waiting: int
    """Cases left to a person that have no code yet."""
    reviewers: dict[str, int]
    """Decisions by reviewer."""
    usage: CallUsage
    """The calls of the confirmations, which the usage of the run does not include."""


class _Decision(NamedTuple):
    choice: str
    label: Label | None
    confirmed: bool | None


class Decisions:
    """Counts of people's decisions; memory grows with the number of decided cases."""

    def __init__(self, decisions: Iterable[HumanDecision]) -> None:
        """Counts the decisions of a run, in the order in which they were archived."""
        self._actions: Counter[str] = Counter()
        self._reviewers = Texts()
        self._holds: dict[str, _Decision] = {}
        self._spent = Spending()
        for decision in decisions:
            self._add(decision)

    def _add(self, decision: HumanDecision) -> None:
        self._actions[decision.action] += 1
        self._reviewers.add([decision.reviewer])
        for part in (decision.classification, decision.confirmation):
            for call in part.calls if part is not None else ():
                self._spent.add(call)
        if decision.action == "undo":
            self._holds.pop(decision.case, None)
            return
        label = decision.classification and decision.classification.label
        confirmed = decision.confirmation and decision.confirmation.acceptable
        self._holds[decision.case] = _Decision(decision.choice or "own", label, confirmed)

    @property
    def any(self) -> bool:
        """True if a decision holds."""
        return bool(self._holds)

    def label_of(self, outcome: Outcome) -> Label | None:
        """Returns the label that holds for a case: a person's confirmed one, or the protocol's."""
        held = self._holds.get(outcome.case)
        if held is None or not held.confirmed or held.label is None:
            return outcome.label
        return held.label

    def summary(self, waiting: int) -> DecisionReport:
        """Returns the report of the counts.

        Args:
            waiting: Cases left to a person that have no code yet.
        """
        choices = Counter(held.choice for held in self._holds.values())
        confirmed = Counter(held.confirmed for held in self._holds.values())
        return DecisionReport(
            actions={name: self._actions[name] for name in ("decide", "undo")},
            cases=len(self._holds),
            choices={name: choices[name] for name in ("A", "B", "own")},
            confirmed=confirmed[True],
            refused=confirmed[False],
            unconfirmed=confirmed[None],
            waiting=waiting,
            reviewers=self._reviewers.summary(),
            usage=self._spent.summary(),
        )
