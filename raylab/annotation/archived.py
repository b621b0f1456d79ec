"""Archived outcomes and decisions, of this and of earlier versions of their bodies."""

from collections.abc import Mapping
from typing import Any

from raylab.annotation.outcome import BODY_VERSION, HumanDecision, Outcome, Status
from raylab.annotation.roles import SIDES
from raylab.archive.records import CurrentCase
from raylab.codebook import Codebook, Label
from raylab.errors import ArchiveError

Body = dict[str, Any]

REPLY_KEYS = {
    "key": "key",
    "text": "text",
    "response_model": "response_model",
    "served": "response_model",
    "prompt_tokens": "prompt_tokens",
    "completion_tokens": "completion_tokens",
    "cost": "cost",
    "seconds": "seconds",
    "cached": "cached",
    "journalled": "cached",
}
"""The key of a reply for each key of a version 1 call."""
UNKNOWN_TO_VERSION_1 = {"finish_reason": "", "attempts": 1}


def read_outcome(body: Body, codebook: Codebook) -> Outcome:
    """Reads the body of an archived case.

    Raises:
        ArchiveError: The body is of a newer version.
        LabelError: The codebook cannot read a label in it.
        pydantic.ValidationError: The body does not have the form of its version.
    """
    version = _version_of(body)
    if version == 1:
        body = _outcome_of_version_1(body, codebook)
    if version < BODY_VERSION:
        body = _with_issues_renamed(body, codebook)
    return Outcome.model_validate(body, context={"codebook": codebook})


def read_decision(body: Body, codebook: Codebook) -> HumanDecision:
    """Reads the body of an archived decision.

    Raises:
        ArchiveError: The body is of a newer version.
        LabelError: The codebook cannot read a label in it.
        pydantic.ValidationError: The body does not have the form of its version.
    """
    version = _version_of(body)
    if version == 1:
        body = {
            **body,
            "classification": _classification(body["classification"]),
            "confirmation": _with_calls(body["confirmation"]),
        }
    if version < BODY_VERSION:
        names = _issue_names(codebook)
        body = {
            **body,
            "version": BODY_VERSION,
            "confirmation": _renamed(body["confirmation"], names),
        }
    return HumanDecision.model_validate(body, context={"codebook": codebook})


def current_label(current: CurrentCase, codebook: Codebook) -> Label | None:
    """Returns the label in force; None while a person must decide, or if there is none."""
    if current.status == Status.HUMAN:
        return None
    if current.decisions:
        decision = read_decision(current.decisions[-1].body, codebook)
        if decision.classification is not None:
            return decision.classification.label
    return read_outcome(current.case.body, codebook).label


def _version_of(body: Body) -> int:
    """Returns the version of a body; those of version 1 do not say it."""
    version: int = body.get("version", 1)
    if version > BODY_VERSION:
        raise ArchiveError(
            f"an archived body is of version {version}, this raylab reads {BODY_VERSION} at most: "
            "update raylab"
        )
    return version


def _issue_names(codebook: Codebook) -> dict[str, str]:
    """Returns the present name of a criterion for each of its other names."""
    return {other: one.name for one in codebook.criteria for other in one.synonyms}


def _with_issues_renamed(body: Body, codebook: Codebook) -> Body:
    """Returns a version 2 body in the current form: criteria have their present names."""
    names = _issue_names(codebook)
    answers = {
        side: {**answer, "evaluation": _renamed(answer["evaluation"], names)}
        for side, answer in body["answers"].items()
    }
    settled = body["adjudication"]
    if settled is not None:
        settled = {**settled, "confirmation": _renamed(settled["confirmation"], names)}
    return {**body, "version": BODY_VERSION, "answers": answers, "adjudication": settled}


def _renamed(evaluation: Body | None, names: Mapping[str, str]) -> Body | None:
    if evaluation is None:
        return None
    return {**evaluation, "issues": [names.get(one, one) for one in evaluation["issues"]]}


def _outcome_of_version_1(body: Body, codebook: Codebook) -> Body:
    """Returns a version 1 body in the current form: answers by side, gold also as a label."""
    moved = {"subject", "code", "unread", "adjudication"}
    moved |= {key for side in SIDES for key in _keys_of_side(side)}
    adjudication, gold = body["adjudication"], body["gold"]
    answers: Body = {}
    for side in SIDES:
        classification, evaluation = (body[key] for key in _keys_of_side(side))
        if classification is not None:
            answers[side] = {
                "classification": _classification(classification),
                "evaluation": _with_calls(evaluation),
            }
    return {
        "description_hash": body.get("subject"),
        **{key: value for key, value in body.items() if key not in moved},
        "gold_label": None if gold is None else str(codebook.parse(gold)),
        "label": body["code"],
        "answers": answers,
        "adjudication": adjudication
        and {
            **adjudication,
            "classification": _classification(adjudication["classification"]),
            "confirmation": _with_calls(adjudication["confirmation"]),
        },
        "unread": [_call(call) for call in body["unread"]],
    }


def _keys_of_side(side: str) -> tuple[str, str]:
    return side.lower(), f"evaluation_{side.lower()}"


def _classification(part: Body | None) -> Body | None:
    if part is None:
        return None
    others = {key: value for key, value in part.items() if key != "code"}
    return _with_calls({**others, "label": part["code"]})


def _with_calls(part: Body | None) -> Body | None:
    return part and {**part, "calls": [_call(call) for call in part["calls"]]}


def _call(call: Body) -> Body:
    reply = {REPLY_KEYS[key]: value for key, value in call.items() if key in REPLY_KEYS}
    others = {key: value for key, value in call.items() if key not in REPLY_KEYS}
    stage = others.pop("role")
    return {**others, "stage": stage, "reply": {**UNKNOWN_TO_VERSION_1, **reply}}
