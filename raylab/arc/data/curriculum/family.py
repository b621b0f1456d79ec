"""Families of tasks: generators of pairs, the rules of tasks, and reproducible random draws."""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from raylab.arc.data.tasks import Grid, Pair
from raylab.core.errors import DataError

T = TypeVar("T")
Rule = tuple[int, ...]
"""The parameters of a task within its family, such as a colour or a direction; may be empty."""
RULE_KEY = 2
"""Number of first parameters in which rules of a family must differ."""
RULE_DRAWS = 1000
REJECTIONS = 1000
"""Draws without a new pair after which a task counts as exhausted."""
BLOCK = 256
NONZERO = range(1, 10)
"""All colours but the background."""


class Dice:
    """A random stream for each name and seed, the same on every machine.

    It consists of the raw 64-bit numbers of `PCG64`, seeded by `SeedSequence` with the seed and the
    SHA-256 of the name. Both are the same in all versions of numpy; the methods of `Generator` make
    no such promise. A number below n is a raw number modulo n.
    """

    def __init__(self, name: str, seed: int = 0) -> None:
        """Starts the stream of `name` (any text) and `seed` (>= 0)."""
        hash_ = int.from_bytes(hashlib.sha256(name.encode()).digest())
        self._bits = np.random.PCG64(np.random.SeedSequence([seed, hash_]))
        self._block: list[int] = []

    def below(self, n: int) -> int:
        """Returns a number in 0..n-1."""
        if not self._block:
            self._block = self._bits.random_raw(BLOCK).tolist()
        return self._block.pop() % n

    def between(self, low: int, high: int) -> int:
        """Returns a number in low..high."""
        return low + self.below(high - low + 1)

    def pick(self, items: Sequence[T]) -> T:
        """Returns one of the items."""
        return items[self.below(len(items))]

    def sample(self, items: Sequence[T], k: int) -> list[T]:
        """Returns k different items in random order."""
        left = list(items)
        for i in range(k):
            j = self.between(i, len(left) - 1)
            left[i], left[j] = left[j], left[i]
        return left[:k]

    def palette(self, count: int, without: Rule = ()) -> list[int]:
        """Returns different colours 1..9 that are not in `without`."""
        return self.sample([colour for colour in NONZERO if colour not in without], count)

    def cells(self, height: int, width: int, colours: Sequence[int]) -> Grid:
        """Returns a grid whose cells have the colours with equal probability."""
        drawn = self._bits.random_raw((height, width)) % np.uint64(len(colours))
        return np.array(colours, np.uint8)[drawn]

    def scatter(self, grid: Grid, colours: Sequence[int]) -> None:
        """Writes each of the colours into a different cell."""
        grid.flat[self.sample(range(grid.size), len(colours))] = colours


@dataclass(frozen=True)
class Level:
    """A level of difficulty. The longest side of every pair is in low..high."""

    number: int
    low: int
    high: int

    def side(self, dice: Dice) -> int:
        """Returns a side of the level."""
        return dice.between(self.low, self.high)

    def half(self, dice: Dice) -> int:
        """Returns half a side of the level, at least 3."""
        return dice.between(max(3, (self.low + 1) // 2), self.high // 2)

    def even(self, dice: Dice) -> int:
        """Returns an even side of the level."""
        return 2 * dice.between((self.low + 1) // 2, self.high // 2)

    def shape(self, dice: Dice) -> tuple[int, int]:
        """Returns two sides of the level."""
        return self.side(dice), self.side(dice)


LEVELS = {level.number: level for level in (Level(1, 3, 6), Level(2, 7, 10), Level(3, 11, 15))}

Drawn = tuple[Grid, Grid] | None
"""Input and output; None if the drawn pair does not show the rule."""
Draw = Callable[[Dice, Level, Rule], Drawn]
DrawRule = Callable[[Dice, Level], Rule]


@dataclass(frozen=True)
class Family:
    """A family of tasks.

    Attributes:
        name: Lower-case letters and underscores.
        says: Description of its tasks, a sentence.
        draw: Draws a pair that shows the rule, with sides of a level.
        draw_rule: Draws the rule of a task; None if the family has one task per level.
        rule: Description of the rule.
    """

    name: str
    says: str
    draw: Draw
    draw_rule: DrawRule | None = None
    rule: str = ""

    def rules(self, level: Level, count: int) -> list[Rule]:
        """Returns `count` different rules, or all if there are fewer; more begin with the same.

        The rule at an index is the same at all levels, but may have more parameters at harder ones.
        """
        if self.draw_rule is None:
            return [()]
        dice = Dice(self.name)
        rules: dict[Rule, Rule] = {}
        for _ in range(RULE_DRAWS):
            rule = self.draw_rule(dice, level)
            rules.setdefault(rule[:RULE_KEY], rule)
            if len(rules) == count:
                break
        return list(rules.values())

    def pairs(self, task: str, level: Level, rule: Rule, count: int, seed: int) -> tuple[Pair, ...]:
        """Returns the first `count` pairs of a task, of different inputs.

        The pair at an index depends only on seed, task and index. No output equals its input.
        """
        dice = Dice(task, seed)
        pairs: dict[tuple[tuple[int, ...], bytes], Pair] = {}
        rejected = 0
        while len(pairs) < count:
            before = len(pairs)
            if (drawn := self.draw(dice, level, rule)) is not None:
                source, target = map(np.ascontiguousarray, drawn)
                key = (source.shape, source.tobytes())
                if key != (target.shape, target.tobytes()):
                    pairs.setdefault(key, Pair(source, target))
            rejected = rejected + 1 if len(pairs) == before else 0
            if rejected == REJECTIONS:
                raise DataError(
                    f"task {task} has hardly more than {before} different pairs, not {count}: "
                    "lower data.pairs_per_task, or leave it out of data.tasks"
                )
        return tuple(pairs.values())


def family(
    says: str, draw_rule: DrawRule | None = None, rule: str = ""
) -> Callable[[Draw], Family]:
    """Decorates a generator of pairs, which becomes a `Family` of the same name."""
    return lambda draw: Family(draw.__name__, says, draw, draw_rule, rule)


def draw_colour(dice: Dice, _: Level) -> Rule:
    """Draws a rule that is a colour 1..9."""
    return (dice.pick(NONZERO),)


def draw_either(dice: Dice, _: Level) -> Rule:
    """Draws a rule that is 0 or 1."""
    return (dice.below(2),)


STEPS = ((0, 1), (1, 0), (0, -1), (-1, 0))
"""Row and column of a step to the right, down, to the left and up."""
DIRECTIONS = "right, down, left or up"


def draw_direction(dice: Dice, _: Level) -> Rule:
    """Draws a rule that is a direction, the position of its step in `STEPS`."""
    return (dice.below(4),)
