"""JSONL files in which cases go out to people."""

import json
from collections.abc import Iterable
from pathlib import Path

from pydantic import BaseModel

from raylab.errors import RunError


def write_rows(path: Path, rows: Iterable[BaseModel]) -> int:
    """Writes a row a line and returns their number.

    Raises:
        RunError: The file cannot be written.
    """
    written = [json.dumps(row.model_dump(mode="json"), ensure_ascii=False) for row in rows]
    try:
        path.write_text("".join(f"{line}\n" for line in written), encoding="utf-8")
    except OSError as error:
        raise RunError(f"{path} cannot be written ({error}): give export= another file") from error
    return len(written)
