"""The heads of a run's chains, noted beside the run and signed with a key."""

import json
from pathlib import Path

import pytest

from raylab.annotation.heads import HEADS, note_head, noted_heads
from raylab.archive.records import ChainHead
from raylab.archive.store import Archive
from raylab.config.jobs import TrainConfig
from raylab.errors import ArchiveError, ConfigError
from raylab.runs.run import Run
from tests.archive.rows import case_row
from tests.object_storage import ObjectStorage

KEY, OTHER = "k" * 32, "o" * 40


@pytest.fixture(autouse=True)
def no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAYLAB_CHAIN_KEY", raising=False)


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run.open(TrainConfig(storage=str(tmp_path), name="r"), "train")


@pytest.fixture
def archive(tmp_path: Path) -> Archive:
    return started(tmp_path)


def started(path: Path) -> Archive:
    archive = Archive.open(path / "archive.db")
    archive.start_run("r", {}, {})
    return archive


def lines(run: Run) -> list[str]:
    return (run / HEADS).read().decode().splitlines()


def rewrite(run: Run, *changed: str) -> None:
    (run / HEADS).write("".join(f"{line}\n" for line in changed).encode())


def test_each_new_head_is_noted_once(run: Run, archive: Archive):
    assert noted_heads(run) == []
    first = archive.run("r").head()
    note_head(run, archive.run("r"))
    note_head(run, archive.run("r"))
    assert noted_heads(run) == [first] == [ChainHead(0, *hashes(first))]
    archive.run("r").add_cases([case_row("c")])
    note_head(run, archive.run("r"))
    assert noted_heads(run) == [first, archive.run("r").head()]
    assert json.loads(lines(run)[1])["run_id"] == run.id


def hashes(head: ChainHead) -> tuple[str, int, str]:
    assert head.entries == 0 and head.entries_hash is not None
    return head.records_hash, 0, head.entries_hash


def test_heads_are_noted_on_object_storage(s3: ObjectStorage, archive: Archive):
    run = Run.open(TrainConfig(storage=f"{s3.uri}/heads", name="r"), "train")
    note_head(run, archive.run("r"))
    archive.run("r").add_cases([case_row("c")])
    note_head(run, archive.run("r"))
    assert [head.records for head in noted_heads(run)] == [0, 1]


def test_a_torn_line_is_left_out_and_does_not_tear_the_next(
    run: Run, archive: Archive, caplog: pytest.LogCaptureFixture
):
    note_head(run, archive.run("r"))
    (run / HEADS).append(b'{"records": 1, "rec')
    archive.run("r").add_cases([case_row("c")])
    note_head(run, archive.run("r"))
    assert [head.records for head in noted_heads(run)] == [0, 1]
    assert "heads.jsonl, line 2" in caplog.text and "torn" in caplog.text


@pytest.mark.parametrize(
    "line",
    [
        "[]",
        "7",
        "{}",
        '{"records": "1", "records_hash": "a", "entries": 0, "entries_hash": "a"}',
        '{"records": true, "records_hash": "a", "entries": 0, "entries_hash": "a"}',
        '{"records": 1, "records_hash": null, "entries": 0, "entries_hash": "a"}',
    ],
)
def test_a_line_that_holds_no_head_of_the_run_is_refused(run: Run, line: str):
    if line.startswith('{"'):
        line = f'{{"run_id": "{run.id}", {line[1:]}'
    rewrite(run, line)
    with pytest.raises(ArchiveError, match=r"heads\.jsonl.*restore the file"):
        noted_heads(run)


@pytest.mark.parametrize("line", ["[" * 100_000, "1e999", "\ud800", '{"a": NaN}'])
def test_a_hostile_line_is_refused_or_left_out(run: Run, line: str):
    (run / HEADS).write(line.encode(errors="surrogatepass") + b"\n")
    try:
        assert noted_heads(run) == []
    except ArchiveError:
        pass


def test_heads_of_another_run_are_refused(run: Run, archive: Archive, tmp_path: Path):
    note_head(run, archive.run("r"))
    other = Run.open(TrainConfig(storage=str(tmp_path), name="s"), "train")
    (other / HEADS).write((run / HEADS).read())
    with pytest.raises(ArchiveError, match="of another run"):
        noted_heads(other)


def test_a_signed_head_is_good_with_its_key_alone(
    run: Run, archive: Archive, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("RAYLAB_CHAIN_KEY", KEY)
    note_head(run, archive.run("r"))
    assert len(noted_heads(run)) == 1
    monkeypatch.setenv("RAYLAB_CHAIN_KEY", OTHER)
    with pytest.raises(ArchiveError, match="head 1: it is not signed with RAYLAB_CHAIN_KEY"):
        noted_heads(run)


def test_without_the_key_nobody_changes_or_adds_a_signed_head(
    run: Run, archive: Archive, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("RAYLAB_CHAIN_KEY", KEY)
    note_head(run, archive.run("r"))
    (line,) = lines(run)
    for changed in (
        [line.replace('"records":0', '"records":1')],
        [line, json.dumps({**json.loads(line), "signature": "0" * 64})],
        [line, json.dumps({**json.loads(line), "signature": "é"})],
        [line, json.dumps({**json.loads(line), "signature": None})],
        [line, json.dumps({k: v for k, v in json.loads(line).items() if k != "signature"})],
    ):
        rewrite(run, *changed)
        with pytest.raises(ArchiveError, match="is not signed with"):
            noted_heads(run)


def test_without_the_key_a_signed_file_is_told_and_left_alone(
    run: Run,
    archive: Archive,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
):
    monkeypatch.setenv("RAYLAB_CHAIN_KEY", KEY)
    note_head(run, archive.run("r"))
    before = (run / HEADS).read()
    monkeypatch.delenv("RAYLAB_CHAIN_KEY")
    archive.run("r").add_cases([case_row("c")])
    note_head(run, archive.run("r"))
    assert (run / HEADS).read() == before
    assert "which only RAYLAB_CHAIN_KEY can check" in caplog.text
    assert "the head of run r is not noted: set RAYLAB_CHAIN_KEY" in caplog.text


def test_a_key_may_come_later(
    run: Run,
    archive: Archive,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
):
    note_head(run, archive.run("r"))
    monkeypatch.setenv("RAYLAB_CHAIN_KEY", KEY)
    archive.run("r").add_cases([case_row("c")])
    note_head(run, archive.run("r"))
    assert "is not signed, though RAYLAB_CHAIN_KEY is set" in caplog.text
    assert [head.records for head in noted_heads(run)] == [0, 1]


def test_the_key_is_nowhere_and_a_short_one_refused_unseen(
    run: Run,
    archive: Archive,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
):
    monkeypatch.setenv("RAYLAB_CHAIN_KEY", KEY)
    note_head(run, archive.run("r"))
    archive.close()
    for path in tmp_path.rglob("*"):
        assert path.is_dir() or KEY.encode() not in path.read_bytes()
    monkeypatch.setenv("RAYLAB_CHAIN_KEY", "hunter2")
    with pytest.raises(ConfigError, match="at least 32") as caught:
        noted_heads(run)
    assert "hunter2" not in str(caught.value) and KEY not in caplog.text
