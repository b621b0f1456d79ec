"""Cases in a file for people to fill in, and what they decided back: one row type for both queues.

A file is JSONL, a case a row. An open case comes with its answers, in an order drawn by the seed
and without the models' names or a gold code; a case drawn for the audit with its description alone.
The last four keys are for the person to fill in.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BeforeValidator, StringConstraints, ValidationError

from raylab.annotation.decisions import check_name, decision_row
from raylab.annotation.outcome import (
    Classification,
    Evaluation,
    HumanDecision,
    Outcome,
    Side,
    Verdict,
    read_outcome,
)
from raylab.annotation.protocol import draw_order
from raylab.annotation.reviews import CHOICES, Opened, Reviews, Typed, UndecidedError
from raylab.archive.records import AUDIT, DECISION, HUMAN, UNCONFIRMED
from raylab.archive.run import RunArchive
from raylab.bounded import lines, parse_json
from raylab.config.base import Strict
from raylab.config.schema import problems_of
from raylab.errors import DataError, LeaseError, RunError

UNDO = "undo"
SHOWN_PROBLEMS = 50
LONGEST_PROBLEM = 500
"""Characters; a problem may quote what stands in the file."""

Filled = Annotated[
    str,
    BeforeValidator(lambda value: "" if value is None else value),
    StringConstraints(strip_whitespace=True),
]
"""Text that a person fills in; null is empty."""


class ShownReport(Strict):
    """The part of an evaluator's report that a person sees."""

    verdict: Verdict
    score: int
    issues: tuple[str, ...]
    summary: str
    contradictory: bool
    caps: tuple[str, ...]


class ShownAnswer(Strict):
    """An answer as a person sees it, without the name of its model."""

    name: Side | Literal["adjudicator"]
    opt: str | None
    """The line of its label; None if none could be read."""
    rationale: str
    problem: str | None
    """The reason why no label could be read."""
    report: ShownReport | None


class ReviewRow(Strict):
    """A case of a file."""

    case: str
    queue: Literal["decision", "audit"] | None = None
    """What the case waits for."""
    reason: str | None = None
    """The reason why the case is open."""
    description: str | None = None
    candidates: tuple[ShownAnswer, ...] = ()
    adjudicated: ShownAnswer | None = None
    """The adjudicator's proposal, which was not confirmed."""
    decision: Filled = ""
    """A, B, unclear, undo or the line of another label; of an audit a line or undo."""
    insist: bool = False
    """Decide over the evaluator, which is not asked then."""
    justification: Filled = ""
    reviewer: Filled = ""


def review_row(outcome: Outcome, description: str, seed: int) -> ReviewRow:
    """Returns the row of an open case.

    Args:
        outcome: Its outcome.
        description: The text it is about.
        seed: Of the order of the answers, in which neither place nor name leads to a choice.
    """
    adjudication = outcome.adjudication
    return ReviewRow(
        case=outcome.case,
        queue=DECISION,
        reason=outcome.reason,
        description=description,
        candidates=tuple(
            _shown(side, outcome.answers[side].classification, outcome.evaluation(side))
            for side in draw_order(seed, outcome.case)
            if side in outcome.answers
        ),
        adjudicated=adjudication
        and _shown("adjudicator", adjudication.classification, adjudication.confirmation),
    )


def write_rows(path: Path, run: RunArchive, reviews: Reviews, kind: str) -> int:
    """Writes the waiting cases of a queue to a file; returns their number.

    Args:
        path: The file; one that holds decisions is kept.
        run: The archived run.
        reviews: Its reviews.
        kind: `DECISION` or `AUDIT`.

    Raises:
        RunError: The file holds decisions, or cannot be written.
        ArchiveError: The archive fails.
    """
    if path.exists() and _is_filled(path):
        raise RunError(
            f"{path} holds decisions: archive them first by import={path}, or give export= "
            "another file"
        )
    places = [case.sequence for case in reviews.queue(AUDIT if kind == AUDIT else "")]
    stored = {one.case.sequence: one.case for one in run.cases_at(places)}
    written = 0
    try:
        with path.open("w", encoding="utf-8") as file:
            for case in (stored[place] for place in places):
                if kind == AUDIT:
                    row = ReviewRow(
                        case=case.case, queue=AUDIT, reason=None, description=case.description
                    )
                else:
                    outcome = read_outcome(case.body, reviews.codebook)
                    row = review_row(outcome, case.description, reviews.seed)
                values = row.model_dump(mode="json")
                file.write(f"{json.dumps(values, ensure_ascii=False)}\n")
                written += 1
    except OSError as error:
        raise RunError(f"{path} cannot be written ({error}): give export= another file") from error
    return written


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
    decided = _decided(path, reviews, reviewer)
    new: list[HumanDecision] = []
    left_out: list[str] = []
    for opened, decision in decided:
        if opened.says(decision):
            continue
        last = opened.decisions[-1].decision if opened.decisions else None
        if not opened.waits and last is not None and last.reviewer != decision.reviewer:
            left_out.append(f"case {decision.case} is decided by {last.reviewer}")
            continue
        try:
            reviews.archive(opened, decision)
        except LeaseError as error:
            left_out.append(str(error))
        else:
            new.append(decision)
    rows = [decision_row(decision) for decision in new]
    unconfirmed = sum(row.status == UNCONFIRMED for row in rows)
    return Import(len(decided), len(new), unconfirmed, tuple(left_out))


def _decided(
    path: Path, reviews: Reviews, reviewer: str | None
) -> list[tuple[Opened, HumanDecision]]:
    decided: list[tuple[Opened, HumanDecision]] = []
    problems: list[str] = []
    places: dict[str, str] = {}
    for place, line in _lines(path):
        try:
            row = _row(place, line)
            if not row.decision and not row.justification:
                continue
            if row.case in places:
                raise DataError(f"case {row.case} is decided at {places[row.case]} already")
            decided.append(_decide(row, reviews, reviewer))
            places[row.case] = place
        except DataError as error:
            problems.append(f"{place}: {str(error)[:LONGEST_PROBLEM]}")
    if problems:
        raise DataError(_report(path, problems))
    return decided


def _decide(row: ReviewRow, reviews: Reviews, reviewer: str | None) -> tuple[Opened, HumanDecision]:
    """Returns the case of a filled-in row, and its decision."""
    label = reviews.codebook.label_name
    if not row.decision:
        raise DataError(
            f"case {row.case} has a justification and no decision: fill in A, B, unclear or "
            f"{label} line, or empty the justification to leave the case open"
        )
    opened = reviews.find(row.case, reviewer or "")
    if opened is None:
        raise DataError(f"the run has no case {row.case!r}: is it another run's file?")
    _check_case(row, opened)
    if not row.justification and not opened.blind:
        raise DataError(f"case {row.case} is decided without justification: fill it in")
    if not row.reviewer and not reviewer:
        raise DataError(f"case {row.case} is decided without reviewer: fill it in")
    name = check_name(row.reviewer or reviewer or "")
    if row.decision.casefold() == UNDO:
        return opened, reviews.take_back(opened, name, row.justification)
    choice = "own" if opened.blind or row.decision not in CHOICES else row.decision
    try:
        typed = Typed(choice, row.decision, row.justification, row.insist)
        return opened, reviews.decide(opened, name, typed)
    except UndecidedError as error:
        reason = error.problems.get("code")
        if reason is None:
            raise
        raise DataError(
            f"decision {row.decision!r} is none of A, B, unclear, {UNDO} and not {label}: {reason}"
        ) from error


def _check_case(row: ReviewRow, opened: Opened) -> None:
    """Refuses a row that is not about the case as it was exported."""
    if row.queue not in (None, opened.queue):
        raise DataError(
            f"case {row.case} is of the queue {opened.queue}, not {row.queue}: a larger audit= "
            "draws more cases for the audit"
        )
    if not opened.blind and opened.stored.status != HUMAN:
        raise DataError(
            f"case {row.case} is {opened.stored.status}, no person was asked: remove the row"
        )
    if row.description not in (None, opened.stored.description):
        raise DataError(
            f"the description of case {row.case} is not the one that was classified: leave it as "
            "it was exported"
        )


def _shown(
    name: Side | Literal["adjudicator"],
    classification: Classification,
    evaluation: Evaluation | None,
) -> ShownAnswer:
    report = None
    if evaluation is not None:
        report = ShownReport(**evaluation.model_dump(include=set(ShownReport.model_fields)))
    return ShownAnswer(
        name=name,
        opt=None if classification.label is None else str(classification.label),
        rationale=classification.rationale,
        problem=classification.problem,
        report=report,
    )


def _is_filled(path: Path) -> bool:
    """Returns whether a file holds decisions, or is not as it was exported."""
    try:
        return any(_row(place, line).decision for place, line in _lines(path))
    except DataError:
        return True


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


def _row(place: str, line: bytes) -> ReviewRow:
    try:
        values = parse_json(line, place)
    except DataError as error:
        reason = str(error).removeprefix(f"{place}: ")
        raise DataError(f"{reason}; a row is one JSON object on one line") from None
    try:
        return ReviewRow.model_validate(values)
    except ValidationError as error:
        problem = problems_of(ReviewRow, error.errors(include_url=False))[0]
        raise DataError(f"{problem}; leave the rows as they were exported") from error


def _report(path: Path, problems: list[str]) -> str:
    listed = "".join(f"\n  {problem}" for problem in problems[:SHOWN_PROBLEMS])
    more, rows = len(problems) - SHOWN_PROBLEMS, "row" if len(problems) == 1 else "rows"
    rest = f"\n  and {more} rows more" if more > 0 else ""
    return (
        f"{path} has {len(problems)} {rows} that cannot be used, so none was imported:{listed}"
        f"{rest}\nmend them and import again"
    )
