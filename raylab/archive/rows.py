"""How the records of an archive lie in its tables."""

import json
from datetime import datetime
from typing import Any

from sqlalchemy import RowMapping

from raylab.archive.chain import canonical, case_hash, decision_hash, digest
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


def case_values(row: CaseRow, body: str, previous: str, sequence: int, created: datetime) -> Json:
    """The columns of a case at its place in the chain, but for its run; `body` is canonical."""
    content = (row.case, row.subject, row.description, row.status)
    return {
        **vars(row),
        "body": body,
        "case_key": digest(row.case),
        "sequence": sequence,
        "created": created,
        "previous_hash": previous,
        "hash": case_hash(previous, sequence, created, *content, body),
    }


def decision_values(
    row: DecisionRow, body: str, previous: str, sequence: int, created: datetime
) -> Json:
    """The columns of a decision at its place in the chain, but for run and key."""
    content = (row.case, row.action, row.reviewer, row.status)
    return {
        **vars(row),
        "body": body,
        "case_key": digest(row.case),
        "sequence": sequence,
        "created": created,
        "previous_hash": previous,
        "hash": decision_hash(previous, sequence, created, *content, body),
    }


def stored_case(run: str, row: RowMapping) -> StoredCase:
    """The case of a row."""
    return StoredCase(
        run=run,
        sequence=row["sequence"],
        created=row["created"],
        previous_hash=row["previous_hash"],
        hash=row["hash"],
        case=row["case"],
        subject=row["subject"],
        description=row["description"],
        status=row["status"],
        body=json.loads(row["body"]),
    )


def stored_decision(run: str, row: RowMapping) -> StoredDecision:
    """The decision of a row."""
    return StoredDecision(
        run=run,
        sequence=row["sequence"],
        created=row["created"],
        previous_hash=row["previous_hash"],
        hash=row["hash"],
        case=row["case"],
        action=row["action"],
        reviewer=row["reviewer"],
        status=row["status"],
        body=json.loads(row["body"]),
    )
