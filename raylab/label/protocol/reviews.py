"""The work of reviewers on a run: the queues, an opened case, and what is decided on it.

Open cases wait for a decision. Cases drawn for the audit wait for a code of somebody who sees the
description alone. Where two people judge each case, both queues wait for two such judgements first,
and then for a third person where they differ.
"""

import hashlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from threading import Lock
from typing import Any, Literal

from pydantic import Field

from raylab.core.config.base import Strict
from raylab.core.errors import DataError, LabelError, LeaseError
from raylab.label.archive.records import (
    AUDIT,
    DECISION,
    DRAW,
    HUMAN,
    JUDGE,
    UNCONFIRMED,
    CurrentCase,
    DecisionRow,
    Lease,
    person,
    standing_judgements,
)
from raylab.label.archive.run import RunArchive
from raylab.label.codebooks.codebook import AnswerError, Codebook, Label, clean
from raylab.label.config.codebook import FieldConfig
from raylab.label.protocol.decisions import agree, decision_row
from raylab.label.protocol.outcome import (
    Choice,
    HumanDecision,
    Outcome,
    read_decision,
    read_outcome,
)
from raylab.label.protocol.queue import Queue
from raylab.label.statistics.accuracy import DECIDED

EXCERPT = 160
"""Characters of a description in the queue."""
LISTED = 100
"""Latest decisions of a reviewer that are listed."""
TAKEN_BACK = "Taken back by its reviewer."
EMPTY = "This is empty: choose or enter a value."
Chosen = Choice | Literal["first", "second"]
"""What a form says: a choice, or one of the two judgements that differ."""
TAKEN = ("first", "second")
ANSWER = "answer-"
"""What the names of the controls of an answer's fields begin with."""
SETTLE = "settle"
"""The reason why a case waits whose two judgements differ; before that it is `JUDGE`."""


class UndecidedError(DataError):
    """A decision that lacks something or has a code that cannot be read.

    Its argument is the problem by control: choice, code, justification, or a field of an answer.
    """

    @property
    def problems(self) -> dict[str, str]:
        """The problem by control."""
        return self.args[0]

    def __str__(self) -> str:
        """Returns the problems."""
        return "; ".join(self.problems.values())


class Typed(Strict):
    """The form of a case as a reviewer has filled it in."""

    choice: Chosen | Literal["undo"] | None = None
    code: str = ""
    """The text of an own answer."""
    answer: Mapping[str, list[str]] = Field(default={})
    """The values of an own answer by field, where it has no text."""
    justification: str = ""
    insist: bool = False
    """Decide over the evaluator, which is not asked then."""
    shown: tuple[int, ...] | None = None
    """The judgements that were shown to be settled, by sequence; None if none can have been."""


@dataclass(frozen=True)
class Waiting:
    """A case in a queue.

    Attributes:
        kind: the reason why it is open, in a word such as one-acceptable; `audit` if it is drawn.
        reason: the same in full; empty if it is drawn or waits for judgements.
    """

    sequence: int
    case: str
    kind: str
    reason: str
    excerpt: str
    judgements: int = 0


@dataclass(frozen=True)
class ReviewProgress:
    """The judgements of all people on the cases of a queue.

    Attributes:
        once: number of cases with one judgement.
        twice: number of cases with two.
        people: number of judgements by reviewer, the most first.
    """

    once: int
    twice: int
    people: tuple[tuple[str, int], ...]


@dataclass(frozen=True)
class Made:
    """A decision as it is archived.

    Attributes:
        case_sequence: place of its case in the run.
        status: status of the case by it: unconfirmed, accepted, unclear or human.
        latest: true if no later decision on the case followed.
    """

    case_sequence: int
    status: str
    decision: HumanDecision
    latest: bool

    @property
    def waits(self) -> bool:
        """True while the evaluator has not judged it."""
        return self.latest and self.status == UNCONFIRMED

    @property
    def is_refused(self) -> bool:
        """True if the evaluator refused it, and its case is open again."""
        return self.latest and self.status == HUMAN and self.decision.confirmation is not None

    def can_be_undone_by(self, reviewer: str) -> bool:
        """Returns whether it holds and is this reviewer's."""
        holds = self.latest and self.decision.choice is not None and not self.is_refused
        return holds and person(self.decision.reviewer) == person(reviewer)


@dataclass(frozen=True)
class Opened(CurrentCase):
    """A case as a reviewer finds it.

    Attributes:
        made: what people decided on it, or their codes for the audit, the latest last.
        people: number of people who judge it independently; 1 decides at once.
    """

    outcome: Outcome
    made: tuple[Made, ...]
    people: int = 1

    @property
    def standing(self) -> dict[int, HumanDecision]:
        """The independent judgements that stand, by their sequence."""
        places = {row.sequence for row in standing_judgements(self.decisions).values()}
        rows = [row for row in self.decisions if row.action != DRAW]
        return {
            row.sequence: made.decision
            for row, made in zip(rows, self.made, strict=True)
            if row.sequence in places
        }

    @property
    def judgements(self) -> tuple[HumanDecision, ...]:
        """The independent judgements that stand."""
        return tuple(self.standing.values())

    def labels_beside(self, judgement: HumanDecision) -> list[Label]:
        """Returns the labels of the other judgements that stand."""
        others = (other for other in self.judgements if other is not judgement)
        return [other.label for other in others if other.label is not None]

    @property
    def shown(self) -> tuple[int, ...]:
        """The judgements that whoever settles it sees, by sequence; nobody sees one alone."""
        return tuple(self.standing) if 1 < self.people <= len(self.standing) else ()

    @property
    def judging(self) -> bool:
        """True while it waits for an independent judgement."""
        return self.waits and self.people > 1 and len(self.judgements) < self.people

    @property
    def settling(self) -> bool:
        """True while it waits for somebody to settle a disagreement of two people."""
        return self.waits and self.people > 1 and not self.judging

    def waits_for(self, reviewer: str) -> bool:
        """Returns whether it waits for a person, and this one has not judged it."""
        judges = (judgement.reviewer for judgement in self.judgements)
        return self.waits and person(reviewer) not in map(person, judges)

    def hides(self, reviewer: str = "") -> bool:
        """Returns whether the reviewer may see the description alone, and none of the answers."""
        judged = self.waits and not self.waits_for(reviewer)
        return self.queue == AUDIT or self.judging or judged

    @property
    def kind(self) -> str:
        """The reason why it is open, or `audit`, as in the queue."""
        if self.queue == AUDIT:
            return AUDIT
        if self.judging or self.settling:
            return JUDGE if self.judging else SETTLE
        return kind_of(self.outcome.path)

    @property
    def waits(self) -> bool:
        """True while a person must decide."""
        return self.status == HUMAN

    @property
    def last(self) -> Made | None:
        """The latest of what people decided."""
        return self.made[-1] if self.made else None

    def says(self, decision: HumanDecision) -> bool:
        """Returns whether the latest decision or a judgement says the same, at whatever time."""
        same = ("decided", "confirmation", "independent")
        changes = {name: getattr(decision, name) for name in same}
        standing = (*self.judgements, *([self.last.decision] if self.last else []))
        return any(other.model_copy(update=changes) == decision for other in standing)

    def draft(self, reviewer: str) -> Typed:
        """Returns the form of the reviewer's latest decision, which may be sent again."""
        for decision in (made.decision for made in reversed(self.made)):
            if decision.reviewer == reviewer and (choice := decision.choice) is not None:
                typed = Typed(choice=choice, justification=decision.justification)
                if choice != "own" or (label := decision.label) is None:
                    return typed
                answer = {name: [*own] for name, own in label.answers.items()}
                return typed.model_copy(update={"code": str(label), "answer": answer})
        return Typed()


class Reviews:
    """The cases of a run that wait for people, for any number of reviewers and processes.

    Args:
        seed: That of the protocol, which draws the order of the answers.
        people: Number of people who judge each case independently, 1 or 2.
        lease: Time for which a case stays with a reviewer whose tab has stopped its heartbeats.
        now: Returns the time, with its zone.
    """

    def __init__(
        self,
        run: RunArchive,
        codebook: Codebook,
        seed: int,
        lease: timedelta,
        people: int = 1,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self.run, self.codebook, self.seed, self.lease = run.name, codebook, seed, lease
        self.run_id, self.archived, self.people = run.row().uid, run.reviews(), people
        self._run, self._now = run, now
        self._queue, self._turn = Queue(self.archived), Lock()
        self._summaries: dict[int, Waiting] = {}

    def queue(self, kind: str = "", reviewer: str = "") -> list[Waiting]:
        """Returns the cases that wait, in the order in which they are worked on.

        Args:
            kind: Only open cases with this reason; `audit` for the drawn ones.
            reviewer: Only cases that this reviewer has not judged.
        """
        places, judges = self._turns(kind, reviewer)
        self._summarize(places)
        waiting = [self._summaries[place] for place in places]
        if self.people > 1:
            # The reason is for those alone who settle.
            waiting = [
                replace(
                    case,
                    kind=self._stage(judges, case.sequence),
                    reason="",
                    judgements=len(judges.get(case.sequence, ())),
                )
                for case in waiting
            ]
        if kind == AUDIT:
            return [replace(case, kind=AUDIT, reason="") for case in waiting]
        return waiting

    def _turns(self, kind: str, reviewer: str) -> tuple[list[int], dict[int, Mapping[str, str]]]:
        """Returns the places of the cases that wait for a reviewer, in order, and who judged."""
        places, judges = self._queue.look(AUDIT if kind == AUDIT else DECISION)
        if self.people > 1:
            who = person(reviewer)
            places = [place for place in places if who not in judges.get(place, ())]
            if kind in (JUDGE, SETTLE):
                places = [place for place in places if self._stage(judges, place) == kind]
        elif kind not in ("", AUDIT):
            self._summarize(places)
            places = [place for place in places if self._summaries[place].kind == kind]
        return places, judges

    def _stage(self, judges: Mapping[int, Mapping[str, str]], place: int) -> str:
        return JUDGE if len(judges.get(place, ())) < self.people else SETTLE

    def _summarize(self, places: Sequence[int]) -> None:
        """Reads what the queue shows of cases, each once, without a check of the whole body."""
        with self._turn:
            new = [place for place in places if place not in self._summaries]
            for case in (current.case for current in self._run.cases(places=new)):
                why, reason = kind_of(case.body["path"]), case.body["reason"] or ""
                start = " ".join(case.description[: 2 * EXCERPT].split())
                excerpt = start if len(start) <= EXCERPT else f"{start[:EXCERPT]}..."
                summary = Waiting(case.sequence, case.case, why, reason, excerpt)
                self._summaries[case.sequence] = summary

    def progress(self, kind: str = "") -> ReviewProgress:
        """Returns the judgements on all open cases, or with `audit` on all that are drawn."""
        _, judges = self._queue.look(AUDIT if kind == AUDIT else DECISION)
        numbers = Counter(map(len, judges.values()))
        names = {key: name for people in judges.values() for key, name in people.items()}
        people = Counter(key for people in judges.values() for key in people)
        shown = tuple((names[key], number) for key, number in people.most_common())
        return ReviewProgress(numbers[1], numbers[2], shown)

    def leases(self) -> dict[int, Lease]:
        """Returns the leases that hold now, by the sequence of their case."""
        return self.archived.leases(self._now())

    def take_next(self, reviewer: str, kind: str = "", after: int = 0) -> int | None:
        """Takes the lease on the next case that waits and is free; the first follows the last.

        Returns its sequence, or None if there is none. The case `after` was worked on before it.
        """
        places, _ = self._turns(kind, reviewer)
        if kind == AUDIT:
            start = places.index(after) + 1 if after in places else 0
        else:
            start = sum(place <= after for place in places)
        turn = [place for place in places[start:] + places[:start] if place != after]
        return self._take(turn, reviewer)

    def open(self, case: int, reviewer: str) -> Opened:
        """Opens a case, and takes or renews its lease if it waits and nobody else works on it."""
        opened = self.look(case)
        lease, now = opened.lease, self._now()
        if lease and lease.reviewer == reviewer and lease.expires > now + 0.9 * self.lease:
            return opened
        self._take([case], reviewer)
        return self.look(case)

    def look(self, case: int | str) -> Opened:
        """Returns a case, by its sequence or id, as it is, without taking its lease."""
        if isinstance(case, str):
            head = self._run.find_heads([case]).get(case)
            place = 0 if head is None else head.sequence
        else:
            place = case
        stored = self.archived.look(place, self._now())
        if stored is None:
            raise DataError(f"run {self.run} has no case {case!r}: look for it in the queue")
        rows = [row for row in stored.decisions if row.action != DRAW]
        made = tuple(self._made(place, row, row is rows[-1]) for row in rows)
        outcome = read_outcome(stored.case.body, self.codebook)
        return Opened(stored.case, stored.decisions, outcome, made, self.people, lease=stored.lease)

    def submit(self, case: int, reviewer: str, typed: Typed) -> None:
        """Archives a decision, or the code of a drawn case. The same one sent twice is one.

        Raises:
            UndecidedError: Something is missing, or the code cannot be read.
            LeaseError: Another reviewer works on the case, it does not wait any more, or what was
                to be settled has changed.
        """
        opened = self.look(case)
        decision = self.decide(opened, reviewer, typed)
        if opened.says(decision):
            return
        if opened.lease is None:
            self._take([case], reviewer)
        self.archive(opened, decision, leased=True)

    def decide(
        self, opened: Opened, reviewer: str, typed: Typed, reasoned: bool = True
    ) -> HumanDecision:
        """Returns the decision that a form stands for, which nothing archives yet.

        An audit takes only a code. Blind judgements and undoing need no justification.

        Args:
            reasoned: Refuse other decisions without one.
        """
        problems: dict[str, str] = {}
        # Forms send line breaks as CR LF.
        justification = clean(typed.justification.replace("\r\n", "\n")).strip()
        make = partial(HumanDecision, case=opened.case.case, reviewer=reviewer, decided=self._now())
        if typed.choice == "undo":
            return make(choice=None, justification=justification or TAKEN_BACK)
        _check_shown(opened, typed)
        choice, blind, label = _choice(opened, typed), opened.hides(), None
        try:
            label = self._label(opened, choice, typed)
        except UndecidedError as error:
            problems |= error.problems
        except LabelError as error:
            problems["code" if choice == "own" else "choice"] = str(error)
        if choice in TAKEN:
            choice = "own" if label else "unclear"
        judged = any(person(reviewer) == person(other.reviewer) for other in opened.judgements)
        if reasoned and not (justification or blind or judged):
            problems["justification"] = "Say why: the justification is archived with the decision."
        if problems:
            raise UndecidedError(problems)
        insisted = typed.insist and choice != "unclear" and not blind
        return make(
            choice=choice,
            label=label,
            justification=justification,
            insisted=insisted,
            independent=opened.judging,
        )

    def archive(self, opened: Opened, decision: HumanDecision, leased: bool = False) -> str:
        """Archives a decision on a case that nobody has touched since it was opened.

        Returns the status of the case by it.

        Args:
            leased: Require that the case waits and that the reviewer holds its lease.

        Raises:
            LeaseError: A later decision followed, or the lease is not the reviewer's.
        """
        after = opened.decisions[-1].sequence if opened.decisions else 0
        agreed = any(agree(decision, other) for other in opened.judgements)
        row = decision_row(decision, opened.queue, decides=agreed or not decision.independent)
        self.archived.add(row, after=after, leased=leased)
        return row.status

    def undo(self, case: int, reviewer: str) -> None:
        """Takes the reviewer's own decision back, by a new record; the case is open again."""
        opened = self.look(case)
        if opened.last is None or not opened.last.can_be_undone_by(reviewer):
            raise LeaseError(f"case {opened.case.case} has no decision of {reviewer} that holds")
        self.archive(opened, self.decide(opened, reviewer, Typed(choice="undo")))

    def made_by(self, reviewer: str, kind: str = DECISION) -> list[Made]:
        """Returns the latest decisions of a reviewer, or codes of the audit, the last one first."""
        made = self.archived.made_by(reviewer, kind, LISTED)
        return [self._made(place, row, latest) for place, row, latest in made]

    def _take(self, cases: Sequence[int], reviewer: str) -> int | None:
        now = self._now()
        return self.archived.take(cases, reviewer, now, now + self.lease)

    def _made(self, place: int, row: DecisionRow, latest: bool) -> Made:
        return Made(place, row.status, read_decision(row.body, self.codebook), latest)

    def _label(self, opened: Opened, choice: Chosen | None, typed: Typed) -> Label | None:
        """Returns the label that a choice stands for; nothing is repaired."""
        if choice in TAKEN and opened.shown:
            return opened.judgements[TAKEN.index(choice)].label
        if choice is None or choice in TAKEN:
            raise LabelError("Choose an answer, compose a code, or say that none is right.")
        if choice == "unclear":
            return None
        if choice == "own":
            code = typed.code.strip()
            return self._read_form(typed) if not code else self.codebook.parse_own(code)
        label = opened.outcome.label_of(choice)
        if label is None:
            raise LabelError(f"{choice} has no code")
        return label

    def _read_form(self, typed: Typed) -> Label:
        """Reads the values of an answer that were filled in by field."""
        filled = {name: typed.answer.get(name, []) for name in self.codebook.questions}
        values = {
            name: _value(each, filled[name]) for name, each in self.codebook.questions.items()
        }
        try:
            return self.codebook.parse_own(values.get("", values) or "")
        except AnswerError as error:
            raise UndecidedError(
                {
                    f"{ANSWER}{name}": problem if any(filled[name]) else EMPTY
                    for name, problem in error.problems.items()
                }
            ) from None


def draw_audit(run: RunArchive, share: float, seed: int) -> int:
    """Draws a share of the cases that the protocol decided; returns the number of new ones.

    Seed and id alone draw a case, so a larger share draws the same cases and more.
    """
    drawn: list[str] = []
    for case in (row.case.case for row in run.cases() if row.case.status in DECIDED):
        digest = hashlib.sha256(f"{seed}:audit/{case}".encode()).digest()
        if int.from_bytes(digest[:8]) < share * 2**64:
            drawn.append(case)
    return run.reviews().draw(drawn, {"share": share, "seed": seed})


def kind_of(path: Sequence[str]) -> str:
    """Returns why a case is open, in a word, by the steps of its decision."""
    step = path[-1].partition(":")[2]
    return "unreadable" if step.endswith("-unreadable") else step


def _check_shown(opened: Opened, typed: Typed) -> None:
    """Refuses to settle judgements of which not all stand, or that were not shown."""
    if typed.shown == opened.shown or (typed.shown is None and typed.choice not in TAKEN):
        return
    judged = zip(TAKEN, typed.shown or (), strict=False)
    changed = [f"the {name} person" for name, place in judged if place not in opened.standing]
    acted = f"{' and '.join(changed)} changed their answer" if changed else "others have judged it"
    raise LeaseError(f"{acted} meanwhile: look again")


def _value(question: FieldConfig, texts: list[str]) -> Any:
    """Returns the JSON value of a field that was filled in."""
    text = "".join(texts[:1])
    return texts if question.several else read_number(text) if question.number else text


def read_number(item: Any) -> Any:
    """Returns the number in a text, as an integer if it is whole, or what is none as it is."""
    with suppress(TypeError, ValueError, OverflowError):
        number = float(item)
        return int(number) if number.is_integer() else number
    return item


def _choice(opened: Opened, typed: Typed) -> Any:
    """Returns the choice of a form; a reviewer who sees no answers can only give a code."""
    if opened.shown and typed.choice in TAKEN:
        return typed.choice
    own = opened.queue == AUDIT or (opened.judging and typed.choice != "unclear")
    return "own" if own else typed.choice
