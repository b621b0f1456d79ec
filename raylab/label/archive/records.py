"""The records of an archive, independent of how a database holds them."""

import unicodedata
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, NamedTuple, TypeVar

from raylab.llm.chat import FREE, Cost, Reply

Body = dict[str, Any]
"""The content of a record as JSON values, opaque to the archive."""

ACCEPTED = "accepted"
"""The status of a case with a code that holds."""
HUMAN = "human"
"""The status of a case that waits for a person."""
UNCONFIRMED = "unconfirmed"
"""The status of a case whose decision by a person the evaluator has not judged yet."""
UNCLEAR = "unclear"
"""The status of a case for which a person finds no code right."""
DECISION, AUDIT = "decision", "audit"
"""The kinds of decisions: those that settle cases left open, and those on cases of the audit."""
DRAW, JUDGE, DECIDE, UNDO = "draw", "judge", "decide", "undo"
"""The actions on a case: its draw for the audit, one of two independent judgements, a decision, and
the withdrawal of the reviewer's judgement or decision."""

Prompts = Mapping[str, tuple[str, str, str]]
"""Prompts by hash: name, version, text."""


@dataclass(frozen=True)
class RunRow:
    """A run in the archive.

    Attributes:
        config: configuration; a run with the same name and another configuration is refused.
        versions: versions of its software and protocol at the first start.
        started: time of the first start, UTC.
        records: number of its cases and decisions.
        uid: id in the run's record, log and checkpoints; None if it has none.
    """

    name: str
    config: Mapping[str, Any]
    versions: Mapping[str, Any]
    started: datetime
    records: int
    uid: str | None


@dataclass(frozen=True)
class CallRow:
    """An answered call to a model, stored before its reply is read.

    Attributes:
        reply: the answer, with the key of the call, which is unique in an archive.
        description_hash: SHA-256 of the text the call is about.
        endpoint: address of the server; empty for the embedded model.
        model: model as requested.
        seed: seed of the call; None if none was sent.
    """

    reply: Reply
    description_hash: str
    role: str
    endpoint: str
    model: str
    seed: int | None
    parameters: Mapping[str, Any]
    created: datetime

    @property
    def cost(self) -> Cost:
        """The cost of the call as the server reports it."""
        reply = self.reply
        return Cost(1, reply.prompt_tokens, reply.completion_tokens, reply.cost or 0.0)


_NEVER = datetime.min.replace(tzinfo=UTC)


@dataclass(frozen=True, kw_only=True)
class ArchivedRow:
    """A record of a run, with its place there once it is archived.

    Attributes:
        sequence: from 1, over the records of all kinds together; 0 until it is archived.
        created: time at which it was archived, UTC.
        sha256: SHA-256 of its content, checked when it is read.
    """

    sequence: int = 0
    created: datetime = _NEVER
    sha256: str = ""


@dataclass(frozen=True)
class CaseRow(ArchivedRow):
    """The outcome of a case in a run: one row for each case and run.

    Attributes:
        case: id of the case; unique in a run.
        description_hash: SHA-256 of the description.
        status: accepted, adjudicated, human or failed.
    """

    case: str
    description_hash: str
    description: str
    status: str
    body: Body


@dataclass(frozen=True)
class DecisionRow(ArchivedRow):
    """A person's decision on a case of a run, or the draw or code of a case for its audit.

    Later decisions supersede it. It changes once, when the evaluator has judged it.

    Attributes:
        action: `DRAW`, `JUDGE`, `DECIDE` or `UNDO`.
        reviewer: name of the reviewer; empty for a draw.
        status: new status of the case or of its audit: human while it waits for a person,
            unconfirmed, accepted or unclear.
        body: the decision, or the parameters of the draw, as JSON values.
        kind: `DECISION` or `AUDIT`.
    """

    case: str
    action: str
    reviewer: str
    status: str
    body: Body
    kind: str = DECISION


A = TypeVar("A", bound=Any)


def person(reviewer: str) -> str:
    """Returns the identity of a reviewer: the name without differences in case and white space."""
    return unicodedata.normalize("NFKC", " ".join(reviewer.split())).casefold()


def standing_judgements(rows: Iterable[A]) -> dict[str, A]:
    """Returns the judgements on a case that were not withdrawn, by person.

    The rows are the actions on the case in order, each with `action` and `reviewer`.
    """
    standing: dict[str, A] = {}
    for row in rows:
        if row.action == JUDGE:
            standing[person(row.reviewer)] = row
        elif row.action == UNDO:
            standing.pop(person(row.reviewer), None)
    return standing


class CaseHead(NamedTuple):
    """A case as it stands at the end of the run, in short."""

    case: str
    sequence: int
    status: str
    description_hash: str


@dataclass(frozen=True)
class Lease:
    """The exclusive right of one reviewer to work on a case.

    Attributes:
        expires: time from which another may take it, UTC.
    """

    reviewer: str
    expires: datetime


@dataclass(frozen=True)
class CurrentCase:
    """A case with the decisions of people on it.

    Attributes:
        decisions: the decisions on it, the latest last; its draw and codes for a reviewer, if it
            is drawn for the audit.
        lease: the reviewer who works on it; None if nobody does, or if that was not looked up.
    """

    case: CaseRow
    decisions: tuple[DecisionRow, ...]
    lease: Lease | None = field(default=None, kw_only=True)

    @property
    def queue(self) -> str:
        """The kind of decision that it takes: `AUDIT` if it is drawn, else `DECISION`."""
        return self.decisions[-1].kind if self.decisions else DECISION

    @property
    def status(self) -> str:
        """The status from the latest decision, or else from the run."""
        return self.decisions[-1].status if self.decisions else self.case.status


@dataclass(frozen=True)
class RunCost:
    """The sums that a run has paid, and that it may have paid.

    Attributes:
        billed: answered attempts, as billed.
        uncertain: attempts that may have been billed, at the most that they may have cost, because
            the server did not report it or its answer was lost.
        held: attempts in flight, at the most that they may cost.
    """

    billed: Cost
    uncertain: Cost
    held: Cost = FREE

    @property
    def spent(self) -> Cost:
        """The sum of both, without the attempts in flight."""
        return self.billed + self.uncertain

    def hold(self, most: Cost) -> "RunCost":
        """Returns the cost after an attempt was claimed."""
        return replace(self, held=self.held + most)

    def settle(self, held: Cost, *, billed: Cost = FREE, uncertain: Cost = FREE) -> "RunCost":
        """Returns the cost after an attempt that held some has ended, and was or may be billed."""
        return RunCost(self.billed + billed, self.uncertain + uncertain, self.held - held)
