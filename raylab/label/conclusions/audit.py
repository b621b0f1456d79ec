"""The audit: which cases people label unseen, with which chance, and what their labels stand for.

An even draw gives every case the same chance. An active draw goes through random blocks of the
cases, one after the other. The error that a label is expected to have is learnt from what people
said in earlier blocks, and stands in the record of the draw: so each chance is known for ever, and
depends on no answer of its own block. A chance in proportion to the root of the expected error
gives means the least variance, and a part of the draw is even, so that no label weighs too much
(Zrnic and Candès 2024, arXiv 2403.03208).
"""

import hashlib
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from raylab.core.config.base import AS_PUBLISHED
from raylab.core.stats import Array
from raylab.label.archive.run import RunArchive
from raylab.label.archive.tables import as_json
from raylab.label.codebooks.codebook import Codebook, Label
from raylab.label.judgement import AUDIT, DRAW, HUMAN, UNCLEAR, UNCONFIRMED, Decision
from raylab.label.protocol.decisions import read_standings
from raylab.label.protocol.outcome import Annotator, Status
from raylab.label.statistics.accuracy import DECIDED
from raylab.label.statistics.frame import read_case

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
LEFT_OUT = {
    HUMAN: "wait for a person",
    UNCONFIRMED: "have a decision that the evaluator has not judged yet",
    UNCLEAR: "have no right label, as people found",
    Status.FAILED: "failed",
}
"""The lack that keeps cases out, by their status."""


# Chances


@dataclass(frozen=True)
class AuditDraw:
    """A draw of cases; the content of their records.

    Attributes:
        share: Chance of every case, or the even part of it.
        block: Number of the block; None for an even draw, of all cases.
        factor: Further chance for a root of the expected error of 1.
        errors: Error expected of every label, and for each feature.
        rare: Shares of rare labels.
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
        return min(self.share + self.factor * _root_error(self.errors, features), 1.0)

    def takes(self, case: str, features: Sequence[float]) -> bool:
        """Returns whether this draws a case: by its id, the seed and the chance alone.

        A larger chance draws the same cases and more.
        """
        what = "audit" if self.block is None else "active"
        return _uniform(case, self.seed, what) < self.chance(case, features)


def block_of(case: str, seed: int) -> int:
    """Returns the block of a case in active draws."""
    return int(_uniform(case, seed, "block") * BLOCKS)


def _uniform(case: str, seed: int, what: str) -> float:
    digest = hashlib.sha256(f"{seed}:{what}/{case}".encode()).digest()
    return int.from_bytes(digest[:8]) / 2**64


def _root_error(errors: Sequence[float], features: Sequence[float]) -> float:
    """Returns the root of the error expected of a label."""
    base, *slopes = errors
    error = base + sum(slope * own for slope, own in zip(slopes, features, strict=True))
    return math.sqrt(min(max(error, MIN_ERROR), MAX_ERROR))


def learn_errors(features: Array, wrong: Array) -> tuple[float, ...]:
    """Returns the errors expected after people have judged labels with these (N, F) features.

    `wrong` is the (N,) share of people's labels that differ.
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
    """Returns the draw of a block that takes its part of `number` of all cases.

    `cases` are the ids of all, with their features.
    """
    roots = [_root_error(errors, own) for case, own in cases if block_of(case, seed) == block]
    wanted, size = min(number / len(cases), 1.0) * len(roots), max(len(roots), 1)
    share, factor = EVEN * wanted / size, (1 - EVEN) * wanted / max(sum(roots), MIN_ERROR)
    for _ in range(20):
        # Chances end at 1, so that others must grow.
        expected = sum(min(share + factor * own, 1.0) for own in roots)
        if expected >= wanted * 0.999 or not expected:
            break
        share, factor = share * wanted / expected, factor * wanted / expected
    return AuditDraw(share, seed, block, factor, errors, rare)


# Labels


@dataclass(frozen=True)
class LabelledCase:
    """A case with a label in force.

    Attributes:
        label: The models' label, or that of people where models left the case to them.
        answers: The annotators' labels; None where one cannot be read.
        score: The evaluator's lowest score of an answer, in [0, 1].
        people: The labels of people who saw the text alone, or settled the case: none, one, or two
            that differ.
        is_certain: True if people label every such case, because models left it to them.
        meta: Its further columns.
        chance: Chance with which it came to people.
        block: Block of an active draw that it is in; 0 without one.
    """

    id: str
    label: Label
    answers: Sequence[Label | None]
    score: float
    people: Sequence[Label]
    is_certain: bool
    meta: Mapping[str, Any]
    chance: float = 1.0
    block: int = 0

    def features(self, rare: Mapping[str, float]) -> tuple[float, ...]:
        """Returns what predicts the error of its label, each in [0, 1].

        That is the share of annotators who answer otherwise, the doubt of the evaluator, and how
        rare the label is.
        """
        label = str(self.label)
        others = sum(own is None or str(own) != label for own in self.answers)
        doubt, rarity = 1.0 - self.score, 1.0 - rare.get(label, RARE) / RARE
        return others / max(len(self.answers), 1), doubt, rarity


@dataclass(frozen=True)
class Evidence:
    """The labelled cases of a run.

    Attributes:
        waiting: Cases that are drawn for the audit and that people have not labelled yet.
        undrawn: Cases that the draw would have taken, but that were decided after it.
        left_out: Cases without a label in force, by what they lack.
    """

    cases: Sequence[LabelledCase]
    waiting: int
    undrawn: int
    left_out: Mapping[str, int]

    @property
    def judged(self) -> int:
        """The number of drawn cases that people have labelled."""
        return sum(bool(case.people) and not case.is_certain for case in self.cases)

    @property
    def weights(self) -> Array:
        """The weight of each case's label of people, 0 without one: 1 / chance, to some scale."""
        weights = np.array([float(case.is_certain and bool(case.people)) for case in self.cases])
        blocks = defaultdict[int, list[int]](list)
        for place, case in enumerate(self.cases):
            if not case.is_certain:
                blocks[case.block].append(place)
        total = sum(map(len, blocks.values()))
        judged = {block: [p for p in own if self.cases[p].people] for block, own in blocks.items()}
        seen = sum(len(own) for block, own in blocks.items() if judged[block])
        for block, places in judged.items():
            # Drawn cases come to people in a random order, so that those labelled so far stand for
            # all cases of their block, and random blocks with labels stand for those without.
            raw = np.array([1 / self.cases[place].chance for place in places])
            weights[places] = raw / raw.sum() * len(blocks[block]) * total / seen if places else 0
        return weights


def draws_of(audit: Iterable[Decision]) -> list[AuditDraw]:
    """Returns the draws of an audit, by its records."""
    bodies = {as_json(row.body): row.body for row in audit if row.action == DRAW}
    return [AuditDraw(**body) for body in bodies.values()]


def read_evidence(run: RunArchive, codebook: Codebook, annotators: Sequence[Annotator]) -> Evidence:
    """Reads the cases of an archived run, without those of further generations."""
    audit = [*run.decisions(AUDIT)]
    draws, drawn = draws_of(audit), read_standings(audit, codebook)
    is_active = any(draw.block is not None for draw in draws)
    cases, left_out = list[LabelledCase](), Counter[str]()
    waiting = undrawn = 0
    for current in run.cases():
        outcome, label = read_case(current, codebook)
        if outcome.generation != AS_PUBLISHED:
            continue
        if label is None:
            left_out[LEFT_OUT[current.status]] += 1
            continue
        classified = [outcome.classification(name) for name in annotators]
        evaluated = filter(None, map(outcome.evaluation, annotators))
        case = LabelledCase(
            outcome.case,
            label,
            [own and own.label for own in classified],
            min((own.score for own in evaluated), default=0) / 100,
            (label,),
            outcome.status not in DECIDED,
            outcome.meta,
        )
        if outcome.status in DECIDED:
            stands = drawn.get(outcome.case)
            in_force = stands.in_force if stands else ()
            people = tuple(own.said.label for own in in_force if own.said.label is not None)
            waiting += stands is not None and not people
            chances, takes = {"": 0.0, "active": 0.0}, False
            for draw in draws:
                kind, features = "" if draw.block is None else "active", case.features(draw.rare)
                chances[kind] = max(chances[kind], draw.chance(case.id, features))
                takes |= draw.takes(case.id, features)
            undrawn += stands is None and takes
            missed = math.prod(1 - chance for chance in chances.values())
            block = block_of(case.id, draws[0].seed) if is_active else 0
            # A label whose chance is unknown stands for no other case.
            people = people if missed < 1 else ()
            case = replace(case, people=people, chance=1 - missed, block=block)
        cases.append(case)
    return Evidence(cases, waiting, undrawn, dict(left_out))


def audit_weights(
    run: RunArchive, codebook: Codebook, annotators: Sequence[Annotator]
) -> dict[str, float] | None:
    """Returns the weights of the audited cases that people have labelled; None if all are equal."""
    if all(draw.block is None for draw in draws_of(run.decisions(AUDIT))):
        return None
    evidence = read_evidence(run, codebook, annotators)
    weighted = zip(evidence.cases, evidence.weights, strict=True)
    return {case.id: float(own) for case, own in weighted if own and not case.is_certain}


# Draws


def draw_audit(run: RunArchive, share: float, seed: int) -> int:
    """Draws a share of the cases that the protocol decided; returns the number of new ones."""
    decided = (row.case.case for row in run.cases() if row.case.status in DECIDED)
    draw = AuditDraw(share, seed)
    return run.reviews().draw([case for case in decided if draw.takes(case, ())], draw.body)


def draw_actively(
    run: RunArchive, codebook: Codebook, annotators: Sequence[Annotator], number: int, seed: int
) -> int:
    """Draws `number` cases in all blocks, mostly probably wrong ones; returns how many are new.

    It draws the next block if people have labelled all of the blocks before, and in earlier blocks
    what a larger number or cases decided later add.
    """
    evidence = read_evidence(run, codebook, annotators)
    cases = [case for case in evidence.cases if not case.is_certain]
    made = [draw for draw in draws_of(run.decisions(AUDIT)) if draw.block is not None]
    if not cases:
        return 0
    rarest = Counter(str(case.label) for case in cases).most_common()[::-1][:MAX_RARE]
    rare = {label: n / len(cases) for label, n in rarest if n < RARE * len(cases)}
    new = 0
    for block in range(BLOCKS):
        earlier, errors, names = [draw for draw in made if draw.block == block], PRIOR, rare
        if earlier:
            errors, names = earlier[0].errors, earlier[0].rare
        elif evidence.waiting or new:
            break
        elif judged := [c for c in cases if c.people and block_of(c.id, seed) != block]:
            wrong = [np.mean([own != case.label for own in case.people]) for case in judged]
            features = np.array([case.features(rare) for case in judged])
            errors = learn_errors(features, np.array(wrong, float))
        every = [(case.id, case.features(names)) for case in cases]
        plan = plan_block(every, block, number, errors, names, seed)
        plan = max([plan, *earlier], key=lambda draw: draw.share)
        taken = [case for case, features in every if plan.takes(case, features)]
        new += run.reviews().draw(taken, plan.body)
    return new
