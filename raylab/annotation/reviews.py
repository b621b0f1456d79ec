"""The work of reviewers on a run: the queues, an opened case, and what is decided on it.

Open cases wait for a decision. Cases drawn for the audit wait for a code of somebody who sees the
description alone.
"""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from raylab.annotation.decisions import chosen_label, decision_row, make_decision, say_same
from raylab.annotation.input.cases import is_source
from raylab.annotation.outcome import Choice, HumanDecision, Outcome, read_decision, read_outcome
from raylab.annotation.statistics.audit import DECIDED, is_drawn
from raylab.archive.records import (
    AUDIT,
    DECISION,
    DRAW,
    HUMAN,
    UNCONFIRMED,
    Lease,
    StoredCase,
    StoredDecision,
)
from raylab.archive.reviews import ReviewedCase
from raylab.archive.run import RunArchive
from raylab.codebook import Codebook, Label, clean
from raylab.errors import DataError, LabelError, LeaseError

LONGEST_JUSTIFICATION = 10_000
"""Characters."""
EXCERPT = 160
"""Characters of a description in the queue."""
LISTED = 100
"""Latest decisions of a reviewer that are listed."""
TAKEN_BACK = "Taken back by its reviewer."
CHOICES: dict[str, Choice] = {"A": "A", "B": "B", "own": "own", "unclear": "unclear"}


class UndecidedError(DataError):
    """A decision that lacks something or has a code that cannot be read.

    Attributes:
        problems: The problem by field: choice, code or justification.
    """

    def __init__(self, problems: dict[str, str]) -> None:
        super().__init__("; ".join(problems.values()))
        self.problems = problems

    def __reduce__(self) -> tuple[type["UndecidedError"], tuple[dict[str, str]]]:
        """Pickles with the problems, not with the message."""
        return type(self), (self.problems,)


@dataclass(frozen=True)
class Typed:
    """The form of a case as a reviewer has filled it in.

    Attributes:
        choice: A, B, own, unclear or empty.
        code: the line of an own code.
        justification: the reason.
        insist: decide over the evaluator, which is not asked then.
    """

    choice: str = ""
    code: str = ""
    justification: str = ""
    insist: bool = False


@dataclass(frozen=True)
class Waiting:
    """A case in a queue.

    Attributes:
        sequence: its place in the run.
        case: its id.
        kind: the reason why it is open, in a word such as one-acceptable; `audit` if it is drawn.
        reason: the same in full; empty if it is drawn.
        excerpt: the beginning of its description.
    """

    sequence: int
    case: str
    kind: str
    reason: str
    excerpt: str


@dataclass(frozen=True)
class Made:
    """A decision as it is archived.

    Attributes:
        case_sequence: place of its case in the run.
        sequence: place of the decision.
        status: status of the case by it: unconfirmed, accepted, unclear or human.
        decision: what was decided.
        latest: true if no later decision on the case followed.
    """

    case_sequence: int
    sequence: int
    status: str
    decision: HumanDecision
    latest: bool

    @property
    def waits(self) -> bool:
        """True while the evaluator has not judged it."""
        return self.latest and self.status == UNCONFIRMED

    @property
    def refused(self) -> bool:
        """True if the evaluator refused it, and its case is open again."""
        return self.latest and self.status == HUMAN and self.decision.action == "decide"

    def can_be_undone_by(self, reviewer: str) -> bool:
        """Returns whether it holds and is this reviewer's."""
        return self.latest and self.status != HUMAN and self.decision.reviewer == reviewer


@dataclass(frozen=True)
class Opened:
    """A case as a reviewer finds it.

    Attributes:
        stored: the case.
        outcome: its outcome at the end of the run.
        status: its present status; that of the audit if it is drawn.
        blind: true if it is drawn, so that its reviewer sees the description alone.
        decisions: the decisions on it, or the codes of the audit.
        last: place of the latest record on it, its draw included; 0 if there is none.
        lease: the reviewer who works on it; None if nobody does.
        typed: what the reviewer had decided before and may send again.
    """

    stored: StoredCase
    outcome: Outcome
    status: str
    blind: bool
    decisions: tuple[Made, ...]
    last: int
    lease: Lease | None
    typed: Typed

    @property
    def kind(self) -> str:
        """The reason why it is open, or `audit`, as in the queue."""
        return AUDIT if self.blind else kind_of(self.outcome.path)

    @property
    def queue(self) -> str:
        """The kind of decision that it takes."""
        return AUDIT if self.blind else DECISION

    @property
    def source(self) -> bool:
        """True if the description is source code."""
        return is_source(self.outcome.meta)

    @property
    def waits(self) -> bool:
        """True while a person must decide."""
        return self.status == HUMAN

    def says(self, decision: HumanDecision) -> bool:
        """Returns whether the latest decision says the same."""
        return bool(self.decisions) and say_same(self.decisions[-1].decision, decision)

    def is_held_by(self, reviewer: str) -> bool:
        """Returns whether it waits for this reviewer, who works on it."""
        return self.waits and self.lease is not None and self.lease.reviewer == reviewer


class Reviews:
    """The cases of a run that wait for people, for any number of reviewers and processes.

    Args:
        run: The archived run.
        codebook: Its codebook.
        seed: That of the protocol, which draws the order of two answers.
        lease: Time for which a case stays with a reviewer whose tab has stopped its heartbeats.
        now: Returns the time, with its zone.

    Raises:
        ArchiveError: The archive has no such run.
    """

    def __init__(
        self,
        run: RunArchive,
        codebook: Codebook,
        seed: int,
        lease: timedelta,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self.run, self.codebook, self.seed = run.name, codebook, seed
        self.run_id = run.row().uid
        self.lease_seconds = lease.total_seconds()
        self._run, self._reviews = run, run.reviews()
        self._lease, self._now = lease, now
        self._summaries: dict[int, Waiting] = {}
        self._summarising = threading.Lock()
        self._outcomes: dict[int, Outcome] = {}

    def queue(self, kind: str = "") -> list[Waiting]:
        """Returns the cases that wait, in the order in which they are worked on.

        Args:
            kind: Only open cases with this reason; `audit` for the drawn ones.
        """
        places = self._reviews.waiting(AUDIT if kind == AUDIT else DECISION)
        with self._summarising:
            # Otherwise all who come first would read the same cases at once.
            new = [place for place in places if place not in self._summaries]
            for current in self._run.cases_at(new) if new else ():
                self._summaries[current.case.sequence] = _summarise(current.case)
        if kind == AUDIT:
            return [_blinded(self._summaries[place]) for place in places]
        waiting = [self._summaries[place] for place in places]
        return [case for case in waiting if kind in ("", case.kind)]

    def count_drawn(self) -> int:
        """Returns the number of cases that are drawn for the audit."""
        return self._reviews.count_drawn()

    def leases(self) -> dict[int, Lease]:
        """Returns the leases that hold now, by the sequence of their case."""
        return self._reviews.leases(self._now())

    def take_next(self, reviewer: str, kind: str = "", after: int = 0) -> int | None:
        """Takes the lease on the next case that waits and is free; the first follows the last.

        Args:
            reviewer: Name of the reviewer.
            kind: As of `queue`.
            after: Sequence of the case that was worked on.

        Returns:
            Its sequence; None if there is none.
        """
        if not kind:
            return self._take(None, reviewer, after)
        places = [case.sequence for case in self.queue(kind)]
        if kind == AUDIT:
            start = places.index(after) + 1 if after in places else 0
        else:
            start = sum(place <= after for place in places)
        turn = [place for place in places[start:] + places[:start] if place != after]
        return self._take(turn, reviewer)

    def open(self, case: int, reviewer: str) -> Opened:
        """Opens a case, and takes or renews its lease if it waits and nobody else works on it.

        Raises:
            DataError: The run has no such case.
        """
        self._take([case], reviewer)
        return self.look(case, reviewer)

    def find(self, case: str, reviewer: str) -> Opened | None:
        """Returns the case of this id as it is; None if the run has none."""
        place = self._run.sequences([case]).get(case)
        return None if place is None else self.look(place, reviewer)

    def look(self, case: int, reviewer: str) -> Opened:
        """Returns a case as it is, without taking its lease.

        Raises:
            DataError: The run has no such case.
        """
        found = self._reviews.look(case, self._now())
        if found is None:
            raise DataError(f"run {self.run} has no case {case}: choose one from the queue")
        if case not in self._outcomes:
            self._outcomes[case] = read_outcome(found.case.body, self.codebook)
        made = self._made(found)
        return Opened(
            stored=found.case,
            outcome=self._outcomes[case],
            status=found.status,
            blind=found.kind == AUDIT,
            decisions=made,
            last=found.decisions[-1].sequence if found.decisions else 0,
            lease=found.lease if found.status == HUMAN else None,
            typed=_retyped(made, reviewer),
        )

    def give_back(self, case: int, reviewer: str) -> None:
        """Leaves a case to others."""
        self._reviews.give_back(case, reviewer)

    def submit(self, case: int, reviewer: str, typed: Typed) -> None:
        """Archives a decision, or the code of a drawn case. The same one sent twice is one.

        Raises:
            UndecidedError: Something is missing, or the code cannot be read.
            LeaseError: Another reviewer works on the case, or it does not wait any more.
            ArchiveError: The archive fails.
        """
        opened = self.look(case, reviewer)
        decision = self.decide(opened, reviewer, typed)
        if opened.says(decision):
            return
        if opened.waits and not opened.is_held_by(reviewer):
            opened = self.open(case, reviewer)
        if not opened.is_held_by(reviewer):
            raise self._lost(opened)
        self._reviews.add(decision_row(decision, opened.queue), leased=True)

    def decide(self, opened: Opened, reviewer: str, typed: Typed) -> HumanDecision:
        """Returns the decision that a form stands for, which nothing archives yet.

        Raises:
            UndecidedError: Something is missing, or the code cannot be read.
        """
        choice, label, justification = check_typed(typed, opened, self.codebook)
        insisted = typed.insist and choice != "unclear" and not opened.blind
        name = opened.stored.case
        return make_decision(name, choice, label, justification, reviewer, self._now(), insisted)

    def take_back(self, opened: Opened, reviewer: str, justification: str) -> HumanDecision:
        """Returns the record that takes the decision on a case back, which nothing archives yet."""
        name = opened.stored.case
        return make_decision(name, None, None, justification, reviewer, self._now())

    def archive(self, opened: Opened, decision: HumanDecision) -> None:
        """Archives a decision on a case that nobody has touched since it was opened.

        Raises:
            LeaseError: A later decision followed.
            ArchiveError: The archive fails.
        """
        self._reviews.add(decision_row(decision, opened.queue), after=opened.last)

    def undo(self, case: int, reviewer: str) -> None:
        """Takes the reviewer's own decision back, by a new record; the case is open again.

        Raises:
            LeaseError: The decision is not the reviewer's, or does not hold any more.
            ArchiveError: The archive fails.
        """
        opened = self.look(case, reviewer)
        if not opened.decisions or not opened.decisions[-1].can_be_undone_by(reviewer):
            raise LeaseError(f"case {opened.stored.case} has no decision of {reviewer} that holds")
        self.archive(opened, self.take_back(opened, reviewer, TAKEN_BACK))

    def made_by(self, reviewer: str, kind: str = DECISION, most: int = LISTED) -> list[Made]:
        """Returns the latest decisions of a reviewer, or codes of the audit, the last one first."""
        return [
            Made(place, row.sequence, row.status, read_decision(row.body, self.codebook), latest)
            for place, row, latest in self._reviews.made_by(reviewer, kind, most)
        ]

    def _take(self, cases: Sequence[int] | None, reviewer: str, after: int = 0) -> int | None:
        now = self._now()
        return self._reviews.take(cases, reviewer, now, now + self._lease, after)

    def _made(self, found: ReviewedCase) -> tuple[Made, ...]:
        rows = [row for row in found.decisions if row.action != DRAW]
        return tuple(self._made_on(found, row, row is rows[-1]) for row in rows)

    def _made_on(self, found: ReviewedCase, row: StoredDecision, latest: bool) -> Made:
        decision = read_decision(row.body, self.codebook)
        return Made(found.case.sequence, row.sequence, row.status, decision, latest)

    def _lost(self, opened: Opened) -> LeaseError:
        name = opened.stored.case
        if not opened.waits:
            return LeaseError(f"case {name} does not wait any more: your text stays here")
        who = opened.lease.reviewer if opened.lease else "another reviewer"
        return LeaseError(
            f"{who} works on case {name} now, which is kept for {self.lease_seconds / 60:g} min "
            "after the last sign of a tab: your text stays, and can be sent when it is given back"
        )


def draw_audit(run: RunArchive, share: float, seed: int) -> int:
    """Draws a share of the cases that the protocol decided; returns the number of new ones.

    A larger share draws the same cases and more.

    Raises:
        ArchiveError: The archive fails.
    """
    drawn = [
        stored.case
        for status in DECIDED
        for stored in run.cases(status)
        if is_drawn(stored.case, seed, share)
    ]
    return run.reviews().draw(drawn, {"share": share, "seed": seed})


def check_typed(
    typed: Typed, opened: Opened, codebook: Codebook
) -> tuple[Choice, Label | None, str]:
    """Returns choice, label and justification of a complete decision.

    An audit takes a code alone, and needs no justification.

    Raises:
        UndecidedError: Something is missing, too long or cannot be read.
    """
    problems: dict[str, str] = {}
    choice, code = "own" if opened.blind else CHOICES.get(typed.choice), None
    justification = clean(typed.justification).strip()
    if choice is None:
        problems["choice"] = "Choose A or B, compose a code, or say that none is right."
    else:
        try:
            code = chosen_label(choice, typed.code.strip(), opened.outcome, codebook)
        except LabelError as error:
            problems["code" if choice == "own" else "choice"] = str(error)
    if not justification and not opened.blind:
        problems["justification"] = "Say why: the justification is archived with the decision."
    elif len(justification) > LONGEST_JUSTIFICATION:
        problems["justification"] = (
            f"The justification has {len(justification):,} characters, at most "
            f"{LONGEST_JUSTIFICATION:,} are archived."
        )
    if problems or choice is None:
        raise UndecidedError(problems)
    return choice, code, justification


def _summarise(case: StoredCase) -> Waiting:
    """Returns an archived case as the queue shows it, without a check of its whole body."""
    kind, reason = kind_of(case.body["path"]), case.body["reason"] or ""
    start = " ".join(case.description[: 2 * EXCERPT].split())
    excerpt = start if len(start) <= EXCERPT else f"{start[:EXCERPT]}..."
    return Waiting(case.sequence, case.case, kind, reason, excerpt)


def _blinded(case: Waiting) -> Waiting:
    return Waiting(case.sequence, case.case, AUDIT, "", case.excerpt)


def kind_of(path: Sequence[str]) -> str:
    """Returns why a case is open, in a word, by the steps of its decision."""
    step = path[-1].partition(":")[2]
    return "unreadable" if step.endswith("-unreadable") else step


def _retyped(decisions: Sequence[Made], reviewer: str) -> Typed:
    """Returns the form of the reviewer's latest decision on a case that is open again."""
    for made in reversed(decisions):
        decision = made.decision
        if decision.reviewer == reviewer and decision.action == "decide":
            label = decision.classification and decision.classification.label
            code = str(label) if decision.choice == "own" and label is not None else ""
            return Typed(decision.choice or "", code, decision.justification)
    return Typed()
