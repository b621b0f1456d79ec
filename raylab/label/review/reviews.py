"""The work of reviewers on a run: the turns of cases, and what people see and decide on one."""

from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from threading import Lock
from typing import Any, Literal

from pydantic import Field

from raylab.core.config.base import Strict
from raylab.core.errors import DataError, LabelError, LeaseError
from raylab.label.archive.records import CaseRow, Lease
from raylab.label.archive.reviews import Queue
from raylab.label.archive.run import RunArchive
from raylab.label.codebooks.codebook import AnswerError, Codebook, Label, clean
from raylab.label.judgement import AUDIT, DECISION, JUDGE, SETTLE, Decision, Standing, standing
from raylab.label.protocol.decisions import ReadDecision, decision_row, read_row
from raylab.label.protocol.outcome import Choice, HumanDecision, Outcome, read_outcome

EXCERPT = 160
"""Characters of a description in the queue."""
MAX_LISTED = 100
"""Latest decisions of a reviewer that are listed."""
TAKEN_BACK = "Taken back by its reviewer."
EMPTY = "This is empty: choose or enter a value."
TAKEN = ("first", "second")
"""Choices of one of the two judgements that a third person settles."""
ANSWER = "answer-"
"""What the names of the controls of an answer's fields begin with."""


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


class DecisionForm(Strict):
    """The form of a case as a reviewer has filled it in."""

    choice: Choice | Literal["first", "second", "undo"] | None = None
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
class QueueEntry:
    """A case in a queue.

    Attributes:
        kind: why it waits, in a word such as one-acceptable, judge, settle, refused or audit.
        reason: why the run left it open, in full; empty if that is not for its next reviewer.
    """

    sequence: int
    case: str
    kind: str
    reason: str
    excerpt: str


@dataclass(frozen=True)
class OpenCase:
    """A case as a reviewer finds it.

    Attributes:
        lease: the reviewer who works on it; None if nobody does.
    """

    case: CaseRow
    outcome: Outcome
    standing: Standing[ReadDecision]
    lease: Lease | None

    @property
    def kind(self) -> str:
        """The reason why it waits, as in the queue."""
        return self.standing.reason or _kind_of(self.outcome.path)

    @property
    def judgements(self) -> list[HumanDecision]:
        """The independent judgements that stand."""
        return [judgement.said for judgement in self.standing.judgements.values()]

    @property
    def labels(self) -> dict[str, Label]:
        """The labels of all answers in sight, people's and models', by the choice of each."""
        said = self.judgements if self.standing.turn == SETTLE else []
        judged = ((name, own.label) for name, own in zip(TAKEN, said, strict=False))
        models = {} if self.standing.hides() else self.outcome.labels
        return {name: label for name, label in judged if label is not None} | models

    def labels_beside(self, choice: str) -> list[Label]:
        """Returns the labels of all other answers in sight."""
        return [label for name, label in self.labels.items() if name != choice]

    def says(self, decision: HumanDecision) -> bool:
        """Returns whether the latest decision or a judgement says the same, at whatever time."""
        same = ("decided", "confirmation", "independent")
        changes = {name: getattr(decision, name) for name in same}
        said = self.judgements + [made.said for made in self.standing.decisions[-1:]]
        return any(other.model_copy(update=changes) == decision for other in said)

    def draft(self, reviewer: str) -> DecisionForm:
        """Returns the form of the reviewer's latest decision, which may be sent again.

        Without one, another code begins as that of answer A, where the reviewer may see it.
        """
        for said in (made.said for made in reversed(self.standing.made_by(reviewer))):
            if said.choice is not None:
                form = DecisionForm(choice=said.choice, justification=said.justification)
                return form.model_copy(update=write(said.label)) if said.label else form
        first = None if self.standing.hides(reviewer) else self.outcome.labels.get("A")
        return DecisionForm(**write(first)) if first else DecisionForm()


class Reviews:
    """The cases of a run that wait for people, for any number of reviewers and processes.

    Args:
        seed: That of the protocol, which draws the order of the answers.
        people: Number of people who judge each case independently, 1 or 2.
        draw: Draws more cases for the audit once none waits, and returns how many.
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
        draw: Callable[[], int] = lambda: 0,
    ) -> None:
        self.run, self.codebook, self.seed, self.lease = run.name, codebook, seed, lease
        self.run_id, self.archived, self.people = run.row().uid, run.reviews(), people
        self._run, self._now, self._draw = run, now, draw
        self._queue, self._turn = Queue(self.archived, people), Lock()
        self._entries: dict[int, QueueEntry] = {}
        # The last record that was known when cases were drawn.
        self._drawn = -1

    # Queues

    def reasons(self, kind: str = "", reviewer: str = "") -> dict[int, str]:
        """Returns why each open case, or with `audit` each drawn one, waits for the reviewer.

        Cases are in the order of their turns.
        """
        places, standings = self._look(kind)
        mine = [place for place in places if standings[place].waits_for(reviewer)]
        return self._reasons(mine, standings)

    def entries(self, reasons: Mapping[int, str]) -> list[QueueEntry]:
        """Returns what the queue shows of cases that wait for these reasons."""
        self._summarize(reasons)
        entries = [(self._entries[place], reason) for place, reason in reasons.items()]
        # Why the run left a case open is for those alone who see its answers.
        return [
            entry if reason == entry.kind else replace(entry, kind=reason, reason="")
            for entry, reason in entries
        ]

    def count_drawn(self) -> int:
        """Returns the number of cases that are drawn for the audit."""
        return len(self._queue.look(AUDIT)[1])

    def take_next(self, reviewer: str, kind: str = "", after: int = 0) -> int | None:
        """Takes the lease on the next case that waits and is free; the first follows the last.

        Returns its sequence, or None if there is none. The case `after` was worked on before it.
        """
        places, standings = self._look(kind)
        if kind == AUDIT:
            # Drawn cases are in pseudo-random order, so `after` has no place once it is coded.
            start = places.index(after) + 1 if after in places else 0
        else:
            start = bisect_right(places, after)
        is_chosen = kind not in ("", AUDIT)
        reasons = self._reasons(places, standings) if is_chosen else {}
        turn = [
            place
            for place in places[start:] + places[:start]
            if place != after
            and standings[place].waits_for(reviewer)
            and reasons.get(place, kind) == kind
        ]
        taken = self._take(turn, reviewer)
        # A draw reads all cases, and gives no more before somebody has decided something.
        if kind == AUDIT and not places and self._queue.seen != self._drawn:
            self._drawn = self._queue.seen
            if self._draw():
                return self.take_next(reviewer, kind, after)
        return taken

    def leases(self) -> dict[int, Lease]:
        """Returns the leases that hold now, by the sequence of their case."""
        return self.archived.leases(self._now())

    def made_by(self, reviewer: str, queue: str = DECISION) -> list[tuple[int, ReadDecision, bool]]:
        """Returns the latest decisions of a reviewer, or codes of the audit, the last one first.

        Each comes with the sequence of its case, and whether it is the latest on the case.
        """
        made = self.archived.made_by(reviewer, queue, MAX_LISTED)
        return [(place, read_row(row, self.codebook), latest) for place, row, latest in made]

    # A case

    def open(self, case: int, reviewer: str) -> OpenCase:
        """Opens a case, and takes or renews its lease if it waits and nobody else works on it."""
        opened = self.look(case)
        lease, now = opened.lease, self._now()
        # A page that is typed into comes back every moment, and each write locks the run.
        if lease and lease.reviewer == reviewer and lease.expires > now + 0.9 * self.lease:
            return opened
        self._take([case], reviewer)
        return self.look(case)

    def look(self, case: int | str) -> OpenCase:
        """Returns a case, by its sequence or id, as it is, without taking its lease."""
        place = case
        if isinstance(place, str):
            head = self._run.find_heads([place]).get(place)
            place = 0 if head is None else head.sequence
        if (archived := self.archived.look(place, self._now())) is None:
            raise DataError(f"run {self.run} has no case {case!r}: look for it in the queue")
        stored, lease = archived
        made = standing(stored.decisions, stored.case.status, self.people)
        return OpenCase(
            stored.case,
            read_outcome(stored.case.body, self.codebook),
            made.read(partial(read_row, codebook=self.codebook)),
            lease,
        )

    def submit(self, case: int, reviewer: str, form: DecisionForm) -> None:
        """Archives a decision, or the code of a drawn case. The same one sent twice is one.

        Raises:
            UndecidedError: Something is missing, or the code cannot be read.
            LeaseError: Another reviewer works on the case, it does not wait any more, or what was
                to be settled has changed.
        """
        opened = self.look(case)
        decision = self.decide(opened, reviewer, form)
        if opened.says(decision):
            return
        # It expires while the reviewer's tab is asleep.
        if opened.lease is None:
            self._take([case], reviewer)
        self.archive(opened, decision, leased=True)

    def undo(self, case: int, reviewer: str) -> None:
        """Takes the reviewer's own decision back, by a new record; the case is open again."""
        opened = self.look(case)
        if not opened.standing.may_withdraw(reviewer):
            raise LeaseError(f"case {opened.case.case} has no decision of {reviewer} that holds")
        self.archive(opened, self.decide(opened, reviewer, DecisionForm(choice="undo")))

    def decide(
        self, opened: OpenCase, reviewer: str, form: DecisionForm, reasoned: bool = True
    ) -> HumanDecision:
        """Returns the decision that a form stands for, which nothing archives yet.

        An audit takes only a code. Blind judgements and undoing need no justification.

        Args:
            reasoned: Refuse other decisions without one.
        """
        # Forms send line breaks as CR LF.
        justification = clean(form.justification.replace("\r\n", "\n")).strip()
        make = partial(HumanDecision, case=opened.case.case, reviewer=reviewer, decided=self._now())
        if form.choice == "undo":
            return make(choice=None, justification=justification or TAKEN_BACK)
        stands, choice, label = opened.standing, form.choice, None
        blind, problems = stands.hides(), dict[str, str]()
        # Nobody settles what they have not seen.
        if form.shown != stands.shown and (form.shown is not None or choice in TAKEN):
            stand = {judgement.sequence for judgement in stands.judgements.values()}
            were = zip(TAKEN, form.shown or (), strict=False)
            changed = " and ".join(f"the {name} person" for name, own in were if own not in stand)
            acted = f"{changed} changed their answer" if changed else "others have judged it"
            raise LeaseError(f"{acted} meanwhile: look again")
        if stands.shown and choice in TAKEN:
            label = opened.judgements[TAKEN.index(choice)].label
            choice = "own" if label else "unclear"
        else:
            # Who sees no answers can only give a code.
            if stands.queue == AUDIT or (stands.turn == JUDGE and choice != "unclear"):
                choice = "own"
            try:
                label = self._label(opened, choice, form)
            except UndecidedError as error:
                problems |= error.problems
            except LabelError as error:
                problems["code" if choice == "own" else "choice"] = str(error)
        if reasoned and not (justification or blind or stands.has_judged(reviewer)):
            problems["justification"] = "Say why: the justification is archived with the decision."
        if problems:
            raise UndecidedError(problems)
        return make(
            choice=choice,
            label=label,
            justification=justification,
            insisted=form.insist and choice != "unclear" and not blind,
            independent=stands.turn == JUDGE,
        )

    def archive(self, opened: OpenCase, decision: HumanDecision, leased: bool = False) -> str:
        """Archives a decision on a case that nobody has touched since it was opened.

        Returns the status of the case by it.

        Args:
            leased: Require that the case waits and that the reviewer holds its lease.

        Raises:
            LeaseError: A later decision followed, or the lease is not the reviewer's.
        """
        stands = opened.standing
        decides = not decision.independent or any(map(decision.agrees_with, opened.judgements))
        row = decision_row(decision, stands.queue, decides=decides)
        self.archived.add(row, after=stands.last.sequence if stands.last else 0, leased=leased)
        return row.status

    def _take(self, cases: Sequence[int], reviewer: str) -> int | None:
        now = self._now()
        return self.archived.take(cases, reviewer, now, now + self.lease)

    def _look(self, kind: str) -> tuple[list[int], Mapping[int, Standing[Decision]]]:
        return self._queue.look(AUDIT if kind == AUDIT else DECISION)

    def _reasons(
        self, places: Sequence[int], standings: Mapping[int, Standing[Decision]]
    ) -> dict[int, str]:
        """Returns why cases wait, in a word."""
        reasons = {place: standings[place].reason for place in places}
        self._summarize(place for place, reason in reasons.items() if not reason)
        return {place: reason or self._entries[place].kind for place, reason in reasons.items()}

    def _summarize(self, places: Iterable[int]) -> None:
        """Reads what the queue shows of cases, each once, without the rest of their outcomes."""
        with self._turn:
            new = [place for place in places if place not in self._entries]
            for case in (current.case for current in self._run.cases(places=new)):
                why, reason = _kind_of(case.body["path"]), case.body["reason"] or ""
                start = " ".join(case.description[: 2 * EXCERPT].split())
                excerpt = start if len(start) <= EXCERPT else f"{start[:EXCERPT]}..."
                entry = QueueEntry(case.sequence, case.case, why, reason, excerpt)
                self._entries[case.sequence] = entry

    def _label(self, opened: OpenCase, choice: str | None, form: DecisionForm) -> Label | None:
        """Returns the label that a choice stands for; nothing is repaired."""
        if choice is None or choice in TAKEN:
            raise LabelError("Choose an answer, compose a code, or say that none is right.")
        if choice == "unclear":
            return None
        if choice != "own":
            if (label := opened.outcome.labels.get(choice)) is None:
                raise LabelError(f"{choice} has no code")
            return label
        try:
            return self.read_own(form)
        except AnswerError as error:
            if form.code.strip():
                raise
            problems = {
                f"{ANSWER}{name}": problem if any(form.answer.get(name, [])) else EMPTY
                for name, problem in error.problems.items()
            }
            raise UndecidedError(problems) from None

    def read_own(self, form: DecisionForm) -> Label:
        """Returns the label of an own answer; raises LabelError if it cannot be read."""
        if code := form.code.strip():
            return self.codebook.parse_own(code)
        answer = dict[str, Any]()
        for name, question in self.codebook.questions.items():
            items: list[Any] = [text for text in form.answer.get(name, ()) if text]
            if question.text and items:
                items = [" ".join(items)]
            elif question.number:
                items = [*map(read_number, items)]
            if items or question.optional:
                alone = items[0] if items else None
                answer[name] = items if question.several or len(items) > 1 else alone
        return self.codebook.parse_own(answer.get("", answer) or "")


def write(label: Label) -> dict[str, Any]:
    """Returns the fields of a form that give a label as an own one."""
    answer = {name: [*values] for name, values in label.answers.items()}
    return {"code": str(label), "answer": answer}


def read_number(item: Any) -> Any:
    """Returns the number in a text, as an integer if it is whole, or what is none as it is."""
    with suppress(TypeError, ValueError, OverflowError):
        number = float(item)
        return int(number) if number.is_integer() else number
    return item


def _kind_of(path: Sequence[str]) -> str:
    """Returns why the run left a case open, in a word, by the steps of its decision."""
    step = path[-1].partition(":")[2]
    return "unreadable" if step.endswith("-unreadable") else step
