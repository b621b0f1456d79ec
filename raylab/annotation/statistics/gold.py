"""Codes and verdicts against held-out gold: are the annotators right, and is the judge good?"""

from collections import Counter
from collections.abc import Iterable
from typing import Annotated, cast

from scipy import optimize, stats

from raylab.annotation.outcome import SIDES, Side, Verdict
from raylab.annotation.statistics.agreement import (
    NONE,
    ConfusionPanel,
    Pairs,
    confusion_panel,
    count_equal,
    pair_codes,
)
from raylab.annotation.statistics.estimates import Estimate, estimate, proportion, share_of
from raylab.annotation.statistics.frame import Tables, view
from raylab.runs.records import Measure, Part

BAND = 10
"""Scores in one band; the last also holds 100."""
NEAR = 1e-9
Z = float(stats.norm.ppf(0.975))
FINAL, REVIEWED = "final", "reviewed"
NAMES = {
    **{side: f"annotator {side}" for side in SIDES},
    FINAL: "final code",
    REVIEWED: "with reviews",
}
"""The givers of codes: the annotators, the protocol, and the protocol with people's decisions."""
CODES = {**{side: f"code_{side.lower()}" for side in SIDES}, FINAL: "run_code", REVIEWED: "code"}
"""The column of each giver's codes."""
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
    """Returns the accuracy of each giver of codes.

    Args:
        tables: The run.
        any_reviewed: True if a person's decision stands; otherwise `reviewed` is left out.
    """
    return {name: gold_report(tables, name) for name in NAMES if name != REVIEWED or any_reviewed}


def gold_report(tables: Tables, name: str) -> GoldReport:
    """Returns the accuracy of one giver of codes, a key of `CODES`."""
    pairs = _against_gold(tables, name)
    cases = pairs.total()
    swapped = Counter({(code, gold): count for (gold, code), count in pairs.items()})
    return GoldReport(
        cases=cases,
        left_out=int(tables.cases.held_out.sum()) - cases,
        roots=proportion(count_equal(pairs, "categories"), cases),
        exact=proportion(count_equal(pairs, "composition"), cases),
        primary=proportion(count_equal(pairs, "primary"), cases),
        recall={root: _naming(pairs, root) for root in tables.codebook.categories},
        precision={root: _naming(swapped, root) for root in tables.codebook.categories},
    )


def confusion_report(tables: Tables) -> Confusion:
    """Returns the confusion of A and B and, with gold, of gold and each giver of codes."""
    categories = tuple(tables.codebook.categories)
    both = pair_codes(tables, *(CODES[side] for side in SIDES))
    panels = {"a_b": confusion_panel(both, *(NAMES[side] for side in SIDES), categories)}
    for name in GIVERS if tables.cases.held_out.any() else ():
        pairs = _against_gold(tables, name)
        panels[f"gold_{name}"] = confusion_panel(pairs, "gold", NAMES[name], categories)
    return Confusion(labels=(*categories, NONE), panels=panels)


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


def _against_gold(tables: Tables, name: str) -> Pairs:
    """Returns gold and the codes of a giver, of the cases with held-out gold and an answer."""
    answered = f"format_{name.lower()}" if name in SIDES else CODES[name]
    rows = tables.cases.held_out & tables.cases[answered].notna()
    return pair_codes(tables.only(rows), "gold_code", CODES[name])


def _naming(pairs: Pairs, root: str) -> Estimate:
    """Returns the share of the pairs whose first label names a root in which the second does."""
    named = Counter[bool]()
    for (label, other), cases in pairs.items():
        if label is not None and root in label.categories:
            named[other is not None and root in other.categories] += cases
    return proportion(named[True], named.total())
