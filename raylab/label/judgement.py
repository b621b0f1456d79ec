"""The meaning of people's decisions on a case: who judged it, whom it waits for, what holds.

Archive, queue, page, audit and statistics ask this module, which knows none of them.

A case that its run left to people waits for a decision. A case that is drawn for the audit waits
for a code of somebody who sees the description alone. Where two people judge each case, both queues
first wait for two such judgements: if these agree, the second is the decision, and if they differ,
a third person settles the case. Nobody judges a case twice, unless they withdraw their judgement.
"""

import unicodedata
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, Generic, TypeVar

from raylab.core.errors import DataError

ACCEPTED = "accepted"
"""The status of a case with a code that holds."""
HUMAN = "human"
"""The status of a case that waits for a person."""
UNCONFIRMED = "unconfirmed"
"""The status of a case whose decision by a person the evaluator has not judged yet."""
UNCLEAR = "unclear"
"""The status of a case for which a person finds no code right."""
DECISION, AUDIT = "decision", "audit"
"""The queues: of the cases that the run left open, and of those drawn for the audit."""
DRAW, JUDGE, DECIDE, UNDO = "draw", "judge", "decide", "undo"
"""The actions on a case: its draw for the audit, one of two independent judgements, a decision, and
the withdrawal of the reviewer's judgement or decision."""
SETTLE, REFUSED = "settle", "refused"
"""Why a case waits for a third person: two judgements differ, or the evaluator refused what others
decided; before that it waits for `JUDGE`."""
MAX_NAME = 60
"""Characters of a reviewer's name."""
NEVER = datetime.min.replace(tzinfo=UTC)


@dataclass(frozen=True)
class Decision:
    """An action of a person on a case of a run, or the draw of the case for the audit.

    It changes once, when the evaluator has judged it.

    Attributes:
        action: `DRAW`, `JUDGE`, `DECIDE` or `UNDO`.
        reviewer: name of the reviewer; empty for a draw.
        status: status that the case has from then on in its queue.
        body: what the reviewer said, or the parameters of the draw, as JSON values.
        kind: its queue, `DECISION` or `AUDIT`.
        sequence: its place among the records of the run, from 1; 0 until it is archived.
    """

    case: str
    action: str
    reviewer: str
    status: str
    body: dict[str, Any]
    kind: str = DECISION
    sequence: int = 0
    created: datetime = NEVER
    sha256: str = ""

    @property
    def is_refused(self) -> bool:
        """True if the evaluator refused it, so that its case waits again."""
        return self.status == HUMAN and bool(self.body.get("confirmation"))

    @property
    def is_lone(self) -> bool:
        """True for a judgement that decides nothing, for lack of an equal one."""
        return self.action == JUDGE and self.status == HUMAN and not self.is_refused

    def may_be_withdrawn_by(self, reviewer: str) -> bool:
        """Returns whether the reviewer may take it back while it is the latest on its case."""
        holds = self.action in (JUDGE, DECIDE) and not self.is_refused
        return holds and person(self.reviewer) == person(reviewer)


D = TypeVar("D", bound=Decision)
E = TypeVar("E", bound=Decision)


@dataclass(frozen=True)
class Standing(Generic[D]):
    """The state of a case in its queue.

    Attributes:
        queue: `AUDIT` if the case is drawn, else `DECISION`.
        status: `HUMAN` while it waits for people.
        decisions: what people did on it in this queue, the latest last.
        judgements: the independent judgements that nobody withdrew, by person.
        people: number of people who judge each case independently; 1 decides at once.
    """

    queue: str
    status: str
    decisions: tuple[D, ...]
    judgements: Mapping[str, D]
    people: int

    @property
    def last(self) -> D | None:
        """The latest decision."""
        return self.decisions[-1] if self.decisions else None

    @property
    def waits(self) -> bool:
        """True while a person must decide."""
        return self.status == HUMAN

    @property
    def turn(self) -> str:
        """The action it waits for if two people judge each case, JUDGE or SETTLE; else empty."""
        if not self.waits or self.people == 1:
            return ""
        return JUDGE if len(self.judgements) < self.people else SETTLE

    @property
    def reason(self) -> str:
        """The reason why it waits, in a word; empty if the run that left it open gives it."""
        if self.queue == AUDIT and self.turn != SETTLE:
            return AUDIT
        refused = self.turn == SETTLE and any(made.is_refused for made in self.decisions)
        return REFUSED if refused else self.turn

    @property
    def shown(self) -> tuple[int, ...]:
        """The judgements that whoever settles it sees, by sequence; nobody sees one alone."""
        judged = tuple(judgement.sequence for judgement in self.judgements.values())
        return judged if len(judged) >= self.people > 1 else ()

    @property
    def in_force(self) -> tuple[D, ...]:
        """The decision that settled it, or two judgements that differ; empty before that."""
        if not self.waits:
            return self.decisions[-1:]
        return tuple(self.judgements.values()) if len(self.judgements) > 1 else ()

    @property
    def settled_by(self) -> tuple[str, ...]:
        """The names of those who settled it: of both if two judgements agree."""
        if self.waits or self.last is None:
            return ()
        both = self.judgements.values() if self.last.action == JUDGE else (self.last,)
        return tuple(decision.reviewer for decision in both)

    def has_judged(self, reviewer: str) -> bool:
        """Returns whether a judgement of this person stands."""
        return person(reviewer) in self.judgements

    def made_by(self, reviewer: str) -> list[D]:
        """Returns what this person did on it, the latest last."""
        who = person(reviewer)
        return [decision for decision in self.decisions if person(decision.reviewer) == who]

    def waits_for(self, reviewer: str) -> bool:
        """Returns whether this person may answer."""
        return self.waits and not self.has_judged(reviewer)

    def hides(self, reviewer: str = "") -> bool:
        """Returns whether the reviewer may see the description alone, and none of the answers."""
        # A person who has judged could still withdraw that and judge anew.
        judged = self.waits and self.has_judged(reviewer)
        return self.queue == AUDIT or self.turn == JUDGE or judged

    def may_withdraw(self, reviewer: str) -> bool:
        """Returns whether the latest decision is this person's, to withdraw or replace."""
        return self.last is not None and self.last.may_be_withdrawn_by(reviewer)

    def read(self, read: Callable[[D], E]) -> "Standing[E]":
        """Returns the same with decisions that were read further."""
        decisions = {decision.sequence: read(decision) for decision in self.decisions}
        judgements = {name: decisions[own.sequence] for name, own in self.judgements.items()}
        return Standing(self.queue, self.status, (*decisions.values(),), judgements, self.people)


def standing(decisions: Iterable[D], status: str, people: int = 1) -> Standing[D]:
    """Returns what the decisions on a case leave.

    Args:
        decisions: In the order in which they were archived.
        status: That of the case at the end of the run.
    """
    archived = [*decisions]
    queue = AUDIT if any(decision.kind == AUDIT for decision in archived) else DECISION
    acts, judgements = list[D](), dict[str, D]()
    for decision in archived:
        # Only what the protocol decided is drawn, so a drawn case has no decision to wait for.
        if decision.kind != queue:
            continue
        status = decision.status
        if decision.action == DRAW:
            continue
        acts.append(decision)
        if decision.action == JUDGE:
            judgements[person(decision.reviewer)] = decision
        elif decision.action == UNDO:
            judgements.pop(person(decision.reviewer), None)
    return Standing(queue, status, tuple(acts), judgements, people)


@lru_cache(4096)
def person(reviewer: str) -> str:
    """Returns the identity of a reviewer: the name without differences in case and white space."""
    # NFKC makes full-width letters plain: two spellings of a name must not pass as two judges.
    return unicodedata.normalize("NFKC", " ".join(reviewer.split())).casefold()


def check_name(reviewer: str) -> str:
    """Returns the name of a reviewer without surplus white space."""
    name = " ".join(reviewer.split())
    if not name or len(name) > MAX_NAME or not name.isprintable():
        raise DataError(f"a reviewer's name has 1 to {MAX_NAME} letters, all of them printable")
    return name
