"""The chance with which each case comes to people: the same for all, or by the error expected.

An active draw goes through random blocks of the cases, one after the other. The error that a label
is expected to have is learnt from what people said in earlier blocks, and stands in the record of
the draw: so each chance is known for ever, and depends on no answer of its own block. A chance in
proportion to the root of the expected error gives means the least variance, and a part of the draw
is even, so that no label weighs too much (Zrnic and Candès 2024, arXiv 2403.03208).
"""

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from raylab.core.stats import Array

BLOCKS = 4
EVEN = 0.3
"""Part of an active draw that is even."""
PRIOR = (0.03, 0.4, 0.2, 0.1)
"""Errors expected of every label, and for each feature, before people have said anything."""
PRIOR_LABELS = 20.0
"""Labels that this expectation is worth."""
MIN_ERROR, MAX_ERROR = 0.01, 1.0
"""Bounds of an expected error."""
RARE = 0.1
"""Share of the cases below which a label is rare."""
MAX_RARE = 20


@dataclass(frozen=True)
class AuditDraw:
    """How cases were drawn; the content of their records.

    Attributes:
        share: chance of every case, or the even part of it.
        block: number of the block; None for an even draw, of all cases.
        factor: further chance for a root of the expected error of 1.
        errors: error expected of every label, and for each feature.
        rare: shares of rare labels.
    """

    share: float
    seed: int
    block: int | None = None
    factor: float = 0.0
    errors: Sequence[float] = PRIOR
    rare: Mapping[str, float] = field(default_factory=dict[str, float])

    @property
    def body(self) -> dict[str, Any]:
        """The content of a record."""
        return {"share": self.share, "seed": self.seed} if self.block is None else dict(vars(self))

    def chance(self, case: str, features: Sequence[float]) -> float:
        """Returns the chance with which this draws a case."""
        if self.block is None:
            return self.share
        if block_of(case, self.seed) != self.block:
            return 0.0
        return min(self.share + self.factor * root(self.errors, features), 1.0)

    def takes(self, case: str, features: Sequence[float]) -> bool:
        """Returns whether this draws a case: by its id, the seed and the chance alone.

        A larger chance draws the same cases and more.
        """
        what = "audit" if self.block is None else "active"
        return _uniform(case, self.seed, what) < self.chance(case, features)


def block_of(case: str, seed: int) -> int:
    """Returns the block of a case in active draws."""
    return int(_uniform(case, seed, "block") * BLOCKS)


def features_of(
    label: str, answers: Sequence[str | None], score: float, rare: Mapping[str, float]
) -> tuple[float, ...]:
    """Returns what predicts the error of a label, each in [0, 1].

    That is the share of annotators who answer otherwise, the doubt of the evaluator, and how rare
    the label is.
    """
    others = sum(answer != label for answer in answers) / max(len(answers), 1)
    return others, 1.0 - score, 1.0 - rare.get(label, RARE) / RARE


def root(errors: Sequence[float], features: Sequence[float]) -> float:
    """Returns the root of the error expected of a label."""
    base, *slopes = errors
    error = base + sum(slope * own for slope, own in zip(slopes, features, strict=True))
    return math.sqrt(min(max(error, MIN_ERROR), MAX_ERROR))


def learn_errors(features: Array, wrong: Array) -> tuple[float, ...]:
    """Returns the errors expected after people have judged labels.

    Args:
        features: (N, F) of judged labels.
        wrong: (N,) share of people's labels that differ.
    """
    design = np.column_stack([np.ones(len(wrong)), features])
    gram = design.T @ design + PRIOR_LABELS * np.eye(design.shape[1]) / design.shape[1]
    left = design.T @ (wrong - design @ PRIOR)
    return tuple(float(own) for own in PRIOR + np.linalg.solve(gram, left))


def plan_block(
    cases: Sequence[tuple[str, Sequence[float]]],
    block: int,
    number: int,
    errors: Sequence[float],
    rare: Mapping[str, float],
    seed: int,
) -> AuditDraw:
    """Returns the draw of a block that takes its part of `number` cases of all.

    Args:
        cases: All cases, by id, with their features.
    """
    roots = [root(errors, own) for case, own in cases if block_of(case, seed) == block]
    wanted, size = min(number / len(cases), 1.0) * len(roots), max(len(roots), 1)
    share, factor = EVEN * wanted / size, (1 - EVEN) * wanted / max(sum(roots), MIN_ERROR)
    for _ in range(20):
        # Chances end at 1, so that others must grow.
        expected = sum(min(share + factor * own, 1.0) for own in roots)
        if expected >= wanted * 0.999 or not expected:
            break
        share, factor = share * wanted / expected, factor * wanted / expected
    return AuditDraw(share, seed, block, factor, errors, rare)


def _uniform(case: str, seed: int, what: str) -> float:
    digest = hashlib.sha256(f"{seed}:{what}/{case}".encode()).digest()
    return int.from_bytes(digest[:8]) / 2**64
