"""Coverage of the intervals of agreement: of codes, of fields, of errors, and with people."""

import json
from collections import Counter
from itertools import combinations, count, product

import numpy as np
import pytest
from scipy import stats

from raylab.core.stats import Array, share_mean
from raylab.label.codebooks.codebook import INTERVAL, Label
from raylab.label.codebooks.distances import FieldDistance, equal_sets
from raylab.label.codebooks.yaml import make_codebook
from raylab.label.config.codebook import CodebookConfig
from raylab.label.opt.code import Root
from raylab.label.opt.codebook import packaged_distance
from raylab.label.statistics.accuracy import field_accuracy
from raylab.label.statistics.agreement import (
    cohen_kappa,
    count_independent,
    field_report,
    krippendorff_alpha,
)
from raylab.label.statistics.people import substitute_report
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
"""Share of the cases that an annotator answers."""


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
            )
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


# Fields of a record, which are easy or hard at once

KINDS, GRADES, TOPICS = ("bill", "login", "order", "other"), ("1", "2", "3", "4", "5"), "abc"
BOOK = make_codebook(
    CodebookConfig.model_validate(
        {
            "name": "tickets",
            "task": "t",
            "fields": {
                "kind": {"labels": {name: name for name in KINDS}},
                "grade": {"labels": {name: name for name in GRADES}, "distance": "graded"},
                "topics": {
                    "labels": {name: name for name in TOPICS},
                    "several": True,
                    "distance": "jaccard",
                },
            },
        }
    )
)
SETS = [[t for t, named in zip(TOPICS, bits, strict=True) if named]
        for bits in product((1, 0), repeat=3) if any(bits)]  # fmt: skip
VALUES = {"kind": KINDS, "grade": GRADES, "topics": SETS}
SHARES: dict[str, Array] = {
    "kind": np.array([0.55, 0.25, 0.15, 0.05]),
    "grade": np.array([0.1, 0.3, 0.3, 0.2, 0.1]),
    "topics": np.array([0.05, 0.1, 0.1, 0.3, 0.1, 0.2, 0.15]),
}
EASIER, HARDER = 0.5, -0.5
"""By how much of the rest more or less is known of an easy and of a hard case."""


def records(places: tuple[int, ...]) -> frozenset[str]:
    """The categories of a record, by the places of its values."""
    values = {name: VALUES[name][place] for name, place in zip(VALUES, places, strict=True)}
    return BOOK.parse_gold(json.dumps(values)).measured


RECORDS = {places: records(places) for places in product(*(range(len(v)) for v in VALUES.values()))}


def confusions(knowing: float, name: str) -> list[Array]:
    """Of easy and of hard cases, the shares of the answers to each true value of a field."""
    share, size = SHARES[name], len(SHARES[name])
    shares_known = [knowing + EASIER * (1 - knowing), knowing + HARDER * (1 - knowing)]
    return [each * np.eye(size) + (1 - each) * share for each in shares_known]


@pytest.mark.parametrize(("knowing", "cases"), list(product((0.6, 0.8, 0.95), (30, 50, 200))))
def test_intervals_of_fields_hold_the_truth(knowing: float, cases: int, measure: Measure) -> None:
    """Cases are easy or hard in all fields at once; values that are not known are guessed."""
    draw, seeds = generator("fields", knowing, cases), count()
    answers = {name: confusions(knowing, name) for name in VALUES}
    truths = dict[str, dict[str, float]]()
    for name, share in SHARES.items():
        easy, hard = (each.T @ np.diag(share) @ each for each in answers[name])
        pairs = (easy + hard) / 2
        sets = [frozenset(f"{name}: {v}" for v in ([v] if isinstance(v, str) else v))
                for v in VALUES[name]]  # fmt: skip
        distance = BOOK.fields[name].distance
        assert distance is not None
        far = np.array([[distance(a, b) for b in sets] for a in sets])
        far = far**2 if distance.level == INTERVAL else far
        margin = pairs.sum(0)
        truths[name] = {
            "alpha": 1 - (pairs * far).sum() / (margin @ far @ margin),
            "kappa": 1 - (1 - np.trace(pairs)) / (1 - margin @ margin),
            "same": float(np.trace(pairs)),
            "right": float(sum(np.diag(each) @ share for each in answers[name]) / 2),
        }

    def simulate() -> Figures:
        is_hard = draw.random(cases) < 0.5
        true, said = list[Array](), list[Array]()
        for name, share in SHARES.items():
            values = draw.choice(len(share), cases, p=share)
            chances = np.stack(answers[name])[is_hard.astype(int), values].cumsum(1)
            true.append(values)
            said.append((draw.random((2, cases, 1)) > chances[None]).sum(2))
        there = draw.random((2, cases)) < ANSWERED
        rows = [
            [RECORDS[tuple(int(own[coder, n]) for own in said)] if there[coder, n] else None
             for coder in range(2)]
            for n in range(cases)
        ]  # fmt: skip
        gold = [RECORDS[tuple(int(values[n]) for values in true)] for n in range(cases)]
        scored = Counter(
            (right, own) for right, (own, _) in zip(gold, rows, strict=True) if own is not None
        )
        seed, figures = next(seeds), dict[str, tuple[tuple[float, float] | None, float]]()
        for name, truth in truths.items():
            field = BOOK.fields[name]
            report = field_report("AB", Counter(map(tuple, rows)), name, field, seed)
            estimates = {"alpha": report.alpha, "same": report.same}
            estimates |= {"kappa": report.kappa["AB"]} if field.is_single else {}
            estimates |= {"right": field_accuracy(scored, name)}
            figures |= {
                f"{LABELS[key]} of a field: {name}": (figure.interval, truth[key])
                for key, figure in estimates.items()
            }
        return figures

    measure(simulate)


LABELS = {"alpha": "alpha", "same": "same value", "kappa": "kappa", "right": "accuracy"}


@pytest.mark.parametrize(
    ("annotators", "together", "right", "cases"),
    list(product((2, 3, 5), (0.0, 0.4, 0.8), (0.7, 0.9), (30, 100, 300))),
)
def test_intervals_of_independent_annotators_hold_the_truth(
    annotators: int, together: float, right: float, cases: int, measure: Measure
) -> None:
    """Annotators err where a normal deviate is high, which they share in part."""
    draw, seeds = generator("annotators", annotators, together, right, cases), count()
    line = stats.norm.ppf(right)
    both = stats.multivariate_normal([0, 0], [[1, together], [together, 1]]).cdf([line, line])
    correlation = (both - right**2) / (right * (1 - right))
    truth = annotators / (1 + (annotators - 1) * correlation)

    def simulate() -> Figures:
        shared = np.sqrt(together) * draw.standard_normal(cases)
        own = np.sqrt(1 - together) * draw.standard_normal((annotators, cases))
        figure = count_independent((shared + own < line).astype(float), next(seeds))
        return {f"independent annotators: of {annotators}": (figure.interval, float(truth))}

    measure(simulate)


def test_the_alternative_annotator_test_errs_seldom_and_its_interval_holds_the_truth(
    measure: Measure,
) -> None:
    """Three people are right in nine of ten cases; each two of them judge sixty cases.

    A person's advantage is the difference of the chances to agree with the other person. Against
    the poor model it is just epsilon, so that each win of that model is an error.
    """
    right, epsilon, by_chance = 0.9, 0.15, 0.1 / 3
    poor = right - epsilon / (right - by_chance)
    # The person alone agrees with another who is right, or with one who is wrong.
    alone = right**2 * (1 - poor) + (1 - right) ** 2 / 3 * (1 - (1 - poor) / 3)
    labels = [Label(line=kind, written=kind, parts=(("", kind),), fields={}) for kind in KINDS]
    draw, seeds, same = generator("people"), count(), FieldDistance("nominal", equal_sets)
    errors, passes = list[bool](), list[bool]()

    def say(truth: int, chance: float) -> Label:
        wrong = (truth + int(draw.integers(1, 4))) % 4
        return labels[truth if draw.random() < chance else wrong]

    def simulate() -> Figures:
        cases = [
            ({name: say(truth, right) for name in pair}, say(truth, poor), say(truth, right))
            for pair in combinations("abc", 2)
            for truth in draw.integers(0, 4, 60).tolist()
        ]
        tested, good = (
            substitute_report([(case[0], case[which]) for case in cases], same, epsilon, seed)
            for which, seed in ((1, next(seeds)), (2, next(seeds)))
        )
        errors.append(bool(tested.winning_rate))
        passes.append(bool(good.passes))
        return {"advantage of a model over people": (tested.advantage.interval, 1 - alone)}

    measure(simulate)
    rounds = len(errors)
    assert sum(errors) / rounds <= 0.05 + 2.5 * np.sqrt(0.05 * 0.95 / rounds)
    # A model as good as people passes.
    assert sum(passes) / rounds >= 0.95
