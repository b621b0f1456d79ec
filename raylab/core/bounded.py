"""Limits on external input: files, lines, JSON and members of zips.

A small file may expand to a huge one, such as a zip that lies about its sizes. Readers take their
input through this module, which counts the real bytes and keeps no more than the limit in memory.

Every function takes `where`, the name of the input in errors. Broken input, and input beyond a
limit, raises `DataError`.
"""

import codecs
import errno
import io
import json
import math
import os
import re
import stat
import struct
import zipfile
import zlib
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import Any, BinaryIO, TypeVar, cast

import msgspec

from raylab.core.errors import DataError

CHUNK = 1 << 16
"""Bytes per read."""
LIST_CHUNK = 1 << 20
"""Bytes per read of a long JSON list."""
JSON_BYTES = 1 << 26
JSON_DEPTH = 100
"""Deepest nesting of lists and objects: pickle and others recurse into values."""
MAX_NODES = 5_000_000
"""Most lists and objects in JSON that is parsed at once; empty ones grow thirtyfold."""
LINE_BYTES = 1 << 24
ZSTANDARD = 93
"""The zip method of new `.eval` logs, which Python's zipfile supports from 3.14 on."""
LOCAL_HEADER = struct.Struct("<4s22xHH")
"""The header of a zip member: its signature and the lengths of its name and extra field."""
MAX_REASON = 200
"""Most characters of a library's error, which may quote the input."""

T = TypeVar("T")

_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
_BETWEEN = re.compile(r"[\s,]*")


def over(where: str, what: str, most: int, way_out: str = "") -> DataError:
    """Returns the error for an input that has more than `most` of something."""
    return DataError(f"{where}: more than {most:,} {what}{way_out and f': {way_out}'}")


def read_all(stream: BinaryIO, where: str, most: int) -> bytes:
    """Returns the rest of a stream, which has at most `most` bytes."""
    chunks, size = list[bytes](), 0
    while chunk := stream.read(CHUNK):
        chunks.append(chunk)
        size += len(chunk)
        if size > most:
            raise over(where, "bytes", most)
    return b"".join(chunks)


def read_file(path: str | os.PathLike[str], most: int) -> bytes:
    """Returns the content of a regular file on this machine, which has at most `most` bytes."""
    where = os.fspath(path)
    try:
        # To open a pipe waits for its writer, and a device has no end.
        if not stat.S_ISREG(os.stat(path).st_mode):
            raise DataError(f"{where} is no regular file: write its content into one")
        with open(path, "rb") as file:
            return read_all(file, where, most)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise DataError(f"{where} cannot be read: {reason}") from error


def lines(stream: BinaryIO, where: str, longest: int = LINE_BYTES) -> Iterator[tuple[int, bytes]]:
    """Yields the lines that are not blank, with line numbers from 1 and line ends.

    Every line has fewer than `longest` bytes.
    """
    for number, line in enumerate(iter(lambda: stream.readline(longest), b""), 1):
        if len(line) == longest and not line.endswith(b"\n"):
            raise over(f"{where}, line {number}", "bytes", longest - 1, "write a shorter line")
        if line.strip():
            yield number, line


def parse_json(content: bytes | str, where: str) -> object:
    """Returns the value of JSON text in UTF-8, with or without a byte order mark.

    Raises:
        DataError: It is not JSON (the error has line and column), has more than `JSON_BYTES`, is
            nested too deep, repeats a key within an object, or contains NaN, a number beyond a
            float or a lone surrogate.
    """

    def distinct(pairs: list[tuple[str, object]]) -> dict[str, object]:
        values = dict(pairs)
        if len(values) < len(pairs):
            keys = [key for key, _ in pairs]
            twice = next(key for key in keys if keys.count(key) > 1)
            raise DataError(f"{where}: {twice!r:.60} stands twice: remove or rename one")
        return values

    if len(content) > JSON_BYTES:
        raise over(where, "bytes of JSON", JSON_BYTES)
    try:
        text = content.decode("utf-8-sig") if isinstance(content, bytes) else content
        value = json.loads(
            text, parse_constant=_finite, parse_float=_finite, object_pairs_hook=distinct
        )
        # Only an escape makes a lone surrogate, and only encoding finds it.
        if _SURROGATE.search(text):
            json.dumps(value, ensure_ascii=False).encode()
        is_deep = _is_deep(value)
    except ValueError as error:
        raise DataError(f"{where}: not valid JSON: {error}") from None
    except RecursionError:
        value, is_deep = None, True
    if is_deep:
        raise over(where, "lists and objects within each other", JSON_DEPTH)
    return value


def decode(decoder: msgspec.json.Decoder[T], content: bytes, what: str, where: str = "") -> T:
    """Parses JSON of the decoder's type, with NaN and infinities as Python writes them.

    `what` is the type in words, for errors.
    """
    place = where and f"{where}: "
    # Counted first, because memory grows while they are parsed; brackets within texts count too.
    if content.count(b"{") + content.count(b"[") > MAX_NODES:
        raise over(where or what, "lists and objects", MAX_NODES)
    try:
        try:
            return decoder.decode(content)
        except msgspec.ValidationError:
            raise
        except msgspec.DecodeError:
            # The faster parser refuses NaN and infinities, which Python's takes.
            return msgspec.convert(json.loads(content), decoder.type)
    except msgspec.ValidationError as error:
        raise DataError(f"{place}not {what}: {str(error)[:MAX_REASON]}") from error
    except (ValueError, RecursionError) as error:
        raise DataError(f"{place}not JSON: {str(error)[:MAX_REASON]}") from error


def elements(
    file: BinaryIO, where: str, longest: int, errors: str = "replace"
) -> Generator[Any, None, str]:
    """Yields the elements of a JSON list one at a time, starting after its bracket.

    Returns the text after the list. It, and every element, has at most `longest` bytes. `errors`
    says what becomes of bytes that are not UTF-8, as in `bytes.decode`.
    """
    decoder = codecs.getincrementaldecoder("utf-8")(errors)
    scan, text, place = json.JSONDecoder().raw_decode, "", 0
    while True:
        place = cast("re.Match[str]", _BETWEEN.match(text, place)).end()
        if text.startswith("]", place):
            return text[place + 1 :] + decoder.decode(file.read(longest))
        try:
            value, place = scan(text, place)
        except RecursionError as error:
            raise DataError(f"{where}: not JSON: {error}") from None
        except ValueError as error:
            # The element may continue in the next chunk. It is scanned again from its beginning, so
            # chunks grow with what is held: else a long element would take quadratic time.
            held = len(text) - place
            chunk = file.read(max(LIST_CHUNK, held)) if held <= longest else b""
            if not chunk:
                raise DataError(
                    f"{where}: not JSON: {error}, in an element too long or cut off"
                ) from error
            text, place = text[place:] + decoder.decode(chunk), 0
            if held and text.count("{") + text.count("[") > MAX_NODES:
                raise over(where, "lists and objects in an element", MAX_NODES) from None
            continue
        yield value


def _is_deep(value: object) -> bool:
    """Returns True if lists and objects are nested deeper than `JSON_DEPTH`."""
    # Level by level: recursion would end where the value is too deep.
    level = [value]
    for _ in range(JSON_DEPTH):
        nested = (each for each in level if isinstance(each, list | dict))
        level = [v for each in nested for v in (each.values() if isinstance(each, dict) else each)]
    return any(isinstance(each, list | dict) for each in level)


def _finite(text: str) -> float:
    if not math.isfinite(value := float(text)):
        raise ValueError(f"{text:.60} is no number")
    return value


@contextmanager
def open_zip(file: BinaryIO, where: str) -> Generator[zipfile.ZipFile]:
    """Opens a zip for `read_member`; an `OSError` of the file itself passes through."""
    with _data_errors(where):
        archive = zipfile.ZipFile(file)
    with archive:
        yield archive


def read_member(archive: zipfile.ZipFile, member: zipfile.ZipInfo, where: str, most: int) -> bytes:
    """Returns the content of a member of a zip that `open_zip` opened.

    Members that are encrypted, of an unknown method, or of another checksum are broken. `most`
    bounds the bytes that the zip declares, and the real ones.
    """
    # What the zip declares is refused before anything is unpacked; it may still lie.
    if max(member.file_size, member.compress_size) > most:
        raise over(where, "bytes", most)
    with _data_errors(where):
        if member.compress_type == ZSTANDARD:
            return _read_zstandard(archive, member, where, most)
        return read_all(cast(BinaryIO, archive.open(member)), where, most)


def _read_zstandard(
    archive: zipfile.ZipFile, member: zipfile.ZipInfo, where: str, most: int
) -> bytes:
    # Importing pyarrow takes half a second, too long for reading a configuration.
    import pyarrow as pa

    file = cast(BinaryIO, archive.fp)
    file.seek(member.header_offset)
    signature, name, extra = LOCAL_HEADER.unpack(file.read(LOCAL_HEADER.size))
    if signature != b"PK\3\4" or member.flag_bits & 1:
        raise zipfile.BadZipFile("no member where one should be, or it is encrypted")
    file.seek(name + extra, io.SEEK_CUR)
    packed = io.BytesIO(file.read(member.compress_size))
    try:
        content = read_all(cast(Any, pa.CompressedInputStream(packed, "zstd")), where, most)
    except OSError as error:
        raise zipfile.BadZipFile(str(error)) from error
    if zlib.crc32(content) != member.CRC:
        raise zipfile.BadZipFile("it fails its checksum")
    return content


@contextmanager
def _data_errors(where: str) -> Generator[None]:
    """Turns errors of zipfile and pyarrow for broken content into a `DataError`."""
    # A RuntimeError is an encrypted member, or a NotImplementedError for an unknown feature.
    broken = (EOFError, ValueError, RuntimeError, OverflowError, struct.error, zlib.error)
    try:
        yield
    except (*broken, zipfile.BadZipFile, OSError) as error:
        # Offsets before the file are invalid arguments; other errors of the system may pass.
        if isinstance(error, OSError) and error.errno != errno.EINVAL:
            raise
        reason = str(error).partition("\n")[0] or type(error).__name__
        raise DataError(f"{where}: broken: {reason[:MAX_REASON]}") from error
