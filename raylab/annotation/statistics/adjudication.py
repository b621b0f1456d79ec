"""Statistics of the adjudicator's choices on cases where the annotators differ."""

from collections import Counter
from typing import Annotated

from scipy import stats

from raylab.annotation.outcome import Adjudication
from raylab.annotation.statistics.annotators import (
    AnswerFormats,
    FormatReport,
    JudgementReport,
    Judgements,
)
from raylab.annotation.statistics.estimates import Estimate, proportion
from raylab.codebook import Codebook
from raylab.runs.measures import Measure
from raylab.runs.records import Part


class AdjudicationReport(Part):
    """The adjudicator's choices and codes."""

    cases: int
    choices: dict[str, int]
    """Cases by choice: A, B or synthesis."""
    a_shown_first: int
    """Cases in which the code of A came first."""
    first_shown: Annotated[Estimate, Measure("adjudicator chose the first shown", better=None)]
    """Share of the choices between A and B that took the first shown."""
    first_shown_p_value: float | None
    """p-value of the exact two-sided test that the order has no effect; None without a choice."""
    chose_a: Estimate
    """Share of the choices between A and B that took A."""
    chose_a_p_value: float | None
    """p-value of the exact two-sided test that both are equally likely; None without a choice."""
    format: FormatReport
    """Format of the adjudicator's answers."""
    confirmation: JudgementReport
    """The evaluator's judgement of its codes."""


class Adjudications:
    """Counts of adjudications."""

    def __init__(self, codebook: Codebook) -> None:
        self._choices: Counter[str] = Counter()
        self._first = self._a_first = 0
        self._formats, self._confirmations = AnswerFormats(), Judgements(codebook)

    def add(self, adjudication: Adjudication | None) -> None:
        """Counts an adjudication, if there was one."""
        if adjudication is None:
            return
        self._choices[adjudication.choice] += 1
        self._first += adjudication.choice == adjudication.order[0]
        self._a_first += adjudication.order[0] == "A"
        self._formats.add(adjudication.classification)
        self._confirmations.add(adjudication.confirmation)

    def summary(self) -> AdjudicationReport:
        """Returns the report of the counts."""
        chosen = self._choices["A"] + self._choices["B"]
        return AdjudicationReport(
            cases=self._choices.total(),
            choices={name: self._choices[name] for name in ("A", "B", "synthesis")},
            a_shown_first=self._a_first,
            first_shown=proportion(self._first, chosen),
            first_shown_p_value=_even_p_value(self._first, chosen),
            chose_a=proportion(self._choices["A"], chosen),
            chose_a_p_value=_even_p_value(self._choices["A"], chosen),
            format=self._formats.summary(),
            confirmation=self._confirmations.summary(),
        )


def _even_p_value(successes: int, trials: int) -> float | None:
    """Returns the p-value of the exact two-sided test of one half; None without a trial."""
    return float(stats.binomtest(successes, trials).pvalue) if trials else None
