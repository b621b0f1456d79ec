"""The score cache: accuracies of score files, by path, size and time of change."""

import hashlib
import logging
from collections.abc import Sequence

import msgspec

from raylab.bounded import read_all
from raylab.errors import DataError, RunError
from raylab.files import Place
from raylab.quality.trees import Unit
from raylab.runs.eval_logs import LONGEST_REASON, ScoreChoice

CACHE_DIRECTORY = ".score-cache"
CACHE_FORMAT = 2
"""Format in the name of a cache file, so that no other version reads it."""
CACHE_BYTES = 1 << 28
"""Longest file of the cache that is read: two million entries."""
DIGEST_BYTES = 32
SHARDS = 64
"""Number of files of the score cache; units that share one are read by one task."""

LOGGER = logging.getLogger(__name__)

Entry = tuple[int, int, float | str]
"""Size, time of change in ns, and the accuracy or the reason why there is none."""
Entries = dict[str, Entry]
"""Entries of a unit by the path of the file below it."""


def cache_key(unit: Unit, choice: ScoreChoice | None = None) -> str:
    """Returns the key of a unit in its cache file, another one for each choice of a score."""
    key = f"{Place.at(unit.location).filesystem.type_name}:{unit.path}"
    if choice is None or choice == ScoreChoice():
        return key
    return f"{key}\0{choice.metric}\0{choice.scorer or ''}"


def by_shard(units: Sequence[Unit]) -> dict[int, list[Unit]]:
    """Groups units by the cache file that keeps them, which is the same in every process."""
    shards: dict[int, list[Unit]] = {}
    for unit in units:
        digest = hashlib.sha256(cache_key(unit).encode(errors="surrogateescape")).digest()
        shards.setdefault(digest[0] % SHARDS, []).append(unit)
    return shards


def known_outcome(entry: Entry | None, size: int, changed: int) -> float | str | None:
    """Returns the outcome that an entry keeps for a file of this size and time of change.

    None if there is no entry, it is of another size or time, or its accuracy is not in [0, 1] or
    its reason longer than any.
    """
    if entry is None or entry[:2] != (size, changed):
        return None
    outcome = entry[2]
    if isinstance(outcome, str):
        return outcome if len(outcome) <= LONGEST_REASON else None
    return outcome if 0.0 <= outcome <= 1.0 else None


class CacheFile:
    """A file of the score cache: a hash, and the entries that it is of.

    Failing to read or write it is not an error: the scores are read again.
    """

    def __init__(self, storage: str, shard: int) -> None:
        """Locates the file with this number in the storage."""
        name = f"{CACHE_FORMAT}-{shard:02d}.msgpack"
        self._file = Place.at(storage) / CACHE_DIRECTORY / name

    def read(self) -> dict[str, Entries]:
        """Reads the entries by unit; none if the file is absent, damaged or too large."""
        try:
            with self._file.opened() as stream:
                content = read_all(stream, str(self._file), CACHE_BYTES)
            if _digest(content[DIGEST_BYTES:]) != content[:DIGEST_BYTES]:
                return {}
            return msgspec.msgpack.decode(content[DIGEST_BYTES:], type=dict[str, Entries])
        except (DataError, OSError, msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
            return {}

    def write(self, entries: dict[str, Entries]) -> None:
        """Writes the entries by unit; a failure only causes a warning."""
        try:
            content = msgspec.msgpack.encode(entries)
            # Atomic, because another run may be reading it. Not durable: a torn file is ignored.
            self._file.write(_digest(content) + content, durable=False)
        except (RunError, UnicodeEncodeError) as error:
            LOGGER.warning("score cache: %s", error)


def _digest(content: bytes) -> bytes:
    return hashlib.blake2b(content, digest_size=DIGEST_BYTES).digest()
