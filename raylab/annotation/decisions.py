"""People's decisions: what a person says of a case, as it is archived and then confirmed.

A decision is archived at once. The evaluator confirms or refuses its code in the next run of
`jobs/annotate.py` with `resume=true`, unless the person insists or says that no code is right.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime

from raylab.annotation.input.cases import Case
from raylab.annotation.outcome import (
    Choice,
    Classification,
    HumanDecision,
    Outcome,
    read_decision,
)
from raylab.annotation.protocol import confirm
from raylab.annotation.settings import Settings
from raylab.archive.records import (
    ACCEPTED,
    DECISION,
    DRAW,
    HUMAN,
    UNCLEAR,
    UNCONFIRMED,
    DecisionRow,
    StoredDecision,
)
from raylab.archive.run import RunArchive
from raylab.codebook import Codebook, Label
from raylab.errors import DataError, LabelError
from raylab.llm.chat import Chat

LONGEST_NAME = 60
"""Characters of a reviewer's name."""


@dataclass(frozen=True)
class DecidedCase(Case):
    """A case with a decision on it that the evaluator has not judged yet.

    Attributes:
        decision: the decision.
        place: its sequence in the archive.
    """

    decision: HumanDecision = field(kw_only=True)
    place: int = field(kw_only=True)


def make_decision(
    case: str,
    choice: Choice | None,
    label: Label | None,
    justification: str,
    reviewer: str,
    decided: datetime,
    insisted: bool = False,
) -> HumanDecision:
    """Returns a decision that no evaluator has judged; without a choice it takes one back."""
    return HumanDecision(
        case=case,
        action="undo" if choice is None else "decide",
        choice=choice,
        insisted=insisted,
        classification=None
        if label is None
        else Classification(label=label, rationale=justification, format="strict"),
        justification=justification,
        reviewer=reviewer,
        confirmation=None,
        decided=decided,
    )


def chosen_label(choice: Choice, text: str, outcome: Outcome, codebook: Codebook) -> Label | None:
    """Returns the label that a person's choice stands for; None if it is `unclear`.

    Args:
        choice: What the person chose.
        text: The line of an own label; nothing is repaired.
        outcome: The outcome with the answers to choose from.
        codebook: Reads an own label.

    Raises:
        LabelError: The side has no label, or the text is none.
    """
    if choice == "unclear":
        return None
    if choice == "own":
        return codebook.parse_own(text)
    label = outcome.label_of(choice)
    if label is None:
        raise LabelError(f"{choice} has no code")
    return label


def decision_row(decision: HumanDecision, kind: str = DECISION) -> DecisionRow:
    """Returns the archived form of a decision, with the status that its case has from then on."""
    status = _status_after(decision) if kind == DECISION or decision.action == "undo" else ACCEPTED
    body = decision.model_dump(mode="json")
    return DecisionRow(decision.case, decision.action, decision.reviewer, status, body, kind)


def say_same(one: HumanDecision, other: HumanDecision) -> bool:
    """Returns whether two decisions say the same; their times and reports do not count."""
    changes = {"decided": other.decided, "confirmation": other.confirmation}
    return one.model_copy(update=changes) == other


def check_name(reviewer: str) -> str:
    """Returns the name of a reviewer without surplus white space.

    Raises:
        DataError: It is empty, too long or holds characters that cannot be printed.
    """
    name = " ".join(reviewer.split())
    if not name or len(name) > LONGEST_NAME or not name.isprintable():
        raise DataError(f"a reviewer's name has 1 to {LONGEST_NAME} letters, all of them printable")
    return name


def unconfirmed_cases(run: RunArchive, codebook: Codebook) -> Iterator[tuple[str, DecidedCase]]:
    """Yields the cases whose decision the evaluator has not judged, each with its generation.

    Raises:
        ArchiveError: The archive fails.
    """
    for current in run.current_cases(UNCONFIRMED):
        stored, last = current.case, current.decisions[-1]
        yield (
            stored.body["generation"],
            DecidedCase(
                stored.case,
                stored.description,
                decision=read_decision(last.body, codebook),
                place=last.sequence,
            ),
        )


async def confirm_decision(case: DecidedCase, chat: Chat, settings: Settings) -> DecisionRow:
    """Has the evaluator judge the decision on a case; returns its row with the report.

    Raises:
        LlmError: As `raylab.annotation.protocol.course.confirm`; the decision stays unconfirmed.
    """
    decision = case.decision
    assert decision.classification is not None
    report = await confirm(case, decision.classification, chat, settings)
    return decision_row(decision.model_copy(update={"confirmation": report}))


def audited_codes(entries: Iterable[StoredDecision], codebook: Codebook) -> dict[str, Label | None]:
    """Returns each case that is drawn for the audit with its code; None if it has none.

    Args:
        entries: The rows of the audit, in the order in which they were archived.
        codebook: That of the run.
    """
    codes: dict[str, Label | None] = {}
    for entry in entries:
        decision = None if entry.action == DRAW else read_decision(entry.body, codebook)
        classification = decision and decision.classification
        codes[entry.case] = classification and classification.label
    return codes


def _status_after(decision: HumanDecision) -> str:
    if decision.action == "undo":
        return HUMAN
    if decision.choice == "unclear":
        return UNCLEAR
    if decision.insisted:
        return ACCEPTED
    report = decision.confirmation
    if report is None:
        return UNCONFIRMED
    return ACCEPTED if report.acceptable else HUMAN
