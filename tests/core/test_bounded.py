"""Limits on bytes, lines, JSON and the members of zips."""

import io
import json
import math
import zipfile
import zlib
from pathlib import Path
from typing import Any, BinaryIO, cast

import pytest

from raylab.core import bounded
from raylab.core.bounded import elements, lines, open_zip, parse_json, read_member
from raylab.core.errors import DataError
from tests.memory import MIB, memory
from tests.zips import PACK, member_zip

MANY = 1 << 20
"""Far more than an algorithm of quadratic time could handle."""


def test_lines_have_their_numbers_and_a_limit() -> None:
    stream = io.BytesIO(b"a\n\n \r\nb\nc")
    assert list(lines(stream, "x")) == [(1, b"a\n"), (4, b"b\n"), (5, b"c")]
    assert list(lines(io.BytesIO(b"123\n123"), "x", 4)) == [(1, b"123\n"), (2, b"123")]
    with pytest.raises(DataError, match="x, line 2: more than 3 bytes"):
        list(lines(io.BytesIO(b"123\n1234\n"), "x", 4))


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b'{\n"a" 1}', "Expecting ':' delimiter: line 2 column 5"),
        (b"\xff[]", "'utf-8' codec"),
        (b"[NaN]", "NaN is no number"),
        (b"[1e309]", "1e309 is no number"),
        (b"9" * MANY, "Exceeds the limit"),
        (rb'["\ud800"]', ".*surrogates not allowed"),
    ],
    ids=lambda value: value[:12],
)
def test_invalid_json_is_refused_with_the_reason(content: bytes, reason: str) -> None:
    with pytest.raises(DataError, match=f"^file.json: not valid JSON: {reason}"):
        parse_json(content, "file.json")


@pytest.mark.parametrize("around", ['{"a": %s}', "[%s]"])
def test_json_is_nested_at_most_a_hundred_deep(around: str) -> None:
    deep = "1"
    for _ in range(100):
        deep = around % deep
    assert json.dumps(parse_json(deep, "x")) == deep
    for deeper in (around % deep, "[" * MANY):
        with pytest.raises(DataError, match="x: more than 100 lists and objects"):
            parse_json(deeper, "x")


def test_json_may_have_a_byte_order_mark_and_pairs_of_surrogates() -> None:
    assert parse_json(b'\xef\xbb\xbf["\\ud83d\\ude00"]', "x") == ["😀"]


TEXT = b"some text, " * 1000
CRC = zlib.crc32(TEXT)


def read_zip(file: BinaryIO, most: int = MIB) -> bytes:
    with open_zip(file, "x.zip") as archive:
        return read_member(archive, archive.infolist()[0], "x.zip:a", most)


def test_a_zip_with_an_offset_before_its_file_is_broken(tmp_path: Path) -> None:
    content = bytearray(member_zip(zipfile.ZIP_STORED, TEXT, size=len(TEXT), crc=CRC).getvalue())
    content[-6:-2] = b"\xff\xff\xff\x7f"
    (tmp_path / "x.zip").write_bytes(content)
    with (tmp_path / "x.zip").open("rb", buffering=0) as file, pytest.raises(DataError):
        read_zip(cast(BinaryIO, file))


@pytest.mark.parametrize("method", PACK)
def test_a_member_is_read_and_one_that_lies_is_refused(method: int) -> None:
    data = PACK[method](TEXT)
    assert read_zip(member_zip(method, data, size=len(TEXT), crc=CRC)) == TEXT
    for wrong in (
        member_zip(method, data, size=len(TEXT), crc=1),
        member_zip(method, data, size=len(TEXT), crc=CRC, flags=1),
        member_zip(method, data[:-9], size=len(TEXT), crc=CRC),
    ):
        with pytest.raises(DataError, match=r"^x\.zip:a: broken: "):
            read_zip(wrong)


@pytest.mark.parametrize("method", PACK)
def test_a_large_member_is_refused_within_little_memory(method: int) -> None:
    with pytest.raises(DataError, match="more than 1,048,576 bytes"):
        read_zip(member_zip(method, b"", size=MIB + 1))
    file = member_zip(method, PACK[method](bytes(64 * MIB)), size=1000)
    with memory(32 * MIB), pytest.raises(DataError, match=r"x\.zip:a: "):
        read_zip(file)


@pytest.mark.parametrize("size", [1, 2, 3, 1 << 20])
def test_a_list_is_read_an_element_at_a_time_wherever_chunks_end(
    monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    monkeypatch.setattr(bounded, "LIST_CHUNK", size)
    values = [{"a,b": ['\\"]', {"c": [[], "é😀"]}]}, "\\", [], {}, math.inf]
    text = json.dumps(values, indent=2, ensure_ascii=False)[1:] + ', "rest": 1}'
    stream, read = elements(io.BytesIO(text.encode()), "x", 1 << 20), list[Any]()
    with pytest.raises(StopIteration) as end:
        while True:
            read.append(next(stream))
    assert read == values and end.value.value == ', "rest": 1}'


@pytest.mark.parametrize("text", [b'{"a": 1}, {"a', b'{"a": "' + b"x" * 4 * MANY])
def test_an_element_that_does_not_end_is_refused(text: bytes) -> None:
    with pytest.raises(DataError, match=r"^x: not JSON: .* too long or cut off"):
        list(elements(io.BytesIO(text), "x", 100))
