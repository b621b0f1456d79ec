"""Rows for an archive, and SQL beside it."""

import hashlib
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import create_engine, text

from raylab.label.archive.ledger import ClaimEnd
from raylab.label.archive.records import CallRow, CaseRow
from raylab.label.archive.store import Archive
from raylab.label.judgement import Decision
from raylab.llm.chat import Claim, Cost
from raylab.llm.config import Budget, Lane
from tests.label.protocol.chats import replied

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


def sha256(text: str) -> str:
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()


def call_row(key: str, about: str = "a system", **changes: Any) -> CallRow:
    """An answered call with a value in every column; `changes` are its own or its reply's."""
    values: dict[str, Any] = {
        "description_hash": sha256(about),
        "role": "classify-a",
        "endpoint": "https://host/v1",
        "model": "m",
        "seed": 7,
        "parameters": {"temperature": 0.5, "stop": ["\n"], "extra": {"b": 1, "a": None}},
        "created": NOON,
    }
    values |= {name: changes.pop(name) for name in values.keys() & changes.keys()}
    tokens = {"prompt_tokens": 11, "completion_tokens": 5, "reasoning_tokens": 3}
    prompt = {"cached_prompt_tokens": 4, "written_prompt_tokens": 2}
    own = {"text": "OPT=Lrn", "key": sha256(key), "lane": Lane.FLEX, "cached": True}
    return CallRow(replied(**{**own, **tokens, **prompt, **changes}), **values)


def add_calls(archive: Archive, rows: Sequence[CallRow], run: str = "r") -> None:
    """Stores answered calls; those that are there stay unchanged."""
    archive.run(run).ledger("", Budget()).write(
        [ClaimEnd(Claim("", row.reply.key, Cost()), row) for row in rows]
    )


def case_row(
    case: str, status: str = "accepted", description: str = "a system", **body: Any
) -> CaseRow:
    content = {"code": None if status == "human" else "OPT=Lrn", "meta": {}, **body}
    return CaseRow(case, sha256(description), description, status, content)


def decision_row(case: str, code: str | None = "OPT=Evo", **changes: Any) -> Decision:
    classification = None if code is None else {"code": code, "calls": []}
    values: dict[str, Any] = {
        "case": case,
        "action": "decide" if code else "undo",
        "reviewer": "ada",
        "status": "accepted" if code else "human",
        "body": {"classification": classification, "decided": "2026-03-01T12:00:00Z"},
    }
    return Decision(**{**values, **changes})


def find_call(archive: Archive, key: str, about: str = "a system") -> CallRow | None:
    """The answered call of a key about a description."""
    return next((row for row in archive.calls_of([sha256(about)]) if row.reply.key == key), None)


def cases_of(archive: Archive, run: str = "r") -> list[CaseRow]:
    """The cases at the end of the run."""
    return [current.case for current in archive.run(run).cases()]


def statuses(archive: Archive, run: str = "r") -> dict[str, str]:
    """Their statuses."""
    return {case.case: case.status for case in cases_of(archive, run)}


def execute(location: str, *statements: str, **values: Any) -> list[Any]:
    """Runs SQL from outside, without the checks of keys; returns the last statement's rows."""
    on_server = location.startswith("postgresql:")
    url = location.replace(":", "+psycopg:", 1) if on_server else f"sqlite:///{location}"
    engine = create_engine(url)
    try:
        with engine.begin() as connection:
            if on_server:
                connection.execute(text("SET LOCAL session_replication_role = replica"))
            result = None
            for statement in statements:
                result = connection.execute(text(statement), values if ":" in statement else {})
            return list(result.all()) if result is not None and result.returns_rows else []
    finally:
        engine.dispose()
