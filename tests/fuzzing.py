"""Altered inputs for readers, which may answer with typed errors only.

`RAYLAB_FUZZ=10000 pytest -k altered` tries that many inputs of each reader instead of a few. A
failure names the input's number, which makes the same input again.
"""

import copy
import json
import os
import random
import signal
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from raylab.core.errors import RaylabError
from tests.memory import MIB, memory

T = TypeVar("T")

FEW = 60
COUNT = int(os.environ.get("RAYLAB_FUZZ", FEW))
CPU_SECONDS = 30
MEMORY = 512 * MIB

TOKENS = (
    *rb"null true [] {} 0 -1 1e999 1e-999 NaN 0.5 \ { } [ ] , : *a &a !!int <<: ${a}".split(),
    *(b'""', b'"', b"\xff", b"\0", b"\r\n", b"PK\3\4", b"PK\1\2", b"\xef\xbb\xbf", b"9" * 400),
    *(b"[" * 200, b'{"a":' * 200, rb'"\ud800"', rb'"\u0000"', b"\xff" * 4, b"\0" * 4),
)
VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1, 2**63, -(2**70), 10**299, 0.5, 1e308, float("inf")),
    *("", "x", "\0", "\ud800", "../..", "x" * 5000, "2026-01-01", "g1", "1e5", "<b>"),
    *([], {}, [[]], [{}], {"": None}, [None, None], {"a": {"b": []}}, [1, 2, 3]),
)


def altered(sample: bytes, draw: random.Random) -> bytes:
    """The sample with a few bytes flipped, removed, repeated, moved or replaced."""
    content = bytearray(sample)
    for _ in range(draw.choice((1, 1, 1, 2, 3, 8))):
        start = draw.randrange(len(content) + 1)
        end = min(len(content), start + draw.choice((0, 1, 1, 2, 4, 16, 64, len(content))))
        match draw.randrange(6):
            case 0 if start < len(content):
                content[start] ^= 1 << draw.randrange(8)
            case 1:
                del content[start:end]
            case 2:
                content[start:start] = content[start:end] * draw.choice((1, 2, 50))
            case 3:
                content[start:end] = draw.choice(TOKENS)
            case 4:
                content[start:start] = draw.choice(TOKENS)
            case _:
                content[start:end] = draw.randbytes(end - start)
    return bytes(content)


def altered_values(value: Any, draw: random.Random) -> Any:
    """JSON values with some parts replaced, removed, renamed or repeated."""
    changed = json.loads(json.dumps(value))
    for _ in range(draw.choice((1, 1, 2, 4))):
        changed = _altered_once(changed, draw)
    return changed


def _altered_once(value: Any, draw: random.Random) -> Any:
    if not value or not isinstance(value, dict | list) or draw.random() < 0.15:
        return copy.deepcopy(draw.choice(VALUES))
    key = draw.choice(list(value) if isinstance(value, dict) else range(len(value)))
    match draw.randrange(8):
        case 0:
            del value[key]
        case 1 if isinstance(value, dict):
            value[draw.choice(("", "x", "\ud800", "0", "é", *value))] = value.pop(key)
        case 2 if isinstance(value, list):
            value.extend(copy.deepcopy(value) * draw.choice((1, 40)))
        case _:
            value[key] = _altered_once(value[key], draw)
    return value


@contextmanager
def limits() -> Generator[None]:
    """Ends what takes more CPU time or memory than any small input may."""

    def over(*_: object) -> None:
        raise AssertionError(f"more than {CPU_SECONDS} s of CPU time")

    before = signal.signal(signal.SIGVTALRM, over)
    signal.setitimer(signal.ITIMER_VIRTUAL, CPU_SECONDS)
    try:
        with memory(MEMORY):
            yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


def try_all(
    make: Callable[[random.Random], T],
    read: Callable[[T], object],
    allowed: type[RaylabError] | tuple[type[RaylabError], ...],
    count: int = COUNT,
) -> None:
    """Reads inputs drawn by their number; only errors of these types may come out."""
    for number in range(count):
        content = make(random.Random(number))
        try:
            with limits():
                read(content)
        except allowed as error:
            assert 0 < len(str(error)) < 5000, f"input {number}: {str(error)[:200]}"
        except Exception as error:
            error.add_note(f"input {number}: {str(content)[:2000]}")
            raise


def try_altered(
    samples: Sequence[bytes],
    read: Callable[[bytes], object],
    allowed: type[RaylabError] | tuple[type[RaylabError], ...],
    count: int = COUNT,
) -> None:
    """Reads the samples as they are, which must go well, and then altered."""
    for sample in samples:
        read(sample)
    try_all(lambda draw: altered(draw.choice(samples), draw), read, allowed, count)
