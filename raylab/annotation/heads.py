"""The heads of a run's chains, noted beside the run, out of reach of the archive's database.

`heads.jsonl` has a line for each head. With a key in RAYLAB_CHAIN_KEY, of at least 32 characters,
lines are signed by HMAC-SHA256, so that nobody without the key can write one. The key is in no
file, message or record.
"""

import hashlib
import hmac
import logging
import os
from dataclasses import asdict, fields
from datetime import UTC, datetime
from typing import Any, cast

from raylab.archive.chain import canonical
from raylab.archive.records import ChainHead
from raylab.archive.run import RunArchive
from raylab.bounded import parse_json
from raylab.errors import ArchiveError, ConfigError, DataError
from raylab.runs.run import Run

HEADS = "heads.jsonl"
KEY_VARIABLE = "RAYLAB_CHAIN_KEY"
SHORTEST_KEY = 32
SIGNATURE = "signature"

LOGGER = logging.getLogger(__name__)

Line = dict[str, Any]


def noted_heads(run: Run) -> list[ChainHead]:
    """Returns the heads that were noted beside a run, the earliest first.

    A line that a crash tore is left out with a warning.

    Raises:
        ArchiveError: A line is of another run, holds no head, or is not signed with the key.
        ConfigError: The key is too short.
    """
    lines = _lines(run)
    key = _key()
    signed = [SIGNATURE in line for line in lines]
    if key is None and any(signed):
        LOGGER.warning("%s is signed, which only %s can check", run / HEADS, KEY_VARIABLE)
    if key is not None and lines and not any(signed):
        LOGGER.warning("%s is not signed, though %s is set", run / HEADS, KEY_VARIABLE)
    heads: list[ChainHead] = []
    for number, line in enumerate(lines):
        # Lines from before there was a key come first.
        if key is not None and any(signed[: number + 1]) and not _is_signed(line, key):
            raise ArchiveError(
                f"{run / HEADS}, head {number + 1}: it is not signed with {KEY_VARIABLE}: set the "
                "key that the run was made with, or restore the file from a copy"
            )
        heads.append(_head(run, number, line))
    return heads


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
    if key is None and any(SIGNATURE in line for line in _lines(run)):
        LOGGER.warning("the head of run %s is not noted: set %s", run.name, KEY_VARIABLE)
        return
    time = datetime.now(UTC).isoformat(timespec="seconds")
    line: Line = {"run_id": run.id, "time": time, **asdict(head)}
    if key is not None:
        line[SIGNATURE] = _signature(line, key)
    before = _content(run)
    torn = b"" if before.endswith(b"\n") or not before else b"\n"
    (run / HEADS).append(torn + canonical(line).encode() + b"\n")


def _content(run: Run) -> bytes:
    file = run / HEADS
    return file.read() if file.exists() else b""


def _lines(run: Run) -> list[Line]:
    lines: list[Line] = []
    for number, text in enumerate(_content(run).splitlines(), 1):
        where = f"{run / HEADS}, line {number}"
        try:
            line = parse_json(text, where)
        except DataError as error:
            LOGGER.warning("%s: it is torn, and left out", error)
            continue
        if not isinstance(line, dict):
            raise ArchiveError(f"{where} holds no head: restore the file from a copy")
        lines.append(cast(Line, line))
    return lines


def _head(run: Run, number: int, line: Line) -> ChainHead:
    where = f"{run / HEADS}, head {number + 1}"
    if line.get("run_id") != run.id:
        raise ArchiveError(f"{where}: it is of another run: restore the file from a copy")
    values = {field.name: line.get(field.name) for field in fields(ChainHead)}
    counts = values["records"], values["entries"]
    hashes = values["records_hash"], values["entries_hash"]
    if not all(type(count) is int for count in counts) or not all(
        isinstance(one, str) for one in hashes
    ):
        raise ArchiveError(f"{where}: it holds no head: restore the file from a copy")
    return ChainHead(**cast(dict[str, Any], values))


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


def _is_signed(line: Line, key: str) -> bool:
    signature = line.get(SIGNATURE)
    return isinstance(signature, str) and hmac.compare_digest(
        signature.encode(errors="replace"), _signature(line, key).encode()
    )


def _signature(line: Line, key: str) -> str:
    content = canonical({name: value for name, value in line.items() if name != SIGNATURE})
    return hmac.new(
        key.encode(errors="surrogateescape"), content.encode(), hashlib.sha256
    ).hexdigest()
