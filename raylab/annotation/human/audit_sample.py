"""The audit of a run: a random sample of its decided cases, which people code unseen.

Draws and codes lie in the chain of the run. Reviewers see no code of the protocol and no verdict.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from raylab.annotation.accuracy.audit import (
    DECIDED,
    AuditDraw,
    AuditedCase,
    AuditRecord,
    is_drawn,
)
from raylab.annotation.human.open_cases import (
    Typed,
    UndecidedError,
    excerpt_of,
    justification_problem,
)
from raylab.annotation.input.python_objects import is_source
from raylab.annotation.outcome import read_outcome
from raylab.archive.records import (
    CODE,
    DRAW,
    UNDO,
    AuditEntry,
    Draft,
    Lease,
    StoredAuditEntry,
    StoredCase,
)
from raylab.archive.run import RunArchive
from raylab.codebook import Codebook, Label, clean
from raylab.errors import DataError, LabelError, LeaseError
from raylab.runs.run import Run

LISTED = 100
"""Latest codes of a reviewer that are listed."""


@dataclass(frozen=True)
class DrawnCase:
    """A drawn case as a reviewer finds it, without what the protocol made of it.

    Attributes:
        sequence: its number in the run.
        case: its id.
        description: the text to classify.
        source: true if that is source code.
        coded: its code; None while it waits for one.
        lease: the reviewer who works on it; None if nobody does.
        typed: the reviewer's draft.
        saved: time at which it was saved.
    """

    sequence: int
    case: str
    description: str
    source: bool
    coded: AuditedCase | None
    lease: Lease | None
    typed: Typed
    saved: datetime | None

    @property
    def excerpt(self) -> str:
        """The beginning of its description."""
        return excerpt_of(self.description)

    def held_by(self, reviewer: str) -> bool:
        """Returns whether it waits for a code and this reviewer works on it."""
        return self.coded is None and self.lease is not None and self.lease.reviewer == reviewer


class AuditSample:
    """The drawn cases of a run, for any number of reviewers in any number of processes."""

    def __init__(
        self,
        run: RunArchive,
        codebook: Codebook,
        lease: timedelta,
        now: Callable[[], datetime],
    ) -> None:
        """Opens the sample of a run, which may not be drawn yet.

        Args:
            run: The archived run.
            codebook: Its codebook.
            lease: Time for which a case is kept for a reviewer of whom nothing is heard.
            now: Returns the time, with its zone.
        """
        self.codebook = codebook
        self._run, self._audit = run, run.audit()
        self._leases = self._audit.leases()
        self._lease, self._now = lease, now

    def drawn(self) -> int:
        """Returns the number of drawn cases."""
        return self._audit.drawn()

    def waiting(self) -> list[int]:
        """Returns the sequences of the drawn cases without a code, in an order like random."""
        return self._audit.waiting()

    def cases(self, sequences: Sequence[int], reviewer: str) -> list[DrawnCase]:
        """Returns some drawn cases as a reviewer finds them, without taking a lease."""
        leases = self._leases.leases(self._now())
        found = {
            one.case.sequence: self._drawn_case(one.case, last, reviewer, leases)
            for one in self._run.cases_at(sequences)
            if (last := self._audit.last(one.case.case)) is not None
        }
        return [found[sequence] for sequence in sequences if sequence in found]

    def has(self, case: str) -> bool:
        """Returns whether a case is drawn, so that nobody should see its codes."""
        return self._audit.last(case) is not None

    def take_next(self, reviewer: str, after: int = 0) -> int | None:
        """Takes the lease on the next case without a code that nobody works on; None if none is."""
        now = self._now()
        return self._leases.take_next(reviewer, now, now + self._lease, after)

    def open(self, case: int, reviewer: str) -> DrawnCase:
        """Opens a drawn case, and takes or renews its lease if nobody else works on it.

        Raises:
            DataError: The case is not drawn.
        """
        now = self._now()
        self._leases.take(case, reviewer, now, now + self._lease)
        return self._found(case, reviewer)

    def save(self, case: int, reviewer: str, typed: Typed) -> DrawnCase:
        """Keeps what was typed, if anything, even if another works on the case, and opens it.

        Raises:
            DataError: The case is not drawn.
        """
        self._found(case, reviewer)
        if typed.edit:
            self._leases.save(case, reviewer, Draft(**vars(typed), saved=self._now()))
        return self.open(case, reviewer)

    def give_back(self, case: int, reviewer: str) -> None:
        """Leaves a case to others; what was typed is kept."""
        self._leases.give_back(case, reviewer)

    def submit(self, case: int, reviewer: str, typed: Typed) -> None:
        """Archives a person's code. The same one sent twice is one.

        Raises:
            UndecidedError: The code is missing or cannot be read.
            LeaseError: Another reviewer works on the case, or it has a code.
            ArchiveError: The archive fails.
        """
        opened = self.save(case, reviewer, typed)
        code, justification = _checked(typed, self.codebook)
        there = opened.coded
        if there is not None and (there.reviewer, there.code) == (reviewer, str(code)):
            return
        said = AuditedCase(
            case=opened.case,
            code=str(code),
            justification=justification,
            reviewer=reviewer,
            decided=self._now(),
        )
        self._audit.add(code_entry(said), leased=True)

    def undo(self, case: int, reviewer: str) -> None:
        """Takes the reviewer's own code back, by a new entry; the case waits again.

        Raises:
            LeaseError: The code is not the reviewer's, or does not hold any more.
            DataError: The case is not drawn.
        """
        opened = self._found(case, reviewer)
        last = self._audit.last(opened.case)
        if last is None or last.action != CODE or last.reviewer != reviewer:
            raise LeaseError(f"case {opened.case} has no code of {reviewer} that holds")
        self._audit.add(AuditEntry(opened.case, UNDO, reviewer, {}), after=last.sequence)

    def coded_by(self, reviewer: str) -> list[tuple[int, AuditedCase]]:
        """Returns the reviewer's latest codes that hold with the sequences of their cases."""
        coded = [read_code(entry) for entry in self._audit.coded_by(reviewer, LISTED)]
        places = self._run.sequences([one.case for one in coded])
        return [(places[one.case], one) for one in coded]

    def _found(self, case: int, reviewer: str) -> DrawnCase:
        for found in self.cases([case], reviewer):
            return found
        raise DataError(f"case {case} is in no audit: choose one from the list")

    def _drawn_case(
        self,
        case: StoredCase,
        last: StoredAuditEntry,
        reviewer: str,
        leases: Mapping[int, Lease],
    ) -> DrawnCase:
        draft = self._leases.draft(case.sequence, reviewer)
        return DrawnCase(
            sequence=case.sequence,
            case=case.case,
            description=case.description,
            source=is_source(read_outcome(case.body, self.codebook).meta),
            coded=read_code(last) if last.action == CODE else None,
            lease=leases.get(case.sequence),
            typed=Typed(draft.choice, draft.code, draft.justification) if draft else Typed(),
            saved=draft and draft.saved,
        )


def draw_audit(run: RunArchive, share: float, seed: int) -> int:
    """Draws a share of the decided cases; returns the number of those not drawn before.

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
    return run.audit().draw(drawn, AuditDraw(share=share, seed=seed).model_dump(mode="json"))


def adopt_audit(run: Run, archived: RunArchive, seed: int) -> None:
    """Archives an audit that a run has in a file, as audits were kept before; only once."""
    record, audit = run.read_record(AuditRecord), archived.audit()
    if record is None:
        return
    draw_audit(archived, record.share, seed)
    body = AuditDraw(share=record.share, seed=seed).model_dump(mode="json")
    audit.draw([code.case for code in record.codes], body)
    there = {entry.case for entry in audit.entries() if entry.action != DRAW}
    for code in record.codes:
        if code.case not in there:
            audit.add(code_entry(code))


def code_entry(code: AuditedCase) -> AuditEntry:
    """Returns the archived form of a person's code."""
    return AuditEntry(code.case, CODE, code.reviewer, code.model_dump(mode="json"))


def read_code(entry: StoredAuditEntry) -> AuditedCase:
    """Returns the code of an archived entry."""
    return AuditedCase.model_validate(entry.body)


def audited_codes(
    entries: Iterable[StoredAuditEntry], codebook: Codebook
) -> dict[str, Label | None]:
    """Returns each drawn case with its code, by the latest entry on it; None if it has none."""
    return {
        entry.case: codebook.read(read_code(entry).code) if entry.action == CODE else None
        for entry in entries
    }


def _checked(typed: Typed, codebook: Codebook) -> tuple[Label, str]:
    problems: dict[str, str] = {}
    justification, code = clean(typed.justification).strip(), None
    try:
        code = codebook.parse_own(typed.code.strip())
    except LabelError as error:
        problems["code"] = str(error)
    if problem := justification_problem(justification):
        problems["justification"] = problem
    if code is None or problems:
        raise UndecidedError(problems)
    return code, justification
