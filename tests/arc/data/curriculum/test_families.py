"""The families of the curriculum: every generator against its verifier."""

import hashlib

import numpy as np
import pytest

from raylab.arc.data.curriculum.families import FAMILIES
from raylab.arc.data.curriculum.family import LEVELS, Dice, Drawn, Family, Level, Rule
from raylab.errors import DataError
from tests.arc.data.curriculum.verifiers import VERIFIERS, Rows

PAIRS = 100


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
    digest = hashlib.sha256()
    for family in FAMILIES.values():
        for pair in family.pairs(family.name, LEVELS[2], family.rules(LEVELS[2], 1)[0], 3, seed=7):
            digest.update(bytes(pair.input.shape) + pair.input.tobytes() + pair.output.tobytes())
    assert digest.hexdigest()[:16] == "35713b006b371d85"


def test_a_task_with_too_few_pairs_is_refused() -> None:
    def draw(dice: Dice, level: Level, rule: Rule) -> Drawn:
        return dice.cells(1, 1, range(4)), np.full((1, 1), 3, np.uint8)

    family = Family("three", "Everything becomes 3.", draw)
    assert len(family.pairs("t", LEVELS[1], (), 3, seed=0)) == 3
    with pytest.raises(DataError, match=r"task t has hardly more than 3 .* data\.pairs_per_task"):
        family.pairs("t", LEVELS[1], (), 4, seed=0)
