"""Limits on bytes, lines, JSON, YAML and the members of zips."""

import io
import json
import re
import zipfile
from typing import Any

import pytest

from raylab.bounded import (
    BLANK_LINES,
    JSON_CONTAINERS,
    JSON_DEPTH,
    JSON_DIGITS,
    YAML_DEPTH,
    YAML_NODES,
    ZSTANDARD,
    check_yaml,
    lines,
    opened_zip,
    parse_json,
    read_all,
    read_member,
)
from raylab.errors import DataError, LimitError
from tests.fuzzing import try_altered
from tests.memory import MIB, memory
from tests.zips import PACK, member_zip, zip_of

MANY = 1 << 20
"""Far more than an algorithm of quadratic time could handle."""


class Endless(io.RawIOBase):
    """A stream without an end."""

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        assert size >= 0, "an endless stream was asked for all it has"
        return b"\n" * size

    def readinto(self, buffer: Any) -> int:
        buffer[:] = b"\n" * len(buffer)
        return len(buffer)


def refused(message: str) -> Any:
    return pytest.raises(LimitError, match=f"^x.*{re.escape(message)}")


def test_a_stream_is_read_up_to_its_limit() -> None:
    assert read_all(io.BytesIO(b"12345"), "x", 5) == b"12345"
    with refused("more than 4 bytes"):
        read_all(io.BytesIO(b"12345"), "x", 4)


def test_an_endless_stream_ends() -> None:
    with refused("more than 100,000 bytes"):
        read_all(Endless(), "x", 100_000)
    with refused("blank lines in a row"):
        list(lines(io.BufferedReader(Endless()), "x"))


def test_lines_have_their_numbers_and_no_blank_ones() -> None:
    stream = io.BytesIO(b"a\n\n \r\nb\nc")
    assert list(lines(stream, "x")) == [(1, b"a\n"), (4, b"b\n"), (5, b"c")]


def test_a_long_line_is_refused_by_its_number() -> None:
    assert list(lines(io.BytesIO(b"123\n123"), "x", 4)) == [(1, b"123\n"), (2, b"123")]
    with refused(", line 2: more than 3 bytes"):
        list(lines(io.BytesIO(b"123\n1234\n"), "x", 4))


def test_only_blank_lines_in_a_row_are_counted() -> None:
    blank = b"\n" * BLANK_LINES
    found = list(lines(io.BytesIO(blank + b"a\n" + blank + b"b\n" + blank), "x"))
    assert found == [(BLANK_LINES + 1, b"a\n"), (2 * BLANK_LINES + 2, b"b\n")]


@pytest.mark.parametrize("bracket", ["[", '{"a":'])
def test_json_is_as_deep_as_allowed(bracket: str) -> None:
    end = {"[": "]", '{"a":': "}"}[bracket]
    parse_json(bracket * JSON_DEPTH + "1" + end * JSON_DEPTH, "x")
    with refused("within each other"):
        parse_json(bracket * (JSON_DEPTH + 1) + "1" + end * (JSON_DEPTH + 1), "x")
    with refused("within each other"):
        parse_json(bracket * MANY, "x")


def test_many_empty_lists_are_refused_before_they_are_built() -> None:
    with memory(64 * MIB), refused("lists and objects"):
        parse_json(b"[" + b"[]," * JSON_CONTAINERS + b"[]]", "x")


def test_brackets_in_strings_are_not_depth() -> None:
    text = json.dumps({'[[["': ["\\", "[" * MANY, '"[']})
    assert parse_json(text, "x", depth=2) == json.loads(text)


def test_quotes_without_an_end_take_linear_time() -> None:
    with pytest.raises(DataError, match="not valid JSON"):
        parse_json('"' + '\\"' * MANY, "x")


def test_a_repeated_key_is_named_in_linear_time() -> None:
    pairs = ",".join(f'"key {n}":1' for n in range(MANY // 8))
    with pytest.raises(DataError, match="the key 'key 7' occurs twice"):
        parse_json(f'{{{pairs},"key 7":1}}', "x")


def test_a_long_number_is_refused_before_it_is_read() -> None:
    longest = "9" * JSON_DIGITS
    assert float(str(parse_json(longest, "x"))) == pytest.approx(float(longest))
    with refused("digits in one number"):
        parse_json("9" * MANY, "x")
    assert parse_json(f'"{"9" * MANY}"', "x") == "9" * MANY


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "not valid JSON: Expecting value at line 1 column 1"),
        (b'{\n"a" 1}', "not valid JSON: Expecting ':' delimiter at line 2 column 5"),
        (b"\xff[]", "not UTF-8"),
        ("[]".encode("utf-16"), "not UTF-8"),
        (b"[NaN]", "NaN is no number"),
        (b"[-Infinity]", "-Infinity is no number"),
        (b"[1e309]", "1e309 is no number"),
        (rb'["\ud800"]', "lone surrogate"),
    ],
)
def test_what_is_no_json_is_refused_with_the_reason(content: bytes, reason: str) -> None:
    with pytest.raises(DataError, match=reason) as error:
        parse_json(content, "file.json")
    assert str(error.value).startswith("file.json")


def test_json_may_have_a_byte_order_mark_and_pairs_of_surrogates() -> None:
    assert parse_json(b'\xef\xbb\xbf["\\ud83d\\ude00"]', "x") == ["😀"]


def test_the_depth_of_a_text_is_that_of_its_deepest_place() -> None:
    text = '[{}, [[1, "]["]], {"a": [[]]}]'
    assert parse_json(text, "x", depth=4) == json.loads(text)
    with refused("more than 3 lists and objects within each other"):
        parse_json(text, "x", depth=3)


def test_yaml_with_aliases_counts_each_use() -> None:
    text = b"a: &a [1, 2]\nb: [*a, *a]\n"
    assert check_yaml(text, "x") == text.decode()
    # Ten anchors, each a list of nine aliases of the one before: 9 ** 10 nodes.
    bomb = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n" + "".join(
        f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 10)
    )
    with refused(f"more than {YAML_NODES:,} YAML nodes"):
        check_yaml(bomb.encode(), "x")


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"a: &a [*a]", r"alias \*a has no finished anchor"),
        (b"a: *b", "undefined|no finished anchor"),
        ("name: M\xfcller".encode("latin-1"), "not UTF-8 text: .* at byte 7"),
        (b"a: [1", "not valid YAML"),
        (b"a: \x00", "not valid YAML"),
        (b"[" * MANY, "more than .* bytes of YAML"),
        (b"[" * (YAML_DEPTH + 1) + b"]" * (YAML_DEPTH + 1), "within each other"),
        (b"- " * (YAML_DEPTH + 1), "within each other"),
        (b"[" * 200_000, "within each other"),
        (b"? " * 100_000, "within each other"),
    ],
)
def test_yaml_that_cannot_be_read_safely_is_refused(content: bytes, reason: str) -> None:
    with pytest.raises(DataError, match=reason):
        check_yaml(content, "x.yaml")


def test_altered_texts_are_read_or_refused() -> None:
    text = json.dumps({"a": [1, 2.5, {"b": None}], "c": 'é"\\', "d": "\U0001f600"}).encode()
    try_altered([text], lambda content: parse_json(content, "x"), DataError)
    try_altered(
        [b"a: &a [1, {b: c}]\nd: *a\n"], lambda content: check_yaml(content, "x"), DataError
    )
    rows = b'{"a": 1}\n\n{"b": 2}\r\n'
    try_altered([rows], lambda content: list(lines(io.BytesIO(content), "x", 1000)), DataError)


# Zips

TEXT = b"some text, " * 1000
METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, ZSTANDARD)


def read_zip(file: io.BytesIO, most: int = MIB) -> bytes:
    with opened_zip(file, "x.zip") as archive:
        return read_member(archive, archive.getinfo("a"), "x.zip:a", most)


@pytest.mark.parametrize("method", METHODS)
def test_members_are_read_by_every_method(method: int) -> None:
    assert read_zip(zip_of(method, TEXT)) == TEXT


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("declared", [{"size": 9}, {"size": 1 << 19}, {"crc": 1}])
def test_a_member_that_lies_is_refused(method: int, declared: dict[str, int]) -> None:
    with pytest.raises(DataError, match=r"^x\.zip:a: broken: "):
        read_zip(zip_of(method, TEXT, **declared))


@pytest.mark.parametrize("method", METHODS)
def test_a_large_member_is_refused_by_its_declared_size(method: int) -> None:
    with pytest.raises(LimitError, match="more than 1,048,576 bytes"):
        read_zip(zip_of(method, b"", size=MIB + 1))


@pytest.mark.parametrize("method", METHODS[1:])
def test_a_bomb_that_declares_little_is_refused_within_little_memory(method: int) -> None:
    file = member_zip(method, PACK[method](bytes(64 * MIB)), size=1000)
    with memory(32 * MIB), pytest.raises(DataError, match=r"x\.zip:a: "):
        read_zip(file)


def test_a_method_that_is_not_read_is_named() -> None:
    with pytest.raises(DataError, match="zip method 14 is not read: write it with deflate"):
        read_zip(member_zip(zipfile.ZIP_LZMA, TEXT))


@pytest.mark.parametrize("method", METHODS)
def test_an_encrypted_member_is_refused(method: int) -> None:
    with pytest.raises(DataError, match="encrypted"):
        read_zip(zip_of(method, TEXT, flags=1))


@pytest.mark.parametrize("content", [b"", b"PK", b"PK\5\6" + bytes(18), b"text"])
def test_what_is_no_zip_is_refused(content: bytes) -> None:
    with pytest.raises((DataError, KeyError)):
        read_zip(io.BytesIO(content))


@pytest.mark.parametrize("method", METHODS)
def test_altered_zips_are_read_or_refused(method: int) -> None:
    def read(content: bytes) -> None:
        with opened_zip(io.BytesIO(content), "x.zip") as archive:
            for member in archive.infolist():
                read_member(archive, member, f"x.zip:{member.filename}", MIB)

    try_altered([zip_of(method, TEXT).getvalue()], read, DataError)


def test_a_reason_does_not_quote_the_input_at_length() -> None:
    file = member_zip(zipfile.ZIP_STORED, b"", b"x" * 60_000).getvalue()
    other = file.replace(b"x", b"y", 60_000)
    with (
        opened_zip(io.BytesIO(other), "x.zip") as archive,
        pytest.raises(DataError, match="File name in directory") as error,
    ):
        read_member(archive, archive.infolist()[0], "x.zip:x", MIB)
    assert len(str(error.value)) < 300
