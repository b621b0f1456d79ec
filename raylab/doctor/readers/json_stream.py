"""JSON of any length in little memory: the members of an object, and the elements of an array.

A document is cut where its structure says so, and each piece is parsed by itself. A piece is held
whole, so pieces have a limit; what it costs to skip a long document is reading it.
"""

import re
from collections.abc import Iterable, Iterator
from typing import BinaryIO, TypeVar

import msgspec
import numpy as np

from raylab.bounded import LONGEST_REASON, over
from raylab.errors import DataError

CHUNK = 1 << 20
PIECE_BYTES = 1 << 28
"""Longest piece: a sample with the whole transcript of an agent."""
KEY = re.compile(rb'\s*"((?:[^"\\]|\\.){0,200})"\s*:\s*')
NO_NUMBER = re.compile(rb'("[^"\\]*+(?:\\.[^"\\]*+)*+")|-?(?:NaN|Infinity)', re.DOTALL)
"""Strings, which stay, and numbers that JSON lacks."""
OPEN, CLOSE, COMMA = ord("{"), ord("}"), ord(",")
_BIT = np.uint8(ord("[") ^ ord("{"))
"""The bit that tells braces from brackets."""

T = TypeVar("T")


def decode(decoder: msgspec.json.Decoder[T], content: bytes, where: str) -> T:
    """Parses JSON, with NaN and infinities, which Python writes, as null.

    Raises:
        DataError: It is not valid, not of the decoder's type, or too deep.
    """
    try:
        try:
            return decoder.decode(content)
        except msgspec.ValidationError:
            raise
        except msgspec.DecodeError:
            return decoder.decode(NO_NUMBER.sub(lambda match: match[1] or b"null", content))
    except (ValueError, RecursionError) as error:
        raise DataError(f"{where}: not valid JSON: {str(error)[:LONGEST_REASON]}") from error


def pieces(stream: BinaryIO, where: str, array: str = "") -> Iterator[tuple[str, bytes]]:
    """Yields the members of an object, or the elements of a list, as JSON with their keys.

    Args:
        stream: The document.
        where: Its name in errors.
        array: Key of a list in the object; its elements are yielded instead, under this key.
            The elements of a document that is a list have it too.

    Raises:
        DataError: The document is neither, or ends before its end.
        LimitError: A piece has more than `PIECE_BYTES`.
    """
    held, is_object, level, depth = list[bytes](), False, 1, 0
    for chunk, marks in _marks(stream):
        start = 0
        for position, mark, depth in marks:
            piece = b"".join([*held, chunk[start:position]])
            if mark == OPEN and depth == 1:
                is_object = chunk[position] == OPEN
            elif mark == OPEN:
                if chunk[position] == OPEN or not _is_key(piece, array):
                    continue
                level = 2
            elif depth == (level if mark == COMMA else level - 1):
                yield from _keyed(piece, array, is_object and level == 1, where)
                level = 1 if mark == CLOSE else level
            else:
                continue
            held, start = [], position + 1
            if mark == CLOSE and depth == 0:
                return
        held.append(chunk[start:])
        if sum(map(len, held)) > PIECE_BYTES:
            raise over(where, "bytes in a piece", PIECE_BYTES)
    raise DataError(f"{where}: not valid JSON: it ends {'early' if depth else 'where it begins'}")


def _is_key(piece: bytes, array: str) -> bool:
    key = KEY.fullmatch(piece)
    return key is not None and key[1] == array.encode()


def _keyed(piece: bytes, array: str, is_member: bool, where: str) -> Iterator[tuple[str, bytes]]:
    """Yields a piece with its key; nothing for the blanks where there is none."""
    if not piece.strip():
        return
    if not is_member:
        yield array, piece
    elif (key := KEY.match(piece)) is not None:
        yield key[1].decode(errors="replace"), piece[key.end() :]
    else:
        raise DataError(f"{where}: not valid JSON: a member without a key")


def _marks(stream: BinaryIO) -> Iterator[tuple[bytes, Iterable[tuple[int, int, int]]]]:
    """Yields chunks with the position, kind and depth of what gives them structure.

    These are the brackets and commas outside of strings, to a depth of 2 in an object and 1 in an
    array: an opening one has the depth inside of it, a closing one the depth outside.
    """
    quoted, depth, deepest, rest = 0, 0, 0, b""
    while content := stream.read(CHUNK):
        # An escape may go on in the next chunk.
        chunk = (rest + content).rstrip(b"\\")
        rest = (rest + content)[len(chunk) :]
        deepest = deepest or (1 if chunk.lstrip().startswith(b"[") else 2)
        data = np.frombuffer(chunk.replace(b"\\\\", b"__").replace(b'\\"', b"__"), np.uint8)
        strings = np.cumsum(data == ord('"'), dtype=np.uint8) + np.uint8(quoted)
        kinds = data | _BIT
        marks = (kinds == OPEN) | (kinds == CLOSE) | (data == COMMA)
        places = np.flatnonzero(marks & (strings & 1 == 0))
        kinds = np.where(data[places] == COMMA, COMMA, kinds[places])
        depths = depth + np.cumsum((kinds == OPEN).astype(int) - (kinds == CLOSE))
        shallow = np.flatnonzero(depths <= np.where(kinds == CLOSE, deepest - 1, deepest))
        quoted = int(strings[-1] & 1) if len(strings) else quoted
        depth = int(depths[-1]) if len(depths) else depth
        columns = (values[shallow].tolist() for values in (places, kinds, depths))
        yield chunk, zip(*columns, strict=True)
