"""A person's decision on an open case: its submission, the evaluator's report, its archived row."""

import secrets

from raylab.annotation.input.cases import Case
from raylab.annotation.outcome import HumanDecision, Status
from raylab.annotation.protocol import confirm
from raylab.annotation.settings import Settings
from raylab.archive.records import DecisionRow
from raylab.archive.review.pending import PendingDecision
from raylab.archive.run import RunArchive
from raylab.llm.chat import Chat


def pending_decision(decision: HumanDecision, sequence: int) -> PendingDecision:
    """Returns a new submission of a decision on the case of this sequence, due at once."""
    return PendingDecision(
        sequence=sequence,
        token=secrets.token_hex(32),
        reviewer=decision.reviewer,
        submitted=decision.decided,
        body=decision.model_dump(mode="json"),
        tries=0,
        problem="",
        due=decision.decided,
    )


def are_same(one: PendingDecision, other: PendingDecision) -> bool:
    """Returns whether two submissions say the same; the time of the decision does not count."""
    return one.body | {"decided": None} == other.body | {"decided": None}


async def confirmed(
    decision: HumanDecision, run: RunArchive, chat: Chat, settings: Settings
) -> HumanDecision:
    """Returns a decision with the evaluator's report on its label, if it has one to judge.

    Args:
        decision: On a case of the run.
        run: The archived run.
        chat: Answers the evaluator's call.
        settings: Those of the run.

    Raises:
        LlmError: The evaluator could not be asked, or its reply not be read.
        ArchiveError: The archive fails, or has no such run.
    """
    if decision.classification is None:
        return decision
    stored = run.case(decision.case)
    assert stored is not None
    case = Case(stored.case, stored.description)
    report = await confirm(case, decision.classification, chat, settings)
    return decision.model_copy(update={"confirmation": report})


def decision_row(decision: HumanDecision) -> DecisionRow:
    """Returns the archived form of a judged decision.

    A code that the evaluator refused leaves its case open, and so does a decision taken back.
    """
    body, status = decision.model_dump(mode="json"), status_after(decision)
    return DecisionRow(decision.case, decision.action, decision.reviewer, status, body)


def status_after(decision: HumanDecision) -> Status:
    """Returns the status of the case from this decision on."""
    report = decision.confirmation
    return Status.ACCEPTED if report is not None and report.acceptable else Status.HUMAN
