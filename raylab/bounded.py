"""Limits on what is read from outside: bytes, lines, depth, aliases and members of zips.

A small file may stand for a huge one: a zip that lies about its sizes, YAML whose aliases multiply,
JSON nested a million deep. Readers take their input through this module, which counts what really
arrives and holds no more than the limit in memory.

Every function takes `where`, which names the input in errors, and raises `DataError` for an input
that is broken and its subclass `LimitError` for one beyond a limit.
"""

import io
import json
import math
import re
import struct
import zipfile
import zlib
from collections import Counter
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from itertools import accumulate
from typing import Any, BinaryIO, NoReturn, cast

import yaml

from raylab.errors import DataError, LimitError

CHUNK = 1 << 16
"""Bytes that are asked for at once."""
JSON_BYTES = 1 << 26
JSON_DEPTH = 100
JSON_CONTAINERS = 1 << 22
"""Most lists and objects: each takes some 60 bytes, and two in the text."""
JSON_DIGITS = 300
"""Most digits of a number, so that any fits a float."""
LINE_BYTES = 1 << 24
BLANK_LINES = 1000
"""Most blank lines in a row."""
YAML_BYTES = 1 << 18
YAML_NODES = 1 << 13
"""Most nodes of a YAML document, those of aliases counted at each use."""
YAML_DEPTH = 50
ZSTANDARD = 93
"""The zip method of new `.eval` logs, which Python's zipfile supports from 3.14 on."""
CODECS = {zipfile.ZIP_BZIP2: "bz2", ZSTANDARD: "zstd"}
"""Methods that pyarrow unpacks: zipfile would unpack bzip2 without a limit."""
LOCAL_HEADER = struct.Struct("<4s22xHH")
"""The header of a zip member: its signature and the lengths of its name and extra field."""
SIGNATURE = b"PK\3\4"
LONGEST_REASON = 200
"""Most characters of a library's error, which may quote the input."""
BROKEN = (
    EOFError,
    ValueError,
    RuntimeError,
    OverflowError,
    struct.error,
    zipfile.BadZipFile,
    zlib.error,
)
"""Errors of pyarrow and zipfile for broken content. A RuntimeError is an encrypted member, or a
NotImplementedError for an unknown feature."""

# A string without an end counts too: else each quote in it would be tried anew.
_STRINGS = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+"?', re.DOTALL)
_LONG_NUMBER = re.compile(rf"(?<![0-9])[0-9]{{{JSON_DIGITS + 1}}}")
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
_BRACKET_STEPS = bytes({91: 1, 123: 1, 93: 255, 125: 255}.get(byte, 0) for byte in range(256))
_OTHER_BYTES = bytes(byte for byte in range(256) if not _BRACKET_STEPS[byte])


def over(where: str, what: str, most: int, way_out: str = "") -> LimitError:
    """Returns the error for an input that has more than `most` of something."""
    return LimitError(f"{where}: more than {most:,} {what}{way_out and f': {way_out}'}")


# Bytes


def read_all(stream: BinaryIO, where: str, most: int) -> bytes:
    """Returns the rest of a stream.

    Raises:
        LimitError: It has more than `most` bytes.
    """
    chunks, size = list[bytes](), 0
    while chunk := stream.read(CHUNK):
        chunks.append(chunk)
        size += len(chunk)
        if size > most:
            raise over(where, "bytes", most)
    return b"".join(chunks)


def lines(stream: BinaryIO, where: str, longest: int = LINE_BYTES) -> Iterator[tuple[int, bytes]]:
    """Yields the lines that are not blank, with their numbers from 1 and their ends.

    Raises:
        LimitError: A line has `longest` bytes or more, or more than `BLANK_LINES` in a row are
            blank.
    """
    blank = 0
    for number, line in enumerate(iter(lambda: stream.readline(longest), b""), 1):
        place = f"{where}, line {number}"
        if len(line) == longest and not line.endswith(b"\n"):
            raise over(place, "bytes", longest - 1, "write a shorter line")
        if line.strip():
            blank = 0
            yield number, line
        elif (blank := blank + 1) > BLANK_LINES:
            raise over(place, "blank lines in a row", BLANK_LINES, "remove them")


# JSON


def parse_json(
    content: bytes | str, where: str, most: int = JSON_BYTES, depth: int = JSON_DEPTH
) -> object:
    """Returns the value of JSON text in UTF-8, with or without a byte order mark.

    Args:
        content: The text.
        where: Its name in errors.
        most: Most bytes, or characters.
        depth: Most lists and objects within each other.

    Raises:
        DataError: It is no JSON (the error has line and column), holds NaN, a number beyond a
            float or a lone surrogate, or an object in it holds a key twice.
        LimitError: It is too large, too deep, or holds a number of over `JSON_DIGITS` digits or
            over `JSON_CONTAINERS` lists and objects.
    """
    if len(content) > most:
        raise over(where, "bytes of JSON", most)
    try:
        text = content.decode("utf-8-sig") if isinstance(content, bytes) else content
        _check_json(text, where, depth)
        value = json.loads(
            text,
            object_pairs_hook=_distinct,
            parse_constant=_no_number,
            parse_float=_finite,
        )
        if _SURROGATE.search(text):
            json.dumps(value, ensure_ascii=False).encode()
        return value
    except json.JSONDecodeError as error:
        position = f"line {error.lineno} column {error.colno}"
        raise DataError(f"{where}: not valid JSON: {error.msg} at {position}") from None
    except UnicodeDecodeError:
        raise DataError(f"{where}: not valid JSON: not UTF-8 text") from None
    except UnicodeEncodeError:
        raise DataError(f"{where}: a text in it holds a lone surrogate: remove it") from None
    except (ValueError, RecursionError) as error:
        raise DataError(f"{where}: {error}") from None


def _check_json(text: str, where: str, depth: int) -> None:
    bare = _STRINGS.sub("", text)
    if bare.count("[") + bare.count("{") > JSON_CONTAINERS:
        raise over(where, "lists and objects", JSON_CONTAINERS)
    if _LONG_NUMBER.search(bare):
        raise over(where, "digits in one number", JSON_DIGITS)
    steps = bare.encode("ascii", "ignore").translate(_BRACKET_STEPS, _OTHER_BYTES)
    if max(accumulate(memoryview(steps).cast("b")), default=0) > depth:
        raise over(where, "lists and objects within each other", depth)


def _distinct(pairs: list[tuple[str, object]]) -> dict[str, object]:
    distinct = dict(pairs)
    if len(distinct) < len(pairs):
        key, _ = Counter(key for key, _ in pairs).most_common(1)[0]
        raise ValueError(f"the key {key!r:.60} occurs twice in one object")
    return distinct


def _finite(text: str) -> float:
    value = float(text)
    return value if math.isfinite(value) else _no_number(text)


def _no_number(name: str) -> NoReturn:
    raise ValueError(f"{name:.60} is no number")


# YAML


def check_yaml(content: bytes, where: str) -> str:
    """Returns the text of a YAML document that any parser may safely build.

    Raises:
        DataError: It is no UTF-8 or no YAML, or an alias stands within its own anchor.
        LimitError: It has more than `YAML_BYTES`, `YAML_NODES` or `YAML_DEPTH`.
    """
    if len(content) > YAML_BYTES:
        raise over(where, "bytes of YAML", YAML_BYTES)
    try:
        text = content.decode("utf-8-sig")
        _check_nodes(text, where)
    except UnicodeDecodeError as error:
        raise DataError(f"{where}: not UTF-8 text: {error.reason} at byte {error.start}") from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise DataError(f"{where}: not valid YAML: {error}") from error
    return text


def _check_nodes(text: str, where: str) -> None:
    """Counts the nodes of a document, those of aliases at each use."""
    sizes: dict[str, int] = {}
    open_: list[tuple[str | None, int]] = []
    count = 0
    for event in yaml.parse(text, yaml.CSafeLoader):
        anchor: str | None = getattr(event, "anchor", None)
        if isinstance(event, yaml.AliasEvent):
            if anchor not in sizes:
                raise DataError(f"{where}: alias *{anchor} has no finished anchor before it")
            count += sizes[anchor]
        elif isinstance(event, yaml.CollectionStartEvent):
            open_.append((anchor, count))
            count += 1
            if len(open_) > YAML_DEPTH:
                raise over(where, "lists and mappings within each other", YAML_DEPTH)
        elif isinstance(event, yaml.CollectionEndEvent):
            name, before = open_.pop()
            if name:
                sizes[name] = count - before
        elif isinstance(event, yaml.ScalarEvent):
            count += 1
            if anchor:
                sizes[anchor] = 1
        if count > YAML_NODES:
            raise over(where, "YAML nodes, those of aliases counted at each use", YAML_NODES)


# Zips


@contextmanager
def opened_zip(file: BinaryIO, where: str) -> Generator[zipfile.ZipFile]:
    """Opens a zip, whose members `read_member` reads.

    Raises:
        DataError: It is no zip, or broken.
        OSError: It cannot be read.
    """
    with _named_errors(where):
        archive = zipfile.ZipFile(file)
    with archive:
        yield archive


def read_member(archive: zipfile.ZipFile, member: zipfile.ZipInfo, where: str, most: int) -> bytes:
    """Returns the content of a member of a zip that `opened_zip` opened.

    Raises:
        DataError: It is broken, encrypted, fails its checksum or has another size than declared,
            or its method is none of stored, deflate, bzip2 and Zstandard.
        LimitError: It has more than `most` bytes, declared or real.
        OSError: It cannot be read.
    """
    if max(member.file_size, member.compress_size) > most:
        raise over(where, "bytes", most)
    with _named_errors(where):
        if codec := CODECS.get(member.compress_type):
            content = _unpacked(_packed(archive, member), codec, where, most)
        elif member.compress_type in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            content = read_all(cast(BinaryIO, archive.open(member)), where, most)
        else:
            method = member.compress_type
            raise DataError(f"{where}: zip method {method} is not read: write it with deflate")
    if len(content) != member.file_size or zlib.crc32(content) != member.CRC:
        raise DataError(f"{where}: broken: it fails its checksum")
    return content


def _packed(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> bytes:
    """Returns the compressed bytes of a member."""
    if member.flag_bits & 1:
        raise RuntimeError("it is encrypted")
    file = cast(BinaryIO, archive.fp)
    file.seek(member.header_offset)
    signature, name, extra = LOCAL_HEADER.unpack(file.read(LOCAL_HEADER.size))
    if signature != SIGNATURE:
        raise zipfile.BadZipFile("no member where one should be")
    file.seek(name + extra, io.SEEK_CUR)
    return file.read(member.compress_size)


def _unpacked(packed: bytes, codec: str, where: str, most: int) -> bytes:
    # Importing pyarrow takes half a second, which configurations need not wait for.
    import pyarrow as pa

    stream: Any = pa.CompressedInputStream(io.BytesIO(packed), codec)
    try:
        return read_all(stream, where, most)
    except OSError as error:
        raise ValueError(str(error)) from error


@contextmanager
def _named_errors(where: str) -> Generator[None]:
    """Turns errors of zipfile and pyarrow for broken content into a `DataError`."""
    try:
        yield
    except BROKEN as error:
        reason = str(error).partition("\n")[0] or type(error).__name__
        raise DataError(f"{where}: broken: {reason[:LONGEST_REASON]}") from error
