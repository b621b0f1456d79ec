import pytest

from raylab.opt.agreement import compare
from raylab.opt.code import parse


def about(value: float) -> object:
    return pytest.approx(value, rel=0, abs=1e-9)


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


def test_edits_are_those_of_the_lines_as_written():
    # The protocol's own pair: only the second root differs, in three letters.
    found = compare(parse("OPT=Evo+Lrn"), parse("OPT=Evo+Sch"))
    assert (found.levenshtein, found.levenshtein_normalised) == (3, about(3 / 11))
    reordered = compare(parse("OPT=Lrn+Evo"), parse("OPT=Evo+Lrn"))
    assert reordered.exact and reordered.levenshtein == 6


def test_fields_count_in_the_line_only():
    found = compare(parse("OPT=Lrn; Rep=a"), parse("OPT=Lrn; Rep=b"))
    assert (found.exact, found.jaccard, found.weighted, found.composition) == (True, 1, 1, 1)
    assert (found.levenshtein, found.levenshtein_normalised) == (1, about(1 / 14))
