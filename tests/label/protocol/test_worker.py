"""The worker of an annotation, with its archive in memory."""

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from raylab.core.errors import ArchiveError, BudgetError, CallError, DeadlineError, StoppedError
from raylab.label.archive.records import CallRow, CaseRow
from raylab.label.archive.store import Archive
from raylab.label.input.cases import Case
from raylab.label.judgement import Decision
from raylab.label.pages.progress import AnnotationProgress, describe
from raylab.label.protocol.calls import GroupedWriter, RunWriter
from raylab.label.protocol.decisions import DecidedCase, decision_row
from raylab.label.protocol.outcome import Outcome
from raylab.label.protocol.run import open_cases
from raylab.label.protocol.settings import Settings, protocol_settings
from raylab.label.protocol.worker import Tally, Worker, chunks_of
from raylab.llm.chat import Chat, Message
from tests.label.protocol.chats import failed
from tests.label.protocol.local import local_archive
from tests.label.protocol.outcomes import CODEBOOK, decision, outcome
from tests.label.review.office import annotation


class MemoryWriter(RunWriter):
    """The writer of an archive that is a list."""

    def __init__(self) -> None:
        self.cases: list[CaseRow] = []
        self.confirmed: list[tuple[int, Decision]] = []

    def void_claims(self, claimant: str) -> None: ...

    def calls_of(self, description_hashes: Sequence[str]) -> list[CallRow]:
        return []

    def add_cases(self, rows: Sequence[CaseRow]) -> None:
        self.cases += rows

    def confirm(self, sequence: int, row: Decision) -> None:
        self.confirmed.append((sequence, row))


def tally_of(archive: RunWriter, storage: Path, *cases: Case) -> Tally:
    """What a worker counts over these cases."""
    config = annotation(storage, "http://127.0.0.1:9/v1")
    settings = protocol_settings(config, "run", CODEBOOK)

    async def annotate_all() -> Tally:
        worker = Worker(config.llm, settings, "run", local_archive(archive))
        tally = await worker.annotate([("published", case) for case in cases])
        await worker.close()
        return tally

    return asyncio.run(annotate_all())


def test_a_fresh_run_shares_its_calls_with_no_other(tmp_path: Path) -> None:
    def key(run: str, fresh: str) -> str:
        config = annotation(tmp_path, "http://127.0.0.1:9/v1", f"fresh={fresh}")
        settings = protocol_settings(config, run, CODEBOOK)
        return settings.evaluator.request((Message("user", "x"),), None).key

    shared = key("a", "false")
    assert shared == key("b", "false")
    assert len({shared, key("a", "true"), key("b", "true")}) == 3


def test_errors_of_the_run_and_faults_of_raylab_leave_their_cases_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends = {
        "good": None,
        "late": DeadlineError("no answer in 9 attempts"),
        "poor": BudgetError("used up"),
        "bug": ZeroDivisionError("zero"),
    }

    async def annotate(case: Case, *_: object) -> Outcome:
        await asyncio.sleep(0)
        if error := ends[case.id]:
            raise error
        return outcome(case.id, "Lrn", "Lrn")

    monkeypatch.setattr("raylab.label.protocol.worker.annotate", annotate)
    archive = MemoryWriter()
    tally = tally_of(archive, tmp_path, *(Case(name, f"about {name}") for name in ends))
    assert tally.statuses == {"accepted": 1} and isinstance(tally.halt, BudgetError)
    assert tally.open_cases == [
        "late: no answer in 9 attempts",
        "bug: a fault of raylab: ZeroDivisionError: zero",
    ]
    assert [row.case for row in archive.cases] == ["good"]
    progress = AnnotationProgress(5)
    progress.tally.add(tally)
    progress.tally.add(Tally(open_cases=["another: HTTP 503"]))
    assert "3 left open" in describe(progress.figures())


def test_a_failed_write_leaves_no_case_under_way_and_sends_no_further_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stopped: list[str] = []

    async def annotate(case: Case, chat: Chat, settings: Settings, _: str) -> Outcome:
        if case.id == "slow":
            await asyncio.sleep(0.3)
            request = settings.evaluator.request((Message("user", "?"),), None)
            try:
                await chat.complete(request, case.description_hash, "evaluate-a")
            except StoppedError:
                stopped.append(case.id)
                raise
        return outcome(case.id, "Lrn", "Lrn")

    class Full(MemoryWriter):
        def add_cases(self, rows: Sequence[CaseRow]) -> None:
            raise ArchiveError("no room")

    monkeypatch.setattr("raylab.label.protocol.worker.annotate", annotate)
    tally = tally_of(Full(), tmp_path, Case("fast", "about fast"), Case("slow", "about slow"))
    assert stopped == ["slow"] and str(tally.halt) == "no room"


def test_decisions_are_judged_and_those_without_a_reply_stay_unconfirmed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def confirm(case: DecidedCase, chat: object, settings: object) -> Decision:
        if case.id == "mute":
            raise CallError(f"case {case.id}: no report could be read")
        return decision_row(case.decision)

    monkeypatch.setattr("raylab.label.protocol.worker.confirm_decision", confirm)
    archive, made = MemoryWriter(), decision("good", "Evo", None, insisted=True)
    cases = [DecidedCase(name, name, decision=made, place=7) for name in ("good", "mute")]
    tally = tally_of(archive, tmp_path, *cases)
    assert tally.statuses == {"accepted": 1} and tally.halt is None
    assert tally.open_cases == ["mute: case mute: no report could be read"]
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


def test_chunks_hold_the_cases_that_the_archive_does_not_have(tmp_path: Path) -> None:
    cases = [Case(f"c{number}", f"system {number}") for number in range(5)]
    with Archive.open(tmp_path / "archive.db") as archive:
        archive.start_run("run", {}, {})
        archive.run("run").add_cases([failed(cases[1])])
        fresh = open_cases((("published", case) for case in cases), archive.run("run"))
        chunks = [[case.id for _, case in chunk] for chunk in chunks_of(fresh, 3)]
    assert chunks == [["c0", "c2", "c3"], ["c4"]]


def test_progress_says_how_many_calls_are_in_batches_and_how_old_they_are() -> None:
    progress, now = AnnotationProgress(9), time.time()
    progress.tally.add(Tally(batches={0: [(now - 180, 40)]}))
    progress.tally.add(Tally(batches={1: [(now - 7_300, 20), (now, 5)]}))
    assert "65 calls in 3 batches  oldest sent 2 h 02 min ago" in describe(progress.figures())
    # A worker that looks again has fewer.
    progress.tally.add(Tally(batches={1: []}))
    assert "40 calls in 1 batch  oldest sent 3 min ago" in describe(progress.figures())
