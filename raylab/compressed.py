"""Compressed streams and zips, read within limits.

Sizes are checked twice, as they are declared and as bytes arrive, and never more than a chunk is
decompressed ahead. Errors are those of `raylab.bounded`.
"""

import io
import struct
import zipfile
import zlib
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any, BinaryIO, Literal, cast

import pyarrow as pa

from raylab.bounded import CHUNK, over, read_all
from raylab.errors import DataError

Compression = Literal["gzip", "bz2", "zstd", "lz4"]

RATIO = 200
"""Most bytes that a compressed byte may stand for: text compresses to a tenth, zeros to a
thousandth and less."""
RATIO_FREE = 1 << 24
"""Bytes that any input may expand to, whatever the ratio."""
DIRECTORY_BYTES = 1 << 24
"""Longest table of contents of a zip, enough for 200,000 members."""
ZSTANDARD = 93
"""The zip method of new `.eval` logs, which Python's zipfile supports from 3.14 on."""
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
    pa.ArrowException,
    struct.error,
    zipfile.BadZipFile,
    zlib.error,
)
"""Errors of pyarrow and zipfile for broken input. A RuntimeError is an encrypted member, or a
NotImplementedError for an unknown feature."""


class _SourceError(Exception):
    """Carries an error of the disk or network through decompressors; never leaves this module."""


@contextmanager
def _named_errors(where: str) -> Generator[None]:
    """Turns errors of broken content into a `DataError`, and leaves those of the source alone."""
    try:
        yield
    except _SourceError as error:
        raise cast(OSError, error.__cause__) from None
    except DataError:
        raise
    except (*BROKEN, OSError) as error:
        reason = str(error).partition("\n")[0] or type(error).__name__
        raise DataError(f"{where}: broken: {reason[:LONGEST_REASON]}") from error


class _Source(io.RawIOBase):
    """A file that counts what is read of it, and tells its own errors from those of its content.

    Attributes:
        count: Bytes read.
        most: Most bytes to read at once; None for any number.
    """

    def __init__(self, file: BinaryIO, where: str, most: int | None = None) -> None:
        super().__init__()
        self.count = 0
        self.most = most
        self._file, self._where = file, where

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._file.tell()

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        if whence == io.SEEK_SET and offset < 0:
            raise ValueError("a position before its start")
        return self._file.seek(offset, whence)

    def read(self, size: int = -1) -> bytes:
        if self.most is not None and size > self.most:
            raise over(self._where, "bytes in its table of contents", self.most)
        try:
            chunk = self._file.read(size)
        except OSError as error:
            raise _SourceError from error
        self.count += len(chunk)
        return chunk


def unpacked(stream: BinaryIO, compression: Compression, where: str) -> BinaryIO:
    """Opens a compressed stream for reading; it is decompressed as it is read.

    Reading it raises `DataError` if it is broken or torn, and `LimitError` once it has expanded by
    more than `RATIO` and to more than `RATIO_FREE`.
    """
    return cast(BinaryIO, io.BufferedReader(_Unpacked(stream, compression, where), CHUNK))


def check_ratio(where: str, packed: int, size: int) -> None:
    """Checks the sizes of compressed data before and after, in bytes.

    Raises:
        LimitError: It expands by more than `RATIO` and to more than `RATIO_FREE`.
    """
    most = max(RATIO_FREE, RATIO * packed)
    if size > most:
        raise over(where, f"bytes from {packed:,} compressed ones", most)


class _Unpacked(io.RawIOBase):
    def __init__(self, stream: BinaryIO, compression: Compression, where: str) -> None:
        super().__init__()
        self._packed = _Source(stream, where)
        self._stream: Any = pa.CompressedInputStream(self._packed, compression)
        self._where = where
        self._size = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        with _named_errors(self._where):
            chunk: bytes = self._stream.read(min(len(buffer), CHUNK))
        self._size += len(chunk)
        check_ratio(self._where, self._packed.count, self._size)
        buffer[: len(chunk)] = chunk
        return len(chunk)


# Zip


@contextmanager
def opened_zip(file: BinaryIO, where: str) -> Generator[zipfile.ZipFile]:
    """Opens a zip, whose members `read_member` reads.

    Raises:
        DataError: It is no zip, or broken.
        LimitError: Its table of contents has more than `DIRECTORY_BYTES`.
        OSError: It cannot be read.
    """
    # zipfile reads the table of contents at once; members have limits of their own.
    source = _Source(file, where, DIRECTORY_BYTES)
    with _named_errors(where):
        archive = zipfile.ZipFile(cast(BinaryIO, source))
    source.most = None
    with archive:
        yield archive


def read_member(archive: zipfile.ZipFile, member: zipfile.ZipInfo, where: str, most: int) -> bytes:
    """Returns the content of a member of a zip that `opened_zip` opened.

    Raises:
        DataError: It is broken, encrypted, fails its checksum or has another size than declared,
            or its method is none of stored, deflate, bzip2 and Zstandard.
        LimitError: It has more than `most` bytes, declared or real, or expands too much.
        OSError: It cannot be read.
    """
    if max(member.file_size, member.compress_size) > most:
        raise over(where, "bytes", most)
    check_ratio(where, member.compress_size, member.file_size)
    with _named_errors(where):
        content = read_all(_opened_member(archive, member, where), where, most)
    if len(content) != member.file_size or zlib.crc32(content) != member.CRC:
        raise DataError(f"{where}: broken: it fails its checksum")
    return content


def _opened_member(archive: zipfile.ZipFile, member: zipfile.ZipInfo, where: str) -> BinaryIO:
    match member.compress_type:
        case zipfile.ZIP_STORED | zipfile.ZIP_DEFLATED:
            return cast(BinaryIO, archive.open(member))
        case zipfile.ZIP_BZIP2:
            # zipfile would decompress it without a limit.
            return unpacked(_packed(archive, member), "bz2", where)
        case method if method == ZSTANDARD:
            return unpacked(_packed(archive, member), "zstd", where)
        case method:
            raise DataError(f"{where}: zip method {method} is not read: write it with deflate")


def _packed(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> BinaryIO:
    """Returns the compressed bytes of a member."""
    if member.flag_bits & 1:
        raise RuntimeError("it is encrypted")
    file = cast(BinaryIO, archive.fp)
    file.seek(member.header_offset)
    signature, name, extra = LOCAL_HEADER.unpack(file.read(LOCAL_HEADER.size))
    if signature != SIGNATURE:
        raise zipfile.BadZipFile("no member where one should be")
    file.seek(name + extra, io.SEEK_CUR)
    return io.BytesIO(file.read(member.compress_size))
