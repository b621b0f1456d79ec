"""Files of tasks that may be anything: they are read, or refused with a typed error."""

import json
import random
import zipfile
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest

from raylab.arc.config.sections import DataConfig, TaskSource
from raylab.arc.data.groups import group_tasks
from raylab.arc.data.sources import load_tasks
from raylab.arc.data.split import split_tasks
from raylab.core.bounded import ZSTANDARD
from raylab.core.errors import DataError
from tests.arc.conftest import make_tasks
from tests.fuzzing import altered_values, try_all, try_altered
from tests.memory import MIB, memory
from tests.zips import PACK, member_zip

PAIR = {"input": [[1, 2], [3, 4]], "output": [[5]]}
TASK = {"train": [PAIR, PAIR], "test": [PAIR, {"input": [[1]]}]}


def load(source: TaskSource, path: Path) -> object:
    return load_tasks(DataConfig(source=source, path=str(path)))


def re_arc_zip(method: int = zipfile.ZIP_DEFLATED) -> bytes:
    file = BytesIO()
    with zipfile.ZipFile(file, "w", method) as archive:
        for name in "ab":
            archive.writestr(f"tasks/{name}.json", json.dumps([PAIR, PAIR]))
    return file.getvalue()


@pytest.mark.parametrize("method", [zipfile.ZIP_DEFLATED, ZSTANDARD])
def test_a_zip_that_expands_is_refused_within_little_memory(tmp_path: Path, method: int) -> None:
    path = tmp_path / "x.zip"
    data = PACK[method](bytes(16 * MIB))
    path.write_bytes(member_zip(method, data, b"tasks/a.json", size=2048 * MIB).getvalue())
    with memory(), pytest.raises(DataError, match=r"tasks/a\.json: more than"):
        load(TaskSource.RE_ARC, path)


@pytest.mark.parametrize("content", [b"", b"[" * 10**6, re_arc_zip()[:-9]], ids=len)
def test_a_broken_file_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "x"
    path.write_bytes(content)
    for source in (TaskSource.RE_ARC, TaskSource.ARC_JSON):
        with memory(), pytest.raises(DataError, match=f"{path}"):
            load(source, path)


def test_altered_zips_give_tasks_or_typed_errors(tmp_path: Path) -> None:
    path = tmp_path / "x.zip"

    def read(content: bytes) -> object:
        path.write_bytes(content)
        return load(TaskSource.RE_ARC, path)

    methods = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
    try_altered([re_arc_zip(method) for method in methods], read, DataError)


GROUPS = {f"task{number}": "x" for number in range(3)}
READERS: dict[str, tuple[Any, Callable[[Path], object]]] = {
    "kaggle": ({"a": TASK, "b": TASK}, lambda path: load(TaskSource.ARC_JSON, path)),
    "re-arc": ([PAIR, PAIR], lambda path: load(TaskSource.RE_ARC, path.parent)),
    "taxonomy": ({"task0": "x", "b": "y"}, lambda path: group_tasks(make_tasks(2), str(path))),
    "split": (
        {"train": ["task0", "task1"], "val": ["task2"]},
        lambda path: split_tasks(make_tasks(3), GROUPS, DataConfig(split=str(path))),
    ),
}


@pytest.mark.parametrize(("sample", "read"), READERS.values(), ids=READERS)
def test_altered_json_gives_a_result_or_a_typed_error(
    tmp_path: Path, sample: Any, read: Callable[[Path], object]
) -> None:
    path = tmp_path / "a.json"

    def read_bytes(content: bytes) -> object:
        path.write_bytes(content)
        return read(path)

    def make(draw: random.Random) -> bytes:
        return json.dumps(altered_values(sample, draw)).encode()

    try_altered([json.dumps(sample).encode()], read_bytes, DataError)
    try_all(make, read_bytes, DataError)
