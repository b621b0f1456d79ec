"""A person's decision on an open case: the evaluator's report on it, and its row in the archive."""

from raylab.annotation.cases import Case
from raylab.annotation.outcome import HumanDecision, Status
from raylab.annotation.protocol import Settings, confirm
from raylab.archive.records import DecisionRow
from raylab.archive.run import RunArchive
from raylab.llm.chat import Chat


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
