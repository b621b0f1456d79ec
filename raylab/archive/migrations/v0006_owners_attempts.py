"""Owners of runs, and attempts at calls that are in flight or of unknown cost."""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"

TIME = sa.DateTime(timezone=True).with_variant(sa.String(32), "sqlite")


def upgrade() -> None:
    """Adds two tables."""
    op.create_table(
        "run_owners",
        sa.Column("run_id", sa.Integer, sa.ForeignKey("runs.id"), primary_key=True),
        sa.Column("token", sa.String(32), nullable=False),
        sa.Column("host", sa.Text, nullable=False),
        sa.Column("machine", sa.Text, nullable=False),
        sa.Column("pid", sa.BigInteger, nullable=False),
        sa.Column("started", sa.Double, nullable=False),
        sa.Column("command", sa.Text, nullable=False),
        sa.Column("since", TIME, nullable=False),
        sa.Column("expires", TIME, nullable=False),
    )
    op.create_table(
        "attempts",
        sa.Column("id", sa.String(64), primary_key=True),
        sa.Column("key", sa.String(64), nullable=False),
        sa.Column("run_id", sa.Integer, sa.ForeignKey("runs.id"), nullable=False),
        sa.Column("owner", sa.String(32), nullable=False),
        sa.Column("claimant", sa.Text, nullable=False),
        sa.Column("endpoint", sa.Text, nullable=False),
        sa.Column("model", sa.Text, nullable=False),
        sa.Column("prompt_tokens", sa.BigInteger, nullable=False),
        sa.Column("completion_tokens", sa.BigInteger, nullable=False),
        sa.Column("cost", sa.Double),
        sa.Column("started", TIME, nullable=False),
        sa.Column("expires", TIME, nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
    )
    in_flight = sa.text("state = 'sent'")
    op.create_index(
        "attempts_in_flight",
        "attempts",
        ["key"],
        unique=True,
        sqlite_where=in_flight,
        postgresql_where=in_flight,
    )
