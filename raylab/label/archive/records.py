"""The records of an archive, independent of how a database holds them."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, NamedTuple

from raylab.label.judgement import NEVER, Decision, Standing, standing
from raylab.llm.chat import FREE, Cost, Reply


@dataclass(frozen=True)
class RunRow:
    """A run in the archive.

    Attributes:
        config: configuration; a run with the same name and another one is refused.
        versions: versions of its software and protocol at the first start.
        started: time of that start, UTC.
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


@dataclass(frozen=True)
class CaseRow:
    """The outcome of a case in a run: one row for each case and run.

    Attributes:
        case: id of the case; unique in a run.
        status: accepted, adjudicated, human or failed.
        body: the outcome as JSON values, opaque to the archive.
        sequence: its place among the records of the run, from 1; 0 until it is archived.
        sha256: SHA-256 of its content, checked when it is read.
    """

    case: str
    description_hash: str
    description: str
    status: str
    body: dict[str, Any]
    sequence: int = 0
    created: datetime = NEVER
    sha256: str = ""


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
    """A case with the decisions of people on it."""

    case: CaseRow
    decisions: tuple[Decision, ...]

    @property
    def standing(self) -> Standing[Decision]:
        """The standing of the case after all decisions."""
        return standing(self.decisions, self.case.status)

    @property
    def status(self) -> str:
        """The status from the latest decision, or else from the run."""
        return self.standing.status


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
