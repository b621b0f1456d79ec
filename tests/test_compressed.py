import io
import struct
import zipfile

import pytest

from raylab.compressed import (
    DIRECTORY_BYTES,
    RATIO_FREE,
    ZSTANDARD,
    Compression,
    opened_zip,
    read_member,
    unpacked,
)
from raylab.errors import DataError, LimitError
from tests.fuzzing import try_altered
from tests.memory import MIB, memory
from tests.zips import PACK, member_zip, packed, zip_of

TEXT = b"some text, " * 1000


COMPRESSIONS: tuple[Compression, ...] = ("gzip", "bz2", "zstd", "lz4")


METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, ZSTANDARD)


def bomb(compression: Compression) -> bytes:
    """2 GiB of zeros."""
    return packed(compression, bytes(16 * MIB)) * 128


def read_zip(file: io.BytesIO, most: int = MIB) -> bytes:
    with opened_zip(file, "x.zip") as archive:
        return read_member(archive, archive.getinfo("a"), "x.zip:a", most)


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_streams_are_unpacked(compression: Compression) -> None:
    # Two streams one after the other are one.
    content = packed(compression, TEXT) + packed(compression, b"more")
    with unpacked(io.BytesIO(content), compression, "x") as stream:
        assert stream.read() == TEXT + b"more"


@pytest.mark.parametrize("compression", COMPRESSIONS)
@pytest.mark.parametrize("break_", ["torn", "flipped", "foreign", "followed"])
def test_a_broken_stream_is_refused(compression: Compression, break_: str) -> None:
    whole = packed(compression, TEXT)
    content = {
        "torn": whole[:-5],
        "flipped": bytes([whole[0] ^ 1]) + whole[1:],
        "foreign": TEXT,
        "followed": whole + b"garbage",
    }[break_]
    with pytest.raises(DataError, match=r"^x: broken: "):
        unpacked(io.BytesIO(content), compression, "x").read()


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_a_stream_that_expands_too_much_ends_within_little_memory(
    compression: Compression,
) -> None:
    content = io.BytesIO(bomb(compression))
    stream = unpacked(content, compression, "x")
    with memory(), pytest.raises(LimitError, match=r"^x: more than .* bytes from"):
        for _ in iter(lambda: stream.read(MIB), b""):
            pass


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


@pytest.mark.parametrize("method", METHODS[1:])
def test_a_bomb_that_declares_its_size_is_refused_by_its_ratio(method: int) -> None:
    file = member_zip(method, b"0" * 1000, size=RATIO_FREE + 1)
    with pytest.raises(LimitError, match="bytes from 1,000 compressed ones"):
        read_zip(file, most=1 << 40)


def test_a_method_that_is_not_read_is_named() -> None:
    with pytest.raises(DataError, match="zip method 14 is not read: write it with deflate"):
        read_zip(member_zip(zipfile.ZIP_LZMA, TEXT))


@pytest.mark.parametrize("method", METHODS)
def test_an_encrypted_member_is_refused(method: int) -> None:
    with pytest.raises(DataError, match="encrypted"):
        read_zip(zip_of(method, TEXT, flags=1))


def test_a_long_table_of_contents_is_refused_before_it_is_read() -> None:
    size = DIRECTORY_BYTES + 1
    end = struct.pack("<4sHHHHIIH", b"PK\5\6", 0, 0, 1, 1, size, 0, 0)
    with pytest.raises(LimitError, match="in its table of contents"):
        read_zip(io.BytesIO(bytes(size) + end))


@pytest.mark.parametrize("content", [b"", b"PK", b"PK\5\6" + bytes(18), b"text"])
def test_what_is_no_zip_is_refused(content: bytes) -> None:
    with pytest.raises((DataError, KeyError)):
        read_zip(io.BytesIO(content))


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_altered_streams_are_read_or_refused(compression: Compression) -> None:
    content = packed(compression, TEXT) + packed(compression, TEXT)

    def read(content: bytes) -> None:
        unpacked(io.BytesIO(content), compression, "x").read()

    try_altered([content], read, DataError)


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
