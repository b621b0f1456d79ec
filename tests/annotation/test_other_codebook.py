"""The protocol with a codebook of three words, which shares nothing with OPT-Codes."""

import asyncio
import json
from typing import Any

from raylab.annotation.input.cases import Case
from raylab.annotation.outcome import Outcome, read_outcome
from raylab.annotation.protocol import annotate
from raylab.annotation.statistics.frame import tabulate
from raylab.annotation.statistics.report import batch_report
from tests.annotation.chats import GOOD, LLM, Script, ScriptedChat, graded, settings_by
from tests.annotation.fruits import FRUITS, NAMES, read_fruit

CASE = Case("c", "It grows on a tree.", gold="Stone", gold_label=FRUITS.parse("Stone"))


def fruit(word: str, **keys: Any) -> str:
    return json.dumps({"why": "so it looks", **keys, "fruit": word})


AGREED: Script = {
    "classify-a": fruit("stone"),
    "classify-b": fruit("Stone"),
    "evaluate-a": GOOD,
    "evaluate-b": GOOD,
}
DISPUTED: Script = {
    **AGREED,
    "classify-a": fruit("berry"),
    "adjudicate": fruit("stone", choice="synthesis"),
    "confirm": GOOD,
}
REFUSED: Script = {**AGREED, "evaluate-b": graded("PASS", 95, ["bigness"])}


def annotated(script: Script) -> tuple[Outcome, ScriptedChat]:
    chat = ScriptedChat(script)
    return asyncio.run(annotate(CASE, chat, settings_by(LLM, codebook=FRUITS))), chat


def test_equal_words_are_accepted() -> None:
    outcome, chat = annotated(AGREED)
    assert outcome.label == read_fruit("stone")
    assert outcome.path == (
        "classify-a:strict",
        "classify-b:repaired",
        "evaluate-a:PASS:90",
        "evaluate-b:PASS:90",
        "compare:same",
        "accept",
    )
    assert outcome.answers["B"].classification.repairs == ("capitals",)
    assert outcome.agreement is not None and outcome.agreement.distance == "equal-v1"
    assert chat.shown("evaluate-a") == "Is It grows on a tree. the fruit stone? so it looks"


def test_a_word_of_another_codebook_is_asked_for_again() -> None:
    outcome, chat = annotated({**AGREED, "classify-a": fruit("OPT=Lrn"), "classify-a-repair": GOOD})
    assert outcome.path[-1] == "human:unparsable"
    assert chat.shown("classify-a-repair") == (
        "fruit is 'OPT=Lrn': opt=lrn is no fruit: answer with why, fruit"
    )


def test_outcomes_are_read_back_and_counted_by_the_categories() -> None:
    outcomes = [annotated(script)[0] for script in (AGREED, DISPUTED, REFUSED)]
    bodies = [outcome.model_dump(mode="json") for outcome in outcomes]
    assert [read_outcome(body, FRUITS) for body in bodies] == outcomes
    assert (bodies[0]["gold"], bodies[0]["gold_label"]) == ("Stone", "stone")
    report = batch_report(tabulate(((one, one.label) for one in outcomes), FRUITS))
    counts = {status.value: share.cases for status, share in report.cases.status.items()}
    assert counts == {"accepted": 1, "adjudicated": 1, "human": 1, "failed": 0}
    assert report.distance == "equal-v1"
    right = {name: (gold.labels.cases, gold.labels.count) for name, gold in report.gold.items()}
    assert (right["A"], right["B"], right["final"]) == ((2, 3), (3, 3), (2, 2))
    assert report.gold["A"].recall.keys() == NAMES.keys()
