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


@contextmanager
def named_errors(where: str) -> Generator[None]:
    """Turns errors of broken input into a `DataError` that names it.

    An `OSError` with a number is left alone: it is about the disk, not the content.
    """
    try:
        yield
    except DataError:
        raise
    except (*BROKEN, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        reason = str(error).partition("\n")[0] or type(error).__name__
        raise DataError(f"{where}: broken: {reason}") from error


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


class _Counted(io.RawIOBase):
    """A stream that counts the bytes read from it."""

    def __init__(self, stream: BinaryIO) -> None:
        super().__init__()
        self.count = 0
        self._stream = stream

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        chunk = self._stream.read(size)
        self.count += len(chunk)
        return chunk


class _Unpacked(io.RawIOBase):
    def __init__(self, stream: BinaryIO, compression: Compression, where: str) -> None:
        super().__init__()
        self._packed = _Counted(stream)
        self._stream: Any = pa.CompressedInputStream(self._packed, compression)
        self._where = where
        self._size = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        with named_errors(self._where):
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
    """
    with named_errors(where):
        archive = zipfile.ZipFile(cast(BinaryIO, _Directory(file, where)))
    # From here on, members are read, which have limits of their own.
    archive.fp = cast(Any, file)
    with archive:
        yield archive


class _Directory(io.RawIOBase):
    """A zip while its table of contents is read, which zipfile reads at once."""

    def __init__(self, file: BinaryIO, where: str) -> None:
        super().__init__()
        self._file, self._where = file, where

    def seekable(self) -> bool:
        return True

    def readable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        return self._file.seek(offset, whence)

    def tell(self) -> int:
        return self._file.tell()

    def read(self, size: int = -1) -> bytes:
        if size > DIRECTORY_BYTES:
            raise over(self._where, "bytes in its table of contents", DIRECTORY_BYTES)
        return self._file.read(size)


def read_member(archive: zipfile.ZipFile, member: zipfile.ZipInfo, where: str, most: int) -> bytes:
    """Returns the content of a member of a zip that `opened_zip` opened.

    Raises:
        DataError: It is broken, encrypted, fails its checksum or has another size than declared,
            or its method is none of stored, deflate, bzip2 and Zstandard.
        LimitError: It has more than `most` bytes, declared or real, or expands too much.
    """
    if max(member.file_size, member.compress_size) > most:
        raise over(where, "bytes", most)
    check_ratio(where, member.compress_size, member.file_size)
    with named_errors(where):
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
