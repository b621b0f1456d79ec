"""The archive's file on a disk that may lose what was not synced, and what a crash leaves of it.

SQLite appends to the write-ahead log: a transaction is durable when the log is synced up to its
end. A crash of the machine leaves any part of what was written since, and the page at the end torn.
"""

from collections.abc import Callable
from pathlib import Path
from random import Random

PAGE = 4096


class Disk:
    """The file of an archive."""

    def __init__(self, file: Path, template: bytes) -> None:
        """Writes the file from a template."""
        self.file = file
        self._log = Path(f"{file}-wal")
        self._synced = 0
        self._write(template, b"")

    def note_sync(self) -> None:
        """Notes that the log is durable up to its end."""
        self._synced = self._log.stat().st_size if self._log.exists() else 0

    def crash(self, random: Random, disconnect: Callable[[], None]) -> str:
        """Leaves what a power failure could; returns the loss in words.

        `disconnect` closes all connections, which would complete the file.
        """
        database = self.file.read_bytes()
        log = self._log.read_bytes() if self._log.exists() else b""
        cut = self._synced + _part(random, len(log) - self._synced)
        # The end of the last page holds anything, but nothing synced is harmed.
        torn = min(cut - self._synced, random.choice((0, random.randrange(1, PAGE))))
        disconnect()
        self._write(database, log[: cut - torn] + random.randbytes(torn))
        return f"{len(log) - cut} bytes are lost and {torn} torn"

    def remove(self) -> None:
        """Removes the file and its log."""
        for suffix in ("", "-wal", "-shm", "-journal"):
            Path(f"{self.file}{suffix}").unlink(missing_ok=True)

    def _write(self, database: bytes, log: bytes) -> None:
        self.remove()
        self.file.write_bytes(database)
        if log:
            self._log.write_bytes(log)


def _part(random: Random, length: int) -> int:
    """Returns a part of a length: often none or all of it."""
    drawn = random.random()
    return 0 if drawn < 0.25 else length if drawn < 0.5 else random.randint(0, length)
