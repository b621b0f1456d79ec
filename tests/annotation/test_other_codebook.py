"""The protocol with a codebook of three words, which shares nothing with OPT-Codes."""

import asyncio
import json
from collections.abc import Sequence
from typing import Any

import pytest

from raylab.annotation.input.cases import Case
from raylab.annotation.outcome import Outcome, Status, read_outcome
from raylab.annotation.protocol import annotate
from raylab.annotation.statistics.frame import tabulate
from raylab.annotation.statistics.report import BatchReport, batch_report
from raylab.config.annotation import LlmConfig
from raylab.config.llm import ChatModel
from tests.annotation.chats import Script, ScriptedChat, settings_by
from tests.annotation.fruits import FRUITS, NAMES, read_fruit

CASE = Case("c", "It grows on a tree.", gold="Stone", gold_label=FRUITS.parse("Stone"))
LLM = LlmConfig(
    annotator_a=ChatModel(model="alpha"),
    annotator_b=ChatModel(model="beta"),
    evaluator=ChatModel(model="gamma"),
    adjudicator=ChatModel(model="delta"),
)


def told(**keys: Any) -> str:
    return json.dumps(keys)


def fruit(word: str) -> str:
    return told(why="so it looks", fruit=word)


def graded(score: int, verdict: str, *issues: str) -> str:
    return told(summary="seen", issues=issues, score=score, verdict=verdict)


GOOD = graded(90, "PASS")
AGREED: Script = {
    "classify-a": fruit("stone"),
    "classify-b": fruit("Stone"),
    "evaluate-a": GOOD,
    "evaluate-b": GOOD,
}
DISPUTED: Script = {
    "classify-a": fruit("berry"),
    "classify-b": fruit("stone"),
    "evaluate-a": GOOD,
    "evaluate-b": graded(80, "WEAK_PASS"),
    "adjudicate": told(why="it has a stone", choice="synthesis", fruit="stone"),
    "confirm": GOOD,
}
REFUSED: Script = {**AGREED, "evaluate-b": graded(95, "PASS", "bigness")}


def annotated(script: Script, case: Case = CASE) -> tuple[Outcome, ScriptedChat]:
    chat = ScriptedChat(script)
    settings = settings_by(LLM, codebook=FRUITS)
    return asyncio.run(annotate(case, chat, settings)), chat


def quality_of(outcomes: Sequence[Outcome]) -> BatchReport:
    return batch_report(tabulate(((one, one.label) for one in outcomes), FRUITS))


def test_equal_words_are_accepted() -> None:
    outcome, chat = annotated(AGREED)
    assert (outcome.status, outcome.label) == (Status.ACCEPTED, read_fruit("stone"))
    assert outcome.path == (
        "classify-a:strict",
        "classify-b:repaired",
        "evaluate-a:PASS:90",
        "evaluate-b:PASS:90",
        "compare:same",
        "accept",
    )
    b = outcome.classification("B")
    assert b is not None and b.repairs == ("capitals",)
    assert outcome.agreement is not None and outcome.agreement.distance == "equal-v1"
    assert chat.shown("evaluate-a") == "Is It grows on a tree. the fruit stone? so it looks"


def test_a_word_of_another_codebook_is_asked_for_again() -> None:
    outcome, chat = annotated({**AGREED, "classify-a": fruit("OPT=Lrn"), "classify-a-repair": GOOD})
    assert outcome.path[-1] == "human:unparsable"
    assert chat.shown("classify-a-repair") == (
        "fruit is 'OPT=Lrn': opt=lrn is no fruit: answer with why, fruit"
    )


@pytest.mark.parametrize("script", [AGREED, DISPUTED, REFUSED])
def test_outcomes_are_read_back(script: Script) -> None:
    outcome, _ = annotated(script)
    body = outcome.model_dump(mode="json")
    assert (body["gold"], body["gold_label"]) == ("Stone", "stone")
    assert read_outcome(body, FRUITS) == outcome


def test_batch_is_counted_by_its_categories() -> None:
    report = quality_of([annotated(script)[0] for script in (AGREED, DISPUTED, REFUSED)])
    assert {status.value: one.cases for status, one in report.cases.status.items()} == {
        "accepted": 1,
        "adjudicated": 1,
        "human": 1,
        "failed": 0,
    }
    assert report.distance == "equal-v1"
    assert [(report.gold[name].roots.cases, report.gold[name].roots.count) for name in "AB"] == [
        (2, 3),
        (3, 3),
    ]
    assert (report.gold["final"].roots.cases, report.gold["final"].cases) == (2, 2)
    assert report.gold["A"].recall.keys() == NAMES.keys()
