"""Files and directories on local disks and on an S3-compatible server.

What a loader reads from object storage is compared with what it reads from disk.
"""

import bz2
import errno
import json
import os
import stat
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from pyarrow import fs

from raylab.annotation.input.cases import read_cases
from raylab.arc.checkpoints import read_checkpoint
from raylab.arc.data.groups import group_tasks
from raylab.arc.data.sources import load_tasks
from raylab.config.arc import DataConfig, TaskSource
from raylab.config.models import EncoderDecoderConfig
from raylab.config.quality import Layout
from raylab.errors import CheckpointError, ConfigError, DataError, RaylabError, RunError
from raylab.files import Place
from raylab.opt.distance import load_distance
from raylab.quality.trees import find_trees
from tests.annotation.outcomes import CODEBOOK
from tests.object_storage import ObjectStorage

TASK_IDS = ("aaaa0001", "aaaa0002", "aaaa0003")
PAIRS = [{"input": [[1, 2]], "output": [[2], [1]]}, {"input": [[3]], "output": [[4]]}]
CASES = [{"id": f"case-{n}", "description": f"system {n}", "gold": "Evo"} for n in range(3)]


@pytest.mark.parametrize(
    ("location", "child", "parent"),
    [
        ("/a/b", "/a/b/c d/e%", "/a"),
        ("file:///a/b", "file:///a/b/c%20d/e%25", "file:///a"),
        (
            "fsspec+memory://a/b?x=1&y=2",
            "fsspec+memory://a/b/c%20d/e%25?x=1&y=2",
            "fsspec+memory://a?x=1&y=2",
        ),
    ],
)
def test_names_join_before_the_query(location: str, child: str, parent: str) -> None:
    filesystem = fs.LocalFileSystem()
    place = Place(location, filesystem, "/a/b")
    assert str(place / "c d/e%") == child
    assert (place / "c d/e%").path == "/a/b/c d/e%"
    assert (str(place.parent), place.parent.path) == (parent, "/a")
    assert ((place / "c.tar.gz").name, (place / "c.tar.gz").stem) == ("c.tar.gz", "c.tar")


def test_relative_paths_and_homes_are_made_absolute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert Place.at("a/../b").path == str(tmp_path / "b")
    assert Place.at("~/b").path == str(Path.home() / "b")


def test_a_link_to_a_directory_above_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "tasks").mkdir()
    (tmp_path / "tasks" / "a.json").touch()
    (tmp_path / "tasks" / ".b.json").touch()
    (tmp_path / "tasks" / "up").symlink_to(tmp_path)
    found = Place.at(tmp_path).files("**/tasks/*.json")
    assert [file.path for file in found] == [f"{tmp_path}/tasks/a.json"]


# Stored by the disk


@pytest.fixture
def stored(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The paths that the disk was waited for, in order."""
    paths: list[str] = []
    fsync, replace = os.fsync, os.replace

    def recorded(descriptor: int) -> None:
        paths.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        fsync(descriptor)

    def renamed(source: Path, target: Path) -> None:
        replace(source, target)
        # A descriptor of the new file had the old name when it was stored.
        paths[:] = [str(target) if path == str(source) else path for path in paths]
        paths.append("renamed")

    monkeypatch.setattr(os, "fsync", recorded)
    monkeypatch.setattr(Path, "replace", renamed)
    return paths


def test_a_durable_write_stores_the_file_then_its_name(tmp_path: Path, stored: list[str]) -> None:
    (Place.at(tmp_path) / "a").write(b"x")
    assert stored == [f"{tmp_path}/a", "renamed", str(tmp_path)]


def test_the_names_of_new_directories_are_stored(tmp_path: Path, stored: list[str]) -> None:
    (Place.at(tmp_path) / "runs/r/scores/a").write(b"x")
    directories = {str(tmp_path), f"{tmp_path}/runs", f"{tmp_path}/runs/r"}
    assert set(stored[:3]) == directories
    assert stored[3:] == [f"{tmp_path}/runs/r/scores/a", "renamed", f"{tmp_path}/runs/r/scores"]


def test_files_of_others_are_stored_with_their_directories(
    tmp_path: Path, stored: list[str]
) -> None:
    run = Place.at(tmp_path) / "run"
    file = run / "checkpoints/epoch-0001/checkpoint.ckpt"
    os.makedirs(file.parent.path)
    Path(file.path).write_bytes(b"x")
    file.sync(top=run)
    (run / "checkpoints/removed").sync(top=run)
    assert stored == [file.path, file.parent.path, file.parent.parent.path, run.path]


@pytest.mark.parametrize("refused", [errno.EINVAL, errno.EBADF])
def test_a_filesystem_that_cannot_store_directories_is_used_all_the_same(
    refused: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fsync = os.fsync

    def files_only(descriptor: int) -> None:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(refused, os.strerror(refused))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", files_only)
    (Place.at(tmp_path) / "new/a").write(b"x")
    assert (tmp_path / "new/a").read_bytes() == b"x"


def test_a_directory_that_is_not_stored_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(descriptor: int) -> None:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(RunError, match=f"^{tmp_path}/a cannot be written: Input/output error"):
        (Place.at(tmp_path) / "a").write(b"x")


# On object storage


def uploaded(s3: ObjectStorage, source: Path) -> str:
    """The URI of a copy of a file or directory."""
    target = Place.at(s3.uri) / f"{source.parent.name}/{source.name}"
    fs.copy_files(str(source), target.path, fs.LocalFileSystem(), target.filesystem)
    return str(target)


def test_what_is_written_is_read_and_listed(s3: ObjectStorage) -> None:
    root = Place.at(s3.uri) / "listed"
    for name in ("b/tasks/y z.json", "tasks/x.json", "tasks/.hidden.json", "tasks/x.txt"):
        (root / name).write(name.encode())
    assert [str(file) for file in root.files("**/tasks/*.json")] == [
        f"{root}/b/tasks/y%20z.json",
        f"{root}/tasks/x.json",
    ]
    assert [file.name for file in (root / "tasks").files("*.json")] == ["x.json"]
    assert Place.at(f"{root}/b/tasks/y%20z.json").read() == b"b/tasks/y z.json"
    assert root.names() == ["b", "tasks"] and (root / "none").names() == []
    assert (root / "b").is_directory() and not (root / "tasks/x.txt").is_directory()
    assert (root / "tasks/x.txt").exists() and not (root / "none").exists()


def test_a_uri_may_carry_its_endpoint(s3: ObjectStorage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ENDPOINT_URL")
    host = s3.endpoint.removeprefix("http://")
    file = Place.at(f"{s3.uri}/by-query/?endpoint_override={host}&scheme=http") / "a.json"
    assert str(file) == f"{s3.uri}/by-query/a.json?endpoint_override={host}&scheme=http"
    file.write(b"{}")
    assert Place.at(str(file)).read() == b"{}"


def test_a_write_that_fails_leaves_what_was_there(s3: ObjectStorage) -> None:
    file = Place.at(s3.uri) / "whole" / "file"
    with pytest.raises(ZeroDivisionError), file.replaced() as stream:
        stream.write(b"half")
        raise ZeroDivisionError
    assert not file.exists()
    file.write(b"old")
    with pytest.raises(ZeroDivisionError), file.replaced() as stream:
        stream.write(b"half")
        raise ZeroDivisionError
    assert file.read() == b"old"


def task_directory(root: Path) -> Path:
    (root / "set/tasks").mkdir(parents=True)
    for id_ in TASK_IDS:
        (root / "set/tasks" / f"{id_}.json").write_text(json.dumps(PAIRS))
    return root / "set"


def task_zip(root: Path) -> Path:
    with zipfile.ZipFile(root / "re_arc.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for id_ in TASK_IDS:
            archive.writestr(f"re_arc/tasks/{id_}.json", json.dumps(PAIRS))
    return root / "re_arc.zip"


def grids(location: str) -> list[Any]:
    return [
        (task.id, [(pair.input.tolist(), pair.output.tolist()) for pair in task.pairs])
        for task in load_tasks(DataConfig(source=TaskSource.RE_ARC, path=location))
    ]


@pytest.mark.parametrize("make", [task_directory, task_zip])
def test_tasks_are_read_from_object_storage(
    make: Callable[[Path], Path], s3: ObjectStorage, tmp_path: Path
) -> None:
    path = make(tmp_path)
    found = grids(uploaded(s3, path))
    assert found == grids(str(path))
    assert [(id_, len(of_task)) for id_, of_task in found] == [(id_, 2) for id_ in TASK_IDS]


@pytest.mark.parametrize("name", ["cases.jsonl.bz2", "cases.parquet"])
def test_cases_are_read_from_object_storage(name: str, s3: ObjectStorage, tmp_path: Path) -> None:
    lines = "".join(json.dumps(case) + "\n" for case in CASES).encode()
    if name.endswith(".parquet"):
        pq.write_table(pa.Table.from_pylist(CASES), tmp_path / name)
    else:
        (tmp_path / name).write_bytes(bz2.compress(lines))
    found = list(read_cases(uploaded(s3, tmp_path / name), CODEBOOK))
    assert [(case.id, case.description, case.gold) for case in found] == [
        (case["id"], case["description"], case["gold"]) for case in CASES
    ]


def test_a_checkpoint_is_read_from_object_storage(s3: ObjectStorage, tmp_path: Path) -> None:
    model = EncoderDecoderConfig(d_model=16, d_ff=32, heads=2)
    named = {"model": model.model_dump(mode="json"), "trained_on": ["aaaa0001"]}
    torch.save({"state_dict": {"model.w": torch.arange(3)}, "raylab": named}, tmp_path / "a.ckpt")
    uri = uploaded(s3, tmp_path / "a.ckpt")
    checkpoint = read_checkpoint(uri)
    assert (checkpoint.uri, checkpoint.model) == (uri, model)
    assert checkpoint.weights["w"].tolist() == [0, 1, 2]
    (tmp_path / "b.ckpt").write_bytes((tmp_path / "a.ckpt").read_bytes()[:-100])
    cut = uploaded(s3, tmp_path / "b.ckpt")
    with pytest.raises(CheckpointError, match=f"^checkpoint {cut}: broken"):
        read_checkpoint(cut)


# Faults


def reading(location: str) -> dict[str, Callable[[], object]]:
    """Every way in which a job reads what a configuration names."""
    return {
        "tasks": lambda: load_tasks(DataConfig(source=TaskSource.RE_ARC, path=f"{location}.zip")),
        "groups": lambda: group_tasks((), f"{location}.json"),
        "distances": lambda: load_distance(f"{location}.json"),
        "cases": lambda: list(read_cases(f"{location}.jsonl", CODEBOOK)),
        "checkpoint": lambda: read_checkpoint(f"{location}.ckpt"),
        "scores": lambda: find_trees(location, [], Layout.AUTO),
    }


@pytest.mark.parametrize("what", reading(""))
@pytest.mark.parametrize("fault", ["absent", "refused", "no server"])
def test_what_cannot_be_read_is_named(
    what: str, fault: str, s3: ObjectStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    location, reason = f"{s3.uri}/absent/{what}", r"No such file|does not exist|is missing"
    if fault == "refused":
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "0" * 40)
        # Another URI, for those that were opened before keep their credentials.
        location, reason = f"{s3.uri}/refused/{what}", r"ACCESS_DENIED|SIGNATURE_DOES_NOT_MATCH"
    elif fault == "no server":
        location, reason = f"nothing://{what}", "cannot be opened"
    with pytest.raises(RaylabError, match=reason) as caught:
        reading(location)[what]()
    assert location in str(caught.value)
    assert "0" * 40 not in str(caught.value)
    assert isinstance(caught.value, ConfigError if fault == "no server" else DataError) or (
        what == "checkpoint" and isinstance(caught.value, CheckpointError)
    )


def test_what_cannot_be_written_is_named(s3: ObjectStorage) -> None:
    file = Place.at("s3://no-such-bucket-of-raylab/file")
    with pytest.raises(RunError, match=r"^s3://no-such-bucket-of-raylab/file cannot be written"):
        file.write(b"")
