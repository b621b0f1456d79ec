"""The work of reviewers on the open cases of a run: leases, drafts, decisions."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from raylab.annotation.archived import read_decision, read_outcome
from raylab.annotation.calls import client_of_run
from raylab.annotation.human.confirm import settle
from raylab.annotation.human.open_cases import (
    Decided,
    Opened,
    Typed,
    Waiting,
    check_typed,
    is_settled_by,
    restore_taken_back,
    summarise,
)
from raylab.annotation.human.review_file import human_decision
from raylab.annotation.outcome import HumanDecision
from raylab.annotation.settings import protocol_settings
from raylab.archive.records import HUMAN, CurrentCase, Draft, Lease, StoredDecision
from raylab.archive.store import Archive
from raylab.codebook import Codebook
from raylab.config.annotation import LlmConfig
from raylab.config.jobs import AnnotateConfig
from raylab.errors import DataError, LeaseError
from raylab.llm.client import Client
from raylab.llm.embedded import Embedded

DEADLINE_SECONDS = 10.0
"""Time to reach the evaluator: a person waits for it, and can send again."""
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
        self._archive = archive
        self._leases = archive.run(run).leases()
        self._lease = lease
        self._llm = _impatient(config.llm)
        self._settings = protocol_settings(config, run, codebook)
        self.codebook = codebook
        self._embedded = embedded
        self._now = now
        self._summaries: dict[int, Waiting] = {}

    def queue(self) -> list[Waiting]:
        """Returns the open cases in the order of the run."""
        open_now = self._archive.run(self.run).waiting()
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
        cases = [one.sequence for one in self.queue() if kind in ("", one.kind)]
        others = [case for case in cases if case != after]
        ordered = [case for case in others if case > after] + [c for c in others if c < after]
        return next((case for case in ordered if self._take(case, reviewer)), None)

    def open(self, case: int, reviewer: str) -> Opened:
        """Opens a case, and takes or renews its lease if it waits and nobody else works on it.

        Raises:
            DataError: The run has no such case.
        """
        if self._current(case).status == HUMAN:
            self._take(case, reviewer)
        return self.look(case, reviewer)

    def look(self, case: int, reviewer: str) -> Opened:
        """Returns a case as it is, without taking its lease.

        Raises:
            DataError: The run has no such case.
        """
        current = self._current(case)
        draft = self._leases.draft(case, reviewer)
        typed = Typed(draft.choice, draft.code, draft.justification) if draft else None
        return Opened(
            current,
            read_outcome(current.case.body, self.codebook),
            self.leases().get(case),
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

    def decide(self, case: int, reviewer: str, typed: Typed) -> HumanDecision:
        """Has the evaluator confirm a decision and archives it.

        What was typed is saved first, so that no error loses it. A code that the evaluator
        refuses leaves the case open and the lease with the reviewer.

        Raises:
            UndecidedError: Something is missing, or the code cannot be read.
            LeaseError: Another reviewer works on the case, or it is settled.
            LlmError: The evaluator could not be asked; nothing is archived.
            ArchiveError: The archive fails.
        """
        self.save(case, reviewer, replace(typed, edit=max(typed.edit, 1)))
        current = self._held(case, reviewer)
        name, outcome = current.case.case, read_outcome(current.case.body, self.codebook)
        if current.status != HUMAN:
            self.give_back(case, reviewer)
            raise LeaseError(f"case {name} does not wait any more: your text is kept")
        choice, code, justification = check_typed(typed, outcome, self.codebook)
        return self._settle(
            human_decision(name, choice, code, justification, reviewer, self._now())
        )

    def undo(self, case: int, reviewer: str) -> None:
        """Takes the reviewer's own decision back, by a new record; the case is open again.

        Raises:
            LeaseError: The decision is not the reviewer's, or does not stand any more.
            ArchiveError: The archive fails.
        """
        if not self.look(case, reviewer).decided_by(reviewer):
            raise LeaseError(f"case {case} has no decision of {reviewer} that stands")
        name = self._held(case, reviewer).case.case
        self._settle(human_decision(name, None, None, TAKEN_BACK, reviewer, self._now()))

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

    async def check(self) -> None:
        """Checks that the evaluator's key is there.

        Raises:
            ConfigError: It is not in the environment.
        """
        await self._client("").close()

    def _take(self, case: int, reviewer: str) -> bool:
        now = self._now()
        return self._leases.take(case, reviewer, now, now + self._lease)

    def _current(self, case: int) -> CurrentCase:
        for current in self._archive.run(self.run).cases_at([case]):
            return current
        raise DataError(f"run {self.run} has no case {case}: choose one from the queue")

    def _held(self, case: int, reviewer: str) -> CurrentCase:
        """Takes or renews the lease of a case and returns the case as it is then."""
        if self._take(case, reviewer):
            return self._current(case)
        lease, name = self.leases().get(case), self._current(case).case.case
        who = lease.reviewer if lease else "another reviewer"
        raise LeaseError(
            f"{who} works on case {name} now, which is kept for {self.lease_seconds / 60:g} min "
            "after the last sign of a tab: your text stays, and can be sent when it is given back"
        )

    def _settle(self, decision: HumanDecision) -> HumanDecision:
        async def confirmed(owner: str) -> HumanDecision:
            async with self._client(owner) as client:
                return await settle(
                    decision, self.run, self._archive, client, self._settings, leased=True
                )

        with self._archive.run(self.run).own(wait=True) as owner:
            return asyncio.run(confirmed(owner.token))

    def _client(self, owner: str) -> Client:
        # One for each decision: a client that gave an endpoint up does not ask it again.
        return client_of_run(self._llm, self._archive, self.run, owner, self._embedded)


def _impatient(llm: LlmConfig) -> LlmConfig:
    """Returns the models with a shorter deadline than that of a run."""
    endpoints = {
        name: endpoint.model_copy(
            update={"limits": endpoint.limits.model_copy(update={"deadline": DEADLINE_SECONDS})}
        )
        for name, endpoint in llm.endpoints.items()
    }
    return llm.model_copy(update={"endpoints": endpoints})
