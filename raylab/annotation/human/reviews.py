"""The work of reviewers on the open cases of a run: leases, drafts, decisions."""

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from raylab.annotation.human.audit_sample import AuditSample
from raylab.annotation.human.confirm import are_same, decision_row, pending_decision
from raylab.annotation.human.judge import Judge
from raylab.annotation.human.open_cases import (
    Decided,
    Opened,
    Sent,
    Typed,
    Waiting,
    check_typed,
    is_settled_by,
    restore_taken_back,
    summarise,
)
from raylab.annotation.human.review_file import human_decision
from raylab.annotation.outcome import read_decision, read_outcome
from raylab.annotation.settings import protocol_settings
from raylab.archive.records import CurrentCase, Draft, Lease, StoredDecision
from raylab.archive.review.pending import PendingDecision
from raylab.archive.review.sessions import ReviewSessions
from raylab.archive.store import Archive
from raylab.codebook import Codebook
from raylab.config.jobs import AnnotateConfig
from raylab.errors import DataError, LeaseError
from raylab.llm.embedded import Embedded

TAKEN_BACK = "Taken back by its reviewer."
LISTED = 100
"""Latest decisions of a reviewer that are listed."""


class Reviews:
    """The open cases of a run, for any number of reviewers in any number of processes.

    Args:
        run: Name of the run.
        config: Its configuration.
        archive: Its archive.
        codebook: Its codebook.
        lease: Time for which a case is kept for a reviewer of whom nothing is heard.
        embedded: Server of the embedded model, if the run uses it.
        now: Returns the time, with its zone.

    Attributes:
        run: name of the run.
        seed: that of the protocol.
        lease_seconds: time for which a case is kept, as above.
        codebook: that of the run.
        audit: the audit of the decided cases.
        judge: has the decisions judged that are submitted here, once it is at work.

    Raises:
        ArchiveError: The archive has no such run.
    """

    def __init__(
        self,
        run: str,
        config: AnnotateConfig,
        archive: Archive,
        codebook: Codebook,
        lease: timedelta,
        embedded: Embedded | None = None,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self.run = run
        self.seed = config.protocol.seed
        self.lease_seconds = lease.total_seconds()
        self.codebook = codebook
        settings = protocol_settings(config, run, codebook)
        self.judge = Judge(run, archive, settings, config.llm, lease, now, embedded)
        self.audit = AuditSample(archive.run(run), codebook, lease, now)
        self._archive = archive
        self._leases = archive.run(run).leases()
        self._pending = archive.run(run).pending()
        self._lease = lease
        self._now = now
        self._summaries: dict[int, Waiting] = {}

    def queue(self) -> list[Waiting]:
        """Returns the open cases on which no decision waits, in the order of the run."""
        sent = {one.sequence for one in self._pending.all()}
        open_now = [case for case in self._archive.run(self.run).waiting() if case not in sent]
        new = [case for case in open_now if case not in self._summaries]
        self._summaries |= {
            current.case.sequence: summarise(current, self.codebook)
            for current in self._archive.run(self.run).cases_at(new)
        }
        return [self._summaries[case] for case in open_now]

    def leases(self) -> dict[int, Lease]:
        """Returns the leases that hold now, by the sequence of their case."""
        return self._leases.leases(self._now())

    def drafts(self, reviewer: str) -> set[int]:
        """Returns the cases on which a reviewer has typed something."""
        return self._leases.drafted(reviewer)

    def take_next(self, reviewer: str, kind: str = "", after: int = 0) -> int | None:
        """Takes the lease on the next open case that nobody works on; the first follows the last.

        Args:
            reviewer: Name of the reviewer.
            kind: Only cases that are open for this reason.
            after: Sequence of the case that was worked on.

        Returns:
            Its sequence; None if there is none.
        """
        # The reason why a case is open never changes; whether it is, the archive looks up.
        among = [one.sequence for one in self.queue() if one.kind == kind] if kind else None
        now = self._now()
        return self._leases.take_next(reviewer, now, now + self._lease, after, among)

    def open(self, case: int, reviewer: str) -> Opened:
        """Opens a case, and takes or renews its lease if it waits and nobody else works on it.

        Raises:
            DataError: The run has no such case.
        """
        self._take(case, reviewer)
        return self.look(case, reviewer)

    def look(self, case: int, reviewer: str) -> Opened:
        """Returns a case as it is, without taking its lease.

        Raises:
            DataError: The run has no such case.
        """
        current = self._current(case)
        draft, pending = self._leases.draft(case, reviewer), self._pending.on(case)
        typed = Typed(draft.choice, draft.code, draft.justification) if draft else None
        return Opened(
            current,
            read_outcome(current.case.body, self.codebook),
            self.leases().get(case),
            pending and self._sent(pending),
            typed or restore_taken_back(current, reviewer, self.codebook) or Typed(),
            draft and draft.saved,
        )

    def save(self, case: int, reviewer: str, typed: Typed) -> Opened:
        """Keeps what was typed, if anything, even if another works on the case, and opens it.

        Raises:
            DataError: The run has no such case.
        """
        self._current(case)
        if typed.edit:
            self._leases.save(case, reviewer, Draft(**vars(typed), saved=self._now()))
        return self.open(case, reviewer)

    def give_back(self, case: int, reviewer: str) -> None:
        """Leaves a case to others; what was typed is kept."""
        self._leases.give_back(case, reviewer)

    def submit(self, case: int, reviewer: str, typed: Typed) -> None:
        """Accepts a decision, which waits for the evaluator from then on.

        What was typed is saved first, so that no error loses it. A decision that is submitted
        again while it waits is one.

        Raises:
            UndecidedError: Something is missing, or the code cannot be read.
            LeaseError: Another reviewer works on the case, it is settled, or another decision on
                it waits.
            ArchiveError: The archive fails.
        """
        opened = self.save(case, reviewer, replace(typed, edit=max(typed.edit, 1)))
        if opened.pending is None and not opened.held_by(reviewer):
            raise self._lost(opened)
        name = opened.current.case.case
        choice, code, justification = check_typed(typed, opened.outcome, self.codebook)
        decision = human_decision(name, choice, code, justification, reviewer, self._now())
        new = pending_decision(decision, case)
        if not are_same(self._pending.submit(new), new):
            raise self._lost(self.look(case, reviewer))
        self.judge.wake()

    def cancel(self, case: int, reviewer: str) -> None:
        """Takes the reviewer's decision on a case back before it is judged.

        Raises:
            LeaseError: It is judged already.
            ArchiveError: The archive fails.
        """
        if not self._pending.cancel(case, reviewer):
            raise LeaseError(f"no decision of {reviewer} on case {case} waits any more")

    def undo(self, case: int, reviewer: str) -> None:
        """Takes the reviewer's own decision back, by a new record; the case is open again.

        Raises:
            LeaseError: The decision is not the reviewer's, or does not stand any more.
            ArchiveError: The archive fails.
        """
        opened = self.look(case, reviewer)
        if not opened.decided_by(reviewer):
            raise LeaseError(f"case {case} has no decision of {reviewer} that stands")
        name, last = opened.current.case.case, opened.current.decisions[-1].sequence
        undone = human_decision(name, None, None, TAKEN_BACK, reviewer, self._now())
        self._archive.run(self.run).add_decision(decision_row(undone), after=last)

    def sent_by(self, reviewer: str) -> list[Sent]:
        """Returns the decisions of a reviewer that wait for the evaluator, the earliest first."""
        return [self._sent(one) for one in self._pending.all() if one.reviewer == reviewer]

    def refused(self, reviewer: str) -> list[Sent]:
        """Returns the reviewer's latest decisions that the evaluator refused, on open cases."""
        refused = self._archive.run(self.run).refused(reviewer)
        places = self._archive.run(self.run).sequences([one.case for one in refused])
        sent = {one.sequence for one in self._pending.all()}
        return [
            Sent(places[one.case], read_decision(one.body, self.codebook))
            for one in refused
            if places[one.case] not in sent
        ]

    def decided_by(self, reviewer: str) -> list[Decided]:
        """Returns the latest decisions of a reviewer, the last one first."""
        last: dict[str, StoredDecision] = {}
        made: list[StoredDecision] = []
        for decision in self._archive.run(self.run).decisions():
            last[decision.case] = decision
            if decision.reviewer == reviewer:
                made.append(decision)
        latest = made[: -LISTED - 1 : -1]
        places = self._archive.run(self.run).sequences([decision.case for decision in latest])
        return [
            Decided(
                places[decision.case],
                read_decision(decision.body, self.codebook),
                last[decision.case] is decision and is_settled_by(decision, reviewer),
            )
            for decision in latest
        ]

    def sessions(self) -> ReviewSessions:
        """Returns the sessions of the run's reviewers."""
        return self._archive.run(self.run).sessions()

    def _take(self, case: int, reviewer: str) -> bool:
        now = self._now()
        return self._leases.take(case, reviewer, now, now + self._lease)

    def _current(self, case: int) -> CurrentCase:
        for current in self._archive.run(self.run).cases_at([case]):
            return current
        raise DataError(f"run {self.run} has no case {case}: choose one from the queue")

    def _lost(self, opened: Opened) -> LeaseError:
        """Returns the error of a decision on a case that is not the reviewer's to decide."""
        name = opened.current.case.case
        if opened.pending is not None:
            who = opened.pending.decision.reviewer
            return LeaseError(
                f"a decision of {who} on case {name} waits for the evaluator: your text stays"
            )
        if not opened.waits:
            return LeaseError(f"case {name} does not wait any more: your text is kept")
        who = opened.lease.reviewer if opened.lease else "another reviewer"
        return LeaseError(
            f"{who} works on case {name} now, which is kept for {self.lease_seconds / 60:g} min "
            "after the last sign of a tab: your text stays, and can be sent when it is given back"
        )

    def _sent(self, one: PendingDecision) -> Sent:
        decision = read_decision(one.body, self.codebook)
        if self.judge.obstacle:
            return Sent(one.sequence, decision, self.judge.obstacle)
        return Sent(one.sequence, decision, one.problem, one.due if one.problem else None)
