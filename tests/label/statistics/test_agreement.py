import random
from collections import Counter
from itertools import combinations
from typing import Any

import krippendorff
import numpy as np
import pytest
from sklearn.metrics import cohen_kappa_score

from raylab.core.stats import Array
from raylab.label.codebooks.distances import FieldDistance, equal_sets
from raylab.label.codebooks.yaml import make_codebook
from raylab.label.config.codebook import CodebookConfig
from raylab.label.opt.code import Root
from raylab.label.opt.codebook import packaged_distance
from raylab.label.protocol.outcome import Outcome, Status
from raylab.label.statistics.agreement import (
    cohen_kappa,
    count_independent,
    disagreement_report,
    krippendorff_alpha,
)
from tests.label.protocol.outcomes import answer, outcome, report, tables

LRN, EVO, SYM, PRB, SCH, CTL, SWM = Root
Roots = frozenset[Root]
PACKAGED = packaged_distance()
NOMINAL = FieldDistance("nominal", equal_sets)
SETS: list[Roots] = [frozenset(c) for n in range(1, 8) for c in combinations(Root, n)]


def about(value: float) -> object:
    return pytest.approx(value, rel=0, abs=1e-9)


def roots(*names: Root) -> Roots:
    return frozenset(names)


def test_kappa_by_hand():
    # Agreed 35 of 50; by chance .5 * .6 + .5 * .4 = .5; so (.7 - .5) / .5.
    counts = {(LRN, LRN): 20, (LRN, EVO): 5, (EVO, LRN): 10, (EVO, EVO): 15}
    estimate = cohen_kappa(counts)
    assert (estimate.value, estimate.count, estimate.reason) == (about(0.4), 50, None)
    assert cohen_kappa(dict(reversed(counts.items())) | {(None, LRN): 9}) == estimate
    # Never agreed, with equal margins of a half: (0 - .5) / .5.
    assert cohen_kappa({(LRN, EVO): 5, (EVO, LRN): 5}).value == about(-1.0)


def drawn_answers(cases: int, values: int, seed: int) -> list[list[int]]:
    """Answers of three, who see a true value at different rates; -1 is a missing one."""
    draw = random.Random(seed)
    rows = [[draw.randrange(values)] * 3 for _ in range(cases)]
    for row in rows:
        for place in range(3):
            if draw.random() < 0.1 * (place + 2):
                row[place] = draw.randrange(values)
            if draw.random() < 0.2:
                row[place] = -1
    return rows


def test_kappa_is_that_of_an_independent_implementation():
    rows = [row[:2] for row in drawn_answers(120, 4, seed=9)]
    pairs = [row for row in rows if min(row) >= 0]
    counts = Counter(tuple("wxyz"[n] if n >= 0 else None for n in row) for row in rows)
    estimate = cohen_kappa(counts)
    assert estimate.value == about(cohen_kappa_score(*zip(*pairs, strict=True)))
    assert estimate.count == len(pairs)


@pytest.mark.parametrize("level", ["nominal", "interval", "opt"])
def test_alpha_is_that_of_an_independent_implementation_at_each_level(level: str):
    """Five answers of three, of whom some are missing: grades from 0 to 4, or sets of roots."""
    rows, answers = drawn_answers(150, 5, seed=11), [frozenset(str(n)) for n in range(5)]
    content = {"name": "g", "task": "t", "labels": {str(n): str(n) for n in range(5)}}
    graded = {"distance": "graded"} if level == "interval" else {}
    distance = make_codebook(CodebookConfig.model_validate(content | graded)).distance
    if level == "opt":
        answers, distance = random.Random(6).sample(SETS, 5), PACKAGED
    else:
        assert distance.level == level
    differences = np.array([[distance(a, b) for b in answers] for a in answers])

    def measured(v1: Any, v2: Any, i1: Any, i2: Any, n_v: Any, dtype: Any = float) -> Any:
        return differences[np.asarray(i1, int), np.asarray(i2, int)]

    expected = krippendorff.alpha(
        reliability_data=[
            [np.nan if v < 0 else float(v) for v in column] for column in zip(*rows, strict=True)
        ],
        level_of_measurement=measured if level == "opt" else level,
        value_domain=[float(n) for n in range(5)],
    )
    counts = Counter(tuple(answers[v] if v >= 0 else None for v in row) for row in rows)
    alpha = krippendorff_alpha(counts, distance)
    paired = sum(sum(v >= 0 for v in row) > 1 for row in rows)
    assert (alpha.value, alpha.count) == (about(float(expected)), paired)
    assert alpha.interval is not None and alpha.interval[0] < expected < alpha.interval[1]


@pytest.mark.parametrize(
    ("name", "expected"), [("masi", 0.37796578995769725), ("jaccard", 0.45181092694904834)]
)
def test_alpha_of_sets_is_that_of_nltk(name: str, expected: float):
    """The figures are those of AnnotationTask in NLTK 3.10.4."""
    rows = ["ab ab", "a ab", "abc ab", "c c", "d cd", "bd b", "acd ac", "b b", "a c", "abcd d"]
    labels = {letter: letter for letter in "abcd"}
    content = {"name": "s", "task": "t", "labels": labels, "several": True, "distance": name}
    distance = make_codebook(CodebookConfig.model_validate(content)).distance
    assert distance.level == name
    counts = Counter(tuple(map(frozenset[str], row.split())) for row in rows)
    assert krippendorff_alpha(counts, distance).value == about(expected)


def test_nothing_is_made_up_where_agreement_is_undefined():
    for estimate in (
        cohen_kappa({(LRN, LRN): 30}),
        krippendorff_alpha({(roots(LRN), roots(LRN)): 9}, PACKAGED),
    ):
        assert (estimate.value, estimate.interval) == (None, None)
        assert estimate.reason == "no disagreement is expected: all answers are the same"
    assert cohen_kappa({}).reason == "no case with two answers"
    single = krippendorff_alpha({(roots(LRN), roots(EVO)): 1}, PACKAGED)
    # Two values that differ: D_o = D_e.
    assert (single.value, single.interval) == (about(0.0), None)
    few = cohen_kappa({(LRN, LRN): 10, (EVO, EVO): 5})
    assert (few.value, few.interval) == (about(1.0), None)
    assert few.reason == "15 cases: an interval needs 20"


def test_where_all_agree_the_interval_has_a_width_and_ends_at_1():
    estimate = cohen_kappa({(LRN, LRN): 20, (EVO, EVO): 10})
    assert estimate.value == about(1.0) and estimate.interval is not None
    assert estimate.interval[0] < 0.99 and estimate.interval[1] == 1.0


def differing(case: str, a: str, b: str, scores: tuple[int, int], **changes: Any) -> Outcome:
    """A case that a person is to decide unless changed."""
    usual: dict[str, Any] = {"status": Status.HUMAN, "code": None}
    usual |= {"evaluation_a": report(score=scores[0]), "evaluation_b": report(score=scores[1])}
    return outcome(case, a, b, **(usual | changes))


# Distances of roots: Evo-Ctl 1.00, Lrn-Evo .80, Sym-Sch .30.
CASES = [
    differing("operators", "Evo/Lrn", "Lrn+Evo", (90, 90)),  # the same roots: 0
    differing("near", "Sym", "Sch", (90, 90)),  # .30 of .90: .27
    differing("far", "Evo", "Ctl", (90, 80)),  # 1.00 of .80: .80
    differing("refused", "Evo", "Ctl", (90, 40)),  # 1.00 of .40: .40
    differing("unjudged", "Evo", "Ctl", (90, 90), evaluation_a=None),  # convinces nobody: 0
    differing("middle", "Lrn", "Evo", (95, 90)),  # .80 of .90: .72
    differing("failed", "Evo", "Ctl", (99, 99), status=Status.FAILED),  # .99, but not settled
    outcome("same", "Lrn", "Lrn"),
    outcome("unparsable", answer(None), "Lrn"),
    outcome("unanswered", None, "Lrn"),
]


def test_of_three_codes_the_second_best_tells_whether_two_convince():
    scores = {
        f"evaluation_{name}": report(score=n) for name, n in (("a", 90), ("b", 40), ("c", 80))
    }
    three = outcome("three", "Evo", "Ctl", "Ctl", status=Status.HUMAN, code=None, **scores)
    (listed,) = disagreement_report(tables([three], annotators=3)).shown
    # Evo is at 1.00 from both Ctl, of which the better has 80.
    assert (listed.distance, listed.conviction) == (pytest.approx(2 / 3), 0.8)


def test_far_codes_that_both_convince_come_first_and_what_failed_last():
    listed = disagreement_report(tables(CASES))
    assert disagreement_report(tables(CASES[::-1])) == listed
    assert listed.total == 7
    assert [each.case for each in listed.shown] == [
        "far", "middle", "refused", "near", "operators", "unjudged", "failed",
    ]  # fmt: skip
    values = [each.distance * each.conviction for each in listed.shown]
    assert values == pytest.approx([0.8, 0.72, 0.4, 0.27, 0.0, 0.0, 0.99])


def test_of_too_many_different_answers_there_is_no_alpha():
    counts = {(frozenset({str(n)}), frozenset({str(n)})): 2 for n in range(1_000)}
    alpha = krippendorff_alpha(counts, PACKAGED)
    assert (alpha.value, alpha.count) == (None, 2_000)
    assert alpha.reason == "1,000 different answers: at most 500 are compared by distance"


def patterns(both: int, first: int, second: int, neither: int) -> Array:
    """The scores of two annotators, by how many cases have which of them right."""
    columns = [(1, 1)] * both + [(1, 0)] * first + [(0, 1)] * second + [(0, 0)] * neither
    return np.array(columns, float).T


def test_annotators_that_err_together_are_worth_one():
    # 64 = 100 x .8 x .8: the errors do not correlate.
    apart = count_independent(patterns(64, 16, 16, 4), 307)
    assert apart.value == about(2.0) and apart.interval is not None
    low, high = apart.interval
    assert 1.5 < low < 1.9 and 2.0 < high < 2.6
    together = count_independent(patterns(80, 0, 0, 20), 307)
    assert together.value == about(1.0) and together.interval is not None
    assert together.interval[0] >= 1.0 and together.interval[1] < 1.1
    # That five errors of each never met may be chance.
    rare = count_independent(patterns(90, 5, 5, 0), 307)
    assert rare.interval is not None and rare.interval[0] < 2.0 < rare.interval[1]
    # Cases of one annotator alone say nothing of two.
    alone = np.hstack([patterns(64, 16, 16, 4), [[1.0] * 50, [np.nan] * 50]])
    more = count_independent(alone, 307)
    assert more.interval is not None and more.interval[0] < 2.0 < more.interval[1]
    assert count_independent(patterns(20, 0, 5, 0), 307).interval is None
