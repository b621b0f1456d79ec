"""What reviewers do with the open cases of a run, whatever page or program they use for it."""

import asyncio
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

from raylab.annotation.archived import read_decision, read_outcome
from raylab.annotation.calls import ArchiveJournal
from raylab.annotation.human.confirm import settle
from raylab.annotation.human.review_file import UNDO, Choice, chosen_label, human_decision
from raylab.annotation.outcome import HumanDecision, Outcome
from raylab.annotation.run import archive_location, find_annotation_run
from raylab.annotation.settings import protocol_settings
from raylab.archive.records import HUMAN, CurrentCase, Draft, Lease, StoredDecision
from raylab.archive.store import Archive
from raylab.codebook import Codebook, Label
from raylab.config.annotation import LlmConfig
from raylab.config.jobs import AnnotateConfig, ReviewConfig
from raylab.errors import DataError, LabelError, LeaseError
from raylab.llm.client import Client
from raylab.llm.embedded import Embedded, embedded_if_used
from raylab.llm.json_replies import clean
from raylab.taxonomies import choose_codebook

LONGEST_JUSTIFICATION = 10_000
"""Characters."""
RETRIES = 1
"""Attempts after the first to reach the evaluator: a person waits for them, and can send again."""
EXCERPT = 160
"""Characters of a description in the queue."""
TAKEN_BACK = "Taken back by its reviewer."
LISTED = 100
"""Latest decisions of a reviewer that are listed."""
CHOICES: dict[str, Choice] = {"A": "A", "B": "B", "own": "own"}


class UndecidedError(DataError):
    """A decision that lacks something or has a code that cannot be read.

    Attributes:
        problems: What is wrong, by choice, code or justification.
    """

    def __init__(self, problems: dict[str, str]) -> None:
        super().__init__("; ".join(problems.values()))
        self.problems = problems

    def __reduce__(self) -> tuple[type["UndecidedError"], tuple[dict[str, str]]]:
        """Pickles with the problems, not with the message."""
        return type(self), (self.problems,)


@dataclass(frozen=True)
class Typed:
    """What a reviewer has filled in.

    Attributes:
        choice: A, B, own or empty.
        code: the line of an own code.
        justification: why.
        page: the copy of the page it was filled in.
        edit: how many changes had been made there, so that an older text which arrives late does
            not replace a newer one.
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
        kind: why it is open, in a word such as one-acceptable.
        reason: why, in full.
        excerpt: how its description begins.
    """

    sequence: int
    case: str
    kind: str
    reason: str
    excerpt: str


@dataclass(frozen=True)
class Opened:
    """A case as a reviewer finds it.

    Attributes:
        current: the case with all decisions on it.
        outcome: how the run left it.
        lease: who works on it; None if nobody does, as on a settled case.
        typed: what the reviewer has typed here before.
        saved: when that was saved.
    """

    current: CurrentCase
    outcome: Outcome
    lease: Lease | None
    typed: Typed
    saved: datetime | None

    @property
    def kind(self) -> str:
        """Why it is open, as in the queue."""
        return kind_of(self.outcome.path)

    @property
    def waits(self) -> bool:
        """Whether a person must decide."""
        return self.current.status == HUMAN

    def decided_by(self, reviewer: str) -> bool:
        """Whether it is settled, by a decision of this reviewer."""
        decisions = self.current.decisions
        return bool(decisions) and _stands(decisions[-1], reviewer)


@dataclass(frozen=True)
class Decided:
    """A decision of a reviewer's, and whether it is the last word on its case."""

    sequence: int
    decision: HumanDecision
    stands: bool


class Reviews:
    """The open cases of a run, for any number of reviewers in any number of processes.

    Args:
        run: Name of the run.
        config: What it was made with.
        archive: Where it is.
        lease: How long a case is kept for a reviewer of whom nothing is heard.
        embedded: Where the embedded model is served, if the run uses it.
        now: The time, with its zone.

    Raises:
        ArchiveError: The archive has no such run.
    """

    def __init__(
        self,
        run: str,
        config: AnnotateConfig,
        archive: Archive,
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
        self._settings = protocol_settings(config, run, choose_codebook(config.protocol))
        self.codebook = self._settings.codebook
        self._embedded = embedded
        self._now = now
        self._summaries: dict[int, Waiting] = {}

    def queue(self) -> list[Waiting]:
        """The open cases in the order of the run."""
        open_now = self._archive.run(self.run).waiting()
        new = [case for case in open_now if case not in self._summaries]
        self._summaries |= {
            current.case.sequence: _summary(current)
            for current in self._archive.run(self.run).cases_at(new)
        }
        return [self._summaries[case] for case in open_now]

    def leases(self) -> dict[int, Lease]:
        """Who works on which case, by sequence."""
        return self._leases.leases(self._now())

    def drafts(self, reviewer: str) -> set[int]:
        """The cases on which a reviewer has typed something."""
        return self._leases.drafted(reviewer)

    def take_next(self, reviewer: str, kind: str = "", after: int = 0) -> int | None:
        """Takes the lease on the next open case that nobody works on; the first follows the last.

        Args:
            reviewer: Who.
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
        """A case, its lease taken or renewed where it waits and nobody else works on it.

        Raises:
            DataError: The run has no such case.
        """
        if self._current(case).status == HUMAN:
            self._take(case, reviewer)
        return self.look(case, reviewer)

    def look(self, case: int, reviewer: str) -> Opened:
        """A case as it is, without its lease.

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
            typed or _taken_back(current, reviewer, self.codebook) or Typed(),
            draft and draft.saved,
        )

    def save(self, case: int, reviewer: str, typed: Typed) -> Opened:
        """Keeps what was typed, if anything was, whoever works on the case, and opens it.

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
        refuses leaves the case open, and on the reviewer's desk.

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
        choice, code, justification = _checked(typed, outcome, self.codebook)
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
        """The latest decisions of a reviewer, the last one first."""
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
                last[decision.case] is decision and _stands(decision, reviewer),
            )
            for decision in latest
        ]

    async def check(self) -> None:
        """Makes sure that the evaluator's key is there.

        Raises:
            ConfigError: It is not in the environment.
        """
        await self._client().close()

    def _take(self, case: int, reviewer: str) -> bool:
        now = self._now()
        return self._leases.take(case, reviewer, now, now + self._lease)

    def _current(self, case: int) -> CurrentCase:
        for current in self._archive.run(self.run).cases_at([case]):
            return current
        raise DataError(f"run {self.run} has no case {case}: choose one from the queue")

    def _held(self, case: int, reviewer: str) -> CurrentCase:
        """The case as it is once its lease is taken or renewed."""
        if self._take(case, reviewer):
            return self._current(case)
        lease, name = self.leases().get(case), self._current(case).case.case
        who = lease.reviewer if lease else "another reviewer"
        raise LeaseError(
            f"{who} works on case {name} now, which is kept for {self.lease_seconds / 60:g} min "
            "after the last sign of a tab: your text stays, and can be sent when it is given back"
        )

    def _settle(self, decision: HumanDecision) -> HumanDecision:
        async def confirmed() -> HumanDecision:
            async with self._client() as client:
                return await settle(
                    decision, self.run, self._archive, client, self._settings, leased=True
                )

        return asyncio.run(confirmed())

    def _client(self) -> Client:
        # One for each decision: a client that gave an endpoint up does not ask it again.
        journal = ArchiveJournal(self._archive, self.run)
        return Client(self._llm, journal, embedded=self._embedded)


@contextmanager
def open_reviews(config: ReviewConfig) -> Generator[Reviews]:
    """The open cases of the run that a configuration names, while in use.

    Raises:
        RunError: There is no annotation run of this name.
        ArchiveError: Its archive cannot be opened, or does not have it.
        ConfigError: Where its archive is cannot be told.
    """
    assert config.name is not None
    run, made = find_annotation_run(config.storage, config.name, config.archive)
    lease = timedelta(minutes=config.lease_minutes)
    with (
        Archive.open(archive_location(made), create=False) as archive,
        embedded_if_used(made.llm) as embedded,
    ):
        yield Reviews(run.name, made, archive, lease, embedded)


def kind_of(path: Sequence[str]) -> str:
    """Why a case is open, in a word, by the steps of its decision."""
    step = path[-1].partition(":")[2]
    return "unreadable" if step.endswith("-unreadable") else step


def _summary(current: CurrentCase) -> Waiting:
    case = current.case
    start = " ".join(case.description[: 2 * EXCERPT].split())
    excerpt = start if len(start) <= EXCERPT else f"{start[:EXCERPT]}..."
    return Waiting(
        case.sequence, case.case, kind_of(case.body["path"]), case.body["reason"] or "", excerpt
    )


def _checked(typed: Typed, outcome: Outcome, codebook: Codebook) -> tuple[Choice, Label, str]:
    """Choice, code and justification of a decision that is whole."""
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
    elif len(justification) > LONGEST_JUSTIFICATION:
        problems["justification"] = (
            f"The justification has {len(justification):,} characters, at most "
            f"{LONGEST_JUSTIFICATION:,} are archived."
        )
    if problems or choice is None or code is None:
        raise UndecidedError(problems)
    return choice, code, justification


def _stands(decision: StoredDecision, reviewer: str) -> bool:
    """Whether the last decision on a case settled it and is the reviewer's."""
    return decision.reviewer == reviewer and decision.status != HUMAN


def _taken_back(current: CurrentCase, reviewer: str, codebook: Codebook) -> Typed | None:
    """What the reviewer had decided and then took back."""
    if len(current.decisions) < 2 or current.decisions[-1].action != UNDO:
        return None
    decision = read_decision(current.decisions[-2].body, codebook)
    if decision.reviewer != reviewer or decision.classification is None:
        return None
    code = str(decision.classification.label or "")
    own = decision.choice == "own"
    return Typed(decision.choice or "", code if own else "", decision.justification)


def _impatient(llm: LlmConfig) -> LlmConfig:
    """The models, given up after fewer attempts than a run makes."""
    endpoints = {
        name: endpoint.model_copy(
            update={"limits": endpoint.limits.model_copy(update={"retries": RETRIES})}
        )
        for name, endpoint in llm.endpoints.items()
    }
    return llm.model_copy(update={"endpoints": endpoints})
