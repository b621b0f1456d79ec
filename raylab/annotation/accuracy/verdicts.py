"""The evaluator's verdicts and scores against held-out gold: whether the judge is any good."""

from collections import Counter
from collections.abc import Mapping
from typing import Annotated, cast

from scipy import optimize, stats

from raylab.annotation.outcome import Answer, Verdict
from raylab.annotation.statistics.estimates import Estimate, proportion
from raylab.codebook import Label
from raylab.runs.measures import Measure
from raylab.runs.records import Part

BAND = 10
"""Scores in one band; the last also holds 100."""
NEAR = 1e-9
Z = float(stats.norm.ppf(0.975))


class ScoreBand(Part):
    """The codes with a score in one band: a point of the reliability diagram."""

    lowest: int
    """Lowest score of the band."""
    mean_score: float
    right: Estimate


class JudgeReport(Part):
    """The evaluator's reports on one annotator's codes, of the cases with held-out gold.

    A code is right if it has the set of roots of gold. Answers without a code are left out: no
    evaluator was asked about them.
    """

    codes: int
    right: Annotated[Estimate, Measure("right codes")]
    """The share that a judge who passes everything would have right."""
    right_by_verdict: dict[Verdict, Estimate]
    """P(right | verdict), of the verdicts after the caps."""
    auc: Annotated[Estimate, Measure("area under the curve of the score", "number")]
    """Chance that a right code has a higher score than a wrong one, ties half; 0.5 is no skill."""
    bands: tuple[ScoreBand, ...]
    """The bands that hold codes, the lowest first."""


class JudgeCounts:
    """Counts of one annotator's evaluated codes by score and verdict."""

    def __init__(self) -> None:
        self._verdicts: dict[bool, Counter[Verdict]] = {True: Counter(), False: Counter()}
        self._scores: dict[bool, Counter[int]] = {True: Counter(), False: Counter()}

    def add(self, answer: Answer | None, gold: Label | None) -> None:
        """Counts an evaluated code of a case with gold; others are passed over."""
        if answer is None or gold is None or answer.evaluation is None:
            return
        label, evaluation = answer.classification.label, answer.evaluation
        if label is None or evaluation.raw_verdict is None:
            return
        right = label.categories == gold.categories
        self._verdicts[right][evaluation.verdict] += 1
        self._scores[right][evaluation.score] += 1

    def summary(self) -> JudgeReport:
        """Returns the report of the counts."""
        right, wrong = self._verdicts[True], self._verdicts[False]
        codes = right.total() + wrong.total()
        return JudgeReport(
            codes=codes,
            right=proportion(right.total(), codes),
            right_by_verdict={
                verdict: proportion(right[verdict], right[verdict] + wrong[verdict])
                for verdict in Verdict
            },
            auc=area_under_curve(self._scores[True], self._scores[False]),
            bands=tuple(self._bands()),
        )

    def _bands(self) -> list[ScoreBand]:
        right, wrong = (_by_band(self._scores[side]) for side in (True, False))
        found: list[ScoreBand] = []
        for lowest in range(0, 100, BAND):
            scores = right[lowest] + wrong[lowest]
            if not scores:
                continue
            total = sum(score * count for score, count in scores.items())
            share = proportion(right[lowest].total(), scores.total())
            mean = total / scores.total()
            found.append(ScoreBand(lowest=lowest, mean_score=mean, right=share))
        return found


def area_under_curve(right: Mapping[int, int], wrong: Mapping[int, int]) -> Estimate:
    """Returns the area under the ROC curve of a score, with Newcombe's 95 % interval.

    The estimate is the Mann-Whitney statistic divided by the number of pairs. The interval is
    method 5 of Newcombe (2006, Statistics in Medicine 25:559): the values from which the estimate
    is at most 1.96 standard errors away by Hanley and McNeil's formula, with the mean of both
    sizes in it. Unlike a bootstrap it has a width where the score separates both perfectly.

    Args:
        right: Right codes by score.
        wrong: Wrong codes by score.
    """
    m, n = sum(right.values()), sum(wrong.values())
    if not m or not n:
        reason = "no code is wrong" if m else "no code is right" if n else "no cases"
        return Estimate(value=None, interval=None, count=m + n, reason=reason)
    won = sum(
        a * b * ((x > y) + 0.5 * (x == y)) for x, a in right.items() for y, b in wrong.items()
    )
    area = won / (m * n)
    return Estimate(value=area, interval=_newcombe(area, m, n), count=m + n, reason=None)


def _newcombe(area: float, m: int, n: int) -> tuple[float, float]:
    star = (m + n) / 2 - 1

    def beyond(at: float) -> float:
        spread = 1 + star * (1 - at) / (2 - at) + star * at / (1 + at)
        return (at - area) ** 2 - Z**2 * at * (1 - at) * spread / (m * n)

    # The estimate itself is no end of the interval, also where it is 0 or 1.
    low, high = 0.0, 1.0
    if area > NEAR:
        low = cast(float, optimize.brentq(beyond, 0.0, area - NEAR))
    if area < 1 - NEAR:
        high = cast(float, optimize.brentq(beyond, area + NEAR, 1.0))
    return low, high


def _by_band(scores: Mapping[int, int]) -> dict[int, Counter[int]]:
    found = {lowest: Counter[int]() for lowest in range(0, 100, BAND)}
    for score, count in scores.items():
        found[min(score, 99) // BAND * BAND][score] += count
    return found
