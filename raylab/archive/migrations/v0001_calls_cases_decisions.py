"""Runs, the journal of calls, and the chain of cases and decisions."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None

TIME = sa.DateTime(timezone=True).with_variant(sa.String(32), "sqlite")
DIGEST = sa.String(64)


def upgrade() -> None:
    """Creates the tables."""
    op.create_table(
        "runs",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("name", sa.Text, nullable=False, unique=True),
        sa.Column("started", TIME, nullable=False),
        sa.Column("finished", TIME),
        sa.Column("head_sequence", sa.BigInteger, nullable=False),
        sa.Column("head_hash", DIGEST, nullable=False),
        sa.Column("config", sa.Text, nullable=False),
        sa.Column("versions", sa.Text, nullable=False),
    )
    op.create_table(
        "calls",
        sa.Column("key", DIGEST, primary_key=True),
        sa.Column("subject", DIGEST, nullable=False),
        sa.Column("run", sa.Text, nullable=False),
        sa.Column("role", sa.Text, nullable=False),
        sa.Column("endpoint", sa.Text, nullable=False),
        sa.Column("model", sa.Text, nullable=False),
        sa.Column("served", sa.Text, nullable=False),
        sa.Column("seed", sa.BigInteger),
        sa.Column("finish_reason", sa.Text, nullable=False),
        sa.Column("prompt_tokens", sa.BigInteger, nullable=False),
        sa.Column("completion_tokens", sa.BigInteger, nullable=False),
        sa.Column("cost", sa.Double),
        sa.Column("seconds", sa.Double, nullable=False),
        sa.Column("attempts", sa.Integer, nullable=False),
        sa.Column("created", TIME, nullable=False),
        sa.Column("parameters", sa.Text, nullable=False),
        sa.Column("text", sa.Text, nullable=False),
    )
    op.create_index("calls_by_subject", "calls", ["subject"])
    op.create_table(
        "cases",
        *_chained(),
        sa.Column("subject", DIGEST, nullable=False),
        sa.Column("case", sa.Text, nullable=False),
        sa.Column("description", sa.Text, nullable=False),
        sa.Column("body", sa.Text, nullable=False),
        sa.UniqueConstraint("run_id", "case_key", name="cases_by_case"),
    )
    op.create_index("cases_by_status", "cases", ["run_id", "status", "sequence"])
    op.create_table(
        "decisions",
        *_chained(),
        sa.Column("key", DIGEST, nullable=False),
        sa.Column("action", sa.Text, nullable=False),
        sa.Column("reviewer", sa.Text, nullable=False),
        sa.Column("case", sa.Text, nullable=False),
        sa.Column("body", sa.Text, nullable=False),
        sa.UniqueConstraint("run_id", "key", name="decisions_by_key"),
    )
    op.create_index("decisions_by_case", "decisions", ["run_id", "case_key", "sequence"])


def _chained() -> list[sa.Column[object]]:
    return [
        sa.Column("run_id", sa.Integer, sa.ForeignKey("runs.id"), primary_key=True),
        sa.Column("sequence", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("case_key", DIGEST, nullable=False),
        sa.Column("status", sa.Text, nullable=False),
        sa.Column("created", TIME, nullable=False),
        sa.Column("previous_hash", DIGEST, nullable=False),
        sa.Column("hash", DIGEST, nullable=False),
    ]
