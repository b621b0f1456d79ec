"""Codes and verdicts against people's codes: held-out gold, and an audit of a random sample.

In an audit people see the descriptions alone, so that no code leads them. The share of their codes
that match those of the protocol corrects the evaluator's scores of the whole batch.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain, combinations
from typing import Annotated, Any, cast

import numpy as np
from scipy import optimize, stats

from raylab.core.runs.records import Figure, Measure, Part
from raylab.core.stats import Array, Z, proportion, share_of, wilson
from raylab.label.codebooks.codebook import Label, in_field
from raylab.label.protocol.outcome import ANNOTATORS, Annotator, Status, Verdict
from raylab.label.statistics.agreement import (
    NONE,
    NOTHING,
    Matrix,
    count_answers,
    counted_values,
    has_field,
    set_confusion,
)
from raylab.label.statistics.columns import ADJUDICATED, code_columns
from raylab.label.statistics.frame import Tables, has_labels, view

NEAR = 1e-9
FINAL, REVIEWED, GOLD = "final", "reviewed", "gold"
NAMES = {
    **{name: f"annotator {name}" for name in ANNOTATORS},
    FINAL: "models' final code",
    REVIEWED: "with people's decisions",
}
"""The givers of codes: the annotators, the protocol, and the protocol with people's decisions."""
CODES = {
    **dict(zip(ANNOTATORS, code_columns(ANNOTATORS), strict=True)),
    FINAL: "run_code",
    REVIEWED: "code",
    GOLD: "gold_code",
}
"""The columns of the codes of each giver, and of gold."""
DECIDED = (Status.ACCEPTED, Status.ADJUDICATED)
"""The cases that an audit is about: those with a code of the protocol."""


class GoldReport(Part):
    """Shares of right codes, over the cases with gold and an answer.

    An answer without a readable code counts as wrong.
    """

    cases: Annotated[int, Measure("cases", "count", None)]
    labels: Annotated[Figure, Measure("right labels")]
    exact: Annotated[Figure | None, Measure("right code")]
    """The right labels, joined in the right way; None if labels alone make a code."""
    primary: Annotated[Figure | None, Measure("right first label")]
    """None if labels have no order."""
    fields: Annotated[dict[str, Figure], Measure("right")]
    """By field of an answer that is a record, over the cases whose gold has it."""
    recall: Annotated[dict[str, Figure], Measure("recall of")]
    """Of the cases whose gold names a label, the share whose code names it."""
    precision: Annotated[dict[str, Figure], Measure("precision of")]
    """Of the cases whose code names a label, the share whose gold names it."""


class ConfusionPanel(Part):
    """The confusion matrix of two givers of codes."""

    rows: str
    """Name of the giver of the rows."""
    columns: str
    field: str = ""
    """Field of an answer that is a record."""
    labels: tuple[str, ...]
    """Labels or numbers of the rows and columns, in order, without the field."""
    sets: Matrix
    """See `set_confusion`."""


class JudgeReport(Part):
    """The evaluator's reports on one annotator's codes, of the cases with held-out gold.

    A code is right if it has gold's set of labels. The evaluator is of use if more codes are right
    under PASS than overall, and if its score ranks right codes above wrong ones: an area of 0.5 is
    no skill, 1 is perfect. Its score is a probability if the share in each band of ten lies within
    the band. Answers without a code are left out: no evaluator was asked about them.
    """

    codes: Annotated[int, Measure("judged codes with gold", "count", None)]
    right: Annotated[Figure, Measure("right codes")]
    right_by_verdict: Annotated[dict[Verdict, Figure], Measure("right under")]
    """P(right | verdict), of the verdicts after the caps."""
    auc: Annotated[Figure, Measure("area under the ROC curve", "number")]
    """Chance that a right code has a higher score than a wrong one, ties half; 0.5 is no skill."""
    right_by_score: Annotated[dict[str, Figure], Measure("right, score of")]
    """The reliability diagram, by bands of ten scores; the first also holds 100."""


class AuditReport(Part):
    """The codes of people on some of the cases that the protocol decided, by the text alone.

    A code is right if it has the set of labels of the person's code. The corrected share combines
    the evaluator's scores with the audit by prediction-powered inference.
    """

    decided: Annotated[int, Measure("decided by the protocol", "count", None)]
    drawn: Annotated[int, Measure("drawn at random", "count", None)]
    audited: Annotated[int, Measure("classified by people", "count", None)]
    judged: Annotated[float | None, Measure("claimed by the evaluator's scores")]
    """Mean score of the evaluator over all decided cases, as a share: its own estimate."""
    right: Annotated[Figure, Measure("in the audited cases")]
    """Right codes among those audited."""
    corrected: Annotated[Figure, Measure("in all decided cases, corrected by the audit")]
    """Right codes among all decided cases, by prediction-powered inference."""
    weight: Annotated[float | None, Measure("weight of the evaluator's scores", "number", None)]
    """From 0, the audit alone, to 1."""


def givers_of(tables: Tables) -> tuple[str, ...]:
    """Returns the givers of codes while the protocol runs."""
    return *tables.annotators, FINAL


def gold_report(tables: Tables, name: str) -> GoldReport:
    """Returns the accuracy of one giver of codes, a key of `CODES`."""
    answered = _with_answer(tables, name)
    cases, codes = answered.cases, answered.cases[CODES[name]]
    sets = count_answers(answered, "categories", "gold_code", CODES[name])
    swapped = {(code, gold): count for (gold, code), count in sets.items()}
    right, fields = tables.right(codes, cases.gold_code), tables.codebook.fields
    exact, primary = (
        None if tables.codebook.questions else share_of(tables.equal(codes, cases.gold_code, name))
        for name in ("composition", "primary")
    )
    return GoldReport(
        cases=len(cases),
        labels=share_of(right),
        exact=exact,
        fields={name: field_accuracy(sets, name) for name, each in fields.items() if each.distance},
        primary=primary,
        recall={name: _naming(sets, name) for name in tables.codebook.categories},
        precision={name: _naming(swapped, name) for name in tables.codebook.categories},
    )


def confusion_panels(tables: Tables) -> dict[str, ConfusionPanel]:
    """Returns the confusion of the codes of a run.

    Keys are `annotators`, over each two of them, and, with gold, `gold_A`, ... and `gold_final`; of
    records by field, such as `gold_A: kind`.
    """
    matrices = {"annotators": (tables, [*combinations(tables.annotators, 2)])}
    if tables.cases.held_out.any():
        for name in givers_of(tables):
            matrices[f"gold_{name}"] = (_with_answer(tables, name), [(GOLD, name)])
    panels, values = dict[str, ConfusionPanel](), counted_values(tables)
    for key, (own, pairs) in matrices.items():
        if not pairs:
            continue
        sets = Counter[tuple[Any, ...]]()
        for pair in pairs:
            sets.update(count_answers(own, "categories", *(CODES[name] for name in pair)))
        rows, columns = (
            " or ".join(dict.fromkeys(NAMES.get(str(name), str(name)) for name in names))
            for names in zip(*pairs, strict=True)
        )
        for field, categories in values.items():
            panels[f"{key}: {field}" if field else key] = ConfusionPanel(
                rows=rows,
                columns=columns,
                field=field,
                labels=(*(name.removeprefix(f"{field}: ") for name in categories), NONE),
                sets=set_confusion(sets, categories),
            )
    return panels


def judge_report(tables: Tables, annotator: Annotator) -> JudgeReport:
    """Returns the evaluator's verdicts and scores of one annotator's codes against gold."""
    cases, codes = tables.cases, view(tables.cases, annotator)
    judged = codes[cases.held_out & codes.code.notna() & codes.raw_verdict.notna()]
    gold = cases.gold_code[judged.index]
    judged = judged.assign(right=tables.right(judged.code, gold))
    # A score of 100 is in the band from 90.
    bands = judged.score.clip(upper=99) // 10 * 10
    return JudgeReport(
        codes=len(judged),
        right=share_of(judged.right),
        right_by_verdict={
            verdict: share_of(judged.right[judged.verdict.eq(verdict)]) for verdict in Verdict
        },
        auc=area_under_curve(judged.score[judged.right], judged.score[~judged.right]),
        right_by_score={
            f"{low} to {100 if low == 90 else low + 9}": share_of(judged.right[bands.eq(low)])
            for low in range(90, -10, -10)
        },
    )


def area_under_curve(right: Iterable[float], wrong: Iterable[float]) -> Figure:
    """Returns the area under the ROC curve of a score, with Newcombe's 95 % interval.

    The estimate is the Mann-Whitney statistic divided by the number of pairs. The interval is
    method 5 of Newcombe (2006, Statistics in Medicine 25:559): the values from which the estimate
    is at most 1.96 standard errors away by Hanley and McNeil's formula, with the mean of both
    sizes in it. Unlike a bootstrap it has a width where the score separates both perfectly.
    """
    highs, lows = list(right), list(wrong)
    m, n = len(highs), len(lows)
    if not m or not n:
        reason = "no code is wrong" if m else "no code is right" if n else "no cases"
        return Figure(count=m + n, reason=reason)
    ranks = stats.rankdata([*highs, *lows])
    area = float(ranks[:m].sum() - m * (m + 1) / 2) / (m * n)
    star = (m + n) / 2 - 1

    def beyond(at: float) -> float:
        spread = 1 + star * (1 - at) / (2 - at) + star * at / (1 + at)
        return (at - area) ** 2 - Z**2 * at * (1 - at) * spread / (m * n)

    # The estimate itself is no end of the interval, also where it is 0 or 1.
    low = optimize.brentq(beyond, 0.0, area - NEAR) if area > NEAR else 0.0
    high = optimize.brentq(beyond, area + NEAR, 1.0) if area < 1 - NEAR else 1.0
    interval = cast(float, low), cast(float, high)
    return Figure(value=area, interval=interval, count=m + n)


def audit_report(
    tables: Tables, codes: Mapping[str, Sequence[Label]], weights: Mapping[str, float] | None = None
) -> AuditReport:
    """Returns the result of an audit; cases on which two people differ count in it.

    Args:
        codes: The codes that people gave each drawn case: none while it waits, two that differ.
        weights: The weight of each of these cases, if they were drawn with different chances;
            others count in nothing but `drawn`.
    """
    cases = tables.cases
    # The evaluator's score of each final code is that of the first who gave it.
    scores = cases[f"score_{ADJUDICATED}"].where(cases.run_status.eq(Status.ADJUDICATED))
    for name in tables.annotators:
        answer = view(cases, name)
        accepted = answer.acceptable.eq(True) & tables.equal(answer.code, cases.run_code, "line")
        scores = scores.fillna(answer.score.where(accepted))
    share = scores / 100
    rows = cases.run_status.isin(DECIDED) & cases.run_code.notna() & share.notna()
    decided = cases.assign(share=share)[rows]
    drawn = decided[decided.case.isin([*codes])]
    judged = [bool(codes[case]) and (not weights or case in weights) for case in drawn.case]
    audited = drawn[np.array(judged, bool)]
    right = [
        [has_labels(tables.label(line), code) for code in codes[case]]
        for case, line in zip(audited.case, audited.run_code, strict=True)
    ]
    # Cases on which people agree are easier, so that those that wait for a third person count too:
    # a code that is one of both is right with the chance that it has where there is one code.
    certain = [*chain.from_iterable(each for each in right if len(each) == 1)]
    chance = float(np.mean(certain)) if certain else 0.5
    labels = np.array([each[0] if len(each) == 1 else chance * any(each) for each in right], float)
    everywhere = decided.share.to_numpy(float)
    alone = Figure(count=0, reason="no cases")
    own = np.array([weights[case] if weights else 1.0 for case in audited.case], float)
    if count := len(labels):
        value = float(labels.mean())
        alone = Figure(value=value, interval=wilson(value, max(len(certain), 1)), count=count)
        if weights:
            reason = "the draw took more of the cases that are probably wrong"
            alone = Figure(value=value, count=count, reason=reason)
    corrected, weight = alone, None
    if len(labels) > 1:
        predicted = audited.share.to_numpy(float)
        corrected, weight = predicted_share(labels, predicted, everywhere, own)
    return AuditReport(
        decided=len(decided),
        drawn=len(drawn),
        audited=len(audited),
        judged=float(everywhere.mean()) if len(everywhere) else None,
        right=alone,
        corrected=corrected,
        weight=weight,
    )


def predicted_share(
    labels: Array, predicted: Array, everywhere: Array, weights: Array | None = None
) -> tuple[Figure, float]:
    """Estimates a share over all units from the labels of a random sample of them.

    The estimate is that of PPI++ (Angelopoulos, Duchi and Zrnic 2023, arXiv 2311.01453), a mean
    with power tuning; with weight 1 it is that of Angelopoulos et al. (2023, Science 382:669). Its
    published interval is normal. For a share near 1 that fails: with 10 of 200 cases labelled and
    90 % right it held the truth in 60 % of simulated batches, with 98 % right in 18 %. So the
    interval is Wilson's with the effective number of labels, as for shares from surveys (Franco,
    Little, Louis and Slud 2019, Journal of Survey Statistics and Methodology 7:334).

    Args:
        labels: (n,) 0 or 1 for each unit of the sample, or the chance of 1; two at least.
        predicted: (n,) prediction for the same units, in any units.
        everywhere: (N,) prediction for every unit, those of the sample included.
        weights: (n,) 1 / chance of each unit of the sample, in any scale; None if all are equal.

    Returns:
        The share with its 95 % interval, and the weight of the predictions with the least variance,
        from 0 (the labels alone) to 1.
    """
    n, total, weight = len(labels), len(everywhere), 0.0
    scale = np.ones(n) if weights is None else weights / weights.mean()
    if spread := float(everywhere.var(ddof=1)):
        together = float(np.cov(labels, predicted, aweights=scale)[0, 1])
        weight = min(max(together / ((1 + n / total) * spread), 0.0), 1.0)
    rectified = labels - weight * predicted
    mean = float(scale @ rectified) / n
    value = float(np.clip(weight * everywhere.mean() + mean, 0.0, 1.0))
    # A chance comes from the other labels, and has the variance of a draw besides.
    certain = max(int(((labels == 0) | (labels == 1)).sum()), 1)
    drawn = scale**2 @ (rectified - mean) ** 2 / (n - 1) + scale**2 @ (labels * (1 - labels)) / n
    variance = weight**2 * everywhere.var(ddof=1) / total + drawn / certain
    size = least = n**2 / float(scale @ scale)
    if variance > 0 and 0 < value < 1:
        size = min(max(value * (1 - value) / float(variance), least), total)
    return Figure(value=value, interval=wilson(value, size), count=total), weight


def _with_answer(tables: Tables, name: str) -> Tables:
    """Returns the cases with held-out gold and an answer of a giver."""
    answered = f"format_{name.lower()}" if name in ANNOTATORS else CODES[name]
    return tables.only(tables.cases.held_out & tables.cases[answered].notna())


def field_accuracy(sets: Mapping[tuple[Any, Any], int], name: str) -> Figure:
    """Returns the share of right values of a field, of the cases whose gold has it."""
    right = Counter[bool]()
    for (gold, code), cases in sets.items():
        if values := in_field(gold or NOTHING, name):
            right[values == in_field(code or NOTHING, name)] += cases
    return proportion(right[True], right.total())


def _naming(sets: Mapping[tuple[Any, Any], int], category: str) -> Figure:
    """Returns, of the pairs whose first set has a category, the share whose second set has it."""
    named = Counter[bool]()
    for (first, second), cases in sets.items():
        if category in (first or ()) and has_field(second, (category,)):
            named[category in (second or ())] += cases
    return proportion(named[True], named.total())
