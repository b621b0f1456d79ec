"""The families of the curriculum: every generator against its verifier, and both by hand."""

import hashlib

import numpy as np
import pytest

from raylab.arc.data.curriculum.dice import Dice
from raylab.arc.data.curriculum.family import LEVELS, Drawn, Family, Level, Rule
from raylab.arc.data.curriculum.source import FAMILIES
from raylab.errors import DataError
from tests.arc.data.curriculum.verifiers import VERIFIERS, Rows

PAIRS = 100
BY_HAND: dict[str, tuple[Rule, str, str]] = {
    "flip_columns": ((), "123/456", "321/654"),
    "flip_rows": ((), "123/456", "456/123"),
    "quarter_turn": ((), "123/456", "41/52/63"),
    "half_turn": ((), "123/456", "654/321"),
    "transpose": ((), "123/456", "14/25/36"),
    "shift": ((1,), "12/34/56", "56/12/34"),
    "crop": ((), "0000/0120/0340/0000", "12/34"),
    "double": ((), "12/34", "1122/1122/3344/3344"),
    "tile": ((1,), "12/34", "12/34/12/34"),
    "unfold": ((0,), "12/34", "1221/3443"),
    "half": ((0,), "1234/5678", "34/78"),
    "symmetry": ((0,), "1201/3443/5035", "1221/3443/5335"),
    "recolour": ((1, 2, 3, 4), "123/456", "224/456"),
    "swap": ((1, 2), "123/212", "213/121"),
    "keep": ((2,), "123/212", "020/202"),
    "common": ((), "312/131", "1"),
    "border": ((7,), "1234/5678/1234", "7777/7677/7777"),
    "gravity": ((1,), "12/04/30", "00/12/34"),
    "fill": ((2,), "11110/10010/11110/00101/00010", "11110/12210/11110/00121/00010"),
    "connect": ((), "0303/1002/0000/0002", "0333/1002/0002/0002"),
    "ray": ((3,), "000/010/002", "012/012/002"),
    "outline": ((4,), "100/000/005", "140/444/045"),
    "largest": ((), "10222/10222/00000", "00222/00222/00000"),
    "bars": ((), "1220/0002/3003", "222/330/100"),
    "sort": ((1,), "010/210/213", "100/120/123"),
    "logic": ((2, 8), "152/150/052/050", "0/8/8/0"),
    "overlay": ((), "1032/0004", "12/04"),
}
"""A rule, an input and its output."""


def rows(text: str) -> Rows:
    return [[int(cell) for cell in row] for row in text.split("/")]


@pytest.mark.parametrize("name", FAMILIES)
def test_a_verifier_answers_as_by_hand(name: str) -> None:
    rule, source, target = BY_HAND[name]
    assert VERIFIERS[name](rows(source), rule) == rows(target)


@pytest.mark.parametrize("level", LEVELS.values(), ids=lambda level: f"level {level.number}")
@pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)
def test_every_pair_follows_its_rule_in_sides_of_its_level(family: Family, level: Level) -> None:
    for variant, rule in enumerate(family.rules(level, 3)):
        pairs = family.pairs(f"{family.name} {variant}", level, rule, PAIRS, seed=5)
        assert len({(pair.input.shape, pair.input.tobytes()) for pair in pairs}) == PAIRS
        for pair in pairs:
            assert pair.output.tolist() == VERIFIERS[family.name](pair.input.tolist(), rule)
            assert not np.array_equal(pair.input, pair.output)
            assert level.low <= max(pair.input.shape + pair.output.shape) <= level.high
            assert min(pair.input.shape) >= 3
            for grid in (pair.input, pair.output):
                assert grid.dtype == np.uint8 and grid.flags.c_contiguous and grid.max() < 10


def agrees(family: Family, rule: Rule, source: Rows, target: Rows) -> bool:
    try:
        return VERIFIERS[family.name](source, rule) == target
    except LookupError:
        return False


@pytest.mark.parametrize("level", LEVELS.values(), ids=lambda level: f"level {level.number}")
def test_few_demonstrations_tell_a_task_from_every_other(level: Level) -> None:
    """The share of pairs that another task's rule answers alike; of two pairs, its square."""
    tasks = [(family, rule) for family in FAMILIES.values() for rule in family.rules(level, 2)]
    for family, rule in tasks:
        pairs = family.pairs(f"{family.name} {rule}", level, rule, 24, seed=1)
        shown = [(pair.input.tolist(), pair.output.tolist()) for pair in pairs]
        for other, its_rule in tasks:
            alike = sum(agrees(other, its_rule, *pair) for pair in shown) / len(shown)
            assert (other, its_rule) == (family, rule) or alike < 1 / 3, (family, other, alike)


@pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)
def test_rules_differ_and_more_of_them_begin_with_the_same(family: Family) -> None:
    few, many = (family.rules(LEVELS[3], count) for count in (2, 8))
    assert many[: len(few)] == few and len({*many}) == len(many)
    assert bool(family.draw_rule) == bool(family.rule) == (len(few) == 2)
    for easier in LEVELS.values():
        rules = family.rules(easier, 8)
        assert len({*rules}) == len(rules)
        assert all(rule == whole[: len(rule)] for rule, whole in zip(rules, many, strict=True))


def test_pairs_are_the_same_on_every_machine() -> None:
    """The raw stream of PCG64 is the same in all versions of numpy."""
    told = hashlib.sha256()
    for family in FAMILIES.values():
        for pair in family.pairs(family.name, LEVELS[2], family.rules(LEVELS[2], 1)[0], 3, seed=7):
            told.update(bytes(pair.input.shape) + pair.input.tobytes() + pair.output.tobytes())
    assert told.hexdigest()[:16] == "35713b006b371d85"


def test_a_task_with_too_few_pairs_is_refused() -> None:
    def draw(dice: Dice, level: Level, rule: Rule) -> Drawn:
        return dice.cells(1, 1, range(4)), np.full((1, 1), 3, np.uint8)

    family = Family("three", "Everything becomes 3.", draw)
    assert len(family.pairs("t", LEVELS[1], (), 3, seed=0)) == 3
    with pytest.raises(DataError, match=r"task t has hardly more than 3 .* data\.pairs_per_task"):
        family.pairs("t", LEVELS[1], (), 4, seed=0)


def test_dice_are_fair_and_repeat_by_name_and_seed() -> None:
    dice = Dice("a")
    faces = np.bincount([dice.between(1, 6) for _ in range(6000)], minlength=7)[1:]
    # Six standard deviations of a binomial count of 6,000 with 1/6 are 173.
    assert abs(faces - 1000).max() < 173
    assert sorted(dice.sample(range(9), 9)) == [*range(9)]
    draws = [Dice(*of).below(10**9) for of in (("a", 1), ("a", 1), ("b", 1), ("a", 2))]
    assert draws[0] == draws[1] and len({*draws}) == 3
