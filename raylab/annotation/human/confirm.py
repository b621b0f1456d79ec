"""A person's decision on an open case: confirmed by the evaluator, then archived."""

from raylab.annotation.cases import Case
from raylab.annotation.outcome import Evaluation, HumanDecision, Status
from raylab.annotation.protocol import Settings, confirm
from raylab.archive.records import DecisionRow
from raylab.archive.store import Archive
from raylab.llm.chat import Chat


async def settle(
    decision: HumanDecision,
    run: str,
    archive: Archive,
    chat: Chat,
    settings: Settings,
    leased: bool = False,
) -> HumanDecision:
    """Has the evaluator judge the decided code, and archives the decision with its report.

    A code that the evaluator refuses leaves its case open, and so does a decision taken back.

    Args:
        decision: On a case of the run; it is not archived unless this returns.
        run: Name of the run.
        archive: Its archive.
        chat: Answers the evaluator's call.
        settings: Those of the run.
        leased: Take it only from the reviewer who holds the case's lease.

    Raises:
        LlmError: The evaluator could not be asked, or its reply not be read.
        LeaseError: The lease is another reviewer's by now.
        ArchiveError: The archive fails, or has no such run or case.
    """
    report = await _report(decision, run, archive, chat, settings)
    settled = decision.model_copy(update={"confirmation": report})
    body, status = settled.model_dump(mode="json"), status_after(settled)
    row = DecisionRow(settled.case, settled.action, settled.reviewer, status, body)
    archive.run(run).add_decision(row, leased)
    return settled


def status_after(decision: HumanDecision) -> Status:
    """Returns the status of the case from this decision on."""
    report = decision.confirmation
    return Status.ACCEPTED if report is not None and report.acceptable else Status.HUMAN


async def _report(
    decision: HumanDecision, run: str, archive: Archive, chat: Chat, settings: Settings
) -> Evaluation | None:
    """Returns the evaluator's report on the label; None if there is none to judge."""
    if decision.classification is None:
        return None
    stored = archive.run(run).case(decision.case)
    assert stored is not None
    case = Case(stored.case, stored.description)
    return await confirm(case, decision.classification, chat, settings)
