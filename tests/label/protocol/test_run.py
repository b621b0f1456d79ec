"""A run goes on with its archive and its input: the same, moved, changed, shorter or gone."""

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from raylab.core.errors import ArchiveError, ConfigError, DataError
from raylab.core.runs.run import Run
from raylab.core.runs.run_record import RECORD, RunRecord, identity_of
from raylab.label.archive.store import Archive
from raylab.label.config.jobs import AnnotateConfig, ReviewConfig
from raylab.label.protocol.run import (
    AnnotationRun,
    archive_location,
    find_annotation_run,
    open_annotation,
    take_input,
)
from raylab.label.review.server import open_reviews
from raylab.together.frames import cases
from tests.label.archive.rows import case_row, execute
from tests.label.protocol.chats import failed
from tests.label.protocol.outcomes import CODEBOOK
from tests.together.runs import LLM


def configured(path: Path, **changes: object) -> AnnotateConfig:
    values = {"storage": str(path / "runs"), "name": "r", "llm": LLM, "resume": True, **changes}
    return AnnotateConfig.model_validate(values)


def annotate(config: AnnotateConfig, *cases: str) -> Run:
    """Does what the job does, with cases made by hand."""
    location = archive_location(
        config.storage, config.archive, Run.locate(config).read_record(RunRecord)
    )
    run = Run.open(config)
    with open_annotation(config, CODEBOOK, run, location) as annotation:
        annotation.archived.add_cases([case_row(case) for case in cases])
    return run


def noted(run: Run) -> int:
    """The number of cases that the record notes."""
    note = run.record.archive
    assert note is not None
    return note.cases


def statuses(location: Path) -> list[str]:
    with Archive.open(location, create=False) as archive:
        return [current.case.case for current in archive.run("r").cases()]


def everything(path: Path) -> dict[Path, bytes]:
    return {
        file: file.read_bytes()
        for file in path.rglob("*")
        if file.is_file() and not file.name.endswith(("-shm", "-wal", RECORD))
    }


def refused(config: AnnotateConfig, message: str) -> None:
    with pytest.raises(ArchiveError, match=message):
        annotate(config, "new")


def test_another_or_a_lost_archive_is_refused_and_nothing_is_made_or_changed(tmp_path: Path):
    lab = tmp_path / "lab.db"
    annotate(configured(tmp_path, archive=str(lab)), "a")
    with Archive.open(tmp_path / "other.db") as other:
        other.start_run("s", {}, {})
    before = everything(tmp_path)
    refused(configured(tmp_path, archive=str(tmp_path / "new.db")), "there is no archive")
    refused(configured(tmp_path, archive=str(tmp_path / "other.db")), r"no run r; .* from a copy")
    lab.rename(tmp_path / "moved.db")
    refused(configured(tmp_path), "there is no archive")
    (tmp_path / "moved.db").rename(lab)
    assert everything(tmp_path) == before


def test_resume_finds_the_archive_of_the_record_and_one_that_moved(tmp_path: Path):
    annotate(configured(tmp_path, archive=str(tmp_path / "lab.db")), "a")
    annotate(configured(tmp_path), "b")
    shutil.move(tmp_path / "lab.db", tmp_path / "moved.db")
    annotate(configured(tmp_path, archive=str(tmp_path / "moved.db")), "c")
    assert noted(annotate(configured(tmp_path), "d")) == 4
    assert statuses(tmp_path / "moved.db") == ["a", "b", "c", "d"]
    assert not (tmp_path / "runs" / "archive.db").exists()


def test_a_server_that_a_record_alone_names_is_not_opened(tmp_path: Path):
    run = annotate(configured(tmp_path), "a")
    moved = {**run.record.config, "archive": "postgresql://stranger.example/db"}
    run.write_record(run.record.model_copy(update={"config": moved}))
    storage = str(tmp_path / "runs")
    review = ReviewConfig(storage=storage, name="r")
    named = r"run r is on a server, postgresql://stranger\.example/db.*archive=URL"
    with pytest.raises(ConfigError, match=named), open_reviews(review):
        pass
    for go_on in (lambda: annotate(configured(tmp_path), "b"), lambda: cases(f"{storage}/r")):
        with pytest.raises(ConfigError, match=named):
            go_on()
    annotate(configured(tmp_path, archive=f"{storage}/archive.db"), "b")


def test_a_run_of_the_same_name_elsewhere_is_another_one(tmp_path: Path):
    shared = str(tmp_path / "lab.db")
    annotate(configured(tmp_path / "here", archive=shared), "a")
    refused(configured(tmp_path / "there", archive=shared), "another run of the name r")
    annotate(configured(tmp_path / "there", archive=str(tmp_path / "own.db")), "b")
    refused(configured(tmp_path / "there", archive=shared), "of the name r: leave archive= out")
    assert statuses(tmp_path / "lab.db") == ["a"]
    assert noted(Run.at(str(tmp_path / "there" / "runs" / "r"))) == 1


def test_a_storage_that_moved_and_a_run_that_died_before_it_was_archived_go_on(tmp_path: Path):
    Run.open(configured(tmp_path / "here"))
    annotate(configured(tmp_path / "here"), "a")
    shutil.move(tmp_path / "here", tmp_path / "there")
    annotate(configured(tmp_path / "there"), "b")
    assert statuses(tmp_path / "there" / "runs" / "archive.db") == ["a", "b"]
    assert not (tmp_path / "here").exists()


def test_an_archive_that_was_cut_off_or_made_anew_is_refused(tmp_path: Path):
    run = annotate(configured(tmp_path), "a", "b", "c")
    location = str(tmp_path / "runs" / "archive.db")
    execute(location, "DELETE FROM cases WHERE sequence > 1", "UPDATE runs SET records = 1")
    refused(configured(tmp_path), "holds 1 cases of run r, which had 3 before")
    with Archive.open(tmp_path / "new.db") as new:
        archived = new.start_run("r", identity_of(configured(tmp_path)), {}, run.id)
        archived.add_cases([case_row(case) for case in "abc"])
    refused(configured(tmp_path, archive=str(tmp_path / "new.db")), "another run of the name r")


def test_reviews_and_their_files_are_of_the_same_archive(tmp_path: Path):
    run = annotate(configured(tmp_path, archive=str(tmp_path / "lab.db")), "a")
    asked = ReviewConfig(storage=str(tmp_path / "runs"), name="r")
    with open_reviews(asked) as (_, annotation):
        assert annotation.config.archive == str(tmp_path / "lab.db")
        assert annotation.run.id == run.id
        annotation.archived.add_cases([case_row("b")])
    assert noted(run) == 2
    with Archive.open(tmp_path / "other.db") as other:
        other.start_run("r", {}, {}, "0c2d")
    wrong = asked.model_copy(update={"archive": str(tmp_path / "other.db")})
    with pytest.raises(ArchiveError, match="another run of the name r"), open_reviews(wrong):
        pass
    assert find_annotation_run(asked.storage, "r", None)[1].archive == str(tmp_path / "lab.db")


# The input

ROWS = [
    {"id": "a", "description": "Searches a tree.", "gold": "Sch", "meta": {"trap": False}},
    {"id": "b", "description": "Evolves a population."},
    {"id": "c", "description": "Learns weights."},
]


@dataclass
class Annotated:
    """A finished run of the cases of a file."""

    file: Path
    config: AnnotateConfig
    run: Run
    archive: Archive

    def write(self, *rows: dict[str, Any]) -> None:
        self.file.write_text("".join(json.dumps(row) + "\n" for row in rows))

    @property
    def annotation(self) -> AnnotationRun:
        return AnnotationRun(self.config, CODEBOOK, self.run, self.archive)

    def take(self) -> tuple[int, int]:
        """The numbers of new and of archived cases."""
        return take_input(self.annotation)

    def finish(self) -> None:
        """Archives all cases that are not there, as failed."""
        self.archive.run("r").add_cases([failed(case) for _, case in self.annotation.cases()])
        self.run.finish()

    @property
    def ids(self) -> list[str]:
        return [current.case.case for current in self.archive.run("r").cases()]


@pytest.fixture
def annotated(tmp_path: Path) -> Annotated:
    config = configured(tmp_path, cases={"path": str(tmp_path / "cases.jsonl")})
    run = Run.open(config)
    archive = Archive.open(tmp_path / "archive.db")
    archive.start_run("r", {}, {}, run.id)
    annotated = Annotated(tmp_path / "cases.jsonl", config, run, archive)
    annotated.write(*ROWS)
    assert annotated.take() == (3, 0)
    annotated.finish()
    return annotated


def test_new_cases_reopen_a_finished_run(annotated: Annotated):
    assert annotated.take() == (0, 3) and annotated.run.is_finished
    annotated.write(*ROWS, {"id": "d", "description": "Plans."})
    assert annotated.take() == (1, 3)
    assert not annotated.run.is_finished
    # A run that died here is still open.
    assert annotated.take() == (1, 3)
    annotated.finish()
    assert annotated.ids == ["a", "b", "c", "d"] and annotated.take() == (0, 4)


def test_a_run_that_did_not_finish_reads_the_same_files_again(annotated: Annotated):
    annotated.write(
        *ROWS, {"id": "d", "description": "Plans."}, {"id": "e", "description": "Acts."}
    )
    assert annotated.take() == (2, 3)
    last = [failed(case) for _, case in annotated.annotation.cases()][-1]
    annotated.archive.run("r").add_cases([last])
    assert annotated.take() == (1, 4)
    annotated.finish()
    assert annotated.take() == (0, 5)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"description": "Searches a graph."}, "case a has another description than run r"),
        ({"gold": "Evo"}, "case a has another gold than run r"),
        ({"gold": None}, "case a has another gold than run r"),
        ({"meta": {"trap": True}}, "case a has another meta than run r"),
        ({"candidate": {"code": "Evo"}}, "case a has another candidate than run r"),
        ({"description": None}, r"line 1: description is 'null'"),
    ],
)
def test_a_changed_or_broken_case_is_refused_and_nothing_is_changed(
    annotated: Annotated, change: dict[str, Any], message: str
):
    before = annotated.run.record
    annotated.write({**ROWS[0], **change}, *ROWS[1:], {"id": "d", "description": "Plans."})
    with pytest.raises(DataError, match=message):
        annotated.take()
    assert annotated.run.record == before


def test_cases_that_vanished_are_told_each_time_and_kept(
    annotated: Annotated, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
):
    annotated.write(ROWS[0], {"id": "d", "description": "Plans."})
    for state in ((1, 3), (0, 4)):
        assert annotated.take() == state
        annotated.finish()
    output = caplog.text + "".join(capsys.readouterr())
    assert output.count("the input lacks 2 cases of run r (b and c)") == 2
    assert annotated.ids == ["a", "b", "c", "d"]


def test_the_input_of_a_finished_run_may_be_gone(
    annotated: Annotated, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
):
    annotated.file.unlink()
    assert annotated.take() == (0, 3)
    assert "the input of run r is gone" in caplog.text + "".join(capsys.readouterr())


def test_files_of_generations_are_part_of_the_input(annotated: Annotated, tmp_path: Path):
    drawn = tmp_path / "drawn.jsonl"
    drawn.write_text('{"id": "a", "description": "Searches another tree."}\n')
    annotated.config = annotated.config.model_copy(update={"generations": (str(drawn),)})
    assert annotated.take() == (1, 3)
    annotated.finish()
    assert annotated.ids[-1] == "drawn/a"
    drawn.write_text('{"id": "a", "description": "Searches a third tree."}\n')
    with pytest.raises(DataError, match="case drawn/a has another description"):
        annotated.take()


def test_a_row_without_a_candidate_is_refused_where_candidates_are_judged(annotated: Annotated):
    protocol = annotated.config.protocol.model_copy(update={"stages": "evaluate"})
    annotated.config = annotated.config.model_copy(update={"protocol": protocol})
    with pytest.raises(DataError, match=r"case a has no candidate.*protocol\.stages=all"):
        list(annotated.annotation.cases())


def test_rows_that_were_left_out_are_told_at_each_start_and_stay_out(
    annotated: Annotated, capsys: pytest.CaptureFixture[str]
):
    cases = annotated.config.cases.model_copy(update={"skip_unusable": True})
    annotated.config = annotated.config.model_copy(update={"cases": cases})
    annotated.write(*ROWS, {"id": "d", "description": " "}, {"id": "a", "description": "Again."})
    notice = (
        f"Left out by cases.skip_unusable: {annotated.file}: 2 of 5 rows are unusable (no text in"
    )
    for _ in range(2):
        assert annotated.take() == (0, 3)
        assert f"note: {notice} 1: 4; id twice in 1: 5)." in capsys.readouterr().out
        assert annotated.run.record.notices[0].startswith(notice)
    annotated.file.unlink()
    assert annotated.take() == (0, 3) and annotated.run.record.notices
