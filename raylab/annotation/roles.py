"""The roles, sides and stages of the protocol; no other module spells their names.

Two annotators answer each case independently, as the sides A and B. An evaluator judges each answer
alone, an adjudicator settles differences, and the evaluator confirms the adjudicated label.
"""

from collections.abc import Mapping
from typing import Literal, get_args

Side = Literal["A", "B"]
SIDES: tuple[Side, ...] = get_args(Side)

OTHER: Mapping[Side, Side] = {"A": "B", "B": "A"}

ANNOTATORS: Mapping[Side, str] = {"A": "annotator_a", "B": "annotator_b"}
"""The configured role of each side."""
EVALUATOR = "evaluator"
ADJUDICATOR = "adjudicator"

CANDIDATE_SIDE: Side = "A"
"""The side as which the candidate of a row is judged where the evaluator alone is asked."""
CANDIDATE = "candidate"
"""The step of a case that takes the candidate of its row."""
ADJUDICATE = "adjudicate"
CONFIRM = "confirm"


def classify_stage(side: Side) -> str:
    """Returns the stage in which a side classifies, such as `classify-a`."""
    return f"classify-{side.lower()}"


def evaluate_stage(side: Side) -> str:
    """Returns the stage in which a side's answer is evaluated, such as `evaluate-a`."""
    return f"evaluate-{side.lower()}"


def repair_stage(stage: str) -> str:
    """Returns the second turn of a stage, after a reply that cannot be read."""
    return f"{stage}-repair"


STAGES: Mapping[str, str] = {
    **{classify_stage(side): f"annotator {side}" for side in SIDES},
    **{evaluate_stage(side): f"evaluator of {side}" for side in SIDES},
    ADJUDICATE: "adjudicator",
    CONFIRM: "evaluator of adjudicated codes",
}
"""The stages of a case in order, with readable names."""
