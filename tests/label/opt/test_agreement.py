import random
from itertools import combinations, product

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import linprog

from raylab.core.errors import DataError
from raylab.label.codebooks.distances import check_metric
from raylab.label.opt.code import Root, parse
from raylab.label.opt.codebook import compare, packaged_distance

Roots = frozenset[Root]
PLACES = {root: place for place, root in enumerate(Root)}
PACKAGED = packaged_distance()
TABLE = [[PACKAGED(frozenset({a}), frozenset({b})) for b in Root] for a in Root]
SETS: list[Roots] = [frozenset(c) for n in range(1, 8) for c in combinations(Root, n)]
ROOT_SETS = st.frozensets(st.sampled_from(list(Root)), min_size=1)


def about(value: float) -> object:
    return pytest.approx(value, rel=0, abs=1e-9)


def test_measures_of_a_pair_by_hand():
    a, b = parse("OPT=Evo/Lrn; Rep=param"), parse("OPT=Evo+Sch; Rep=para")
    agreement = compare(a, b)
    measures = (agreement.exact, agreement.composition, agreement.distance)
    assert measures == (False, 0.0, "opt-l1-v1")
    assert agreement.jaccard == about(1 / 3)
    # Half stays at Evo, half goes from Lrn to Sch: .65 / 2; the other way costs (.8 + .6) / 2.
    assert agreement.weighted == about(0.675)
    # / to +, three letters of Lrn, and the m; the longer line has 22 characters.
    edits = (agreement.levenshtein, agreement.levenshtein_normalised)
    assert edits == (5, about(5 / 22))
    assert compare(b, a) == agreement


@pytest.mark.parametrize(
    ("a", "b", "composition", "edits"),
    [
        ("OPT=Lrn+Sch", "OPT=Sch+Lrn", 1.0, 6),
        ("OPT=Sym{Lrn,Prb}", "OPT=Sym/Lrn+Prb", 1.0, 3),
        ("OPT=Lrn/Sch", "OPT=Lrn+Sch", 0.5, 1),
        ("OPT=Lrn", "OPT=Lrn+Sch", 0.0, 4),
        # The protocol's own pair: only the second root differs, in three letters.
        ("OPT=Evo+Lrn", "OPT=Evo+Sch", 0.0, 3),
    ],
)
def test_composition_is_scored_apart_from_roots(a: str, b: str, composition: float, edits: int):
    agreement = compare(parse(a), parse(b))
    assert (agreement.exact, agreement.composition) == (composition == 1, composition)
    assert (agreement.weighted == 1.0) == (composition > 0) == (agreement.jaccard == 1.0)
    assert agreement.levenshtein == edits


# Distances of roots


@pytest.mark.parametrize(
    ("cells", "message"),
    [
        ([(0, 1, 0.5)], "Lrn-Evo is 0.5, should be equal in both directions"),
        ([(2, 2, 0.5)], "Sym-Sym is 0.5, should be 0"),
        ([(0, 1, 0), (1, 0, 0)], "Lrn-Evo is 0, should be above 0"),
        (
            [(0, 1, 0.2), (1, 0, 0.2), (1, 2, 0.3), (2, 1, 0.3)],
            "Lrn-Sym is 1, should be at most the way by another label",
        ),
    ],
)
def test_a_table_that_is_no_metric_is_refused(cells: list[tuple[int, int, float]], message: str):
    table = [[float(row != column) for column in range(7)] for row in range(7)]
    check_metric(table, [*Root], "mine")
    for row, column, value in cells:
        table[row][column] = value
    with pytest.raises(DataError, match=f"mine: {message}"):
        check_metric(table, [*Root], "mine")
    with pytest.raises(DataError, match="mine: should have a row and a column for each of Lrn"):
        check_metric(table[1:], [*Root], "mine")


# Distances of sets of roots


def by_linear_program(a: Roots, b: Roots) -> float:
    pairs = list(product(sorted(a), sorted(b)))
    leaving = [[float(pair[0] == root) for pair in pairs] for root in sorted(a)]
    arriving = [[float(pair[1] == root) for pair in pairs] for root in sorted(b)]
    masses = [1 / len(a)] * len(a) + [1 / len(b)] * len(b)
    costs = [TABLE[PLACES[root]][PLACES[other]] for root, other in pairs]
    return float(linprog(costs, A_eq=leaving + arriving, b_eq=masses).fun)


def test_the_assignment_is_the_optimal_transport():
    generator = random.Random(3)
    for a, b in zip(generator.choices(SETS, k=120), generator.choices(SETS, k=120), strict=True):
        assert PACKAGED(a, b) == about(by_linear_program(a, b))
    check_metric(TABLE, [*Root], "packaged")
    # The rows sum to .80+.65+.40+.65+.45+.70 and so on.
    sums = [round(sum(row), 9) for row in TABLE]
    assert sums == [3.65, 4.25, 3.9, 3.3, 3.45, 4.15, 3.9]
    assert PACKAGED(frozenset(), frozenset({Root.LRN})) == 1.0


@given(ROOT_SETS, ROOT_SETS, ROOT_SETS)
def test_the_distance_of_sets_is_a_metric(a: Roots, b: Roots, c: Roots):
    assert 0 <= PACKAGED(a, b) <= 1
    assert PACKAGED(a, b) == about(PACKAGED(b, a))
    assert (PACKAGED(a, b) < 1e-9) == (a == b)
    assert PACKAGED(a, c) <= PACKAGED(a, b) + PACKAGED(b, c) + 1e-9
