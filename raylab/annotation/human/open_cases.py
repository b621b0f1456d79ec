"""A reviewer's view of open cases: the queue, an opened case, and the form filled in on it."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from raylab.annotation.human.review_file import UNDO, Choice, chosen_label
from raylab.annotation.outcome import HumanDecision, Outcome, read_decision, read_outcome
from raylab.archive.records import HUMAN, CurrentCase, Lease, StoredDecision
from raylab.codebook import Codebook, Label, clean
from raylab.errors import DataError, LabelError

LONGEST_JUSTIFICATION = 10_000
"""Characters."""
EXCERPT = 160
"""Characters of a description in the queue."""
CHOICES: dict[str, Choice] = {"A": "A", "B": "B", "own": "own"}


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
        choice: A, B, own or empty.
        code: the line of an own code.
        justification: the reason.
        page: the copy of the page that it was filled in on.
        edit: number of changes made there; an older text that arrives late does not replace a
            newer one.
    """

    choice: str = ""
    code: str = ""
    justification: str = ""
    page: str = ""
    edit: int = 1


@dataclass(frozen=True)
class Waiting:
    """An open case in the queue.

    Attributes:
        sequence: its number in the run.
        case: its id.
        kind: the reason why it is open, in a word such as one-acceptable.
        reason: the same in full.
        excerpt: the beginning of its description.
    """

    sequence: int
    case: str
    kind: str
    reason: str
    excerpt: str


@dataclass(frozen=True)
class Sent:
    """A reviewer's decision that waits for the evaluator, or was refused by it.

    Attributes:
        sequence: number of its case in the run.
        decision: the decision; it has a report once it is judged.
        problem: reason why the evaluator could not be asked; empty if it was not tried or has
            not answered yet.
        due: time at which it is asked again, if there was a problem.
    """

    sequence: int
    decision: HumanDecision
    problem: str = ""
    due: datetime | None = None


@dataclass(frozen=True)
class Opened:
    """A case as a reviewer finds it.

    Attributes:
        current: the case with all decisions on it.
        outcome: its outcome at the end of the run.
        lease: the reviewer who works on it; None if nobody does, as on a settled case.
        pending: the decision on it that waits for the evaluator, if any.
        typed: the reviewer's draft.
        saved: time at which it was saved.
    """

    current: CurrentCase
    outcome: Outcome
    lease: Lease | None
    pending: Sent | None
    typed: Typed
    saved: datetime | None

    @property
    def kind(self) -> str:
        """The reason why it is open, as in the queue."""
        return kind_of(self.outcome.path)

    @property
    def waits(self) -> bool:
        """True while a person must decide."""
        return self.current.status == HUMAN and self.pending is None

    def held_by(self, reviewer: str) -> bool:
        """Returns whether it waits for this reviewer, who works on it."""
        return self.waits and self.lease is not None and self.lease.reviewer == reviewer

    def decided_by(self, reviewer: str) -> bool:
        """Returns whether it is settled, by a decision of this reviewer."""
        decisions = self.current.decisions
        return bool(decisions) and is_settled_by(decisions[-1], reviewer)


@dataclass(frozen=True)
class Decided:
    """A decision of a reviewer; `stands` if it settles its case and no later one followed."""

    sequence: int
    decision: HumanDecision
    stands: bool


def kind_of(path: Sequence[str]) -> str:
    """Returns why a case is open, in a word, by the steps of its decision."""
    step = path[-1].partition(":")[2]
    return "unreadable" if step.endswith("-unreadable") else step


def summarise(current: CurrentCase, codebook: Codebook) -> Waiting:
    """Returns a case as the queue shows it."""
    case, outcome = current.case, read_outcome(current.case.body, codebook)
    kind, excerpt = kind_of(outcome.path), excerpt_of(case.description)
    return Waiting(case.sequence, case.case, kind, outcome.reason or "", excerpt)


def excerpt_of(description: str) -> str:
    """Returns the beginning of a description on one line."""
    start = " ".join(description[: 2 * EXCERPT].split())
    return start if len(start) <= EXCERPT else f"{start[:EXCERPT]}..."


def check_typed(typed: Typed, outcome: Outcome, codebook: Codebook) -> tuple[Choice, Label, str]:
    """Returns choice, label and justification of a complete decision.

    Raises:
        UndecidedError: Something is missing, too long or cannot be read.
    """
    problems: dict[str, str] = {}
    choice, code = CHOICES.get(typed.choice), None
    justification = clean(typed.justification).strip()
    if choice is None:
        problems["choice"] = "Choose A or B, or compose a code."
    else:
        try:
            code = chosen_label(choice, typed.code.strip(), outcome, codebook)
        except LabelError as error:
            problems["code" if choice == "own" else "choice"] = str(error)
    if not justification:
        problems["justification"] = "Say why: the justification is archived with the decision."
    elif problem := justification_problem(justification):
        problems["justification"] = problem
    if problems or choice is None or code is None:
        raise UndecidedError(problems)
    return choice, code, justification


def justification_problem(justification: str) -> str:
    """Returns what is wrong with a justification that is given; empty if nothing is."""
    if len(justification) <= LONGEST_JUSTIFICATION:
        return ""
    return (
        f"The justification has {len(justification):,} characters, at most "
        f"{LONGEST_JUSTIFICATION:,} are archived."
    )


def is_settled_by(decision: StoredDecision, reviewer: str) -> bool:
    """Returns whether the last decision on a case settled it and is the reviewer's."""
    return decision.reviewer == reviewer and decision.status != HUMAN


def restore_taken_back(current: CurrentCase, reviewer: str, codebook: Codebook) -> Typed | None:
    """Returns what the reviewer had decided and then took back; None if nothing."""
    if len(current.decisions) < 2 or current.decisions[-1].action != UNDO:
        return None
    decision = read_decision(current.decisions[-2].body, codebook)
    if decision.reviewer != reviewer or decision.classification is None:
        return None
    code = str(decision.classification.label or "")
    own = decision.choice == "own"
    return Typed(decision.choice or "", code if own else "", decision.justification)
