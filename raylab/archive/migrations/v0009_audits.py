"""Audits: drawn cases and what people say of them, in the chain of their run."""

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"

DIGEST = sa.String(64)
TIME = sa.DateTime(timezone=True).with_variant(sa.String(32), "sqlite")


def upgrade() -> None:
    """Adds a table."""
    op.create_table(
        "audits",
        sa.Column("run_id", sa.Integer, sa.ForeignKey("runs.id"), primary_key=True),
        sa.Column("sequence", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("case_key", DIGEST, nullable=False),
        sa.Column("action", sa.Text, nullable=False),
        sa.Column("created", TIME, nullable=False),
        sa.Column("previous_hash", DIGEST, nullable=False),
        sa.Column("hash", DIGEST, nullable=False),
        sa.Column("reviewer", sa.Text, nullable=False),
        sa.Column("case", sa.Text, nullable=False),
        sa.Column("body", sa.Text, nullable=False),
    )
    op.create_index("audits_by_case", "audits", ["run_id", "case_key", "sequence"])
