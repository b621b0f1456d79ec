"""The score cache: what was read of score files, by path, size and time of change."""

import hashlib
import logging
from collections.abc import Sequence

import msgspec

from raylab.errors import DataError, RunError
from raylab.files import Place
from raylab.quality.trees import Unit

CACHE_DIRECTORY = ".score-cache"
CACHE_FORMAT = 1
"""Part of a cache file's name, so that another format never reads it."""
SHARDS = 64
"""Files of the score cache; units that share one are read by one task."""

LOGGER = logging.getLogger(__name__)

Entry = tuple[int, int, float | str]
"""Size, time of change in ns, and accuracy or why there is none."""
Entries = dict[str, Entry]
"""Entries of a unit by the path of the file below it."""


def cache_key(unit: Unit) -> str:
    """Returns the key of a unit in its cache file."""
    return f"{Place.at(unit.location).filesystem.type_name}:{unit.path}"


def by_shard(units: Sequence[Unit]) -> dict[int, list[Unit]]:
    """Groups units by the cache file that keeps them, the same wherever and when they are read."""
    shards: dict[int, list[Unit]] = {}
    for unit in units:
        digest = hashlib.sha256(cache_key(unit).encode(errors="surrogateescape")).digest()
        shards.setdefault(digest[0] % SHARDS, []).append(unit)
    return shards


class CacheFile:
    """One file of the score cache; a file that cannot be read or written is no error."""

    def __init__(self, storage: str, shard: int) -> None:
        """Takes the storage of the cache and the number of the file."""
        name = f"{CACHE_FORMAT}-{shard:02d}.msgpack"
        self._file = Place.at(storage) / CACHE_DIRECTORY / name

    def read(self) -> dict[str, Entries]:
        """Reads the entries by unit; none where the file is absent or of no use."""
        try:
            return msgspec.msgpack.decode(self._file.read(), type=dict[str, Entries])
        except (DataError, msgspec.MsgspecError):
            return {}

    def write(self, entries: dict[str, Entries]) -> None:
        """Writes the entries by unit; on failure only warns."""
        try:
            # Whole, for another run may be reading it; one that a power cut left torn is nothing.
            self._file.write(msgspec.msgpack.encode(entries), durable=False)
        except (RunError, UnicodeEncodeError) as error:
            LOGGER.warning("score cache: %s", error)
