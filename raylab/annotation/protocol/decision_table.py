"""The decision table of the protocol: the next step once both codes are evaluated."""

import hashlib
from enum import StrEnum

from raylab.annotation.roles import Side
from raylab.annotation.settings import Settings
from raylab.codebook import Label


class Relation(StrEnum):
    """The relation of two codes; fields after the roots do not count."""

    SAME = "same"
    OPERATORS = "operators"
    """The same roots with other operators or in another order."""
    ROOTS = "roots"


class Step(StrEnum):
    """The next step once both codes are evaluated."""

    ACCEPT = "accept"
    ADJUDICATE = "adjudicate"
    HUMAN = "human"


def relation_of(a: Label, b: Label) -> Relation:
    """Returns the relation of two codes."""
    if a.composition == b.composition:
        return Relation.SAME
    return Relation.OPERATORS if a.categories == b.categories else Relation.ROOTS


def next_step(acceptable: tuple[bool, bool], relation: Relation, settings: Settings) -> Step:
    """Returns the next step by the decision table of the protocol.

    Args:
        acceptable: True for each side, A and B, whose code is acceptable.
        relation: Relation of the codes.
        settings: Settings, of which the policy and `accept_operator_differences` are used.
    """
    alike = relation is Relation.SAME or (
        relation is Relation.OPERATORS and settings.accept_operator_differences
    )
    if settings.policy == "published" and not alike:
        return Step.ADJUDICATE
    match acceptable:
        case (True, True):
            return Step.ACCEPT if alike else Step.ADJUDICATE
        case (False, False):
            return Step.HUMAN
        case _:
            return Step.ADJUDICATE if settings.policy == "lenient" else Step.HUMAN


def draw_order(seed: int, case: str) -> tuple[Side, Side]:
    """Returns the order in which A and B of a case are shown, drawn by seed and case id."""
    digest = hashlib.sha256(f"{seed}:{case}".encode(errors="surrogatepass")).digest()
    return ("A", "B") if digest[0] % 2 == 0 else ("B", "A")
