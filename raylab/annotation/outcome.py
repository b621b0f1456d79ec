"""What became of one case: everything needed to replay the decision, as it is archived."""

from datetime import datetime
from enum import StrEnum
from typing import Any, Literal

from raylab.codebook import Agreement
from raylab.config.base import Strict

PROTOCOL = "1"
"""Version of the way a case is decided, archived with each run."""
TAXONOMY = "1.0"
"""Version of the set of roots."""
Side = Literal["A", "B"]


class Status(StrEnum):
    """How a case ended."""

    ACCEPTED = "accepted"
    ADJUDICATED = "adjudicated"
    HUMAN = "human"
    FAILED = "failed"


class Verdict(StrEnum):
    """An evaluator's judgement."""

    PASS = "PASS"
    WEAK_PASS = "WEAK_PASS"
    FAIL = "FAIL"


class Issue(StrEnum):
    """The evaluator's criteria, named where one is not met."""

    FORMAT = "format"
    MECHANISM = "mechanism"
    EXECUTION = "execution"
    """Parallelism or pipelines taken for a mechanism."""
    COMPOSITION = "composition"
    ATTRIBUTES = "attributes"


class Call(Strict):
    """One answered call; `key` finds its text in the archive."""

    key: str
    role: str
    model: str
    response_model: str
    prompt: str
    """Name and version of the prompt."""
    prompt_hash: str
    seed: int | None
    text: str
    """The reply, as received."""
    prompt_tokens: int
    completion_tokens: int
    cost: float | None
    seconds: float
    cached: bool
    """Answered from the journal: paid before, by this run or another."""


class Classification(Strict):
    """A code for the case, as an annotator, the adjudicator or a person gives it."""

    code: str | None
    """Canonical line; None if no code could be read."""
    rationale: str
    format: Literal["strict", "repaired", "unparsable"]
    repairs: tuple[str, ...] = ()
    problem: str | None = None
    """Why no code could be read."""
    calls: tuple[Call, ...] = ()


class Evaluation(Strict):
    """The evaluator's report on one code."""

    verdict: Verdict
    """The worse of what the evaluator said and what its score, after the caps, says."""
    raw_verdict: Verdict | None = None
    """As the evaluator gave it; None if none was asked, because there is no code."""
    score: int
    """0 to 100, after the caps."""
    raw_score: int
    """As the evaluator gave it."""
    issues: tuple[Issue, ...]
    summary: str
    contradictory: bool
    """Verdict and score, or verdict and issues, say different things."""
    caps: tuple[str, ...] = ()
    """Why the score was lowered."""
    repairs: tuple[str, ...] = ()
    """What was mended to read the report."""
    acceptable: bool
    calls: tuple[Call, ...] = ()


class Adjudication(Strict):
    """The adjudicator's choice between two codes, or a third."""

    order: tuple[Side, Side]
    """Which annotator was shown first."""
    choice: Literal["A", "B", "synthesis"]
    classification: Classification
    confirmation: Evaluation | None = None


class Outcome(Strict):
    """One case, decided or not, and all that led there."""

    case: str
    description_hash: str
    """SHA-256 of the description."""
    generation: str
    gold: str | None
    trap: bool
    meta: dict[str, Any]
    status: Status
    reason: str | None
    """Why a person must decide, or why it failed."""
    path: tuple[str, ...]
    """Steps of the decision, in order."""
    code: str | None
    """The code the case ends with; None while a person must decide."""
    a: Classification | None = None
    b: Classification | None = None
    evaluation_a: Evaluation | None = None
    evaluation_b: Evaluation | None = None
    agreement: Agreement | None = None
    adjudication: Adjudication | None = None
    unread: tuple[Call, ...] = ()
    """Calls that led to no result above: not readable, or followed by a call that failed."""
    prompt_tokens: int = 0
    """Of the calls that were sent, not of those answered from the journal."""
    completion_tokens: int = 0
    cost: float | None = 0.0
    """None if a call's model has no price."""
    started: datetime
    finished: datetime


class HumanDecision(Strict):
    """A person's code for a case, confirmed or refused by an evaluator pass."""

    case: str
    action: Literal["decide", "undo"]
    choice: Literal["A", "B", "own"] | None
    classification: Classification | None
    justification: str
    reviewer: str
    confirmation: Evaluation | None
    decided: datetime
