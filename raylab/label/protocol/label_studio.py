"""Cases and people's decisions as tasks of Label Studio, out and in.

A file is a list of tasks in Label Studio's JSON format. `data` has the case, its `description` and
the `reason` why it is open. `predictions` are the answers with the evaluator's scores,
`annotations` what people say. Both consist of fields that any labelling interface with these names
shows: `decision`, `justification` and, in annotations, `insist` and `reviewer`. A task has no
predictions for a reviewer who may see the description alone.
"""

import json
from codecs import BOM_UTF8
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Literal

import msgspec

from raylab.core.bounded import decode
from raylab.core.errors import DataError, LabelError, LeaseError, RunError
from raylab.label.archive.records import AUDIT, DRAW, HUMAN, UNCONFIRMED, CurrentCase
from raylab.label.codebooks.codebook import Codebook, Label
from raylab.label.protocol.decisions import check_name
from raylab.label.protocol.outcome import (
    Annotator,
    Choice,
    HumanDecision,
    Outcome,
    read_decision,
    read_outcome,
)
from raylab.label.protocol.protocol import draw_order
from raylab.label.protocol.reviews import Opened, Reviews, Typed, UndecidedError

SHOWN_PROBLEMS = 50
MAX_PROBLEM = 500
"""Characters; a problem may quote what stands in the file."""
OTHER_CHOICES: tuple[Choice | Literal["undo"], ...] = ("unclear", "undo")
"""Decisions beside a label or the name of an answer."""

Task = dict[str, Any]
TASKS = msgspec.json.Decoder(list[Any])


class _Result(msgspec.Struct):
    from_name: str = ""
    value: dict[str, Any] = {}


class _Annotation(msgspec.Struct):
    result: list[_Result] = []
    completed_by: int | str | dict[str, Any] | None = None
    was_cancelled: bool = False

    @property
    def fields(self) -> dict[str, str]:
        """The texts by the names of their fields."""
        said = {own.from_name: own.value for own in self.result}
        texts = {name: value.get("text") or value.get("choices") for name, value in said.items()}
        return {
            name: (" ".join(map(str, text)) if isinstance(text, list) else str(text or "")).strip()
            for name, text in texts.items()
        }

    def reviewer(self, default: str) -> str:
        """Returns the annotator's name: as written, else the default, else that of the account."""
        by = self.completed_by
        account = by.get("email") if isinstance(by, dict) else by
        named = isinstance(account, str) and account
        shown = named or default or ("" if account is None else f"user {account}")
        return self.fields.get("reviewer") or shown


class _Data(msgspec.Struct):
    case: str
    description: str | None = None


class _Task(msgspec.Struct):
    data: _Data
    annotations: list[_Annotation] = []


@dataclass(frozen=True)
class Import:
    """The decisions of a file.

    Attributes:
        read: Their number.
        new: Number of those that were archived; the archive had the others already.
        unconfirmed: Number of the new ones that the evaluator must judge.
        left_out: Sentences on those that contradict another reviewer's decision.
    """

    read: int
    new: int
    unconfirmed: int
    left_out: tuple[str, ...]


def write_waiting(path: Path, reviews: Reviews, kind: str = "") -> int:
    """Writes the waiting cases of a queue to a new file; returns their number.

    The queue is named by `kind`, as for `Reviews.queue`.
    """
    waiting = reviews.queue(kind)
    try:
        with path.open("xb") as file:
            tasks = (reviews.look(case.sequence) for case in waiting)
            write_tasks((_waiting_task(opened, reviews.seed) for opened in tasks), file)
    except FileExistsError as error:
        raise RunError(
            f"{path} exists: archive the decisions in it by import={path}, or give export= "
            "another file"
        ) from error
    except OSError as error:
        raise RunError(f"{path} cannot be written ({error}): give export= another file") from error
    return len(waiting)


def write_tasks(tasks: Iterable[Task], file: BinaryIO) -> None:
    """Writes tasks as they come."""
    file.write(b"[")
    for number, task in enumerate(tasks):
        file.write((b",\n" if number else b"\n") + json.dumps(task).encode())
    file.write(b"\n]\n")


def archived_task(current: CurrentCase, codebook: Codebook) -> Task:
    """Returns a case with all answers, and what people decided on it in the order of archiving."""
    outcome = read_outcome(current.case.body, codebook)
    decisions = [
        read_decision(row.body, codebook) for row in current.decisions if row.action != DRAW
    ]
    return {
        **_task(current, outcome, predictions=_answers(outcome, outcome.answers)),
        "annotations": [
            _said(f"annotation-{number}", decision) for number, decision in enumerate(decisions, 1)
        ],
    }


def _waiting_task(opened: Opened, seed: int) -> Task:
    """Returns a case with what its next reviewer may see."""
    if opened.queue == AUDIT or opened.judging:
        return _task(opened, None, [])
    order = draw_order(seed, opened.case.case, opened.outcome.answers)
    judgements = [
        _said(f"judgement {number}", judged, model_version=f"judgement {number}")
        for number, judged in enumerate(opened.judgements if opened.settling else (), 1)
    ]
    return _task(opened, opened.outcome, _answers(opened.outcome, order) + judgements)


def _task(current: CurrentCase, outcome: Outcome | None, predictions: list[Task]) -> Task:
    case = current.case
    data = {
        "case": case.case,
        "queue": current.queue,
        "reason": outcome and outcome.reason,
        "description": case.description,
    }
    return {"data": data, "predictions": predictions}


def _answers(outcome: Outcome, annotators: Iterable[Annotator]) -> list[Task]:
    """Returns the answers and the adjudicator's, without the names of their models."""
    answers = [(name, outcome.answers[name]) for name in annotators]
    shown = [(name, answer.classification, answer.evaluation) for name, answer in answers]
    if (settled := outcome.adjudication) is not None:
        shown.append(("adjudicator", settled.classification, settled.confirmation))
    return [
        {
            "model_version": name,
            "result": _result(name, decision=answer.label, justification=answer.rationale),
            **({} if report is None else {"score": report.score / 100}),
        }
        for name, answer, report in shown
    ]


def _said(owner: str, decision: HumanDecision, **task: str) -> Task:
    """Returns a decision as an annotation or a prediction."""
    other = "undo" if decision.choice is None else "unclear"
    result = _result(
        owner,
        decision=decision.label or other,
        justification=decision.justification,
        insist="true" if decision.insisted else "",
        reviewer="" if task else decision.reviewer,
    )
    return {"result": result, "created_at": decision.decided.isoformat(), **task}


def _result(owner: str, **fields: Label | str | None) -> list[Task]:
    return [
        {
            "id": f"{owner}-{name}",
            "from_name": name,
            "to_name": "description",
            "type": "textarea",
            "value": {"text": [str(text)]},
        }
        for name, text in fields.items()
        if text
    ]


def import_tasks(path: Path, reviews: Reviews, reviewer: str | None = None) -> Import:
    """Archives the annotations of a file: all of them, or none if some cannot be used.

    Args:
        reviewer: Reviewer of annotations that name none.

    Raises:
        DataError: The file cannot be read, or annotations cannot be used; every such task is named
            with its number, the value and what is expected.
    """
    said = _read_annotations(path, reviews, reviewer or "")
    new: list[str] = []
    left_out: list[str] = []
    for case, name, typed in said:
        try:
            opened = reviews.look(case)
            decision = reviews.decide(opened, name, typed)
            if opened.says(decision):
                # The archive has it already.
                continue
            last = opened.last and opened.last.decision
            if not opened.waits and last is not None and last.reviewer != name:
                raise LeaseError(f"case {case} is decided by {last.reviewer}")
            new.append(reviews.archive(opened, decision))
        except (DataError, LeaseError) as error:
            left_out.append(str(error))
    return Import(len(said), len(new), new.count(UNCONFIRMED), tuple(left_out))


def _read_annotations(path: Path, reviews: Reviews, reviewer: str) -> list[tuple[str, str, Typed]]:
    try:
        text = path.read_bytes().removeprefix(BOM_UTF8)
    except OSError as error:
        raise DataError(
            f"{path} cannot be read: {error}; export= of jobs/review.py writes such a file"
        ) from error
    said: list[tuple[str, str, Typed]] = []
    problems: list[str] = []
    cases = set[str]()
    for number, content in enumerate(decode(TASKS, text, "a list of tasks", str(path)), 1):
        try:
            task = msgspec.convert(content, _Task)
            if task.data.case in cases:
                raise DataError(f"case {task.data.case} has an earlier task already")
            cases.add(task.data.case)
            said += _annotations(task, reviews, reviewer)
        except (DataError, msgspec.ValidationError) as error:
            problems.append(f"\n  task {number}: {str(error)[:MAX_PROBLEM]}")
    if problems:
        more = len(problems) - SHOWN_PROBLEMS
        raise DataError(
            f"{path} has tasks that cannot be used, so none was imported; mend them and import "
            f"again:{''.join(problems[:SHOWN_PROBLEMS])}"
            + (f"\n  and {more} more" if more > 0 else "")
        )
    return said


def _annotations(task: _Task, reviews: Reviews, reviewer: str) -> Iterator[tuple[str, str, Typed]]:
    """Yields case, reviewer and form of the annotations of a task, which a reviewer may send."""
    codebook, case = reviews.codebook, task.data.case
    opened: Opened | None = None
    for annotation in task.annotations:
        fields = annotation.fields
        decision = fields.get("decision", "")
        if annotation.was_cancelled or not (decision or fields.get("justification")):
            continue
        if not decision:
            raise DataError(
                f"case {case} has a justification and no decision: fill in the name of an answer, "
                f"unclear or {codebook.label_name} line, or empty the justification to leave the "
                "case open"
            )
        opened = opened or reviews.look(case)
        if opened.queue != AUDIT and opened.case.status != HUMAN:
            status = opened.case.status
            raise DataError(f"case {case} is {status}, no person was asked: remove its annotations")
        if task.data.description not in (None, opened.case.description):
            raise DataError(
                f"the description of case {case} is not the one that was classified: leave it as "
                "it was exported"
            )
        typed = Typed(
            choice=_choose(decision, opened.outcome, codebook),
            code=decision,
            justification=fields.get("justification", ""),
            insist=bool(fields.get("insist")),
        )
        name = check_name(annotation.reviewer(reviewer))
        try:
            reviews.decide(opened, name, typed)
        except UndecidedError as error:
            if reason := error.problems.get("code"):
                choices = ", ".join((*opened.outcome.answers, *OTHER_CHOICES))
                reason = (
                    f"{decision!r} is none of {choices} and not {codebook.label_name}: {reason}"
                )
            raise DataError(f"case {case}: {reason or error}") from error
        yield case, name, typed


def _choose(decision: str, outcome: Outcome, codebook: Codebook) -> Choice | Literal["undo"]:
    """Returns the choice that a text means; a label may have the name of an annotator."""
    for name, label in outcome.labels.items():
        if str(label) == decision:
            return name
    try:
        codebook.parse_own(decision)
    except LabelError:
        choices = {name.casefold(): name for name in (*outcome.answers, *OTHER_CHOICES)}
        return choices.get(decision.casefold(), "own")
    return "own"
