"""Leases of reviewers on open cases, and drafts of their decisions."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"

TIME = sa.DateTime(timezone=True).with_variant(sa.String(32), "sqlite")


def upgrade() -> None:
    """Adds two tables."""
    op.create_table(
        "review_leases",
        *_place(),
        sa.Column("reviewer", sa.Text, nullable=False),
        sa.Column("expires", TIME, nullable=False),
    )
    op.create_table(
        "review_drafts",
        *_place(),
        sa.Column("reviewer", sa.Text, primary_key=True),
        sa.Column("choice", sa.Text, nullable=False),
        sa.Column("code", sa.Text, nullable=False),
        sa.Column("justification", sa.Text, nullable=False),
        sa.Column("saved", TIME, nullable=False),
        sa.Column("page", sa.Text, nullable=False),
        sa.Column("edit", sa.BigInteger, nullable=False),
    )


def _place() -> list[sa.Column[object]]:
    return [
        sa.Column("run_id", sa.Integer, sa.ForeignKey("runs.id"), primary_key=True),
        sa.Column("sequence", sa.BigInteger, primary_key=True, autoincrement=False),
    ]
