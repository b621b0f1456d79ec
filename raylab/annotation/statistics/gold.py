"""Codes and verdicts against held-out gold: are the annotators right, and is the judge good?"""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, cast

from scipy import optimize, stats

from raylab.annotation.outcome import SIDES, Side, Verdict
from raylab.annotation.statistics.agreement import (
    NONE,
    Matrix,
    count_pairs,
    set_confusion,
)
from raylab.annotation.statistics.estimates import Estimate, estimate, proportion, share_of
from raylab.annotation.statistics.frame import Tables, view
from raylab.runs.records import Measure, Part

BAND = 10
"""Scores in one band; the last also holds 100."""
NEAR = 1e-9
Z = float(stats.norm.ppf(0.975))
FINAL, REVIEWED, GOLD = "final", "reviewed", "gold"
NAMES = {
    **{side: f"annotator {side}" for side in SIDES},
    FINAL: "final code",
    REVIEWED: "with reviews",
}
"""The givers of codes: the annotators, the protocol, and the protocol with people's decisions."""
CODES = {
    **{side: f"code_{side.lower()}" for side in SIDES},
    FINAL: "run_code",
    REVIEWED: "code",
    GOLD: "gold_code",
}
"""The columns of the codes of each giver, and of gold."""
GIVERS = (*SIDES, FINAL)
"""The givers of codes while the protocol runs."""


class GoldReport(Part):
    """Shares of right codes, over the cases with gold and an answer.

    An answer without a readable code counts as wrong.
    """

    cases: Annotated[int, Measure("cases", "count", None)]
    left_out: Annotated[int, Measure("left out, no answer or decision", "count", "lower")]
    """Cases with gold and no answer or decision."""
    roots: Annotated[Estimate, Measure("right roots")]
    """The right set of roots."""
    exact: Annotated[Estimate, Measure("right composition")]
    """The right composition."""
    primary: Annotated[Estimate, Measure("right primary root")]
    """The right first root."""
    recall: Annotated[dict[str, Estimate], Measure("recall of")]
    """Of the cases whose gold names a root, the share whose code does."""
    precision: Annotated[dict[str, Estimate], Measure("precision of")]
    """Of the cases whose code names a root, the share whose gold does."""


class ConfusionPanel(Part):
    """The confusion matrix of two sides, in the order of the labels."""

    rows: str
    """Name of the side of the rows."""
    columns: str
    sets: Matrix
    """See `set_confusion`."""


class Confusion(Part):
    """Confusion matrices of the sides of a run."""

    labels: tuple[str, ...]
    """Labels of the rows and columns."""
    panels: dict[str, ConfusionPanel]
    """`a_b` and, with gold, `gold_A`, `gold_B` and `gold_final`."""


class JudgeReport(Part):
    """The evaluator's reports on one annotator's codes, of the cases with held-out gold.

    A code is right if it has the set of roots of gold. Answers without a code are left out: no
    evaluator was asked about them.
    """

    codes: Annotated[int, Measure("evaluated codes with gold", "count", None)]
    right: Annotated[Estimate, Measure("right codes")]
    """The share that a judge who passes everything would have right."""
    right_by_verdict: Annotated[dict[Verdict, Estimate], Measure("right, given")]
    """P(right | verdict), of the verdicts after the caps."""
    auc: Annotated[Estimate, Measure("area under the curve of the score", "number")]
    """Chance that a right code has a higher score than a wrong one, ties half; 0.5 is no skill."""
    right_by_score: Annotated[dict[int, Estimate], Measure("right, score from")]
    """The reliability diagram: by lowest score of a band of ten, 90, 80, ..., 0; the first also
    holds 100."""


def gold_reports(tables: Tables, any_reviewed: bool) -> dict[str, GoldReport]:
    """Returns the accuracy of each giver of codes, of `reviewed` if a person's decision stands."""
    return {name: gold_report(tables, name) for name in NAMES if name != REVIEWED or any_reviewed}


def gold_report(tables: Tables, name: str) -> GoldReport:
    """Returns the accuracy of one giver of codes, a key of `CODES`."""
    answered = _answered(tables, name)
    cases, codes = answered.cases, answered.cases[CODES[name]]
    sets = count_pairs(answered, "gold_code", CODES[name], "categories")
    swapped = {(code, gold): count for (gold, code), count in sets.items()}
    return GoldReport(
        cases=len(cases),
        left_out=int(tables.cases.held_out.sum()) - len(cases),
        roots=share_of(tables.equal(codes, cases.gold_code, "categories")),
        exact=share_of(tables.equal(codes, cases.gold_code, "composition")),
        primary=share_of(tables.equal(codes, cases.gold_code, "primary")),
        recall={root: _naming(sets, root) for root in tables.codebook.categories},
        precision={root: _naming(swapped, root) for root in tables.codebook.categories},
    )


def confusion_report(tables: Tables) -> Confusion:
    """Returns the confusion of A and B and, with gold, of gold and each giver of codes."""
    panels = {"a_b": _panel(tables, *SIDES)}
    if tables.cases.held_out.any():
        panels |= {f"gold_{name}": _panel(_answered(tables, name), GOLD, name) for name in GIVERS}
    return Confusion(labels=(*tables.codebook.categories, NONE), panels=panels)


def judge_report(tables: Tables, side: Side) -> JudgeReport:
    """Returns the evaluator's verdicts and scores of one annotator's codes against gold."""
    cases, codes = tables.cases, view(tables.cases, side.lower())
    judged = codes[cases.held_out & codes.code.notna() & codes.raw_verdict.notna()]
    gold = cases.gold_code[judged.index]
    judged = judged.assign(right=tables.equal(judged.code, gold, "categories"))
    bands = judged.score.clip(upper=99) // BAND * BAND
    return JudgeReport(
        codes=len(judged),
        right=share_of(judged.right),
        right_by_verdict={
            verdict: share_of(judged.right[judged.verdict.eq(verdict)]) for verdict in Verdict
        },
        auc=area_under_curve(judged.score[judged.right], judged.score[~judged.right]),
        right_by_score={
            lowest: share_of(judged.right[bands.eq(lowest)])
            for lowest in range(100 - BAND, -BAND, -BAND)
        },
    )


def area_under_curve(right: Iterable[float], wrong: Iterable[float]) -> Estimate:
    """Returns the area under the ROC curve of a score, with Newcombe's 95 % interval.

    The estimate is the Mann-Whitney statistic divided by the number of pairs. The interval is
    method 5 of Newcombe (2006, Statistics in Medicine 25:559): the values from which the estimate
    is at most 1.96 standard errors away by Hanley and McNeil's formula, with the mean of both
    sizes in it. Unlike a bootstrap it has a width where the score separates both perfectly.

    Args:
        right: Scores of right codes.
        wrong: Scores of wrong codes.
    """
    highs, lows = list(right), list(wrong)
    m, n = len(highs), len(lows)
    if not m or not n:
        reason = "no code is wrong" if m else "no code is right" if n else "no cases"
        return estimate(None, m + n, reason=reason)
    ranks = stats.rankdata([*highs, *lows])
    area = float(ranks[:m].sum() - m * (m + 1) / 2) / (m * n)
    return estimate(area, m + n, _newcombe(area, m, n))


def _newcombe(area: float, m: int, n: int) -> tuple[float, float]:
    star = (m + n) / 2 - 1

    def beyond(at: float) -> float:
        spread = 1 + star * (1 - at) / (2 - at) + star * at / (1 + at)
        return (at - area) ** 2 - Z**2 * at * (1 - at) * spread / (m * n)

    # The estimate itself is no end of the interval, also where it is 0 or 1.
    low = optimize.brentq(beyond, 0.0, area - NEAR) if area > NEAR else 0.0
    high = optimize.brentq(beyond, area + NEAR, 1.0) if area < 1 - NEAR else 1.0
    return cast(float, low), cast(float, high)


def _answered(tables: Tables, name: str) -> Tables:
    """Returns the cases with held-out gold and an answer of a giver."""
    answered = f"format_{name.lower()}" if name in SIDES else CODES[name]
    return tables.only(tables.cases.held_out & tables.cases[answered].notna())


def _panel(tables: Tables, rows: str, columns: str) -> ConfusionPanel:
    sets = count_pairs(tables, CODES[rows], CODES[columns], "categories")
    matrix = set_confusion(sets, tuple(tables.codebook.categories))
    return ConfusionPanel(rows=NAMES.get(rows, rows), columns=NAMES[columns], sets=matrix)


def _naming(sets: Mapping[tuple[Any, Any], int], root: str) -> Estimate:
    """Returns the share of the pairs whose first set has a root in which the second does."""
    named = Counter[bool]()
    for (first, second), cases in sets.items():
        if root in (first or ()):
            named[root in (second or ())] += cases
    return proportion(named[True], named.total())
