"""Families of tasks: a generator of pairs, and the rules of its tasks."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from raylab.arc.data.curriculum.dice import Dice
from raylab.arc.data.tasks import Grid, Pair
from raylab.errors import DataError

Rule = tuple[int, ...]
"""What tells the tasks of a family apart, such as a colour or a direction; empty if nothing."""
TOLD_BY = 2
"""The first numbers of a rule, which tell it from the others of its family."""
RULE_DRAWS = 1000
REJECTIONS = 1000
"""Draws without a new pair after which a task counts as exhausted."""


@dataclass(frozen=True)
class Level:
    """A level of difficulty; the longest side of every pair is in low..high."""

    number: int
    low: int
    high: int

    def side(self, dice: Dice) -> int:
        """Returns a side of the level."""
        return dice.between(self.low, self.high)

    def half(self, dice: Dice) -> int:
        """Returns a side, 3 or more, of which twice is a side of the level."""
        return dice.between(max(3, (self.low + 1) // 2), self.high // 2)

    def even(self, dice: Dice) -> int:
        """Returns an even side of the level."""
        return 2 * dice.between((self.low + 1) // 2, self.high // 2)


LEVELS = {level.number: level for level in (Level(1, 3, 6), Level(2, 7, 10), Level(3, 11, 15))}

Drawn = tuple[Grid, Grid] | None
"""Input and output; None if what was drawn does not show the rule."""


@dataclass(frozen=True)
class Family:
    """A family of tasks.

    Attributes:
        name: Lower-case letters and underscores.
        says: What its tasks ask for, in a sentence.
        draw: Draws a pair that shows the rule, of sides of a level.
        draw_rule: Draws the rule of a task; None if there is one task a level.
        rule: What the rule is, in words.
    """

    name: str
    says: str
    draw: Callable[[Dice, Level, Rule], Drawn]
    draw_rule: Callable[[Dice, Level], Rule] | None = None
    rule: str = ""

    def rules(self, level: Level, count: int) -> list[Rule]:
        """Returns `count` different rules, or all where there are fewer; the first stay first.

        The rule at an index is the same at all levels, but harder levels may have more of it.
        """
        if self.draw_rule is None:
            return [()]
        dice = Dice(self.name)
        found: dict[Rule, Rule] = {}
        for _ in range(RULE_DRAWS):
            rule = self.draw_rule(dice, level)
            found.setdefault(rule[:TOLD_BY], rule)
            if len(found) == count:
                break
        return list(found.values())

    def pairs(self, task: str, level: Level, rule: Rule, count: int, seed: int) -> tuple[Pair, ...]:
        """Returns the first `count` pairs of a task, of different inputs.

        The pair at an index depends on seed, task and index alone. No output equals its input.

        Raises:
            DataError: the task has fewer pairs.
        """
        dice = Dice(task, seed)
        found: dict[tuple[tuple[int, ...], bytes], Pair] = {}
        rejected = 0
        while len(found) < count:
            known = len(found)
            if (drawn := self.draw(dice, level, rule)) is not None:
                source, target = map(np.ascontiguousarray, drawn)
                key = (source.shape, source.tobytes())
                if key != (target.shape, target.tobytes()):
                    found.setdefault(key, Pair(source, target))
            rejected = rejected + 1 if len(found) == known else 0
            if rejected == REJECTIONS:
                raise DataError(
                    f"task {task} has hardly more than {known} different pairs, not {count}: "
                    "lower data.pairs_per_task, or leave it out of data.tasks"
                )
        return tuple(found.values())
