"""The score cache: accuracies of score files, by path, size and time of change."""

import hashlib
import logging
from collections.abc import Sequence

import msgspec

from raylab.errors import DataError, RunError
from raylab.files import Place
from raylab.quality.trees import Unit

CACHE_DIRECTORY = ".score-cache"
CACHE_FORMAT = 1
"""Format in the name of a cache file, so that no other version reads it."""
SHARDS = 64
"""Number of files of the score cache; units that share one are read by one task."""

LOGGER = logging.getLogger(__name__)

Entry = tuple[int, int, float | str]
"""Size, time of change in ns, and the accuracy or the reason why there is none."""
Entries = dict[str, Entry]
"""Entries of a unit by the path of the file below it."""


def cache_key(unit: Unit) -> str:
    """Returns the key of a unit in its cache file."""
    return f"{Place.at(unit.location).filesystem.type_name}:{unit.path}"


def by_shard(units: Sequence[Unit]) -> dict[int, list[Unit]]:
    """Groups units by the cache file that keeps them, which is the same in every process."""
    shards: dict[int, list[Unit]] = {}
    for unit in units:
        digest = hashlib.sha256(cache_key(unit).encode(errors="surrogateescape")).digest()
        shards.setdefault(digest[0] % SHARDS, []).append(unit)
    return shards


class CacheFile:
    """A file of the score cache. Failing to read or write it is not an error."""

    def __init__(self, storage: str, shard: int) -> None:
        """Locates the file with this number in the storage."""
        name = f"{CACHE_FORMAT}-{shard:02d}.msgpack"
        self._file = Place.at(storage) / CACHE_DIRECTORY / name

    def read(self) -> dict[str, Entries]:
        """Reads the entries by unit; none if the file is absent or unusable."""
        try:
            return msgspec.msgpack.decode(self._file.read(), type=dict[str, Entries])
        except (DataError, msgspec.MsgspecError):
            return {}

    def write(self, entries: dict[str, Entries]) -> None:
        """Writes the entries by unit; a failure only causes a warning."""
        try:
            # Atomic, because another run may be reading it. Not durable: a torn file is ignored.
            self._file.write(msgspec.msgpack.encode(entries), durable=False)
        except (RunError, UnicodeEncodeError) as error:
            LOGGER.warning("score cache: %s", error)
