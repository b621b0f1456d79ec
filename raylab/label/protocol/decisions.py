"""People's decisions on cases, as they are archived and then confirmed.

A decision is archived at once. The evaluator confirms or refuses its code in the next run of
`jobs/annotate.py` with `resume=true`, unless the person insists or says that no code is right.
Where two people judge each case, both see the description alone. If they agree, the second
judgement is the decision; if not, a third person decides, who sees everything.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from raylab.core.errors import DataError
from raylab.label.archive.records import (
    ACCEPTED,
    AUDIT,
    DECIDE,
    DECISION,
    HUMAN,
    JUDGE,
    UNCLEAR,
    UNCONFIRMED,
    UNDO,
    DecisionRow,
    standing_judgements,
)
from raylab.label.archive.run import RunArchive
from raylab.label.codebooks.codebook import Codebook, Label
from raylab.label.input.cases import Case
from raylab.label.protocol.outcome import HumanDecision, read_decision
from raylab.label.protocol.protocol import confirm
from raylab.label.protocol.settings import Settings
from raylab.llm.chat import Chat

MAX_NAME = 60
"""Characters of a reviewer's name."""


@dataclass(frozen=True)
class DecidedCase(Case):
    """A case with a decision that the evaluator has not judged yet.

    Attributes:
        place: its sequence in the archive.
    """

    decision: HumanDecision = field(kw_only=True)
    place: int = field(kw_only=True)


@dataclass(frozen=True)
class JudgedCase:
    """A case with its independent judgements.

    Attributes:
        judgements: those that stand.
        waits: true while the case waits for a person.
    """

    judgements: tuple[HumanDecision, ...]
    waits: bool


def decision_row(
    decision: HumanDecision, kind: str = DECISION, *, decides: bool = True
) -> DecisionRow:
    """Returns the archived form of a decision, with the status that its case has from then on.

    Args:
        decides: False for a judgement without an equal one on the same case.
    """
    report = decision.confirmation
    if decision.choice is None or not decides:
        status = HUMAN
    elif decision.choice == "unclear":
        status = UNCLEAR
    elif decision.insisted or kind == AUDIT:
        status = ACCEPTED
    elif report is None:
        status = UNCONFIRMED
    else:
        status = ACCEPTED if report.acceptable else HUMAN
    action = UNDO if decision.choice is None else JUDGE if decision.independent else DECIDE
    body = decision.model_dump(mode="json")
    return DecisionRow(decision.case, action, decision.reviewer, status, body, kind)


def check_name(reviewer: str) -> str:
    """Returns the name of a reviewer without surplus white space."""
    name = " ".join(reviewer.split())
    if not name or len(name) > MAX_NAME or not name.isprintable():
        raise DataError(f"a reviewer's name has 1 to {MAX_NAME} letters, all of them printable")
    return name


def unconfirmed_cases(run: RunArchive, codebook: Codebook) -> Iterator[tuple[str, DecidedCase]]:
    """Yields the cases whose decision the evaluator has not judged, each with its generation."""
    for current in run.cases(UNCONFIRMED):
        stored, last = current.case, current.decisions[-1]
        decision = read_decision(last.body, codebook)
        case = DecidedCase(stored.case, stored.description, decision=decision, place=last.sequence)
        yield stored.body["generation"], case


async def confirm_decision(case: DecidedCase, chat: Chat, settings: Settings) -> DecisionRow:
    """Has the evaluator judge the decision on a case; returns its row with the report."""
    decision = case.decision
    assert decision.label is not None
    report = await confirm(case, decision.label, decision.justification, chat, settings)
    return decision_row(decision.model_copy(update={"confirmation": report}))


def agree(a: HumanDecision, b: HumanDecision) -> bool:
    """Returns whether two judgements say the same; attributes of a code do not count."""
    if a.label is None or b.label is None:
        return a.choice == b.choice
    return a.label.composition == b.label.composition


def without_lone_judgements(rows: Iterable[DecisionRow]) -> Iterator[DecisionRow]:
    """Yields the rows that decide a case or take a decision back."""
    for row in rows:
        if row.action != JUDGE or row.status != HUMAN or row.body["confirmation"] is not None:
            yield row


def judged_cases(rows: Iterable[DecisionRow], codebook: Codebook) -> dict[str, JudgedCase]:
    """Returns the cases that somebody has judged independently, by id.

    The rows are those of a kind, in the order in which they were archived.
    """
    by_case: dict[str, list[DecisionRow]] = {}
    for row in rows:
        by_case.setdefault(row.case, []).append(row)
    return {
        case: JudgedCase(
            tuple(read_decision(row.body, codebook) for row in standing.values()),
            acts[-1].status == HUMAN,
        )
        for case, acts in by_case.items()
        if (standing := standing_judgements(acts))
    }


def audited_codes(
    entries: Iterable[DecisionRow], codebook: Codebook
) -> dict[str, tuple[Label, ...]]:
    """Returns each case that is drawn for the audit with the codes that people gave it.

    It has one code once it is settled, two while the judgements of two people differ and nobody has
    settled them, and none while it waits for them.

    Args:
        entries: The rows of the audit, in the order in which they were archived.
    """
    by_case = dict[str, list[DecisionRow]]()
    for entry in entries:
        by_case.setdefault(entry.case, []).append(entry)
    codes = dict[str, tuple[Label, ...]]()
    for case, rows in by_case.items():
        standing = [*standing_judgements(rows).values()] if rows[-1].status == HUMAN else rows[-1:]
        is_waiting = rows[-1].status == HUMAN and len(standing) < 2
        decisions = [] if is_waiting else [read_decision(row.body, codebook) for row in standing]
        codes[case] = tuple(each.label for each in decisions if each.label is not None)
    return codes
