"""Bodies as version 1 wrote them, literally."""

from datetime import UTC, datetime
from typing import Any

import pytest

from raylab.annotation.archived import read_decision, read_outcome
from raylab.annotation.outcome import (
    Adjudication,
    Answer,
    Call,
    Classification,
    Evaluation,
    HumanDecision,
    Outcome,
    Status,
    Verdict,
)
from raylab.codebook import Agreement
from raylab.errors import ArchiveError
from raylab.llm.chat import Reply
from raylab.opt.code import parse
from tests.annotation.outcomes import CODEBOOK

OLD_CALL: dict[str, Any] = {
    "key": "k-classify-a",
    "role": "classify-a",
    "model": "alpha",
    "served": "alpha-2026",
    "prompt": "classify_maximal@1",
    "prompt_hash": "h1",
    "seed": 7,
    "text": '{"rationale": "it fits", "opt": "OPT=Lrn"}',
    "prompt_tokens": 120,
    "completion_tokens": 15,
    "cost": 0.25,
    "seconds": 1.5,
    "journalled": True,
}
NEW_CALL = Call(
    stage="classify-a",
    model="alpha",
    prompt="classify_maximal@1",
    prompt_hash="h1",
    seed=7,
    reply=Reply(
        key="k-classify-a",
        text='{"rationale": "it fits", "opt": "OPT=Lrn"}',
        response_model="alpha-2026",
        finish_reason="",
        prompt_tokens=120,
        completion_tokens=15,
        cost=0.25,
        seconds=1.5,
        attempts=1,
        cached=True,
    ),
)
OLD_CONFIRMATION: dict[str, Any] = {
    "verdict": "WEAK_PASS",
    "raw_verdict": "PASS",
    "score": 79,
    "raw_score": 95,
    "issues": ["format", "attributes"],
    "summary": "nearly",
    "contradictory": True,
    "caps": ["verdict WEAK_PASS: at most 84"],
    "repairs": ["issues given as text"],
    "acceptable": True,
    "calls": [OLD_CALL],
}
NEW_CONFIRMATION = Evaluation(
    verdict=Verdict.WEAK_PASS,
    raw_verdict=Verdict.PASS,
    score=79,
    raw_score=95,
    issues=("format", "attributes"),
    summary="nearly",
    contradictory=True,
    caps=("verdict WEAK_PASS: at most 84",),
    repairs=("issues given as text",),
    acceptable=True,
    calls=(NEW_CALL,),
)
OLD_OUTCOME: dict[str, Any] = {
    "case": "pid",
    "subject": "d1gest",
    "generation": "published",
    "gold": "opt = Lrn+Evo",
    "trap": True,
    "meta": {"bait": ["Swm"]},
    "status": "adjudicated",
    "reason": None,
    "path": ["classify-a:strict", "accept"],
    "code": "OPT=Evo/Lrn; Rep=param",
    "a": {
        "code": "OPT=Lrn",
        "rationale": "it fits",
        "format": "strict",
        "repairs": [],
        "problem": None,
        "calls": [OLD_CALL],
    },
    "b": {
        "code": None,
        "rationale": "",
        "format": "unparsable",
        "repairs": [],
        "problem": "it is empty",
        "calls": [],
    },
    "evaluation_a": OLD_CONFIRMATION,
    "evaluation_b": None,
    "agreement": {
        "exact": False,
        "jaccard": 0.5,
        "levenshtein": 4,
        "levenshtein_normalised": 0.25,
        "weighted": 0.75,
        "composition": 0.0,
        "distance": "opt-l1-v1",
    },
    "adjudication": {
        "order": ["B", "A"],
        "choice": "synthesis",
        "classification": {
            "code": "OPT=Evo/Lrn; Rep=param",
            "rationale": "both",
            "format": "repaired",
            "repairs": ["label"],
            "problem": None,
            "calls": [OLD_CALL],
        },
        "confirmation": OLD_CONFIRMATION,
    },
    "unread": [OLD_CALL],
    "prompt_tokens": 240,
    "completion_tokens": 30,
    "cost": None,
    "started": "2026-03-01T12:00:00Z",
    "finished": "2026-03-01T12:00:04Z",
}
NEW_OUTCOME = Outcome(
    case="pid",
    description_hash="d1gest",
    generation="published",
    gold="opt = Lrn+Evo",
    gold_label=parse("OPT=Lrn+Evo"),
    trap=True,
    meta={"bait": ["Swm"]},
    status=Status.ADJUDICATED,
    reason=None,
    path=("classify-a:strict", "accept"),
    label=parse("OPT=Evo/Lrn; Rep=param"),
    answers={
        "A": Answer(
            classification=Classification(
                label=parse("OPT=Lrn"), rationale="it fits", format="strict", calls=(NEW_CALL,)
            ),
            evaluation=NEW_CONFIRMATION,
        ),
        "B": Answer(
            classification=Classification(
                label=None, rationale="", format="unparsable", problem="it is empty"
            )
        ),
    },
    agreement=Agreement(
        exact=False,
        jaccard=0.5,
        levenshtein=4,
        levenshtein_normalised=0.25,
        weighted=0.75,
        composition=0.0,
        distance="opt-l1-v1",
    ),
    adjudication=Adjudication(
        order=("B", "A"),
        choice="synthesis",
        classification=Classification(
            label=parse("OPT=Evo/Lrn; Rep=param"),
            rationale="both",
            format="repaired",
            repairs=("label",),
            calls=(NEW_CALL,),
        ),
        confirmation=NEW_CONFIRMATION,
    ),
    unread=(NEW_CALL,),
    prompt_tokens=240,
    completion_tokens=30,
    cost=None,
    started=datetime(2026, 3, 1, 12, 0, 0, tzinfo=UTC),
    finished=datetime(2026, 3, 1, 12, 0, 4, tzinfo=UTC),
)
NOTHING_ANSWERED: dict[str, Any] = dict.fromkeys(
    ["gold", "code", "a", "b", "evaluation_a", "evaluation_b", "agreement", "adjudication"]
)
OLD_DECISION: dict[str, Any] = {
    "case": "pid",
    "action": "decide",
    "choice": "own",
    "classification": {
        "code": "OPT=Evo",
        "rationale": "it breeds",
        "format": "strict",
        "repairs": [],
        "problem": None,
        "calls": [],
    },
    "justification": "it breeds",
    "reviewer": "ada",
    "confirmation": OLD_CONFIRMATION,
    "decided": "2026-03-02T08:30:00Z",
}
NEW_DECISION = HumanDecision(
    case="pid",
    action="decide",
    choice="own",
    classification=Classification(label=parse("OPT=Evo"), rationale="it breeds", format="strict"),
    justification="it breeds",
    reviewer="ada",
    confirmation=NEW_CONFIRMATION,
    decided=datetime(2026, 3, 2, 8, 30, tzinfo=UTC),
)


def test_outcome_of_version_1_is_read() -> None:
    assert read_outcome(OLD_OUTCOME, CODEBOOK) == NEW_OUTCOME


def test_outcome_of_version_1_without_answers_is_read() -> None:
    body = {**OLD_OUTCOME, **NOTHING_ANSWERED, "status": "failed", "unread": []}
    changes: dict[str, Any] = dict.fromkeys(
        ["gold", "gold_label", "label", "agreement", "adjudication"]
    )
    expected = {"status": Status.FAILED, "unread": (), "answers": {}, **changes}
    assert read_outcome(body, CODEBOOK) == NEW_OUTCOME.model_copy(update=expected)


def test_decision_of_version_1_is_read() -> None:
    assert read_decision(OLD_DECISION, CODEBOOK) == NEW_DECISION


def test_decision_of_version_1_that_takes_one_back_is_read() -> None:
    taken: dict[str, Any] = {"choice": None, "classification": None, "confirmation": None}
    found = read_decision({**OLD_DECISION, **taken, "action": "undo"}, CODEBOOK)
    assert found == NEW_DECISION.model_copy(update={**taken, "action": "undo"})


@pytest.mark.parametrize("body", [OLD_OUTCOME, {**OLD_OUTCOME, **NOTHING_ANSWERED}])
def test_what_was_read_is_written_in_the_present_version(body: dict[str, Any]) -> None:
    outcome = read_outcome(body, CODEBOOK)
    written = outcome.model_dump(mode="json")
    assert (written["version"], written["gold"]) == (3, body["gold"])
    assert read_outcome(written, CODEBOOK) == outcome


@pytest.mark.parametrize("read", [read_outcome, read_decision])
def test_a_body_of_a_newer_version_is_refused(read: Any) -> None:
    with pytest.raises(ArchiveError, match="version 4, this raylab reads 3 at most: update raylab"):
        read({"version": 4}, CODEBOOK)


def test_version_2_is_read_with_the_present_name_of_a_criterion() -> None:
    body: dict[str, Any] = {**NEW_OUTCOME.model_dump(mode="json"), "version": 2}
    del body["candidate"]
    body["answers"]["A"]["evaluation"]["issues"] = ["mechanism", "execution"]
    body["adjudication"]["confirmation"]["issues"] = ["execution"]
    found = read_outcome(body, CODEBOOK)
    evaluation, settled = found.evaluation("A"), found.adjudication
    assert evaluation and evaluation.issues == ("mechanism", "parallelism/pipelines")
    assert settled and settled.confirmation
    assert settled.confirmation.issues == ("parallelism/pipelines",)
    decision: dict[str, Any] = {**NEW_DECISION.model_dump(mode="json"), "version": 2}
    decision["confirmation"]["issues"] = ["execution"]
    confirmation = read_decision(decision, CODEBOOK).confirmation
    assert confirmation and confirmation.issues == ("parallelism/pipelines",)
