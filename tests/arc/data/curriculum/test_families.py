"""The families of the curriculum: every generator against its verifier."""

import hashlib
from math import comb

import numpy as np
import pytest

from raylab.arc.data.curriculum.families import FAMILIES
from raylab.arc.data.curriculum.family import (
    LEVELS,
    RULE_DRAWS,
    RULE_KEY,
    Dice,
    Drawn,
    Family,
    Level,
    Rule,
)
from raylab.core.errors import DataError
from tests.arc.data.curriculum.verifiers import NEAR, VERIFIERS, Rows, Verifier
from tests.curriculum_page import PAGE, PICTURE, ROOT, best_baselines, table

each_family = pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)
each_level = pytest.mark.parametrize(
    "level", LEVELS.values(), ids=lambda level: f"level {level.number}"
)


@each_level
@each_family
def test_every_pair_follows_its_rule_in_sides_of_its_level(family: Family, level: Level) -> None:
    for variant, rule in enumerate(family.rules(level, 3)):
        pairs = family.pairs(f"{family.name} {variant}", level, rule, 100, seed=5)
        assert len({(pair.input.shape, pair.input.tobytes()) for pair in pairs}) == 100
        for pair in pairs:
            assert pair.output.tolist() == VERIFIERS[family.name](pair.input.tolist(), rule)
            assert not np.array_equal(pair.input, pair.output)
            assert level.low <= max(pair.input.shape + pair.output.shape) <= level.high
            assert min(pair.input.shape) >= 3
            for grid in (pair.input, pair.output):
                assert grid.dtype == np.uint8 and grid.flags.c_contiguous and grid.max() < 10


def answers_like(answer: Verifier, rule: Rule, source: Rows, target: Rows) -> bool:
    try:
        return answer(source, rule) == target
    except LookupError:
        return False


RULES: list[tuple[Verifier, Rule]] = [
    (VERIFIERS[name], rule)
    for name, family in FAMILIES.items()
    for rule in family.rules(LEVELS[1], 99)
]
"""All rules of the curriculum at level 1; harder levels repeat some of them."""


@each_level
@each_family
def test_two_demonstrations_leave_at_most_one_case_of_a_hundred_open(
    family: Family, level: Level
) -> None:
    """A case is open if another rule fits both demonstrations and answers the query otherwise.

    Of N pairs of a task, n fit another rule: C(n, 2) (N - n) of the C(N, 2) (N - 2) cases are open.
    """
    rules, count, opened = family.rules(level, 2), 30, 0.0
    for rule in rules:
        pairs = family.pairs(f"{family.name} {rule}", level, rule, count, seed=1)
        shown = [(pair.input.tolist(), pair.output.tolist()) for pair in pairs]
        for other in [*RULES, *NEAR]:
            if other != (VERIFIERS[family.name], rule):
                fits = sum(answers_like(*other, *pair) for pair in shown)
                opened += comb(fits, 2) * (count - fits)
    assert opened / len(rules) <= 0.01 * comb(count, 2) * (count - 2)


@each_family
def test_rules_differ_and_more_of_them_begin_with_the_same(family: Family) -> None:
    few, many = (family.rules(LEVELS[3], count) for count in (2, 8))
    assert many[: len(few)] == few and len({*many}) == len(many)
    assert bool(family.draw_rule) == bool(family.rule) == (len(few) == 2)
    all_rules = family.rules(LEVELS[3], RULE_DRAWS)
    assert len({rule[:RULE_KEY] for rule in all_rules}) == len(all_rules)
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
    assert digest.hexdigest()[:16] == "1d0950b84d003ffb"


def test_a_task_with_too_few_pairs_is_refused() -> None:
    def draw(dice: Dice, level: Level, rule: Rule) -> Drawn:
        return dice.cells(1, 1, range(4)), np.full((1, 1), 3, np.uint8)

    family = Family("three", "Everything becomes 3.", draw)
    assert len(family.pairs("t", LEVELS[1], (), 3, seed=0)) == 3
    with pytest.raises(DataError, match=r"task t has hardly more than 3 .* data\.pairs_per_task"):
        family.pairs("t", LEVELS[1], (), 4, seed=0)


def test_the_table_of_the_page_is_that_of_the_families() -> None:
    """If not: python -m tests.curriculum_page."""
    assert table() in PAGE.read_text()
    assert f"small tasks of {len(FAMILIES)} families" in (ROOT / "jobs/guide/train.md").read_text()
    assert PICTURE.stat().st_size < 400_000


def test_no_family_is_solved_by_a_rule_that_learns_nothing() -> None:
    for family, (_, grids, solved) in best_baselines().items():
        assert grids == solved == 0, family
