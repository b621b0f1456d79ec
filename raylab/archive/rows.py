"""How the records of an archive lie in its tables."""

import json
from datetime import datetime
from typing import Any

from sqlalchemy import RowMapping

from raylab.archive.chain import canonical, digest, record_hash
from raylab.archive.records import (
    CallRow,
    CaseRow,
    DecisionRow,
    Json,
    RunRow,
    StoredCase,
    StoredDecision,
)
from raylab.archive.tables import in_utc


def run_row(row: RowMapping, **changes: Any) -> RunRow:
    """The run of a row, with fields set otherwise."""
    values: Json = {
        "name": row["name"],
        "config": json.loads(row["config"]),
        "versions": json.loads(row["versions"]),
        "started": row["started"],
        "finished": row["finished"],
        "records": row["head_sequence"],
        "head_hash": row["head_hash"],
        "uid": row["uid"],
    }
    return RunRow(**{**values, **changes})


def call_values(row: CallRow) -> Json:
    """The columns of a call.

    Raises:
        ValueError: Its time has no zone.
    """
    parameters = canonical(dict(row.parameters))
    return {**vars(row), "parameters": parameters, "created": in_utc(row.created)}


def call_row(row: RowMapping) -> CallRow:
    """The call of a row."""
    return CallRow(**{**row, "parameters": json.loads(row["parameters"])})


def texts_of(row: CaseRow | DecisionRow) -> dict[str, str]:
    """The columns of a record but for its body."""
    return {name: value for name, value in vars(row).items() if name != "body"}


def chained_values(
    kind: str,
    row: CaseRow | DecisionRow,
    body: str,
    previous: str,
    sequence: int,
    created: datetime,
) -> Json:
    """The columns of a record at its place in the chain, but for its run.

    Args:
        kind: case or decision.
        row: The record.
        body: Its body as canonical JSON.
        previous: Hash of the record before it.
        sequence: Its place.
        created: Now.
    """
    texts = texts_of(row)
    return {
        **texts,
        "body": body,
        "case_key": digest(row.case),
        "sequence": sequence,
        "created": created,
        "previous_hash": previous,
        "hash": record_hash(kind, previous, sequence, created, texts, body),
    }


def stored_case(run: str, row: RowMapping) -> StoredCase:
    """The case of a row."""
    return StoredCase(
        **_stored(run, row),
        description_hash=row["description_hash"],
        description=row["description"],
    )


def stored_decision(run: str, row: RowMapping) -> StoredDecision:
    """The decision of a row."""
    return StoredDecision(**_stored(run, row), action=row["action"], reviewer=row["reviewer"])


def _stored(run: str, row: RowMapping) -> Json:
    """What every record of a chain has."""
    names = ("sequence", "created", "previous_hash", "hash", "case", "status")
    return {"run": run, "body": json.loads(row["body"]), **{name: row[name] for name in names}}
