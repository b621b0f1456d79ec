"""The worker of an annotation, with its archive in memory."""

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from raylab.annotation.calls import CallCache, GroupedWriter
from raylab.annotation.cases import Case
from raylab.annotation.outcome import Outcome, Status
from raylab.annotation.worker import (
    Worker,
    case_row,
    chunks_of,
    failed_outcome,
    open_cases,
)
from raylab.archive.attempts import AnswerRow, CallOperation, CallResults
from raylab.archive.records import CallRow, CaseRow
from raylab.archive.store import Archive
from raylab.config.annotation import CasesConfig
from raylab.config.compose import load_config
from raylab.config.jobs import AnnotateConfig
from raylab.errors import ArchiveError, BudgetError, DataError
from raylab.llm.client import CallEvent
from tests.annotation.outcomes import CODEBOOK
from tests.archive.rows import call_row


class MemoryArchive:
    """The client of an archive that is a list."""

    def __init__(self, *calls: CallRow) -> None:
        self.calls = list(calls)
        self.cases: list[CaseRow] = []

    async def write_calls(self, operations: Sequence[CallOperation]) -> CallResults:
        self.calls += [one.call for one in operations if isinstance(one, AnswerRow)]
        return CallResults({})

    async def void_claims(self) -> None: ...

    async def calls_of(self, description_hashes: Sequence[str]) -> list[CallRow]:
        return [row for row in self.calls if row.description_hash in description_hashes]

    async def add_cases(self, rows: Sequence[CaseRow]) -> None:
        self.cases += rows


class ListMeter:
    def __init__(self) -> None:
        self.statuses: list[Status] = []

    def attempted(self, event: CallEvent) -> None: ...

    def found(self, answers: int) -> None: ...

    def ended(self, status: Status) -> None:
        self.statuses.append(status)


def config(tmp_path: Path) -> AnnotateConfig:
    endpoint = "llm.endpoints.default"
    models = (f"llm.{role}.model={role}" for role in ("annotator_a", "annotator_b", "evaluator"))
    return load_config(
        AnnotateConfig,
        [
            "llm=openai",
            f"{endpoint}.base_url=http://127.0.0.1:9/v1",
            f"{endpoint}.api_key_env=null",
            f"storage={tmp_path}",
            "llm.adjudicator.model=adjudicator",
            *models,
        ],
    )


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
    ends(monkeypatch, good=None, bug=ZeroDivisionError("zero"), poor=BudgetError("used up"))
    archive, meter = MemoryArchive(), ListMeter()

    async def run() -> None:
        worker = Worker(config(tmp_path), CODEBOOK, "run", archive, meter)
        chunk = [("published", Case(name, f"about {name}")) for name in ("good", "bug", "poor")]
        tally = await worker.annotate(chunk)
        assert tally.statuses == {"accepted": 1, "failed": 1}
        assert isinstance(tally.halt, BudgetError)
        worker.stop()

    asyncio.run(run())
    assert {row.case: row.status for row in archive.cases} == {"good": "accepted", "bug": "failed"}
    assert sorted(meter.statuses) == ["accepted", "failed"]
    (failed,) = (row for row in archive.cases if row.case == "bug")
    assert failed.body["reason"] == "a fault of raylab: ZeroDivisionError: zero"


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
        cache = CallCache(MemoryArchive(row), "run")
        assert await cache.get(row.key, "d") is None
        await cache.load(["d"])
        await cache.load(["d"])
        reply = await cache.get(row.key, "d")
        assert reply is not None and reply.cached and reply.text == row.text
        cache.drop(["d"])
        assert await cache.get(row.key, "d") is not None
        cache.drop(["d"])
        assert await cache.get(row.key, "d") is None
        assert (cache.take_found(), cache.take_found()) == (2, 0)

    asyncio.run(run())


def test_open_cases_are_those_that_the_archive_does_not_have(tmp_path: Path) -> None:
    cases = tmp_path / "cases.jsonl"
    rows = [{"id": f"c{n}", "description": f"system {n}"} for n in range(5)]
    cases.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    given = config(tmp_path).model_copy(update={"cases": CasesConfig(path=str(cases))})
    with Archive.open(tmp_path / "archive.db") as archive:
        archive.start_run("run", {}, {})
        ended = Case("c1", "system 1")
        archive.run("run").add_cases([case_row(ended, failed_outcome(ended, "published", "no"))])
        chunks = list(chunks_of(open_cases(given, CODEBOOK, "run", archive), 3))
        assert [[case.id for _, case in chunk] for chunk in chunks] == [["c0", "c2", "c3"], ["c4"]]
        cases.write_text(cases.read_text().replace("system 1", "system one"))
        with pytest.raises(DataError, match="c1 has another description than run run classified"):
            list(open_cases(given, CODEBOOK, "run", archive))
