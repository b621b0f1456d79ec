"""Zips of one member that may lie about it."""

import io
import struct
import zipfile
import zlib
from collections.abc import Callable
from functools import partial

import pyarrow as pa

from raylab.core.bounded import ZSTANDARD

PACK: dict[int, Callable[[bytes], bytes]] = {
    zipfile.ZIP_STORED: bytes,
    zipfile.ZIP_DEFLATED: partial(zlib.compress, wbits=-zlib.MAX_WBITS),
    ZSTANDARD: partial(pa.compress, codec="zstd", asbytes=True),
}
"""Compressors by zip method."""


def member_zip(
    method: int, data: bytes, name: bytes = b"a", size: int = 0, crc: int = 0, flags: int = 0
) -> io.BytesIO:
    """A zip of one member with this compressed data."""
    fields = (flags, method, 0, 0, crc, len(data), size, len(name), 0)
    local = struct.pack("<4sHHHHHIIIHH", b"PK\3\4", 63, *fields) + name
    central = struct.pack("<4sHHHHHHIIIHHHHHII", b"PK\1\2", 63, 63, *fields, 0, 0, 0, 0, 0) + name
    places = (1, 1, len(central), len(local) + len(data), 0)
    end = struct.pack("<4sHHHHIIH", b"PK\5\6", 0, 0, *places)
    return io.BytesIO(local + data + central + end)
