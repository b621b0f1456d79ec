import json
import math
import random
from collections import Counter
from itertools import combinations, product
from pathlib import Path
from typing import Any

import krippendorff
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

from raylab.errors import DataError
from raylab.opt.agreement import (
    Distance,
    Roots,
    cohen_kappa,
    compare,
    compare_proportions,
    krippendorff_alpha,
    load_distance,
    proportion,
    wasserstein,
)
from raylab.opt.code import Root, parse

LRN, EVO, SYM, PRB, SCH, CTL, SWM = Root
PACKAGED = load_distance()
SETS: list[Roots] = [frozenset(c) for n in range(1, 8) for c in combinations(Root, n)]
ROOT_SETS = st.frozensets(st.sampled_from(list(Root)), min_size=1)


def about(value: float) -> object:
    return pytest.approx(value, rel=0, abs=1e-9)


def roots(*names: Root) -> Roots:
    return frozenset(names)


# Distances between roots


def test_the_packaged_distances_are_those_of_opt_l1_v1():
    assert PACKAGED.version == "opt-l1-v1"
    assert PACKAGED.between(SWM, EVO) == 0.5 < PACKAGED.between(SWM, SYM) == 0.8
    assert PACKAGED.between(EVO, CTL) == PACKAGED.between(CTL, EVO) == 1.0
    # The rows sum to .80+.65+.40+.65+.45+.70 and so on.
    sums = [round(sum(row), 9) for row in PACKAGED.table]
    assert sums == [3.65, 4.25, 3.9, 3.3, 3.45, 4.15, 3.9]


def table_file(folder: Path, **changes: Any) -> Path:
    content = {
        "version": "mine",
        "roots": [str(root) for root in Root],
        "table": [[float(row != column) for column in range(7)] for row in range(7)],
    }
    path = folder / "distance.json"
    path.write_text(json.dumps(content | changes), encoding="utf-8")
    return path


def test_own_distances_are_read_in_any_order_of_roots(tmp_path: Path):
    order = [SWM, LRN, EVO, SYM, PRB, SCH, CTL]
    table = [[0 if a == b else 0.5 if {a, b} == {SWM, LRN} else 1 for b in order] for a in order]
    distance = load_distance(table_file(tmp_path, roots=order, table=table))
    assert distance.version == "mine"
    assert distance.between(SWM, LRN) == distance.between(LRN, SWM) == 0.5
    assert distance.between(EVO, LRN) == 1.0
    assert compare(parse("OPT=Swm"), parse("OPT=Lrn"), distance).distance == "mine"


def changed(*cells: tuple[int, int, float]) -> list[list[float]]:
    table = [[float(row != column) for column in range(7)] for row in range(7)]
    for row, column, value in cells:
        table[row][column] = value
    return table


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"table": changed((0, 1, 0.5))}, "Lrn-Evo is 0.5 and Evo-Lrn 1, should be equal"),
        ({"table": changed((2, 2, 0.5))}, "Sym-Sym is 0.5, should be 0"),
        ({"table": changed((0, 1, 1.5), (1, 0, 1.5))}, "Lrn-Evo is 1.5, should be above 0"),
        ({"table": changed((0, 1, -1), (1, 0, -1))}, "Lrn-Evo is -1, should be above 0"),
        ({"table": changed((0, 1, 0), (1, 0, 0))}, "Lrn-Evo is 0, should be above 0"),
        (
            {"table": changed((0, 1, 0.2), (1, 0, 0.2), (1, 2, 0.3), (2, 1, 0.3))},
            "Lrn-Sym is 1, should be at most 0.5, the way by Evo",
        ),
        ({"table": changed()[:6]}, "table should have 7 rows of 7"),
        ({"roots": [*Root][:6]}, "roots are Lrn, Evo, Sym, Prb, Sch, Ctl, should be each of"),
        ({"roots": [*[*Root][:6], LRN]}, "roots are"),
        ({"roots": ["Foo", *[*Root][1:]]}, "roots"),
        ({"version": 1}, "version"),
        ({"extra": 1}, "extra"),
        ({"table": "x"}, "table"),
    ],
)
def test_a_table_that_is_no_metric_is_refused(
    tmp_path: Path, changes: dict[str, Any], message: str
):
    path = table_file(tmp_path, **changes)
    with pytest.raises(DataError, match=message) as caught:
        load_distance(path)
    assert str(path) in str(caught.value)


def test_a_file_that_is_no_table_is_refused(tmp_path: Path):
    with pytest.raises(DataError, match=r"absent\.json cannot be read"):
        load_distance(tmp_path / "absent.json")
    path = tmp_path / "broken.json"
    path.write_text("{", encoding="utf-8")
    with pytest.raises(DataError, match=r"broken\.json: no JSON"):
        load_distance(path)
    path.write_text('{"version": NaN}', encoding="utf-8")
    with pytest.raises(DataError, match=r"broken\.json"):
        load_distance(path)


# Sets of roots


def test_weighted_agreement_by_hand():
    def weighted(a: Roots, b: Roots) -> float:
        return 1 - wasserstein(a, b, PACKAGED)

    # Half stays at Evo, half goes from Lrn to Sch: .65 / 2; the other way costs (.8 + .6) / 2.
    assert weighted(roots(EVO, LRN), roots(EVO, SCH)) == about(0.675)
    assert weighted(roots(EVO), roots(SWM)) == about(0.5)
    # Half of the mass of Evo goes to Lrn: .8 / 2.
    assert weighted(roots(EVO, LRN), roots(EVO)) == about(0.6)
    # A third each to Lrn, Prb, Ctl from half Lrn, half Ctl: a sixth from each of them to Prb.
    assert weighted(roots(LRN, CTL), roots(LRN, PRB, CTL)) == about(1 - (0.40 + 0.45) / 6)
    assert weighted(roots(*Root), roots(*Root)) == 1.0
    with pytest.raises(ValueError, match="empty set"):
        wasserstein(roots(), roots(LRN), PACKAGED)


def by_linear_program(a: Roots, b: Roots) -> float:
    pairs = list(product(sorted(a), sorted(b)))
    leaving = [[float(pair[0] == root) for pair in pairs] for root in sorted(a)]
    arriving = [[float(pair[1] == root) for pair in pairs] for root in sorted(b)]
    masses = [1 / len(a)] * len(a) + [1 / len(b)] * len(b)
    costs = [PACKAGED.between(*pair) for pair in pairs]
    return float(linprog(costs, A_eq=leaving + arriving, b_eq=masses).fun)


def test_the_assignment_is_the_optimal_transport():
    generator = random.Random(3)
    for a, b in zip(generator.choices(SETS, k=120), generator.choices(SETS, k=120), strict=True):
        assert wasserstein(a, b, PACKAGED) == about(by_linear_program(a, b))


@settings(deadline=None)
@given(ROOT_SETS, ROOT_SETS, ROOT_SETS)
def test_the_distance_of_sets_is_a_metric(a: Roots, b: Roots, c: Roots):
    def distance(one: Roots, other: Roots) -> float:
        return wasserstein(one, other, PACKAGED)

    assert 0 <= distance(a, b) <= 1
    assert distance(a, b) == about(distance(b, a))
    assert (distance(a, b) < 1e-9) == (a == b)
    assert distance(a, c) <= distance(a, b) + distance(b, c) + 1e-9


# Two codes


def test_measures_of_a_pair_by_hand():
    a, b = parse("OPT=Evo/Lrn; Rep=param"), parse("OPT=Evo+Sch; Rep=para")
    found = compare(a, b)
    assert (found.exact, found.composition, found.distance) == (False, 0.0, "opt-l1-v1")
    assert found.jaccard == about(1 / 3)
    assert found.weighted == about(0.675)
    # / to +, three letters of Lrn, and the m; the longer line has 22 characters.
    assert (found.levenshtein, found.levenshtein_normalised) == (5, about(5 / 22))
    assert compare(b, a) == found


@pytest.mark.parametrize(
    ("a", "b", "exact", "composition"),
    [
        ("OPT=Lrn+Sch", "OPT=Sch+Lrn; Rep=a", True, 1.0),
        ("OPT=[Lrn→Ctl]", "OPT=Lrn/Ctl", True, 1.0),
        ("OPT=Sym{Lrn,Prb}", "OPT=Sym/Lrn+Prb", True, 1.0),
        ("OPT=Lrn/Sch", "OPT=Lrn+Sch", False, 0.5),
        ("OPT=Lrn/Sch", "OPT=Sch/Lrn", False, 0.5),
        ("OPT=Lrn", "OPT=Lrn+Sch", False, 0.0),
    ],
)
def test_composition_is_scored_apart_from_roots(a: str, b: str, exact: bool, composition: float):
    found = compare(parse(a), parse(b))
    assert (found.exact, found.composition) == (exact, composition)
    assert (found.weighted == 1.0) == (composition > 0) == (found.jaccard == 1.0)


def test_fields_count_in_the_line_only():
    found = compare(parse("OPT=Lrn; Rep=a"), parse("OPT=Lrn; Rep=b"))
    assert (found.exact, found.jaccard, found.weighted, found.composition) == (True, 1, 1, 1)
    assert (found.levenshtein, found.levenshtein_normalised) == (1, about(1 / 14))


# Chance correction


def test_kappa_by_hand():
    # Agreed 35 of 50; by chance .5 * .6 + .5 * .4 = .5; so (.7 - .5) / .5.
    counts = {(LRN, LRN): 20, (LRN, EVO): 5, (EVO, LRN): 10, (EVO, EVO): 15}
    found = cohen_kappa(counts)
    assert found["value"] == about(0.4)
    assert (found["count"], found["reason"]) == (50, None)
    with_missing = cohen_kappa(counts | {(None, LRN): 9, (LRN, None): 9, (None, None): 9})
    assert with_missing == found
    # Never agreed, with equal margins of a half: (0 - .5) / .5.
    assert cohen_kappa({(LRN, EVO): 5, (EVO, LRN): 5})["value"] == about(-1.0)


def test_alpha_by_hand():
    one, other, both = roots(EVO), roots(SWM), roots(EVO, SWM)
    # delta: .5 between one and other, .25 of either to both.
    counts = {(one, one): 2, (one, other): 1, (other, both): 1}
    # D_o = (.25 + .0625) / 4; values 5 x one, 2 x other, 1 x both:
    # D_e = 2 * (5*2*.25 + 5*1*.0625 + 2*1*.0625) / (8 * 7)
    expected = 2 * (10 * 0.25 + 5 * 0.0625 + 2 * 0.0625) / 56
    found = krippendorff_alpha(counts)
    assert found["value"] == about(1 - (0.3125 / 4) / expected)
    assert found["count"] == 4
    missing = {(one, roots()): 3, (roots(), other): 2, (roots(), roots()): 1}
    assert krippendorff_alpha(counts | missing) == found


def test_alpha_is_that_of_an_independent_implementation():
    generator = random.Random(5)
    some = generator.sample(SETS, 12)
    pairs: list[tuple[Roots, Roots]] = []
    for _ in range(150):
        first = generator.choice(some)
        pairs.append((first, first if generator.random() < 0.4 else generator.choice(some)))
    squared = np.array([[wasserstein(a, b, PACKAGED) ** 2 for b in some] for a in some])

    def metric(v1: Any, v2: Any, i1: Any, i2: Any, n_v: Any, dtype: Any = float) -> Any:
        return squared[np.asarray(i1, int), np.asarray(i2, int)]

    expected = krippendorff.alpha(
        reliability_data=[[float(some.index(pair[side])) for pair in pairs] for side in (0, 1)],
        level_of_measurement=metric,
        value_domain=[float(place) for place in range(len(some))],
    )
    assert krippendorff_alpha(Counter(pairs), draws=0)["value"] == about(float(expected))


def test_nothing_is_made_up_where_agreement_is_undefined():
    for found in (cohen_kappa({(LRN, LRN): 30}), krippendorff_alpha({(roots(LRN), roots(LRN)): 9})):
        assert (found["value"], found["interval"]) == (None, None)
        assert found["reason"] == "no disagreement is expected: all answers are the same"
    for found in (cohen_kappa({}), krippendorff_alpha({(roots(), roots(LRN)): 2})):
        assert (found["value"], found["interval"], found["count"]) == (None, None, 0)
        assert found["reason"] == "no case with both answers"
    single = krippendorff_alpha({(roots(LRN), roots(EVO)): 1})
    # Two values that differ: D_o = D_e.
    assert (single["value"], single["interval"]) == (about(0.0), None)
    # Most replicates of 1 in 1,001 that differ are without a value only if it is not drawn: 37 %.
    rare = cohen_kappa({(LRN, LRN): 1000, (LRN, EVO): 1})
    assert rare["value"] is not None and rare["interval"] is None
    assert rare["reason"] is not None and "replicates have a value" in rare["reason"]


def test_the_interval_is_that_of_resampled_cases():
    counts = {(LRN, LRN): 60, (EVO, EVO): 25, (LRN, EVO): 10, (SCH, EVO): 8, (SCH, SCH): 17}
    found = cohen_kappa(counts, draws=4000)
    cases = [pair for pair, n in counts.items() for _ in range(n)]
    generator = random.Random(11)
    values: list[float] = []
    for _ in range(1500):
        drawn = Counter(generator.choices(cases, k=len(cases)))
        value = cohen_kappa(drawn, draws=0)["value"]
        assert value is not None
        values.append(value)
    expected = np.quantile(values, [0.025, 0.975])
    # The quantiles of both are drawn: about .004 of standard error each.
    assert found["interval"] == pytest.approx(expected.tolist(), abs=0.02)


def test_intervals_depend_on_the_seed_and_shrink_with_the_cases():
    counts = {(roots(LRN), roots(LRN)): 30, (roots(LRN), roots(EVO)): 9, (roots(EVO),) * 2: 21}
    found = krippendorff_alpha(counts)
    assert krippendorff_alpha(dict(reversed(counts.items()))) == found
    assert krippendorff_alpha(counts, seed=1)["interval"] != found["interval"]
    many = krippendorff_alpha({pair: n * 1_000_000 for pair, n in counts.items()})
    assert found["interval"] is not None and many["interval"] is not None
    width, shrunk = (high - low for low, high in (found["interval"], many["interval"]))
    # 1,000,000 times the cases: 1,000 times narrower.
    assert shrunk == pytest.approx(width / 1000, rel=0.2)
    assert found["interval"][0] < (found["value"] or 0) < found["interval"][1]


# Proportions


def test_wilson_interval():
    # z = 1.959964: centre (p + z2/2n) / (1 + z2/n), half width z sqrt(pq/n + z2/4n2) / (1 + z2/n).
    z2, p, n = 1.959963984540054**2, 0.8, 10
    centre, scale = (p + z2 / (2 * n)) / (1 + z2 / n), 1 + z2 / n
    half = math.sqrt(z2 * (p * (1 - p) / n + z2 / (4 * n * n))) / scale
    found = proportion(8, 10)
    assert (found["value"], found["count"], found["reason"]) == (0.8, 10, None)
    assert found["interval"] == [about(centre - half), about(centre + half)]
    assert proportion(0, 10)["interval"] == [0.0, about(z2 / (n + z2))]
    assert proportion(10, 10)["interval"] == [about(n / (n + z2)), 1.0]
    assert proportion(0, 0) == {"value": None, "interval": None, "count": 0, "reason": "no cases"}
    for wrong in ((3, 2), (-1, 2), (1, 0)):
        with pytest.raises(ValueError):
            proportion(*wrong)


@pytest.mark.parametrize(
    ("first", "second", "interval"),
    [
        # Newcombe, Statistics in Medicine 17 (1998), table II, method 10
        ((56, 70), (48, 80), [0.0524, 0.3339]),
        ((9, 10), (3, 10), [0.1705, 0.8090]),
        ((10, 10), (0, 10), [0.6075, 1.0]),
    ],
)
def test_difference_of_proportions(
    first: tuple[int, int], second: tuple[int, int], interval: list[float]
):
    found = compare_proportions(first, second)
    assert found["value"] == about(first[0] / first[1] - second[0] / second[1])
    assert found["interval"] == pytest.approx(interval, abs=5e-5)
    assert compare_proportions(second, first)["p_value"] == about(found["p_value"] or 0)


def test_the_test_of_two_proportions_is_fishers():
    # The lady who tastes tea: 2 * (C(4,3) * C(4,1) + 1) / C(8,4) = 34 / 70.
    assert compare_proportions((3, 4), (1, 4))["p_value"] == about(34 / 70)
    assert compare_proportions((5, 10), (5, 10))["p_value"] == about(1.0)
    assert compare_proportions((900_000, 1_000_000), (700_000, 1_000_000))["p_value"] == about(0)
    assert compare_proportions((0, 0), (1, 4)) == {"value": None, "interval": None, "p_value": None}


def test_distances_are_hashable_and_compare_by_value():
    assert len({PACKAGED, Distance(PACKAGED.version, PACKAGED.table)}) == 1
