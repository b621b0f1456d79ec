import json
import random
from itertools import combinations, product
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import linprog

from raylab.errors import DataError
from raylab.opt.agreement import compare
from raylab.opt.code import Root, parse
from raylab.opt.distance import Distance, load_distance, wasserstein

LRN, EVO, SYM, PRB, SCH, CTL, SWM = Root
Roots = frozenset[Root]
PACKAGED = load_distance()
SETS: list[Roots] = [frozenset(c) for n in range(1, 8) for c in combinations(Root, n)]
ROOT_SETS = st.frozensets(st.sampled_from(list(Root)), min_size=1)


def about(value: float) -> object:
    return pytest.approx(value, rel=0, abs=1e-9)


def roots(*names: Root) -> Roots:
    return frozenset(names)


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


@given(ROOT_SETS, ROOT_SETS, ROOT_SETS)
def test_the_distance_of_sets_is_a_metric(a: Roots, b: Roots, c: Roots):
    def distance(one: Roots, other: Roots) -> float:
        return wasserstein(one, other, PACKAGED)

    assert 0 <= distance(a, b) <= 1
    assert distance(a, b) == about(distance(b, a))
    assert (distance(a, b) < 1e-9) == (a == b)
    assert distance(a, c) <= distance(a, b) + distance(b, c) + 1e-9


def test_distances_are_hashable_and_compare_by_value():
    assert len({PACKAGED, Distance(PACKAGED.version, PACKAGED.table)}) == 1
