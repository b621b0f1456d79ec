"""Prompts by their hash; protocol and taxonomy of a run as columns."""

import json

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    """Adds a table and two columns, and fills the columns from the runs' versions."""
    op.create_table(
        "prompts",
        sa.Column("hash", sa.String(64), primary_key=True),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("version", sa.Text, nullable=False),
        sa.Column("text", sa.Text, nullable=False),
    )
    for name in ("protocol", "taxonomy"):
        op.add_column("runs", sa.Column(name, sa.Text, nullable=False, server_default=""))
    runs = sa.table("runs", *(sa.column(n) for n in ("id", "versions", "protocol", "taxonomy")))
    connection = op.get_bind()
    for run in connection.execute(sa.select(runs.c.id, runs.c.versions)).all():
        versions = json.loads(run.versions)
        values = {name: str(versions.get(name) or "") for name in ("protocol", "taxonomy")}
        connection.execute(runs.update().where(runs.c.id == run.id).values(values))
