"""The driver of an annotation that goes on, with hands in place of its actors: no Ray starts."""

import json
from collections.abc import Iterable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from raylab.annotation.worker import Chunk
from raylab.archive.store import Archive
from raylab.cluster import annotate
from raylab.cluster.annotation import driver
from raylab.config.jobs import AnnotateConfig
from raylab.errors import LlmError
from raylab.runs.run import Run
from tests.annotation.chats import failed
from tests.report.runs import LLM


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AnnotateConfig:
    """A run whose cases are archived as failed, one after the other."""
    archive = tmp_path / "lab.db"

    class Pool:
        chunk = 1

        def __init__(self, *given: object) -> None: ...

        def __enter__(self) -> "Pool":
            return self

        def __exit__(self, *error: object) -> None: ...

    def drive(pool: Pool, chunks: Iterable[Chunk], *more: Any) -> None:
        with Archive.open(archive) as open_archive:
            for chunk in chunks:
                open_archive.run("r").add_cases([failed(case) for _, case in chunk])

    monkeypatch.setattr(driver, "Pool", Pool)
    monkeypatch.setattr(driver, "drive", drive)
    monkeypatch.setattr(driver, "session", lambda cluster: nullcontext())
    write(tmp_path / "cases.jsonl", "a", "b")
    values = {
        "storage": str(tmp_path / "runs"),
        "name": "r",
        "llm": LLM,
        "resume": True,
        "archive": str(archive),
        "cases": {"path": str(tmp_path / "cases.jsonl")},
        "generations": ["published"],
    }
    return AnnotateConfig.model_validate(values)


def write(file: Path, *ids: str) -> None:
    rows = [{"id": name, "description": f"System {name}."} for name in ids]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))


def go_on(config: AnnotateConfig, failed: int, **changes: object) -> Run:
    with pytest.raises(LlmError, match=f"{failed} cases failed"):
        annotate.run_annotate(config.model_copy(update={"archive": None, **changes}))
    return Run.at(f"{config.storage}/r")


def reported(run: Run) -> int:
    return json.loads((run / "report.json").read())["cases"]["total"]


def test_a_finished_run_takes_new_cases_and_keeps_its_archive(
    config: AnnotateConfig, tmp_path: Path
):
    run = go_on(config, 2, archive=config.archive)
    assert (run.finished, reported(run)) == (True, 2)
    write(tmp_path / "cases.jsonl", "a", "b", "c")
    go_on(config, 3)
    assert (run.finished, reported(run)) == (True, 3)
    go_on(config, 3)
    note = run.record.archive
    assert note is not None and note.cases == 3
    with Archive.open(tmp_path / "lab.db") as archive:
        assert archive.run("r").row().finished is not None
    assert not (tmp_path / "runs" / "archive.db").exists()
