"""Ids of runs, also kept in their records, logs and checkpoints; null for earlier runs."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    """Adds a column."""
    op.add_column("runs", sa.Column("uid", sa.Text))
