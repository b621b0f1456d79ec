"""The worker of an annotation, with its archive in memory."""

import asyncio
import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import pytest

from raylab.annotation.calls import ArchiveClient, CallJournal, GroupedWriter
from raylab.annotation.decisions import DecidedCase, decision_row
from raylab.annotation.input.cases import Case, select_cases
from raylab.annotation.input.state import open_cases
from raylab.annotation.outcome import Outcome, Status
from raylab.annotation.settings import Settings, protocol_settings
from raylab.annotation.worker import (
    Tally,
    Worker,
    case_row,
    chunks_of,
    failed_outcome,
)
from raylab.archive.records import CallRow, CaseRow, DecisionRow
from raylab.archive.store import Archive
from raylab.config.annotation import CasesConfig
from raylab.config.llm import Budget
from raylab.errors import (
    ArchiveError,
    BudgetError,
    CallError,
    DataError,
    DeadlineError,
    StoppedError,
)
from raylab.llm.chat import Chat, Message
from raylab.report.progress import AnnotationProgress, describe
from tests.annotation.outcomes import CODEBOOK, decision
from tests.archive.rows import call_row
from tests.review.office import annotation


class MemoryArchive(ArchiveClient):
    """The client of an archive that is a list."""

    def __init__(self, *calls: CallRow) -> None:
        self.calls = list(calls)
        self.cases: list[CaseRow] = []
        self.confirmed: list[tuple[int, DecisionRow]] = []

    async def void_claims(self) -> None: ...

    async def calls_of(self, description_hashes: Sequence[str]) -> list[CallRow]:
        return [row for row in self.calls if row.description_hash in description_hashes]

    async def add_cases(self, rows: Sequence[CaseRow]) -> None:
        self.cases += rows

    async def confirm(self, sequence: int, row: DecisionRow) -> None:
        self.confirmed.append((sequence, row))


def worker_of(archive: ArchiveClient, storage: Path) -> Worker:
    config = annotation(storage, "http://127.0.0.1:9/v1")
    return Worker(config.llm, protocol_settings(config, "run", CODEBOOK), "run", archive)


def ends(monkeypatch: pytest.MonkeyPatch, **by_case: Exception | None) -> None:
    """Lets the protocol end each case with an error, or accept it."""

    async def annotate(case: Case, chat: object, settings: object, generation: str) -> Outcome:
        await asyncio.sleep(0)
        if error := by_case[case.id]:
            raise error
        outcome = failed_outcome(case, generation, "")
        return outcome.model_copy(update={"status": Status.ACCEPTED})

    monkeypatch.setattr("raylab.annotation.worker.annotate", annotate)


def test_a_fault_of_raylab_fails_its_case_and_an_error_of_the_run_leaves_it_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    late = DeadlineError("no answer in 9 attempts")
    bug, poor = ZeroDivisionError("zero"), BudgetError("used up")
    ends(monkeypatch, good=None, bug=bug, poor=poor, late=late)
    archive = MemoryArchive()

    async def run() -> None:
        worker = worker_of(archive, tmp_path)
        chunk = [
            ("published", Case(name, f"about {name}")) for name in ("good", "bug", "poor", "late")
        ]
        tally = await worker.annotate(chunk)
        assert tally.statuses == {"accepted": 1, "failed": 1}
        assert isinstance(tally.halt, BudgetError)
        assert tally.open_cases == ["late: no answer in 9 attempts"]
        worker.stop()

    asyncio.run(run())
    assert {row.case: row.status for row in archive.cases} == {"good": "accepted", "bug": "failed"}
    (failed,) = (row for row in archive.cases if row.case == "bug")
    assert failed.body["reason"] == "a fault of raylab: ZeroDivisionError: zero"


def test_a_failed_write_leaves_no_case_under_way_and_sends_no_further_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stopped: list[str] = []

    async def annotate(case: Case, chat: Chat, settings: Settings, _: str) -> Outcome:
        if case.id == "slow":
            await asyncio.sleep(0.05)
            request = settings.evaluator.request((Message("user", "?"),), None)
            try:
                await chat.complete(request, case.description_hash, "evaluate-a")
            except StoppedError:
                stopped.append(case.id)
                raise
        return failed_outcome(case, "published", "")

    class Full(MemoryArchive):
        async def add_cases(self, rows: Sequence[CaseRow]) -> None:
            raise ArchiveError("no room")

    monkeypatch.setattr("raylab.annotation.worker.annotate", annotate)

    async def run() -> None:
        chunk = [("published", Case(name, f"about {name}")) for name in ("fast", "slow")]
        tally = await worker_of(Full(), tmp_path).annotate(chunk)
        assert stopped == ["slow"] and str(tally.halt) == "no room"

    asyncio.run(run())


def test_decisions_are_judged_and_those_without_a_reply_stay_unconfirmed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def confirm(case: DecidedCase, chat: object, settings: object) -> DecisionRow:
        if case.id == "mute":
            raise CallError(f"case {case.id}: no report could be read")
        return decision_row(case.decision)

    monkeypatch.setattr("raylab.annotation.worker.confirm_decision", confirm)
    archive = MemoryArchive()

    async def run() -> None:
        worker = worker_of(archive, tmp_path)
        made = decision("good", "Evo", None, insisted=True)
        chunk = [
            ("published", DecidedCase(name, f"about {name}", decision=made, place=place))
            for place, name in enumerate(("good", "mute"), 7)
        ]
        tally = await worker.annotate(chunk)
        assert tally.statuses == {"accepted": 1} and tally.halt is None
        reason = "mute: case mute: no report could be read"
        assert tally.open_cases == [reason]
        worker.stop()

    asyncio.run(run())
    assert archive.cases == []
    assert [(place, row.status) for place, row in archive.confirmed] == [(7, "accepted")]


def test_rows_are_written_in_groups_and_an_error_reaches_its_own_group() -> None:
    groups: list[list[int]] = []
    may_write = asyncio.Event()

    async def write(rows: list[int]) -> None:
        groups.append(rows)
        await may_write.wait()
        if 0 in rows:
            raise ArchiveError("no room")

    async def run() -> list[BaseException | None]:
        writer = GroupedWriter[int, None](write)
        added = asyncio.gather(*map(writer.add, range(4)), return_exceptions=True)
        await asyncio.sleep(0)
        later = asyncio.gather(*map(writer.add, (4, 5)))
        await asyncio.sleep(0.01)
        assert groups == [[0, 1, 2, 3]]
        may_write.set()
        await later
        return await added

    errors = asyncio.run(run())
    assert groups == [[0, 1, 2, 3], [4, 5]]
    assert [str(error) for error in errors] == ["no room"] * 4


def test_archived_calls_are_found_while_their_cases_are_under_way() -> None:
    row = call_row("key", description_hash="d")

    async def run() -> None:
        archive = MemoryArchive(row)
        cache = CallJournal(archive, "run", Budget())
        keys = await cache.load(["d"])
        reply = await cache.get(row.key, "d")
        assert reply is not None and reply.cached and reply.text == row.text
        cache.drop(keys)
        assert await cache.get(row.key, "d") is None
        assert (cache.take_count(), cache.take_count()) == (1, 0)

    asyncio.run(run())


def test_open_cases_are_those_that_the_archive_does_not_have(tmp_path: Path) -> None:
    cases = tmp_path / "cases.jsonl"
    rows = [{"id": f"c{n}", "description": f"system {n}"} for n in range(5)]
    cases.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    read = partial(select_cases, CasesConfig(path=str(cases)), ["published"], CODEBOOK)
    with Archive.open(tmp_path / "archive.db") as archive:
        archive.start_run("run", {}, {})
        ended = Case("c1", "system 1")
        archive.run("run").add_cases([case_row(ended, failed_outcome(ended, "published", "no"))])
        chunks = list(chunks_of(open_cases(read(), archive.run("run")), 3))
        assert [[case.id for _, case in chunk] for chunk in chunks] == [["c0", "c2", "c3"], ["c4"]]
        cases.write_text(cases.read_text().replace("system 1", "system one"))
        with pytest.raises(DataError, match="c1 has another description than run run archived"):
            list(open_cases(read(), archive.run("run")))


def test_cases_without_an_answer_stay_open_and_are_counted_with_the_first_reason() -> None:
    tally = Tally()
    tally.add(Tally(open_cases=["c1: HTTP 429"]))
    tally.add(Tally(open_cases=["c2: HTTP 503", "c3: HTTP 503"]))
    progress = AnnotationProgress(5)
    progress.tally.add(tally)
    assert "3 left open" in describe(progress.figures())
