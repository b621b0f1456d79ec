"""Files and directories on local disks and on an S3-compatible server.

What a loader reads from object storage is compared with what it reads from disk.
"""

import errno
import gzip
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

from raylab.arc.checkpoints import ModelOrigin, read_checkpoint
from raylab.arc.config.models import EncoderDecoderConfig
from raylab.arc.config.sections import DataConfig, TaskSource
from raylab.arc.data.content import Seen, TaskSet
from raylab.arc.data.sources import load_tasks
from raylab.benchmark.config import QualityConfig
from raylab.benchmark.logs.reading import read_files
from raylab.benchmark.logs.trees import find_tree
from raylab.core.errors import ConfigError, DataError, RunError
from raylab.core.files import Place
from raylab.label.input.cases import read_cases
from tests.label.protocol.outcomes import CODEBOOK
from tests.object_storage import ObjectStorage

PAIRS = [{"input": [[1, 2]], "output": [[2], [1]]}, {"input": [[3]], "output": [[4]]}]


@pytest.mark.parametrize(
    ("location", "child", "parent"),
    [
        ("/a/b", "/a/b/c d/e%", "/a"),
        (
            "fsspec+memory://a/b?x=1&y=2",
            "fsspec+memory://a/b/c%20d/e%25?x=1&y=2",
            "fsspec+memory://a?x=1&y=2",
        ),
    ],
)
def test_names_join_before_the_query(location: str, child: str, parent: str) -> None:
    place = Place(location, fs.LocalFileSystem(), "/a/b")
    assert str(place / "c d/e%") == child
    assert (place / "c d/e%").path == "/a/b/c d/e%"
    assert (str(place.parent), place.parent.path) == (parent, "/a")
    assert ((place / "c.tar.gz").name, (place / "c.tar.gz").stem) == ("c.tar.gz", "c.tar")


def test_a_link_to_a_directory_above_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "tasks").mkdir()
    (tmp_path / "tasks" / "a.json").touch()
    (tmp_path / "tasks" / ".b.json").touch()
    (tmp_path / "tasks" / "up").symlink_to(tmp_path)
    files = Place.at(tmp_path).files("**/tasks/*.json")
    assert [file.path for file in files] == [f"{tmp_path}/tasks/a.json"]


# Stored by the disk


@pytest.fixture
def stored(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The paths that the disk was waited for, in order."""
    paths: list[str] = []
    fsync, replace = os.fsync, os.replace

    def record(descriptor: int) -> None:
        paths.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        fsync(descriptor)

    def rename(source: Path, target: Path) -> None:
        replace(source, target)
        # A descriptor of the new file had the old name when it was stored.
        paths[:] = [str(target) if path == str(source) else path for path in paths]
        paths.append("renamed")

    monkeypatch.setattr(os, "fsync", record)
    monkeypatch.setattr(os, "replace", rename)
    return paths


def test_a_durable_write_stores_new_directories_the_file_and_then_its_name(
    tmp_path: Path, stored: list[str]
) -> None:
    (Place.at(tmp_path) / "runs/r/a").write(b"x")
    assert set(stored[:2]) == {str(tmp_path), f"{tmp_path}/runs"}
    assert stored[2:] == [f"{tmp_path}/runs/r/a", "renamed", f"{tmp_path}/runs/r"]


def test_a_filesystem_that_cannot_store_directories_is_used_but_no_failing_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse_directories(descriptor: int) -> None:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "fsync", refuse_directories)
    code = errno.EINVAL
    (Place.at(tmp_path) / "new/a").write(b"x")
    assert (tmp_path / "new/a").read_bytes() == b"x"
    code = errno.EIO
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
    for there in (False, True):
        if there:
            file.write(b"old")
        with pytest.raises(ZeroDivisionError), file.writer() as stream:
            stream.write(b"half")
            raise ZeroDivisionError
        assert file.read() == b"old" if there else not file.exists()


def tasks(location: str) -> list[Any]:
    config = DataConfig(source=TaskSource.RE_ARC, path=location)
    return [(task.id, [pair.input.tolist() for pair in task.pairs]) for task in load_tasks(config)]


def cases(location: str) -> list[Any]:
    return list(read_cases(location, CODEBOOK))


def weights(location: str) -> list[Any]:
    return [(name, weight.tolist()) for name, weight in read_checkpoint(location).weights.items()]


def scores(location: str) -> list[Any]:
    logs = find_tree(location).logs
    read = read_files(logs, QualityConfig()).logs
    return [*((log.name, log.model, log.generation) for log in logs), *(log.header for log in read)]


def write_inputs(root: Path) -> None:
    (root / "set/tasks").mkdir(parents=True)
    (root / "set/tasks/a.json").write_text(json.dumps(PAIRS))
    with zipfile.ZipFile(root / "re_arc.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("re_arc/tasks/a.json", json.dumps(PAIRS))
    rows = [{"id": f"case-{n}", "description": f"system {n}"} for n in range(3)]
    pq.write_table(pa.Table.from_pylist(rows), root / "cases.parquet")
    lines = "".join(json.dumps(row) + "\n" for row in rows).encode()
    (root / "cases.jsonl.gz").write_bytes(gzip.compress(lines))
    for name in ("g/a.json", "g/deep/b.json"):
        (root / "scores/m" / name).parent.mkdir(parents=True)
        (root / "scores/m" / name).write_text('{"results": {"scores": []}}')
    model = EncoderDecoderConfig(d_model=16, d_ff=32, heads=2)
    origin = ModelOrigin(schema_version=1, model=model, seen=Seen(TaskSet())).model_dump(
        mode="json"
    )
    torch.save({"state_dict": {"model.w": torch.arange(3)}, "raylab": origin}, root / "a.ckpt")


READERS: dict[str, Callable[[str], list[Any]]] = {
    "set": tasks,
    "re_arc.zip": tasks,
    "cases.parquet": cases,
    "cases.jsonl.gz": cases,
    "a.ckpt": weights,
    "scores": scores,
}
"""How a job reads what a configuration names."""


@pytest.mark.parametrize("name", READERS)
def test_input_is_read_from_object_storage_as_from_disk(
    name: str, s3: ObjectStorage, tmp_path: Path
) -> None:
    write_inputs(tmp_path)
    remote = READERS[name](uploaded(s3, tmp_path / name))
    assert remote and remote == READERS[name](str(tmp_path / name))


def test_refused_input_is_named_without_the_key(
    s3: ObjectStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "0" * 40)
    # An open filesystem keeps its credentials; another URI opens another one.
    with pytest.raises(DataError, match=r"ACCESS_DENIED|SIGNATURE_DOES_NOT_MATCH") as caught:
        Place.at(f"{s3.uri}/refused").read()
    assert f"{s3.uri}/refused cannot be read" in str(caught.value)
    assert "0" * 40 not in str(caught.value)


def test_a_scheme_without_a_filesystem_is_named() -> None:
    with pytest.raises(ConfigError, match=r"nothing://x cannot be opened"):
        Place.at("nothing://x")


def test_what_cannot_be_written_is_named(s3: ObjectStorage) -> None:
    file = Place.at("s3://no-such-bucket-of-raylab/file")
    with pytest.raises(RunError, match=r"^s3://no-such-bucket-of-raylab/file cannot be written"):
        file.write(b"")
