"""Decisions that wait for the evaluator, and sessions of reviewers."""

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"

TIME = sa.DateTime(timezone=True).with_variant(sa.String(32), "sqlite")


def upgrade() -> None:
    """Adds two tables."""
    op.create_table(
        "pending_decisions",
        sa.Column("run_id", sa.Integer, sa.ForeignKey("runs.id"), primary_key=True),
        sa.Column("sequence", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("token", sa.String(64), nullable=False, unique=True),
        sa.Column("reviewer", sa.Text, nullable=False),
        sa.Column("submitted", TIME, nullable=False),
        sa.Column("body", sa.Text, nullable=False),
        sa.Column("tries", sa.Integer, nullable=False),
        sa.Column("problem", sa.Text, nullable=False),
        sa.Column("due", TIME, nullable=False),
    )
    op.create_table(
        "review_sessions",
        sa.Column("key", sa.String(64), primary_key=True),
        sa.Column("run_id", sa.Integer, sa.ForeignKey("runs.id"), nullable=False),
        sa.Column("reviewer", sa.Text, nullable=False),
        sa.Column("expires", TIME, nullable=False),
    )
