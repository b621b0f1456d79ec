"""Canonical JSON, and the hashes that chain the records of a run.

A record's hash is the SHA-256 of the hash before it and the canonical JSON of the record, so that
none can be altered, removed or put in without breaking what follows. The first record follows the
hash of the run itself: its name, configuration, versions, start and id. The last hash stands in the
run's row; written down elsewhere, it vouches for the whole run even against someone who can
recompute every hash of a database.
"""

import hashlib
import json
import math
from collections.abc import Mapping
from datetime import datetime
from typing import Any, cast

from raylab.archive.tables import utc_text

HASHED_AS = {"description_hash": "subject"}
"""Columns that are hashed by the name that they had when the first archives were written."""


def canonical(value: Any) -> str:
    """JSON with sorted keys, no spaces and ASCII alone; NaN and infinity become null.

    Raises:
        TypeError: The value holds something that JSON has not.
    """
    try:
        return _dumps(value)
    except ValueError:
        return _dumps(_finite(value))


def digest(text: str) -> str:
    """SHA-256 of a text in UTF-8, in hexadecimal; lone surrogates are encoded as they are."""
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()


def run_hash(name: str, config: str, versions: str, started: datetime, uid: str | None) -> str:
    """The hash that a run's first record follows; `config` and `versions` are canonical JSON."""
    texts = {"name": _dumps(name), "config": config, "versions": versions}
    texts |= {"started": _dumps(utc_text(started))}
    # Runs from before ids existed keep the hash they had.
    return digest(_object(texts if uid is None else {**texts, "uid": _dumps(uid)}))


def record_hash(
    kind: str,
    previous: str,
    sequence: int,
    created: datetime,
    texts: Mapping[str, str],
    body: str,
) -> str:
    """The hash of a record.

    Args:
        kind: case or decision.
        previous: Hash of the record before it.
        sequence: Its place in the chain.
        created: When it was archived.
        texts: Its columns but for the body.
        body: Canonical JSON.
    """
    parts = {HASHED_AS.get(name, name): _dumps(text) for name, text in texts.items()}
    parts |= {"kind": _dumps(kind), "sequence": _dumps(sequence)}
    parts |= {"created": _dumps(utc_text(created)), "body": body}
    return digest(previous + _object(parts))


def content_key(texts: Mapping[str, str], body: str) -> str:
    """What tells a decision from any other: the hash of its content; `body` is canonical JSON."""
    return digest(_object({**{name: _dumps(text) for name, text in texts.items()}, "body": body}))


def _object(parts: Mapping[str, str]) -> str:
    """The canonical JSON of an object whose values are canonical JSON already."""
    return "{" + ",".join(f'"{name}":{parts[name]}' for name in sorted(parts)) + "}"


def _dumps(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in cast(Mapping[str, Any], value).items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in cast(list[Any], value)]
    return value
