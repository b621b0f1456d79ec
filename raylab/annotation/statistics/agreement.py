"""Two sides' codes of the same cases: agreement, confusion, and the cases to read first.

Rows of a confusion matrix belong to one side (gold, or A), columns to the other (an annotator, or
B). Both are in the order of the codebook's labels, followed by `none` for a case without a code.
"""

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import product
from typing import Annotated, Any

import numpy as np
import pandas as pd

from raylab.annotation.outcome import Status
from raylab.annotation.statistics.estimates import (
    DRAWS,
    Array,
    Estimate,
    agreement,
    amount_mean,
    estimate,
    share_mean,
    share_of,
)
from raylab.annotation.statistics.frame import Frame, Tables, tally
from raylab.codebook import Categories, SetDistance, field_of
from raylab.runs.records import Measure, Part

TOLERANCE = 1e-9
SHARES = ("jaccard", "weighted", "composition", "levenshtein_normalised")
"""The measures of `Agreement` in [0, 1] that a run averages."""
EDITS = "levenshtein"
NONE = "none"
NOTHING: Categories = frozenset()
MOST_ANSWERS = 500
"""Most different answers of which all distances are computed; texts in a record have no bound."""
SHOWN = 10
"""Most disagreements in a report."""
SETTLED = (Status.ADJUDICATED, Status.HUMAN)

Matrix = tuple[tuple[float, ...], ...]


class AgreementReport(Part):
    """Agreement of the two annotators; all estimates are over the cases with two codes."""

    cases: int
    both: int
    """Cases with two codes."""
    exact: Annotated[Estimate, Measure("equal composition (consensus)")]
    """Both gave the same labels, joined in the same way."""
    same_labels: Annotated[Estimate, Measure("equal set of labels")]
    """Both named the same labels, joined in any way."""
    kappa: Annotated[Estimate, Measure("Cohen's kappa, primary label", "number")]
    """Agreement on the first label beyond what guessing at the same rates would give: 0 is chance,
    1 is full agreement, below 0 is worse than chance."""
    alpha: Annotated[Estimate, Measure("Krippendorff's alpha, sets", "number")]
    """Agreement on the sets of labels beyond chance, where a near miss counts as less of a
    disagreement than a far one: 0 is chance, 1 is full agreement."""
    jaccard: Annotated[Estimate, Measure("Jaccard of the sets", "number")]
    """Labels that both named, as a share of all that either named; 1 is the same set."""
    weighted: Annotated[Estimate, Measure("weighted by distance", "number")]
    """1 minus the distance between the two sets of labels, so that a near miss costs less than a
    far one."""
    composition: Annotated[Estimate, Measure("composition", "number")]
    """1 for the same code, 0.5 for the same labels joined differently, else 0."""
    levenshtein: Annotated[Estimate, Measure("Levenshtein, edits", "number", "lower")]
    """Characters to change to turn one line, as written, into the other."""
    levenshtein_normalised: Annotated[Estimate, Measure("Levenshtein by length", "number", "lower")]
    """The same as a share of the longer line; 0 is equal."""


class Disagreement(Part):
    """A case in which the codes of the two annotators differ."""

    case: str
    distance: float
    """Distance of the two sets of labels, in [0, 1]."""
    conviction: float
    """Lower of the evaluator's two scores, in [0, 1]."""


class DisagreementReport(Part):
    """The disagreements of a run."""

    total: int
    shown: tuple[Disagreement, ...]
    """The most instructive, by rank."""


def count_pairs(tables: Tables, rows: str, columns: str, name: str) -> Counter[tuple[Any, Any]]:
    """Returns the cases by an attribute of the codes in two columns, None for a missing code."""
    counts = Counter[tuple[Any, Any]]()
    for pair, cases in tally(tables.cases, rows, columns).items():
        first, second = (label and getattr(label, name) for label in map(tables.label, pair))
        counts[first, second] += cases
    return counts


def measure_agreement(tables: Tables, seed: int) -> AgreementReport:
    """Returns the agreement of A and B, with the means of the measures of single cases."""
    both, distance = tables.cases.dropna(subset=EDITS), tables.codebook.distance
    primary, sets = (
        count_pairs(tables, "code_a", "code_b", name) for name in ("primary", "categories")
    )
    return AgreementReport(
        cases=len(tables.cases),
        both=len(both),
        exact=share_of(both.exact),
        same_labels=share_of(tables.equal(both.code_a, both.code_b, "categories")),
        kappa=cohen_kappa(primary, seed=seed),
        alpha=krippendorff_alpha(sets, distance, seed=seed),
        levenshtein=amount_mean(tally(both, EDITS)),
        **{name: share_mean(tally(both, name), seed) for name in SHARES},
    )


def cohen_kappa(
    counts: Mapping[tuple[Any, Any], int], draws: int = DRAWS, seed: int = 307
) -> Estimate:
    """Computes Cohen's kappa (1960) of two annotators' primary categories.

    In [-1, 1]; 1 is full agreement. Undefined if both always gave the same category, so that
    chance alone explains their agreement.

    Args:
        counts: Cases by the two answers, None for a missing one; those cases are left out.
        draws: Draws from the posterior for the interval; 0 leaves it out.
        seed: Seed of the draws.
    """
    values, table = _table(counts)
    differences = 1.0 - np.eye(len(values))

    def kappa(cases: Array) -> Array:
        first, second = cases.sum(-1), cases.sum(-2)
        total = first.sum(-1)
        expected = 1.0 - (first * second).sum(-1) / total**2
        return _one_less((cases * differences).sum((-2, -1)) / total, expected)

    return agreement(table, kappa, draws, seed)


def krippendorff_alpha(
    counts: Mapping[tuple[Any, Any], int],
    distance: SetDistance,
    draws: int = DRAWS,
    seed: int = 307,
) -> Estimate:
    """Computes Krippendorff's alpha of two annotators' sets of categories.

    At most 1; 1 is full agreement. The difference function is the squared distance of the sets.
    Formula: Krippendorff, Computing Krippendorff's Alpha-Reliability (2011), for two observers.
    Undefined if all answers are the same set, so that no disagreement is expected, or if more than
    `MOST_ANSWERS` differ.

    Args:
        counts: Cases by the two answers, None or an empty set for a missing one; those cases hold
            no pair of values and are left out.
        distance: Distance of two sets, in [0, 1].
        draws: Draws from the posterior for the interval; 0 leaves it out.
        seed: Seed of the draws.
    """
    different = {answer for answers in counts for answer in answers if answer}
    if (number := len(different)) > MOST_ANSWERS:
        reason = f"{number:,} different answers: at most {MOST_ANSWERS} are compared by distance"
        return estimate(None, sum(counts.values()), reason=reason)
    values, table = _table(counts, sorted)
    differences = np.array([[distance(a, b) ** 2 for b in values] for a in values])

    def alpha(cases: Array) -> Array:
        margin = cases.sum(-1) + cases.sum(-2)
        size = margin.sum(-1)
        expected = ((margin @ differences) * margin).sum(-1) / (size * (size - 1))
        return _one_less((cases * differences).sum((-2, -1)) / (size / 2), expected)

    return agreement(table, alpha, draws, seed)


def set_confusion(counts: Mapping[tuple[Any, Any], int], categories: Sequence[str]) -> Matrix:
    """Returns the numbers of labels, for codes that may name several.

    A label that both name counts 1 on the diagonal. The labels that only one side names are matched
    at random with those that only the other names, and the expectation is counted: with m and n
    such labels each pair gets 1 / max(m, n), and the rest of the longer side counts under `none`.
    So a row sums to the cases whose row side names that label, a column to those whose column side
    does, and exchanging the sides transposes the matrix. A case without any code counts in the
    corner. Labels of different fields are never matched.

    Args:
        counts: Cases by the two sets, None or empty for a missing code.
        categories: All N labels, in order; the matrix has N + 1 rows and columns.
    """
    places = {category: place for place, category in enumerate((*categories, None))}
    # The parts of a case are whole numbers, so that the sums are exact.
    unit = math.lcm(*range(1, len(categories) + 1))
    parts = np.zeros((len(places), len(places)), object)
    fields = dict[str, set[str]]()
    for category in categories:
        fields.setdefault(field_of(category), set()).add(category)
    for ((row, column), cases), names in product(counts.items(), fields.values()):
        a, b = (row or NOTHING) & names, (column or NOTHING) & names
        for category in a & b if a or b else {None}:
            parts[places[category], places[category]] += unit * cases
        longest = max(len(a - b), len(b - a))
        ours, theirs = ([*rest, *[None] * (longest - len(rest))] for rest in (a - b, b - a))
        for pair in product(ours, theirs):
            parts[tuple(places[category] for category in pair)] += unit // longest * cases
    return tuple(tuple(part / unit for part in line) for line in parts.tolist())


def disagreement_report(tables: Tables) -> DisagreementReport:
    """Returns the cases in which the annotators' codes differ, the most instructive first.

    A case is most instructive if the answers lie far apart and the evaluator still found both
    convincing: then the description or the taxonomy is ambiguous, while a refused answer only shows
    a mistake. So the product of distance and conviction decides. Cases that were adjudicated or
    wait for a person come before failed ones; ties are in the order of ids.
    """
    cases = tables.cases[tables.cases.exact.eq(False)]
    rows: Frame = pd.DataFrame(
        {
            "case": cases.case.astype(str),
            "distance": 1.0 - cases.weighted,
            "conviction": cases[["score_a", "score_b"]].fillna(0).min(axis=1) / 100,
            "unsettled": ~cases.run_status.isin(SETTLED),
        }
    )
    rows["instructive"] = rows.distance * rows.conviction
    order = ["unsettled", "instructive", "case"]
    shown = rows.sort_values(order, ascending=[True, False, True])[:SHOWN]
    fields = shown[[*Disagreement.model_fields]].to_dict("records")
    return DisagreementReport(total=len(rows), shown=tuple(Disagreement(**row) for row in fields))


def _table(
    counts: Mapping[tuple[Any, Any], int], key: Callable[[Any], Any] | None = None
) -> tuple[list[Any], Array]:
    """Returns the answers in order and their (answers, answers) cases, first by second."""
    answered = {(a, b): cases for (a, b), cases in counts.items() if a and b and cases}
    values = sorted({value for pair in answered for value in pair}, key=key)
    table = np.zeros((len(values), len(values)))
    for (first, second), cases in answered.items():
        table[values.index(first), values.index(second)] = cases
    return values, table


def _one_less(observed: Array, expected: Array) -> Array:
    """Returns 1 minus the ratio; NaN where the expectation is zero within `TOLERANCE`."""
    defined = expected > TOLERANCE
    return np.where(defined, 1.0 - observed / np.where(defined, expected, 1.0), np.nan)
