"""Cases in a file for people to fill in, and what they decided back: one row type for both queues.

A file is JSONL, a case a row. An open case comes with its answers, in an order drawn by the seed
and without the models' names or a gold code; a case drawn for the audit with its description alone.
The last four keys are for the person to fill in.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, StringConstraints, ValidationError

from raylab.annotation.decisions import check_name, decision_row
from raylab.annotation.outcome import Choice, Classification, Evaluation, HumanDecision
from raylab.annotation.protocol import draw_order
from raylab.annotation.reviews import Opened, Reviews, Typed, UndecidedError
from raylab.archive.records import HUMAN, UNCONFIRMED
from raylab.bounded import lines, parse_json
from raylab.config.base import Strict
from raylab.config.schema import problems_of
from raylab.errors import DataError, LeaseError, RunError

SHOWN_PROBLEMS = 50
LONGEST_PROBLEM = 500
"""Characters; a problem may quote what stands in the file."""
SHOWN_OF_REPORT = {"verdict", "score", "issues", "summary", "contradictory", "caps"}
OTHER_CHOICES: tuple[Choice | Literal["undo"], ...] = ("unclear", "undo")
"""What a decision may say beside the name of an answer or a code."""

Filled = Annotated[
    str,
    BeforeValidator(lambda value: "" if value is None else value),
    StringConstraints(strip_whitespace=True),
]
"""Text that a person fills in; null is empty."""


class ReviewRow(Strict):
    """A case of a file."""

    case: str
    queue: Literal["decision", "audit"] | None = None
    """What the case waits for."""
    reason: str | None = None
    """The reason why the case is open."""
    description: str | None = None
    candidates: tuple[dict[str, Any], ...] = ()
    """The answers, each with its name (A, B, ...), code (its line; null if none could be
    read), rationale, problem (why no code could be read) and the evaluator's report."""
    adjudicated: dict[str, Any] | None = None
    """The adjudicator's proposal, which was not confirmed."""
    decision: Filled = ""
    """The name of an answer, unclear, undo or the line of another label; of an audit a line or
    undo."""
    insist: bool = False
    """Decide over the evaluator, which is not asked then."""
    justification: Filled = ""
    reviewer: Filled = ""


@dataclass(frozen=True)
class Import:
    """The decisions of a file.

    Attributes:
        read: their number.
        new: number of those that are archived now; the others were there before.
        unconfirmed: number of the new ones that the evaluator must judge.
        left_out: sentences on those that another reviewer's decision stands against.
    """

    read: int
    new: int
    unconfirmed: int
    left_out: tuple[str, ...]


def write_rows(path: Path, reviews: Reviews, kind: str = "") -> int:
    """Writes the waiting cases of a queue to a new file; returns their number.

    Args:
        path: The file.
        reviews: Reviews of the run.
        kind: As of `Reviews.queue`.

    Raises:
        RunError: The file exists, or cannot be written.
        ArchiveError: The archive fails.
    """
    waiting = reviews.queue(kind)
    try:
        with path.open("x", encoding="utf-8") as file:
            for case in waiting:
                row = _row(reviews.look(case.sequence), reviews.seed).model_dump(mode="json")
                file.write(f"{json.dumps(row, ensure_ascii=False)}\n")
    except FileExistsError as error:
        raise RunError(
            f"{path} exists: archive the decisions in it by import={path}, or give export= "
            "another file"
        ) from error
    except OSError as error:
        raise RunError(f"{path} cannot be written ({error}): give export= another file") from error
    return len(waiting)


def _row(opened: Opened, seed: int) -> ReviewRow:
    case, outcome = opened.case, opened.outcome
    if opened.hides():
        return ReviewRow(case=case.case, queue="audit", description=case.description)
    adjudication = outcome.adjudication
    return ReviewRow(
        case=case.case,
        queue="decision",
        reason=outcome.reason,
        description=case.description,
        candidates=tuple(
            _shown(side, outcome.answers[side].classification, outcome.evaluation(side))
            for side in draw_order(seed, case.case, outcome.answers)
        ),
        adjudicated=adjudication
        and _shown("adjudicator", adjudication.classification, adjudication.confirmation),
    )


def _shown(name: str, answer: Classification, report: Evaluation | None) -> dict[str, Any]:
    """Returns an answer as a person sees it, without the name of its model."""
    return {
        "name": name,
        "code": None if answer.label is None else str(answer.label),
        "rationale": answer.rationale,
        "problem": answer.problem,
        "report": report and report.model_dump(mode="json", include=SHOWN_OF_REPORT),
    }


def import_rows(path: Path, reviews: Reviews, reviewer: str | None = None) -> Import:
    """Archives the decisions of a file: all of them, or none if rows cannot be used.

    Args:
        path: The file.
        reviews: Reviews of the run.
        reviewer: Reviewer of rows that name none.

    Raises:
        DataError: The file cannot be read, or rows cannot be used; every such row is named with
            its line, the value and what is expected.
        ArchiveError: The archive fails.
    """
    decided = _read_decisions(path, reviews, reviewer)
    new: list[str] = []
    left_out: list[str] = []
    for opened, decision in decided:
        if opened.says(decision):
            continue
        if reason := _archive(reviews, opened, decision):
            left_out.append(reason)
        else:
            new.append(decision_row(decision, opened.queue).status)
    return Import(len(decided), len(new), new.count(UNCONFIRMED), tuple(left_out))


def _archive(reviews: Reviews, opened: Opened, decision: HumanDecision) -> str | None:
    """Archives a decision, or returns why it is left out."""
    last = opened.last and opened.last.decision
    if not opened.waits and last is not None and last.reviewer != decision.reviewer:
        return f"case {decision.case} is decided by {last.reviewer}"
    try:
        reviews.archive(opened, decision)
    except LeaseError as error:
        return str(error)
    return None


def _read_decisions(
    path: Path, reviews: Reviews, reviewer: str | None
) -> list[tuple[Opened, HumanDecision]]:
    decided: dict[str, tuple[Opened, HumanDecision]] = {}
    problems: list[str] = []
    for place, line in _lines(path):
        try:
            row = _read_row(line)
            if row.case in decided:
                raise DataError(f"case {row.case} is decided in an earlier row already")
            if row.decision or row.justification:
                decided[row.case] = _decide(row, reviews, reviewer or "")
        except DataError as error:
            problems.append(f"\n  {place}: {str(error)[:LONGEST_PROBLEM]}")
    if problems:
        more = len(problems) - SHOWN_PROBLEMS
        raise DataError(
            f"{path} has rows that cannot be used, so none was imported; mend them and import "
            f"again:{''.join(problems[:SHOWN_PROBLEMS])}"
            + (f"\n  and {more} rows more" if more > 0 else "")
        )
    return list(decided.values())


def _lines(path: Path) -> Iterator[tuple[str, bytes]]:
    """Yields the lines that are not blank, each with its place."""
    try:
        with path.open("rb") as file:
            for number, line in lines(file, str(path)):
                yield f"{path}:{number}", line
    except OSError as error:
        raise DataError(
            f"{path} cannot be read: {error}; export= of jobs/review.py writes such a file"
        ) from error


def _read_row(line: bytes) -> ReviewRow:
    try:
        return ReviewRow.model_validate(parse_json(line, "the row"))
    except ValidationError as error:
        problem = problems_of(ReviewRow, error)[0]
        raise DataError(f"{problem}; leave the rows as they were exported") from error


def _decide(row: ReviewRow, reviews: Reviews, reviewer: str) -> tuple[Opened, HumanDecision]:
    """Returns the case of a filled-in row, and its decision."""
    label = reviews.codebook.label_name
    if not row.decision:
        raise DataError(
            f"case {row.case} has a justification and no decision: fill in the name of "
            f"an answer, unclear or {label} line, or empty the justification to leave the case open"
        )
    opened = reviews.look(row.case)
    _check_case(row, opened)
    choices = (*opened.outcome.answers, *OTHER_CHOICES)
    named = [choice for choice in choices if choice.casefold() == row.decision.casefold()]
    typed = Typed(
        choice=named[0] if named else "own",
        code=row.decision,
        justification=row.justification,
        insist=row.insist,
    )
    try:
        return opened, reviews.decide(opened, check_name(row.reviewer or reviewer), typed)
    except UndecidedError as error:
        if reason := error.problems.get("code"):
            reason = f"{row.decision!r} is none of {', '.join(choices)} and not {label}: {reason}"
        raise DataError(f"case {row.case}: {reason or error}") from error


def _check_case(row: ReviewRow, opened: Opened) -> None:
    """Refuses a row that is not about the case as it was exported."""
    if not opened.hides() and opened.case.status != HUMAN:
        raise DataError(
            f"case {row.case} is {opened.case.status}, no person was asked: remove the row"
        )
    if row.description not in (None, opened.case.description):
        raise DataError(
            f"the description of case {row.case} is not the one that was classified: leave it as "
            "it was exported"
        )
