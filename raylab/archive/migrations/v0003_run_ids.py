"""The ids of runs, which their records, logs and checkpoints carry; null of runs from before."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    """Adds a column."""
    op.add_column("runs", sa.Column("uid", sa.Text))
