"""Codes and verdicts against held-out gold: are the annotators right, and is the judge good?"""

from collections import Counter
from collections.abc import Mapping
from typing import Annotated, cast

from scipy import optimize, stats

from raylab.annotation.outcome import SIDES, Side, Verdict
from raylab.annotation.statistics.agreement import pair_codes
from raylab.annotation.statistics.confusion import (
    NONE,
    Confusion,
    ConfusionPanel,
    RootFigures,
    by_root,
    primary_confusion,
    set_confusion,
)
from raylab.annotation.statistics.estimates import Estimate, proportion
from raylab.annotation.statistics.frame import Tables, tally, view
from raylab.runs.measures import Measure
from raylab.runs.records import Part

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
    by_root: dict[str, RootFigures]


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
    with_gold = tables.only(tables.cases.held_out)
    answered = f"format_{name.lower()}" if name in SIDES else CODES[name]
    pairs = pair_codes(with_gold.only(with_gold.cases[answered].notna()), "gold_code", CODES[name])
    categories = tuple(tables.codebook.categories)
    return GoldReport(
        cases=pairs.cases,
        left_out=len(with_gold.cases) - pairs.cases,
        roots=proportion(pairs.same_roots, pairs.cases),
        exact=proportion(pairs.exact, pairs.cases),
        primary=proportion(pairs.same_primary, pairs.cases),
        by_root=by_root(set_confusion(pairs.sets(), categories), categories),
    )


def confusion_report(tables: Tables) -> Confusion:
    """Returns the confusion of A and B and, with gold, of gold and each giver of codes."""
    panels = {"a_b": _panel(tables, *SIDES)}
    with_gold = tables.only(tables.cases.held_out)
    if len(with_gold.cases):
        panels |= {f"gold_{name}": _panel(with_gold, "gold", name) for name in GIVERS}
    return Confusion(labels=(*tables.codebook.categories, NONE), panels=panels)


def _panel(tables: Tables, rows: str, columns: str) -> ConfusionPanel:
    cases, categories = tables.cases, tuple(tables.codebook.categories)
    if rows == "gold":
        answered = f"format_{columns.lower()}" if columns in SIDES else CODES[columns]
        tables = tables.only(cases[answered].notna())
    pairs = pair_codes(tables, CODES.get(rows, "gold_code"), CODES[columns])
    return ConfusionPanel(
        rows=NAMES.get(rows, rows),
        columns=NAMES[columns],
        sets=set_confusion(pairs.sets(), categories),
        primary=primary_confusion(pairs.primaries(), categories),
    )


def judge_report(tables: Tables, side: Side) -> JudgeReport:
    """Returns the evaluator's verdicts and scores of one annotator's codes against gold."""
    answers = view(tables.cases, side.lower()).assign(gold=tables.cases.gold_code)
    judged = answers[tables.cases.held_out & answers.code.notna() & answers.raw_verdict.notna()]
    verdicts: dict[bool, Counter[str]] = {True: Counter(), False: Counter()}
    scores: dict[bool, Counter[int]] = {True: Counter(), False: Counter()}
    for (line, gold, verdict, score), count in tally(
        judged, "code", "gold", "verdict", "score"
    ).items():
        right = _has_roots(tables, line, gold)
        verdicts[right][verdict] += count
        scores[right][int(score)] += count
    right, wrong = verdicts[True], verdicts[False]
    return JudgeReport(
        codes=len(judged),
        right=proportion(right.total(), len(judged)),
        right_by_verdict={
            verdict: proportion(right[verdict], right[verdict] + wrong[verdict])
            for verdict in Verdict
        },
        auc=area_under_curve(scores[True], scores[False]),
        right_by_score=_by_band(scores[True], scores[False]),
    )


def _has_roots(tables: Tables, line: str, gold: str) -> bool:
    label, right = tables.label(line), tables.label(gold)
    return label is not None and right is not None and label.categories == right.categories


def _by_band(right: Counter[int], wrong: Counter[int]) -> dict[int, Estimate]:
    bands = {
        lowest: [
            sum(n for score, n in side.items() if min(score, 99) // BAND * BAND == lowest)
            for side in (right, wrong)
        ]
        for lowest in range(100 - BAND, -BAND, -BAND)
    }
    return {lowest: proportion(won, won + lost) for lowest, (won, lost) in bands.items()}


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
