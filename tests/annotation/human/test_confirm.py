import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from raylab.annotation.human.confirm import confirmed, decision_row, status_after
from raylab.annotation.human.review_file import human_decision
from raylab.annotation.outcome import HumanDecision, Status, read_decision
from raylab.annotation.protocol import annotate
from raylab.archive.records import CaseRow
from raylab.archive.store import Archive
from raylab.errors import CallError
from raylab.opt.code import bare
from tests.annotation.chats import BAD, CASE, DISPUTED, GOOD, ScriptedChat, settings_of
from tests.annotation.outcomes import CODEBOOK
from tests.archive.rows import NOON

DECISION = human_decision(CASE.id, "own", bare("Ctl"), "the loop is closed", "Ada", NOON)


@pytest.fixture
def archive(tmp_path: Path) -> Iterator[Archive]:
    """An archive with the run `r`, whose one case waits for a person."""
    chat = ScriptedChat({**DISPUTED, "evaluate-b": BAD})
    outcome = asyncio.run(annotate(CASE, chat, settings_of()))
    body = outcome.model_dump(mode="json")
    with Archive.open(tmp_path / "archive.db") as archive:
        archive.start_run("r", {}, {})
        archive.run("r").add_cases(
            [CaseRow(CASE.id, CASE.description_hash, CASE.description, outcome.status, body)]
        )
        yield archive


def settled(
    archive: Archive, chat: ScriptedChat, decision: HumanDecision = DECISION
) -> HumanDecision:
    run = archive.run("r")
    made = asyncio.run(confirmed(decision, run, chat, settings_of()))
    run.add_decision(decision_row(made))
    return made


@pytest.mark.parametrize(
    ("reply", "status"), [(GOOD, Status.ACCEPTED), (BAD, Status.HUMAN)], ids=["good", "bad"]
)
def test_a_code_is_judged_and_archived_with_its_report(
    archive: Archive, reply: str, status: Status
) -> None:
    chat = ScriptedChat({"confirm": reply})
    made = settled(archive, chat)
    assert chat.roles == ["confirm"] and status_after(made) is status
    assert "the loop is closed" in chat.shown("confirm")
    (row,) = archive.run("r").decisions()
    assert (row.status, row.reviewer, row.action) == (status, "Ada", "decide")
    assert read_decision(row.body, CODEBOOK) == made
    assert made.confirmation is not None
    assert made.confirmation.acceptable == (status is Status.ACCEPTED)


def test_taking_back_asks_nobody(archive: Archive) -> None:
    settled(archive, ScriptedChat({"confirm": GOOD}))
    chat = ScriptedChat({})
    settled(archive, chat, human_decision(CASE.id, None, None, "no", "Ada", NOON))
    assert chat.roles == [] and archive.run("r").counts(now=True) == {"human": 1}


@pytest.mark.parametrize("reply", [CallError("away"), "what?"], ids=["away", "unreadable"])
def test_an_evaluator_that_does_not_answer_archives_nothing(
    archive: Archive, reply: str | CallError
) -> None:
    chat = ScriptedChat({"confirm": reply, "confirm-repair": reply})
    with pytest.raises(CallError, match="case pid: confirm"):
        settled(archive, chat)
    assert list(archive.run("r").decisions()) == []
