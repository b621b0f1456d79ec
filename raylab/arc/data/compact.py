"""Fast reading of re-arc's lists of pairs, as JSON writers print them.

A grid of one-digit numbers is copied from the text; its numbers are not parsed one by one.
"""

from collections.abc import Iterator

import msgspec
import numpy as np

from raylab.arc.data.tasks import Grid, Pair

SPACES = b" \t\n\r"
_ZEROS = bytes.maketrans(b"0123456789", b"0" * 10)


class _Pair(msgspec.Struct, forbid_unknown_fields=True):
    input: msgspec.Raw
    output: msgspec.Raw


_DECODER = msgspec.json.Decoder(list[_Pair])


def compact_pairs(content: bytes) -> Iterator[Pair | None]:
    """Yields the pairs of a JSON list one by one; None, and then no more, for any other content.

    Pairs after the last one that is asked for are only checked to be JSON objects of an input and
    an output.
    """
    try:
        pairs = _DECODER.decode(content)
    except (ValueError, RecursionError):
        pairs = []
    # A repeated key, or text in place of a grid, adds quotes to the four of a pair.
    if not pairs or content.count(b'"') != 4 * len(pairs):
        yield None
        return
    for pair in pairs:
        source, target = _grid(bytes(pair.input)), _grid(bytes(pair.output))
        if source is None or target is None:
            yield None
            return
        yield Pair(source, target)


def _grid(text: bytes) -> Grid | None:
    """Returns the grid that JSON of equal rows of one-digit numbers holds; None of other JSON."""
    shape = text.translate(_ZEROS, SPACES)
    # A first row of W numbers ends at 2 W + 1; with its comma, a row has 2 W + 2 characters.
    width = max(shape.find(b"]") - 1, 0) // 2
    height = (len(shape) - 1) // (2 * width + 2)
    row = b"[" + b",".join([b"0"] * width) + b"]"
    if width < 1 or shape != b"[" + b",".join([row] * height) + b"]":
        return None
    digits = np.frombuffer(text.translate(None, SPACES + b"[],"), np.uint8)
    return (digits - ord("0")).reshape(height, width)
