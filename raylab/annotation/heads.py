"""The heads of a run's chains, noted beside the run, out of reach of the archive's database.

`heads.jsonl` has a line for each head. With a key in RAYLAB_CHAIN_KEY, of at least 32 characters,
lines are signed by HMAC-SHA256, so that nobody without the key can write one. The key is in no
file, message or record.
"""

import hashlib
import hmac
import logging
import os
from dataclasses import asdict
from datetime import UTC, datetime

from pydantic import ValidationError

from raylab.archive.chain import canonical
from raylab.archive.records import ChainHead
from raylab.archive.run import RunArchive
from raylab.bounded import parse_json
from raylab.errors import ArchiveError, ConfigError, DataError
from raylab.runs.records import Part
from raylab.runs.run import Run

HEADS = "heads.jsonl"
KEY_VARIABLE = "RAYLAB_CHAIN_KEY"
SHORTEST_KEY = 32

LOGGER = logging.getLogger(__name__)


class NotedHead(Part):
    """A line of `heads.jsonl`.

    Attributes:
        run_id: Id of the run; None if it has none.
        time: UTC in ISO 8601.
        records: Number of cases and decisions.
        records_hash: Hash of the last of them.
        entries: Number of calls and prompts.
        entries_hash: Hash of the last of them.
        signature: HMAC-SHA256 of the other values; None without a key.
    """

    run_id: str | None
    time: str
    records: int
    records_hash: str
    entries: int
    entries_hash: str
    signature: str | None = None

    @property
    def head(self) -> ChainHead:
        """The ends of the chains."""
        return ChainHead(self.records, self.records_hash, self.entries, self.entries_hash)

    def sign(self, key: str) -> "NotedHead":
        """Returns the head with its signature by a key."""
        return self.model_copy(update={"signature": self._signature(key)})

    def is_signed(self, key: str) -> bool:
        """Returns True if the signature is one by this key."""
        given = (self.signature or "").encode(errors="replace")
        return hmac.compare_digest(given, self._signature(key).encode())

    def line(self) -> bytes:
        """Returns the line, with its end."""
        unsigned = {"signature"} if self.signature is None else None
        return canonical(self.model_dump(exclude=unsigned)).encode() + b"\n"

    def _signature(self, key: str) -> str:
        content = canonical(self.model_dump(exclude={"signature"})).encode()
        return hmac.new(key.encode(errors="surrogateescape"), content, hashlib.sha256).hexdigest()


def noted_heads(run: Run) -> list[ChainHead]:
    """Returns the heads that were noted beside a run, the earliest first.

    A line that a crash tore is left out with a warning.

    Raises:
        ArchiveError: A line is of another run, holds no head, or is not signed with the key.
        ConfigError: The key is too short.
    """
    noted, key = _noted(run), _key()
    signed = [one.signature is not None for one in noted]
    if key is None and any(signed):
        LOGGER.warning("%s is signed, which only %s can check", run / HEADS, KEY_VARIABLE)
    if key is not None and noted and not any(signed):
        LOGGER.warning("%s is not signed, though %s is set", run / HEADS, KEY_VARIABLE)
    for number, one in enumerate(noted, 1):
        where = f"{run / HEADS}, head {number}"
        # Lines from before there was a key come first.
        if key is not None and any(signed[:number]) and not one.is_signed(key):
            raise ArchiveError(
                f"{where}: it is not signed with {KEY_VARIABLE}: set the key that the run was made "
                "with, or restore the file from a copy"
            )
        if one.run_id != run.id:
            raise ArchiveError(f"{where}: it is of another run: restore the file from a copy")
    return [one.head for one in noted]


def note_head(run: Run, archive: RunArchive) -> None:
    """Notes the present head of a run, unless it is the last one noted.

    Without the key, no head is noted in a file that is signed.

    Raises:
        ArchiveError: The archive cannot be read, or `noted_heads` raises.
        RunError: The file cannot be written.
    """
    head, noted, key = archive.head(), noted_heads(run), _key()
    if noted and noted[-1] == head:
        return
    if key is None and any(one.signature for one in _noted(run)):
        LOGGER.warning("the head of run %s is not noted: set %s", run.name, KEY_VARIABLE)
        return
    time = datetime.now(UTC).isoformat(timespec="seconds")
    new = NotedHead.model_validate({"run_id": run.id, "time": time, **asdict(head)})
    before = _content(run)
    torn = b"" if before.endswith(b"\n") or not before else b"\n"
    (run / HEADS).append(torn + (new if key is None else new.sign(key)).line())


def _content(run: Run) -> bytes:
    file = run / HEADS
    return file.read() if file.exists() else b""


def _noted(run: Run) -> list[NotedHead]:
    noted: list[NotedHead] = []
    for number, text in enumerate(_content(run).splitlines(), 1):
        where = f"{run / HEADS}, line {number}"
        try:
            line = parse_json(text, where)
        except DataError as error:
            LOGGER.warning("%s: it is torn, and left out", error)
            continue
        try:
            noted.append(NotedHead.model_validate(line, strict=True))
        except ValidationError as error:
            raise ArchiveError(
                f"{where}: it holds no head: restore the file from a copy"
            ) from error
    return noted


def _key() -> str | None:
    key = os.environ.get(KEY_VARIABLE)
    if not key:
        return None
    if len(key) < SHORTEST_KEY:
        raise ConfigError(
            f"{KEY_VARIABLE} should have at least {SHORTEST_KEY} characters, for example those of "
            "openssl rand -hex 32"
        )
    return key
