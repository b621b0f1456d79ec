"""The records of an archive, independent of how a database holds them."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

Body = dict[str, Any]
"""What the owner of a record keeps in it, as JSON values; the archive looks into none."""

HUMAN = "human"
"""Status of a case that waits for a person."""


@dataclass(frozen=True)
class CallRow:
    """A completed call to a model, kept before its reply was read.

    Attributes:
        key: SHA-256 of the request's content; unique in an archive.
        description_hash: SHA-256 of the text the call is about.
        run: run that sent the call, and paid for it.
        role: what the call was for.
        endpoint: address of the server; empty for the embedded model.
        model: model as asked for.
        response_model: model as the server named it.
        seed: seed of the call.
        parameters: sampling parameters.
        text: the reply as received.
        finish_reason: why the server stopped.
        prompt_tokens: tokens of the request.
        completion_tokens: tokens of the reply.
        cost: price in the configured currency; None without a price.
        seconds: duration of the successful attempt.
        attempts: attempts made.
        created: when the reply had come, UTC.
    """

    key: str
    description_hash: str
    run: str
    role: str
    endpoint: str
    model: str
    response_model: str
    seed: int | None
    parameters: Mapping[str, Any]
    text: str
    finish_reason: str
    prompt_tokens: int
    completion_tokens: int
    cost: float | None
    seconds: float
    attempts: int
    created: datetime


@dataclass(frozen=True)
class CaseRow:
    """The outcome of a case in a run: one row for each case and run.

    Attributes:
        case: id of the case; unique in a run.
        description_hash: SHA-256 of the description.
        description: the text that was classified.
        status: accepted, adjudicated, human or failed.
        body: the outcome as JSON values.
    """

    case: str
    description_hash: str
    description: str
    status: str
    body: Body


@dataclass(frozen=True)
class DecisionRow:
    """A person's decision on a case of a run; a later one supersedes it, none is changed.

    Attributes:
        case: id of the case.
        action: decide or undo.
        reviewer: who.
        status: what the case is from now on: accepted, human.
        body: the decision as JSON values.
    """

    case: str
    action: str
    reviewer: str
    status: str
    body: Body


@dataclass(frozen=True)
class Lease:
    """The right to work on a case, which one reviewer has at a time.

    Attributes:
        reviewer: who has it.
        expires: when another may take it, UTC.
    """

    reviewer: str
    expires: datetime


@dataclass(frozen=True)
class Draft:
    """The fields that a reviewer has filled in on a case and not decided yet, not checked.

    Attributes:
        choice: A, B or own; empty while none is made.
        code: the line of an own code.
        justification: why.
        saved: when it was saved, UTC.
        page: the copy of the page it was typed in.
        edit: how many changes had been made there.
    """

    choice: str
    code: str
    justification: str
    saved: datetime
    page: str
    edit: int


@dataclass(frozen=True)
class RunRow:
    """A run, as the archive keeps it.

    Attributes:
        name: name of the run.
        config: what the run does; another run of the same name is refused.
        versions: versions of what it runs with, when it was first started.
        started: when it was first started, UTC.
        finished: when all of it was done, UTC; None while it goes on.
        records: cases and decisions in its chain.
        head_hash: hash of the last of these; of the run itself while there are none.
        uid: id in the run's record, log and checkpoints; None of runs from before it existed.
    """

    name: str
    config: Mapping[str, Any]
    versions: Mapping[str, Any]
    started: datetime
    finished: datetime | None
    records: int
    head_hash: str
    uid: str | None


@dataclass(frozen=True)
class Chained:
    """The place of a record in the chain of its run.

    Attributes:
        run: name of the run.
        sequence: from 1, without gaps, over cases and decisions together.
        created: when it was archived, UTC.
        previous_hash: hash of the record before it.
        hash: SHA-256 of `previous_hash` and all of the record.
    """

    run: str
    sequence: int
    created: datetime
    previous_hash: str
    hash: str


@dataclass(frozen=True)
class StoredCase(CaseRow, Chained):
    """A case, as it stands in the archive."""


@dataclass(frozen=True)
class StoredDecision(DecisionRow, Chained):
    """A decision, as it stands in the archive."""


@dataclass(frozen=True)
class CurrentCase:
    """A case and all decisions on it since.

    Attributes:
        case: the case, as the run left it.
        decisions: what people decided, the latest last.
    """

    case: StoredCase
    decisions: tuple[StoredDecision, ...]

    @property
    def status(self) -> str:
        """The status that the latest decision gave the case, or the run without one."""
        return self.decisions[-1].status if self.decisions else self.case.status


@dataclass(frozen=True)
class RunCost:
    """The tokens and the price of the calls that a run sent.

    Attributes:
        prompt_tokens: tokens of the requests.
        completion_tokens: tokens of the replies.
        cost: price of the calls that have one.
        unpriced: calls without a price.
    """

    prompt_tokens: int
    completion_tokens: int
    cost: float
    unpriced: int


class Fault(StrEnum):
    """A way in which a record is not as it was archived."""

    ALTERED = "altered"
    """Its content, or its hash, is not what was archived."""
    BROKEN = "broken"
    """It is whole, but what it follows was replaced."""
    MISSING = "missing"
    INSERTED = "inserted"
    """It was put in without a place in the chain."""
    DESCRIPTION = "description"
    """Its description is not the one whose hash it has."""


@dataclass(frozen=True)
class ChainProblem:
    """A record that cannot be trusted.

    Attributes:
        run: name of the run; of a run that is gone, its number.
        sequence: which record; 0 is the run itself.
        record: the record in words.
        fault: what is wrong.
        detail: how that shows.
    """

    run: str
    sequence: int
    record: str
    fault: Fault
    detail: str

    def __str__(self) -> str:
        """One line for people."""
        return (
            f"run {self.run}, record {self.sequence} ({self.record}): {self.fault}: {self.detail}"
        )
