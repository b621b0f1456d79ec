"""A review file: the cases that wait for a person as a person sees them, and the decisions back.

A review file is JSONL, a case a row. The person fills in three of its keys: `decision` with A, B
or a label of its own, `justification` and `reviewer`; `undo` takes an earlier decision back. Rows
without a decision stay open.
"""

import difflib
import hashlib
import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, cast

from raylab.annotation.outcome import (
    Classification,
    Evaluation,
    HumanDecision,
    LabelField,
    Outcome,
    Status,
    Verdict,
)
from raylab.annotation.roles import SIDES, Side
from raylab.annotation.stages import draw_order
from raylab.bounded import lines, parse_json
from raylab.codebook import Codebook, Label
from raylab.config.base import Strict
from raylab.errors import DataError, LabelError

Choice = Literal["A", "B", "own"]

UNDO = "undo"
SHOWN_PROBLEMS = 50
QUOTED = 60


class ShownReport(Strict):
    """The part of an evaluator's report that a person sees."""

    verdict: Verdict
    score: int
    issues: tuple[str, ...]
    summary: str
    contradictory: bool
    caps: tuple[str, ...]


class _Named(Strict):
    name: Side


class ShownAnswer(Strict):
    """An answer as a person sees it, without the name of its model."""

    opt: LabelField | None
    """Its label; None if none could be read."""
    rationale: str | None
    problem: str | None
    """The reason why no label could be read."""
    report: ShownReport | None


class NamedAnswer(ShownAnswer, _Named):
    """The answer of an annotator, which a person can choose."""


class ReviewRow(Strict):
    """An open case as a person sees it; the last three keys are for the person to fill in."""

    case: str
    reason: str | None
    description: str
    candidates: tuple[NamedAnswer, ...]
    """In an order drawn by seed and case."""
    adjudicated: ShownAnswer | None
    """The adjudicator's proposal, which was not confirmed."""
    decision: str = ""
    justification: str = ""
    reviewer: str = ""


KEYS = tuple(ReviewRow.model_fields)


class _ProblemError(Exception):
    """A problem of a row; never leaves this module."""


@dataclass(frozen=True)
class _Row:
    """A row of a review file with its place, as `file:line`."""

    place: str
    values: dict[str, Any]

    def text(self, key: str) -> str:
        """Returns a value without white space around it; empty where missing or null."""
        value = self.values.get(key)
        if value is None:
            return ""
        if not isinstance(value, str):
            raise _ProblemError(f"{key} is {_quoted(value)}, it should be text")
        if "\0" in value:
            raise _ProblemError(f"{key} holds NUL, which no database stores: remove it")
        return value.strip()


def review_rows(waiting: Iterable[tuple[Outcome, str]], seed: int) -> Iterator[ReviewRow]:
    """Yields the rows of a review file.

    The candidates come in an order drawn by seed and case and without the models' names, so that
    neither place nor name leads to a choice. A gold code is not shown.

    Args:
        waiting: Outcomes with the descriptions they are about; those that do not wait for a
            person are passed over.
        seed: Of the order; that of the protocol.
    """
    for outcome, description in waiting:
        if outcome.status is Status.HUMAN:
            yield review_row(outcome, description, seed)


def review_row(outcome: Outcome, description: str, seed: int) -> ReviewRow:
    """Returns the row of a case; see `review_rows`."""
    adjudication = outcome.adjudication
    return ReviewRow(
        case=outcome.case,
        reason=outcome.reason,
        description=description,
        candidates=tuple(
            NamedAnswer(name=side, **_shown(outcome.classification(side), outcome.evaluation(side)))
            for side in draw_order(seed, outcome.case)
            if side in outcome.answers
        ),
        adjudicated=None
        if adjudication is None
        else ShownAnswer(**_shown(adjudication.classification, adjudication.confirmation)),
    )


def chosen_label(choice: Choice, text: str, outcome: Outcome, codebook: Codebook) -> Label:
    """Returns the label that a person's choice stands for.

    Args:
        choice: The label of A, that of B, or an own one.
        text: The own label; nothing is repaired.
        outcome: The outcome with the answers to choose from.
        codebook: Reads an own label.

    Raises:
        LabelError: The side has no label, or the text is none.
    """
    if choice == "own":
        return codebook.parse_own(text)
    label = outcome.label_of(choice)
    if label is None:
        raise LabelError(f"{choice} has no code")
    return label


def human_decision(
    case: str,
    choice: Choice | None,
    label: Label | None,
    justification: str,
    reviewer: str,
    decided: datetime,
) -> HumanDecision:
    """Returns a decision that is not confirmed yet; without choice and label it takes one back."""
    return HumanDecision(
        case=case,
        action="undo" if choice is None else "decide",
        choice=choice,
        classification=None
        if label is None
        else Classification(label=label, rationale=justification, format="strict"),
        justification=justification,
        reviewer=reviewer,
        confirmation=None,
        decided=decided,
    )


def read_decisions(
    path: Path,
    find: Callable[[str], Outcome | None],
    codebook: Codebook,
    reviewer: str | None = None,
) -> list[HumanDecision]:
    """Reads the decisions of a review file, not confirmed yet; all of them or none.

    Args:
        path: The file.
        find: The outcome of a case; None if the run has no such case.
        codebook: Reads own labels.
        reviewer: Reviewer of rows that name none.

    Raises:
        DataError: The file cannot be read, or rows cannot be used; every such row is named with
            its line, the value and what is expected.
    """
    decided = datetime.now(UTC)
    decisions: list[HumanDecision] = []
    problems: list[str] = []
    places: dict[str, str] = {}
    for place, line in _lines(path):
        try:
            row = _Row(place, _values(place, line))
            decision = _decision(row, find, codebook, reviewer, decided)
            if decision is None:
                continue
            if decision.case in places:
                first = places[decision.case]
                raise _ProblemError(f"case {decision.case} is decided at {first} already")
        except _ProblemError as problem:
            problems.append(f"{place}: {problem}")
        else:
            places[decision.case] = place
            decisions.append(decision)
    if problems:
        raise DataError(_report(path, problems))
    return decisions


def has_decisions(path: Path, codebook: Codebook) -> bool:
    """Returns whether a file holds decisions, or is not as it was exported.

    Raises:
        OSError: The file cannot be read.
    """
    context = {"codebook": codebook}
    with path.open("rb") as file:
        try:
            return any(
                ReviewRow.model_validate_json(line, context=context).decision
                for _, line in lines(file, str(path))
            )
        except (ValueError, LabelError, DataError):
            # Not as it was exported, so somebody has worked on it.
            return True


def _shown(classification: Classification | None, evaluation: Evaluation | None) -> dict[str, Any]:
    """Returns the fields of `ShownAnswer`."""
    report = evaluation and evaluation.model_dump(include=set(ShownReport.model_fields))
    return {
        "opt": classification and classification.label,
        "rationale": classification and classification.rationale,
        "problem": classification and classification.problem,
        "report": report and ShownReport(**report),
    }


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


def _values(place: str, line: bytes) -> dict[str, Any]:
    try:
        values = parse_json(line, place)
    except DataError as error:
        reason = str(error).removeprefix(f"{place}: ")
        raise _ProblemError(f"{reason}; a row is one JSON object on one line") from None
    if not isinstance(values, dict):
        raise _ProblemError(f"is {_quoted(values)}, it should be an object on one line")
    for key in cast(dict[str, Any], values):
        if key not in KEYS:
            close = difflib.get_close_matches(key[:QUOTED], KEYS, 1)
            hint = f"did you mean {close[0]}?" if close else f"keys: {', '.join(KEYS)}"
            raise _ProblemError(f"unknown key {_quoted(key)}; {hint}")
    return cast(dict[str, Any], values)


def _decision(
    row: _Row,
    find: Callable[[str], Outcome | None],
    codebook: Codebook,
    reviewer: str | None,
    decided: datetime,
) -> HumanDecision | None:
    """Returns the decision of a row; None if it has none."""
    case, decision = row.text("case"), row.text("decision")
    justification, reviewer = row.text("justification"), row.text("reviewer") or reviewer
    if not case:
        raise _ProblemError("case is missing: leave it as it was exported")
    if not decision and not justification:
        return None
    if not decision:
        raise _ProblemError(
            f"case {case} has a justification and no decision: fill in A, B or "
            f"{codebook.label_name} line, or empty the justification to leave the case open"
        )
    outcome = _waiting(row, case, find)
    lacking = [
        name
        for name, value in (("justification", justification), ("reviewer", reviewer))
        if not value
    ]
    if lacking:
        raise _ProblemError(f"case {case} is decided without {' and '.join(lacking)}: fill it in")
    choice, label = _choice(decision, outcome, codebook)
    return human_decision(case, choice, label, justification, str(reviewer), decided)


def _waiting(row: _Row, case: str, find: Callable[[str], Outcome | None]) -> Outcome:
    outcome = find(case)
    if outcome is None:
        raise _ProblemError(f"the run has no case {_quoted(case)}: is it another run's file?")
    if outcome.status is not Status.HUMAN:
        raise _ProblemError(f"case {case} is {outcome.status}, no person was asked: remove the row")
    description = row.values.get("description")
    if isinstance(description, str) and _digest(description) != outcome.description_hash:
        raise _ProblemError(
            f"the description of case {case} is not the one that was classified: leave it as it "
            "was exported"
        )
    return outcome


def _choice(
    decision: str, outcome: Outcome, codebook: Codebook
) -> tuple[Choice | None, Label | None]:
    """Returns the choice and its label; nothing for undo."""
    if decision.casefold() == UNDO:
        return None, None
    choice: Choice = decision if decision in SIDES else "own"
    try:
        return choice, chosen_label(choice, decision, outcome, codebook)
    except LabelError as error:
        raise _ProblemError(
            f"decision {_quoted(decision)} is none of A, B, {UNDO} and not "
            f"{codebook.label_name}: {error}"
            if choice == "own"
            else f"decision {choice}: {error}; fill in a line"
        ) from None


def _report(path: Path, problems: list[str]) -> str:
    listed = "".join(f"\n  {problem}" for problem in problems[:SHOWN_PROBLEMS])
    more = len(problems) - SHOWN_PROBLEMS
    rest = f"\n  and {more} rows more" if more > 0 else ""
    return (
        f"{path} has {len(problems)} rows that cannot be used, so none was imported:{listed}{rest}"
        "\nmend them and import again"
    )


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()


def _quoted(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= QUOTED else f"{text[:QUOTED]}..."
