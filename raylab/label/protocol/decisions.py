"""People's decisions as they are archived, read with the codebook, and confirmed.

A decision is archived at once. The evaluator confirms or refuses its code in the next run of
`jobs/annotate.py` with `resume=true`, unless the person insists or says that no code is right.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial

from raylab.label.archive.run import RunArchive
from raylab.label.codebooks.codebook import Codebook
from raylab.label.input.cases import Case
from raylab.label.judgement import (
    ACCEPTED,
    AUDIT,
    DECIDE,
    DECISION,
    HUMAN,
    JUDGE,
    UNCLEAR,
    UNCONFIRMED,
    UNDO,
    Decision,
    Standing,
    standing,
)
from raylab.label.protocol.outcome import HumanDecision, read_decision
from raylab.label.protocol.protocol import confirm
from raylab.label.protocol.settings import Settings
from raylab.llm.chat import Chat


@dataclass(frozen=True, kw_only=True)
class ReadDecision(Decision):
    """A decision with what the person said, as the codebook reads it."""

    said: HumanDecision


@dataclass(frozen=True)
class DecidedCase(Case):
    """A case with a decision that the evaluator has not judged yet.

    Attributes:
        place: sequence of the decision in the archive.
    """

    decision: HumanDecision = field(kw_only=True)
    place: int = field(kw_only=True)


def decision_row(
    decision: HumanDecision, kind: str = DECISION, *, decides: bool = True
) -> Decision:
    """Returns the archived form of a decision, with the status that its case has from then on.

    Args:
        decides: False for a judgement without an equal one on the same case.
    """
    report = decision.confirmation
    # A code waits for the evaluator, unless the person insists or only audits a decided case.
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
    return Decision(decision.case, action, decision.reviewer, status, body, kind)


def read_row(row: Decision, codebook: Codebook) -> ReadDecision:
    """Reads what a person said in an archived decision."""
    return ReadDecision(**vars(row), said=read_decision(row.body, codebook))


def read_standings(
    rows: Iterable[Decision], codebook: Codebook
) -> dict[str, Standing[ReadDecision]]:
    """Returns what holds on each case of a queue on which people acted or that is drawn, by id.

    Args:
        rows: Those of one kind, in the order in which they were archived.
    """
    by_case = dict[str, list[Decision]]()
    for row in rows:
        by_case.setdefault(row.case, []).append(row)
    read = partial(read_row, codebook=codebook)
    return {case: standing(rows, HUMAN).read(read) for case, rows in by_case.items()}


def unconfirmed_cases(run: RunArchive, codebook: Codebook) -> Iterator[tuple[str, DecidedCase]]:
    """Yields the cases whose decision the evaluator has not judged, each with its generation."""
    for current in run.cases(UNCONFIRMED):
        stored, last = current.case, current.decisions[-1]
        decision = read_decision(last.body, codebook)
        case = DecidedCase(stored.case, stored.description, decision=decision, place=last.sequence)
        yield stored.body["generation"], case


async def confirm_decision(case: DecidedCase, chat: Chat, settings: Settings) -> Decision:
    """Has the evaluator judge the decision on a case; returns its row with the report."""
    decision = case.decision
    assert decision.label is not None
    report = await confirm(case, decision.label, decision.justification, chat, settings)
    return decision_row(decision.model_copy(update={"confirmation": report}))
