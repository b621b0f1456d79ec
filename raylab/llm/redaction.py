"""The removal of keys from what servers say, before anything is archived, logged or shown."""

import re
from base64 import b64encode, urlsafe_b64encode
from collections.abc import Iterable, Iterator
from urllib.parse import quote

SHORTEST = 12
"""Shortest piece of a key that is removed, in characters. It is longer than the words that models
answer with, so that a key of such words spoils no answer. A shorter key is no secret."""
BLANK = "***"
KEY_FRAGMENT = 8
"""Length of a piece of the key that makes `scrub` blank a word."""


class Redactor:
    """Removes keys: plain, as in a header, percent-encoded, in hexadecimal and in base64.

    A piece of a key is removed if it is at least twice `SHORTEST` long, or begins the key.
    """

    def __init__(self, keys: Iterable[str]) -> None:
        """Takes the keys; empty and short ones are passed over."""
        forms = {form for key in keys for form in _forms(key) if len(form) >= SHORTEST}
        # Any piece of twice the length holds one of these as a whole.
        self._blocks = sorted({block for form in forms for block in _blocks(form)})
        self._pieces = {
            form[start : start + SHORTEST]
            for form in forms
            for start in range(len(form) - SHORTEST + 1)
        }

    def __call__(self, text: str) -> str:
        """Returns the text with `BLANK` for every piece of a key."""
        if not any(block in text for block in self._blocks):
            return text
        kept, end, start = list[str](), 0, 0
        while start <= len(text) - SHORTEST:
            if text[start : start + SHORTEST] in self._pieces:
                if start >= end:
                    kept += (text[end:start], BLANK)
                end = start + SHORTEST
            start += 1
        return "".join([*kept, text[end:]])


def _forms(key: str) -> Iterator[str]:
    if len(key) < SHORTEST:
        return
    content = key.encode()
    yield key
    yield quote(key, safe="")
    yield content.hex()
    yield content.hex().upper()
    for ahead in range(3):
        # Only the characters in between depend on nothing but the key.
        first, last = -(-ahead * 8 // 6), (ahead + len(content)) * 8 // 6
        for encode in (b64encode, urlsafe_b64encode):
            yield encode(bytes(ahead) + content).decode()[first:last]


def _blocks(form: str) -> Iterator[str]:
    for start in range(0, len(form) - SHORTEST + 1, SHORTEST):
        yield form[start : start + SHORTEST]


def scrub(text: str, key: str) -> str:
    """Returns the text with every word blanked that contains a piece of the key."""
    if not key:
        return text
    length = min(KEY_FRAGMENT, len(key))
    pieces = {key[i : i + length] for i in range(len(key) - length + 1)}
    if not any(piece in text for piece in pieces):
        return text
    words = re.split(r"(\s+)", text)
    return "".join(BLANK if any(piece in word for piece in pieces) else word for word in words)
