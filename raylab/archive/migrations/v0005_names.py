"""Columns called as the field calls what they hold."""

from alembic import op

revision = "0005"
down_revision = "0004"

RENAMED = (
    ("calls", "subject", "description_hash"),
    ("calls", "served", "response_model"),
    ("cases", "subject", "description_hash"),
)


def upgrade() -> None:
    """Renames three columns; what they hold, and the hashes over it, stay as they are."""
    for table, before, after in RENAMED:
        op.execute(f"ALTER TABLE {table} RENAME COLUMN {before} TO {after}")
