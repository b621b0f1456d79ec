"""Coverage of the intervals of agreement: kappa, alpha and the means of single cases."""

from collections import Counter
from itertools import count, product

import numpy as np
import pytest

from raylab.core.stats import Array, share_mean
from raylab.label.opt.code import Root
from raylab.label.opt.codebook import packaged_distance
from raylab.label.statistics.agreement import cohen_kappa, krippendorff_alpha
from tests.coverage.table import MARKS, Figures, Measure, generator

pytestmark = MARKS

CASES = (20, 30, 50, 100)
AGREEMENTS = (0.6, 0.8, 0.9, 0.95, 0.98, 1.0)
SPREAD = (0.3, 0.2, 0.15, 0.15, 0.1, 0.05, 0.05)
DOMINANT = (0.7, 0.85, 0.95)
EQUAL = (0.5, 0.8, 0.9, 0.95, 0.98)
SIMILARITIES = {0.0: 0.3, 1 / 3: 0.2, 0.5: 0.3, 0.8: 0.2}
"""Shares of the cases that are not equal, by value."""
ANSWERED = 0.9
"""Share of the cases that each of three annotators answers."""


def shares_of_roots(dominant: float | None) -> Array:
    """The (7,) shares of the roots, of which the first may dominate."""
    if dominant is None:
        return np.array(SPREAD)
    rest = np.array(SPREAD[1:])
    return np.append(dominant, (1 - dominant) * rest / rest.sum())


def joint(agreement: float, roots: Array) -> Array:
    """The (7, 7) shares of pairs of roots; annotators who differ do so by chance."""
    different = np.outer(roots, roots) * (1 - np.eye(len(roots)))
    return agreement * np.diag(roots) + (1 - agreement) * different / different.sum()


def true_value(pairs: Array, differences: Array) -> float:
    """1 less the observed over the expected difference; the margins are equal."""
    margin = (pairs.sum(0) + pairs.sum(1)) / 2
    return float(1 - (pairs * differences).sum() / (margin @ differences @ margin))


@pytest.mark.parametrize(
    ("dominant", "agreement", "cases"), list(product((None, *DOMINANT), AGREEMENTS, CASES))
)
def test_intervals_of_kappa_and_alpha_hold_the_truth(
    dominant: float | None, agreement: float, cases: int, measure: Measure
) -> None:
    roots = list(Root)
    packaged = packaged_distance()
    pairs = joint(agreement, shares_of_roots(dominant))
    differences = np.array(
        [[packaged(frozenset({a}), frozenset({b})) for b in roots] for a in roots]
    )
    truths = {
        "kappa": true_value(pairs, 1 - np.eye(len(roots))),
        "alpha, weighted by distance": true_value(pairs, differences),
    }
    draw = generator(dominant, agreement, cases)
    kind = "one root dominates" if dominant else "roots are spread"

    def simulate() -> Figures:
        drawn = draw.multinomial(cases, pairs.ravel()).tolist()
        counts = {pair: n for pair, n in zip(product(roots, roots), drawn, strict=True) if n}
        sets = {(frozenset({a}), frozenset({b})): n for (a, b), n in counts.items()}
        estimates = cohen_kappa(dict(counts)), krippendorff_alpha(sets, packaged)
        return {
            f"{name}: {kind}": (estimate.interval, truth)
            for (name, truth), estimate in zip(truths.items(), estimates, strict=True)
        }

    measure(simulate)


@pytest.mark.parametrize(("knowing", "cases"), list(product((0.6, 0.8, 0.95), CASES)))
def test_intervals_of_three_annotators_hold_the_truth(
    knowing: float, cases: int, measure: Measure
) -> None:
    """Each annotator knows the root in so many cases, guesses it in others, and skips some."""
    packaged, roots = packaged_distance(), list(Root)
    sets = [frozenset({root}) for root in roots]
    shares, size = shares_of_roots(None), len(roots)
    given = knowing * np.eye(size) + (1 - knowing) * shares
    pairs = given.T @ np.diag(shares) @ given
    differences = np.array([[packaged(a, b) for b in sets] for a in sets])
    draw = generator("three annotators", knowing, cases)

    def simulate() -> Figures:
        truths = draw.choice(size, cases, p=shares)
        rows = [
            [int(draw.choice(size, p=given[t])) if draw.random() < ANSWERED else -1 for _ in "ABC"]
            for t in truths
        ]
        answers = Counter(tuple(sets[n] if n >= 0 else None for n in row) for row in rows)
        return {
            "alpha: three annotators": (
                krippendorff_alpha(answers, packaged).interval,
                true_value(pairs, differences),
            ),
        }

    measure(simulate)


@pytest.mark.parametrize(("equal", "cases"), list(product(EQUAL, CASES)))
def test_intervals_of_a_mean_hold_the_truth(equal: float, cases: int, measure: Measure) -> None:
    shares = {value: (1 - equal) * share for value, share in SIMILARITIES.items()} | {1.0: equal}
    truth = sum(value * share for value, share in shares.items())
    draw = generator("mean similarity", equal, cases)
    seeds = count()

    def simulate() -> Figures:
        drawn = draw.multinomial(cases, list(shares.values())).tolist()
        counts = {value: n for value, n in zip(shares, drawn, strict=True) if n}
        return {"mean similarity": (share_mean(counts, next(seeds)).interval, truth)}

    measure(simulate)
