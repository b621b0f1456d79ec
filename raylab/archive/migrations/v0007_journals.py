"""Journals: the calls and prompts of each run in a hash chain, computed for existing calls."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from alembic import op

from raylab.archive.chain import call_content, entry_hash, run_hash
from raylab.archive.tables import AnyText, UtcTime

revision = "0007"
down_revision = "0006"

DIGEST = sa.String(64)
RUN_TEXTS = ("name", "config", "versions", "uid")
CALL_TEXTS = (
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
CALL_NUMBERS = ("seed", "prompt_tokens", "completion_tokens", "attempts", "cost", "seconds")
PAGE = 1000


def upgrade() -> None:
    """Adds two tables, and fills them with the calls of each run, by their keys."""
    op.create_table(
        "journals",
        sa.Column("run_id", sa.Integer, sa.ForeignKey("runs.id"), primary_key=True),
        sa.Column("entries", sa.BigInteger, nullable=False),
        sa.Column("calls", sa.BigInteger, nullable=False),
        sa.Column("hash", DIGEST, nullable=False),
    )
    op.create_table(
        "journal_entries",
        sa.Column("run_id", sa.Integer, sa.ForeignKey("runs.id"), primary_key=True),
        sa.Column("sequence", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("kind", sa.String(8), nullable=False),
        sa.Column("key", DIGEST, nullable=False),
        sa.Column("hash", DIGEST, nullable=False),
    )
    prompts = sa.text("kind = 'prompt'")
    op.create_index(
        "journal_prompts",
        "journal_entries",
        ["run_id", "key"],
        unique=True,
        sqlite_where=prompts,
        postgresql_where=prompts,
    )
    _fill(op.get_bind())


def _fill(connection: sa.Connection) -> None:
    runs = sa.table(
        "runs",
        sa.column("id"),
        sa.column("started", UtcTime),
        *(sa.column(name, AnyText) for name in RUN_TEXTS),
    )
    journals = {
        run.name: _Journal(
            run.id, run_hash(run.name, run.config, run.versions, run.started, run.uid)
        )
        for run in connection.execute(sa.select(runs)).all()
    }
    names = ("run_id", "sequence", "kind", "key", "hash")
    entries = sa.table("journal_entries", *map(sa.column, names))
    for page in _pages(connection):
        # A call of a run that is gone stays without an entry, which verification tells.
        new = [journals[call["run"]].enter(call) for call in page if call["run"] in journals]
        if new:
            connection.execute(
                entries.insert(), [dict(zip(names, one, strict=True)) for one in new]
            )
    names = ("run_id", "entries", "calls", "hash")
    rows = [(one.run, one.entries, one.entries, one.hash) for one in journals.values()]
    if rows:
        table = sa.table("journals", *map(sa.column, names))
        connection.execute(table.insert(), [dict(zip(names, row, strict=True)) for row in rows])


@dataclass
class _Journal:
    run: int
    hash: str
    entries: int = 0

    def enter(self, call: dict[str, Any]) -> tuple[Any, ...]:
        self.entries += 1
        self.hash = entry_hash("call", self.hash, self.entries, call_content(call))
        return self.run, self.entries, "call", call["key"], self.hash


def _pages(connection: sa.Connection) -> Iterator[list[dict[str, Any]]]:
    calls = sa.table(
        "calls",
        sa.column("key"),
        sa.column("created", UtcTime),
        *(sa.column(name, AnyText) for name in CALL_TEXTS),
        *map(sa.column, CALL_NUMBERS),
    )
    after = ""
    while True:
        later = sa.select(calls).where(calls.c.key > after).order_by(calls.c.key).limit(PAGE)
        page = [dict(row) for row in connection.execute(later).mappings()]
        if not page:
            return
        yield page
        after = page[-1]["key"]
