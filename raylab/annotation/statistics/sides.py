"""The two annotators of an outcome by side."""

from raylab.annotation.outcome import Classification, Evaluation, Outcome, Side

SIDES: tuple[Side, Side] = ("A", "B")
OTHER: dict[Side, Side] = {"A": "B", "B": "A"}


def answer_of(outcome: Outcome, side: Side) -> Classification | None:
    """Returns the answer of an annotator."""
    return outcome.a if side == "A" else outcome.b


def evaluation_of(outcome: Outcome, side: Side) -> Evaluation | None:
    """Returns the evaluation of an annotator's answer."""
    return outcome.evaluation_a if side == "A" else outcome.evaluation_b


def code_of(outcome: Outcome, side: Side) -> str | None:
    """Returns the code of an annotator; None without one."""
    answer = answer_of(outcome, side)
    return None if answer is None else answer.code
