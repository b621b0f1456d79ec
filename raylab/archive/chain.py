"""Canonical JSON, and the hashes that chain the records and the journal of a run.

A record's hash is the SHA-256 of the previous hash and the canonical JSON of the record, so no
record can be altered, removed or inserted without breaking the chain. The first record follows the
hash of the run itself: its name, configuration, versions, start and id. The run's row holds the
last hash. A copy of it kept elsewhere proves the whole run, even against someone who can recompute
every hash of the database. The calls and prompts of a run form a second chain after the same hash.

These functions never change, or no archive could be verified any more.
"""

import hashlib
import json
import math
from collections.abc import Mapping
from datetime import datetime
from typing import Any, cast

from raylab.archive.tables import utc_text

HASHED_AS = {"description_hash": "subject"}
"""Columns that are hashed under their name in the first archives."""
CALL_TEXTS = (
    "key",
    "description_hash",
    "run",
    "role",
    "endpoint",
    "model",
    "response_model",
    "finish_reason",
    "parameters",
    "text",
)
CALL_NUMBERS = ("seed", "prompt_tokens", "completion_tokens", "attempts")
CALL_FLOATS = ("cost", "seconds")
PROMPT_TEXTS = ("hash", "name", "version", "text")


def canonical(value: Any) -> str:
    """Returns JSON with sorted keys, no spaces and only ASCII; NaN and infinity become null.

    Raises:
        TypeError: The value holds something that JSON cannot represent.
    """
    try:
        return _dumps(value)
    except ValueError:
        return _dumps(_finite(value))


def digest(text: str) -> str:
    """Returns the SHA-256 of a text in UTF-8, in hexadecimal; lone surrogates are allowed."""
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()


def run_hash(name: str, config: str, versions: str, started: datetime, uid: str | None) -> str:
    """Returns the hash of a run, which its first record follows.

    Args:
        name: Name of the run.
        config: Configuration as canonical JSON.
        versions: Versions as canonical JSON.
        started: Time of its start.
        uid: Id of the run; None for runs made before ids existed.
    """
    texts = {"name": _dumps(name), "config": config, "versions": versions}
    texts |= {"started": _dumps(utc_text(started))}
    # Runs made before ids existed keep their hash.
    return digest(_object(texts if uid is None else {**texts, "uid": _dumps(uid)}))


def record_hash(
    kind: str,
    previous: str,
    sequence: int,
    created: datetime,
    texts: Mapping[str, str],
    body: str,
) -> str:
    """Returns the hash of a record.

    Args:
        kind: case, decision or audit.
        previous: Hash of the record before it.
        sequence: Place of the record in the chain.
        created: Time at which it was archived.
        texts: Its columns except the body.
        body: Canonical JSON.
    """
    parts = {HASHED_AS.get(name, name): _dumps(text) for name, text in texts.items()}
    parts |= {"kind": _dumps(kind), "sequence": _dumps(sequence)}
    parts |= {"created": _dumps(utc_text(created)), "body": body}
    return digest(previous + _object(parts))


def call_content(columns: Mapping[Any, Any]) -> str:
    """Returns a call as canonical JSON, from its columns; a change of the schema adds none."""
    content = {name: columns[name] for name in (*CALL_TEXTS, *CALL_NUMBERS)}
    for name in CALL_FLOATS:
        content[name] = None if columns[name] is None else float(columns[name])
    return canonical({**content, "created": utc_text(columns["created"])})


def prompt_content(columns: Mapping[Any, Any]) -> str:
    """Returns a prompt as canonical JSON, from its columns."""
    return canonical({name: columns[name] for name in PROMPT_TEXTS})


def entry_hash(kind: str, previous: str, sequence: int, content: str) -> str:
    """Returns the hash of an entry of a journal.

    Args:
        kind: call or prompt.
        previous: Hash of the entry before it, or of the run.
        sequence: Place of the entry in the journal.
        content: Canonical JSON.
    """
    return digest(f'{previous}{{"content":{content},"kind":"{kind}","sequence":{sequence}}}')


def content_key(texts: Mapping[str, str], body: str) -> str:
    """Returns the hash of a decision's content, which identifies it; `body` is canonical JSON."""
    return digest(_object({**{name: _dumps(text) for name, text in texts.items()}, "body": body}))


def _object(parts: Mapping[str, str]) -> str:
    """Returns the canonical JSON of an object whose values are canonical JSON already."""
    return "{" + ",".join(f'"{name}":{parts[name]}' for name in sorted(parts)) + "}"


_dumps = json.JSONEncoder(sort_keys=True, separators=(",", ":"), allow_nan=False).encode


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in cast(Mapping[str, Any], value).items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in cast(list[Any], value)]
    return value
