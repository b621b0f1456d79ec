import random
from collections import Counter
from itertools import combinations
from typing import Any

import krippendorff
import numpy as np
import pytest

from raylab.annotation.statistics.agreement import cohen_kappa, krippendorff_alpha
from raylab.opt.agreement import load_distance
from raylab.opt.code import Root

LRN, EVO, SYM, PRB, SCH, CTL, SWM = Root
Roots = frozenset[Root]
PACKAGED = load_distance()
SETS: list[Roots] = [frozenset(c) for n in range(1, 8) for c in combinations(Root, n)]


def about(value: float) -> object:
    return pytest.approx(value, rel=0, abs=1e-9)


def roots(*names: Root) -> Roots:
    return frozenset(names)


def test_kappa_by_hand():
    # Agreed 35 of 50; by chance .5 * .6 + .5 * .4 = .5; so (.7 - .5) / .5.
    counts = {(LRN, LRN): 20, (LRN, EVO): 5, (EVO, LRN): 10, (EVO, EVO): 15}
    found = cohen_kappa(counts)
    assert found.value == about(0.4)
    assert (found.count, found.reason) == (50, None)
    missing = {(None, LRN): 9, (LRN, None): 9, (None, None): 9}
    assert cohen_kappa(dict(reversed((counts | missing).items()))) == found
    # Never agreed, with equal margins of a half: (0 - .5) / .5.
    assert cohen_kappa({(LRN, EVO): 5, (EVO, LRN): 5}).value == about(-1.0)


def test_alpha_is_that_of_an_independent_implementation():
    generator = random.Random(5)
    some = generator.sample(SETS, 12)
    pairs = list(zip(generator.choices(some, k=90), generator.choices(some, k=90), strict=True))
    pairs += [(one, one) for one in generator.choices(some, k=60)]
    squared = np.array([[PACKAGED(a, b) ** 2 for b in some] for a in some])

    def metric(v1: Any, v2: Any, i1: Any, i2: Any, n_v: Any, dtype: Any = float) -> Any:
        return squared[np.asarray(i1, int), np.asarray(i2, int)]

    expected = krippendorff.alpha(
        reliability_data=[[float(some.index(pair[side])) for pair in pairs] for side in (0, 1)],
        level_of_measurement=metric,
        value_domain=[float(place) for place in range(len(some))],
    )
    counts = Counter(pairs)
    alpha = krippendorff_alpha(counts, PACKAGED, draws=0)
    assert (alpha.value, alpha.count) == (about(float(expected)), 150)
    missing = {(some[0], roots()): 3, (roots(), some[1]): 2, (roots(), roots()): 1}
    assert krippendorff_alpha(counts | missing, PACKAGED, draws=0) == alpha


def test_nothing_is_made_up_where_agreement_is_undefined():
    for found in (
        cohen_kappa({(LRN, LRN): 30}),
        krippendorff_alpha({(roots(LRN), roots(LRN)): 9}, PACKAGED),
    ):
        assert (found.value, found.interval) == (None, None)
        assert found.reason == "no disagreement is expected: all answers are the same"
    for found in (cohen_kappa({}), krippendorff_alpha({(roots(), roots(LRN)): 2}, PACKAGED)):
        assert (found.value, found.interval, found.count) == (None, None, 0)
        assert found.reason == "no case with both answers"
    single = krippendorff_alpha({(roots(LRN), roots(EVO)): 1}, PACKAGED)
    # Two values that differ: D_o = D_e.
    assert (single.value, single.interval) == (about(0.0), None)
    few = cohen_kappa({(LRN, LRN): 10, (EVO, EVO): 5})
    assert (few.value, few.interval) == (about(1.0), None)
    assert few.reason == "15 cases: an interval needs 20"


def test_where_all_agree_the_interval_has_a_width_and_ends_at_1():
    equal = {LRN: 20, EVO: 10}
    for found in (
        cohen_kappa({(root, root): cases for root, cases in equal.items()}),
        krippendorff_alpha({(roots(root),) * 2: n for root, n in equal.items()}, PACKAGED),
    ):
        assert found.value == about(1.0) and found.interval is not None
        assert found.interval[0] < 0.99 and found.interval[1] == 1.0


def test_the_interval_of_many_cases_is_that_of_resampled_ones():
    counts = {(LRN, LRN): 600, (EVO, EVO): 250, (LRN, EVO): 100, (SCH, EVO): 80, (SCH, SCH): 170}
    found = cohen_kappa(counts, draws=4000)
    generator = np.random.default_rng(11)
    shares = np.array(list(counts.values())) / 1200
    drawn = [
        cohen_kappa(dict(zip(counts, row, strict=True)), draws=0).value
        for row in generator.multinomial(1200, shares, 1500).tolist()
    ]
    expected = np.quantile(np.array(drawn, float), [0.025, 0.975])
    # The quantiles of both are drawn: about .001 of standard error each.
    assert found.interval == pytest.approx(tuple(expected.tolist()), abs=0.006)
