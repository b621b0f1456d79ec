"""Score files that are broken in any way: each is left out with its reason."""

import io
import os
import socket
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from raylab.config.jobs import QualityConfig
from raylab.config.quality import Layout
from raylab.errors import DataError, LimitError
from raylab.quality import reading
from raylab.quality.measure import measure
from raylab.quality.reading import MOST_DEPTH, UnitScores, read_unit
from raylab.quality.trees import find_trees
from tests.quality.test_trees import write
from tests.runs.test_eval_logs import log

LOG = msgspec.json.encode(log())


def read(root: Path) -> list[UnitScores]:
    (tree,) = find_trees(str(root), [], Layout.AUTO)
    return [read_unit(unit) for unit in tree.units]


def zipped(method: int, **archive: Any) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", method, **archive) as made:
        made.writestr("header.json", LOG)
    return file.getvalue()


def flipped(content: bytes, place: int) -> bytes:
    return content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :]


def socket_at(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))


def put(content: bytes) -> Callable[[Path], Any]:
    return lambda path: path.write_bytes(content)


MEMBER = len(b"PK..") + 26 + len(b"header.json")
"""Where the content of the member begins."""
BROKEN: list[tuple[str, str, Callable[[Path], Any], str]] = [
    ("0xff", "x.json", put(LOG.replace(b"success", b"succ\xffss")), "not JSON: 'utf-8' codec"),
    ("empty", "x.json", put(b""), "not JSON"),
    ("empty zip", "x.eval", put(b""), "not an Inspect eval log"),
    ("no beginning", "x.eval", put(zipped(zipfile.ZIP_DEFLATED)[200:]), ""),
    ("no end", "x.eval", put(zipped(zipfile.ZIP_DEFLATED)[:-30]), "not an Inspect eval log"),
    ("bzip2", "x.eval", put(flipped(zipped(zipfile.ZIP_BZIP2), MEMBER + 60)), "header.json"),
    ("deflate", "x.eval", put(flipped(zipped(zipfile.ZIP_DEFLATED), MEMBER + 60)), "header.json"),
    ("stored", "x.eval", put(flipped(zipped(zipfile.ZIP_STORED), MEMBER + 60)), "header.json"),
    ("LZMA", "x.eval", put(zipped(zipfile.ZIP_LZMA)), "zip method 14 is not read"),
    ("a link to itself", "x.json", lambda path: path.symlink_to(path.name), "cannot be read (Too"),
    ("a link to nothing", "x.json", lambda path: path.symlink_to("gone"), "a link to nothing"),
    ("a pipe", "x.json", os.mkfifo, "not a regular file"),
    ("a socket", "x.eval", socket_at, "not a regular file"),
    ("deep", "x.json", put(b'{"status":' + b"[" * 100_000), "not "),
    ("a long status", "x.json", put(b'{"status":"%s"}' % (b"x" * 10**6)), "status is xxx"),
    ("a strange status", "x.json", put(rb'{"status":"\u001b[2J"}'), r"status is '\x1b[2J'"),
    ("a huge number", "x.json", put(LOG.replace(b"0.75", b"9" * 10_000)), ""),
    ("an infinite number", "x.json", put(LOG.replace(b"0.75", b"1e999")), ""),
]


@pytest.mark.parametrize(
    ("name", "make", "reason"), [row[1:] for row in BROKEN], ids=[row[0] for row in BROKEN]
)
def test_a_broken_file_is_left_out_with_its_reason(
    tmp_path: Path, name: str, make: Callable[[Path], Any], reason: str
) -> None:
    write(tmp_path / "m" / "g" / "good.json", 0.5)
    make(tmp_path / "m" / "g" / name)
    (scores,) = read(tmp_path)
    assert (scores.count, scores.total, scores.skipped) == (1, 0.5, 1)
    (left_out,) = scores.listed
    assert left_out.path == str(tmp_path / "m" / "g" / name)
    assert reason in left_out.reason and 0 < len(left_out.reason) < 300


def test_a_name_that_is_no_text_is_shown(tmp_path: Path) -> None:
    write(tmp_path / "m" / "g" / "good.json", 0.5)
    (tmp_path / "m" / "g" / os.fsdecode(b"\xff.json")).write_bytes(b"")
    (scores,) = read(tmp_path)
    assert scores.listed[0].path.endswith(r"/\xff.json")


def test_a_directory_named_like_a_score_file_is_a_directory(tmp_path: Path) -> None:
    write(tmp_path / "m" / "g" / "x.json" / "good.json", 0.5)
    (scores,) = read(tmp_path)
    assert (scores.count, scores.skipped) == (1, 0)


def test_deep_directories_are_left_out(tmp_path: Path) -> None:
    directory = tmp_path / "m" / "g"
    write(directory / "good.json", 0.5)
    deep = directory.joinpath(*["d"] * (MOST_DEPTH + 1))
    write(deep / "lost.json", 0.5)
    (scores,) = read(tmp_path)
    assert (scores.count, scores.skipped) == (1, 1)
    assert "directories within each other" in scores.listed[0].reason


def test_links_that_multiply_directories_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Each of 40 directories links twice to the next: 2 ** 40 ways.
    unit = tmp_path / "m" / "g"
    for number in range(40):
        directory = unit / f"d{number}"
        directory.mkdir(parents=True)
        for link in "ab":
            (directory / link).symlink_to(unit / f"d{number + 1}")
    monkeypatch.setattr(reading, "MOST_ENTRIES", 1000)
    with pytest.raises(LimitError, match="more than 1,000 files and directories"):
        read(tmp_path)


def test_an_error_that_may_pass_is_not_a_broken_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "m" / "g" / "good.json", 0.5)

    def failing(*_: object) -> float:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(reading, "read_score", failing)
    with pytest.raises(OSError, match="Input/output error"):
        read(tmp_path)


def test_a_model_without_a_usable_file_says_why(tmp_path: Path) -> None:
    directory = tmp_path / "m" / "g"
    for number in range(5):
        write(directory / f"failed{number}.json", None)
    for number in range(3):
        (directory / f"torn{number}.json").write_text("{" * (number + 1))
    write(directory / ".hidden.json", 0.5)
    write(directory / ".hidden" / "x.json", 0.5)
    trees = find_trees(str(tmp_path), [], Layout.AUTO)
    with pytest.raises(DataError) as error:
        measure(trees, QualityConfig(bootstrap=0), read(tmp_path))
    message = str(error.value)
    assert f"model m of {tmp_path} has no usable score file" in message
    assert "8 left out (5 status is error, not success; 3 not JSON), 2 hidden" in message
    assert f"{directory}/failed0.json: status is error" in message
