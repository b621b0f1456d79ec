"""Coverage of the intervals of fields of a record, and of the number of independent annotators."""

import json
from collections import Counter
from itertools import count, product

import numpy as np
import pytest
from scipy import stats

from raylab.core.stats import Array
from raylab.label.codebooks.codebook import INTERVAL
from raylab.label.codebooks.yaml import make_codebook
from raylab.label.config.codebook import CodebookConfig
from raylab.label.statistics.accuracy import field_accuracy
from raylab.label.statistics.agreement import count_independent, field_report
from tests.coverage.table import MARKS, Figures, Measure, generator

pytestmark = MARKS

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
ANSWERED = 0.9
"""Share of the cases that an annotator answers."""


def records(places: tuple[int, ...]) -> frozenset[str]:
    """The categories of a record, by the places of its values."""
    values = {name: VALUES[name][place] for name, place in zip(VALUES, places, strict=True)}
    return BOOK.parse_gold(json.dumps(values)).measured


RECORDS = {places: records(places) for places in product(*(range(len(v)) for v in VALUES.values()))}


def confusions(knowing: float, name: str) -> list[Array]:
    """Of easy and of hard cases, the shares of the answers to each true value of a field."""
    share, size = SHARES[name], len(SHARES[name])
    known = [knowing + EASIER * (1 - knowing), knowing + HARDER * (1 - knowing)]
    return [each * np.eye(size) + (1 - each) * share for each in known]


@pytest.mark.parametrize(("knowing", "cases"), list(product((0.6, 0.8, 0.95), (30, 50, 200))))
def test_intervals_of_fields_hold_the_truth(knowing: float, cases: int, measure: Measure) -> None:
    """Cases are easy or hard in all fields at once; values that are not known are guessed."""
    draw, seeds = generator("fields", knowing, cases), count()
    given = {name: confusions(knowing, name) for name in VALUES}
    truths = dict[str, dict[str, float]]()
    for name, share in SHARES.items():
        easy, hard = (each.T @ np.diag(share) @ each for each in given[name])
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
            "right": float(sum(np.diag(each) @ share for each in given[name]) / 2),
        }

    def simulate() -> Figures:
        is_hard = draw.random(cases) < 0.5
        true, said = list[Array](), list[Array]()
        for name, share in SHARES.items():
            values = draw.choice(len(share), cases, p=share)
            chances = np.stack(given[name])[is_hard.astype(int), values].cumsum(1)
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
            found = {"alpha": report.alpha, "same": report.same}
            found |= {"kappa": report.kappa["AB"]} if field.is_single else {}
            found |= {"right": field_accuracy(scored, name)}
            figures |= {
                f"{LABELS[key]} of a field: {name}": (figure.interval, truth[key])
                for key, figure in found.items()
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
