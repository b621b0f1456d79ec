"""Columns renamed to the established terms of the field."""

from alembic import op

revision = "0005"
down_revision = "0004"

RENAMED = (
    ("calls", "subject", "description_hash"),
    ("calls", "served", "response_model"),
    ("cases", "subject", "description_hash"),
)


def upgrade() -> None:
    """Renames three columns; their contents and hashes stay unchanged."""
    for table, before, after in RENAMED:
        op.execute(f"ALTER TABLE {table} RENAME COLUMN {before} TO {after}")
