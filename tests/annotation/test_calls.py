import asyncio
from pathlib import Path

from raylab.annotation.calls import ArchiveJournal
from raylab.archive.records import RunCost
from raylab.archive.store import Archive
from raylab.llm.chat import ChatRequest, Message
from tests.annotation.chats import replied


def test_a_call_is_answered_to_all_runs_and_paid_by_the_one_that_sent_it(tmp_path: Path) -> None:
    request = ChatRequest("main", "http://host/v1", "m", (Message("user", "a system"),), seed=3)
    reply = replied("OPT=Lrn", key=request.key)
    with Archive.open(tmp_path / "archive.db") as archive:
        for run in ("first", "second"):
            archive.start_run(run, {}, {})
        asyncio.run(
            ArchiveJournal(archive, "first").put(request, reply, "description_hash", "classify-a")
        )
        found = asyncio.run(ArchiveJournal(archive, "second").get(request.key, "description_hash"))
        assert found == replied("OPT=Lrn", key=request.key, cached=True)
        assert archive.run("first").cost() == RunCost(100, 10, 0.25, 0)
        assert archive.run("second").cost() == RunCost(0, 0, 0.0, 0)
        row = archive.call(request.key)
        assert row is not None and (row.run, row.role, row.seed) == ("first", "classify-a", 3)
