"""The conversion of records to rows of the tables, and back."""

import json
from dataclasses import dataclass, fields
from datetime import datetime
from typing import Any

from sqlalchemy import Row

from raylab.archive.chain import canonical, digest, record_hash
from raylab.archive.records import (
    AuditEntry,
    CallRow,
    CaseRow,
    DecisionRow,
    RunRow,
    StoredAuditEntry,
    StoredCase,
    StoredDecision,
)
from raylab.archive.tables import in_utc

AnyRow = Row[*tuple[Any, ...]]


@dataclass(frozen=True)
class NewRecord:
    """A record to append to a chain.

    Attributes:
        sequence: Place in the chain.
        hash: Hash, which the next record follows.
        columns: Columns of its row, except the run.
    """

    sequence: int
    hash: str
    columns: dict[str, Any]


def run_row(row: AnyRow) -> RunRow:
    """Returns the run of a row."""
    return RunRow(
        name=row.name,
        config=json.loads(row.config),
        versions=json.loads(row.versions),
        started=row.started,
        finished=row.finished,
        records=row.head_sequence,
        head_hash=row.head_hash,
        uid=row.uid,
    )


def call_values(row: CallRow) -> dict[str, Any]:
    """Returns the columns of a call.

    Raises:
        ValueError: Its time has no zone.
    """
    parameters = canonical(dict(row.parameters))
    return {**vars(row), "parameters": parameters, "created": in_utc(row.created)}


def call_row(row: AnyRow) -> CallRow:
    """Returns the call of a row."""
    columns = {field.name: getattr(row, field.name) for field in fields(CallRow)}
    return CallRow(**{**columns, "parameters": json.loads(row.parameters)})


def texts_of(row: CaseRow | DecisionRow | AuditEntry) -> dict[str, str]:
    """Returns the columns of a record except its body."""
    return {name: value for name, value in vars(row).items() if name != "body"}


def new_record(
    kind: str,
    row: CaseRow | DecisionRow | AuditEntry,
    body: str,
    previous: str,
    sequence: int,
    created: datetime,
) -> NewRecord:
    """Returns a record at its place in the chain.

    Args:
        kind: case, decision or audit.
        row: The record.
        body: Its body as canonical JSON.
        previous: Hash of the record before it.
        sequence: Its place.
        created: Current time.
    """
    texts = texts_of(row)
    own = record_hash(kind, previous, sequence, created, texts, body)
    columns: dict[str, Any] = {
        **texts,
        "body": body,
        "case_key": digest(row.case),
        "sequence": sequence,
        "created": created,
        "previous_hash": previous,
        "hash": own,
    }
    return NewRecord(sequence, own, columns)


def stored_case(run: str, row: AnyRow) -> StoredCase:
    """Returns the case of a row."""
    columns = _stored(run, row)
    return StoredCase(
        **columns,
        status=row.status,
        description_hash=row.description_hash,
        description=row.description,
    )


def stored_decision(run: str, row: AnyRow) -> StoredDecision:
    """Returns the decision of a row."""
    columns = _stored(run, row)
    return StoredDecision(**columns, status=row.status, action=row.action, reviewer=row.reviewer)


def stored_audit_entry(run: str, row: AnyRow) -> StoredAuditEntry:
    """Returns the audit entry of a row."""
    return StoredAuditEntry(**_stored(run, row), action=row.action, reviewer=row.reviewer)


def _stored(run: str, row: AnyRow) -> dict[str, Any]:
    """Returns the fields that every record of a chain has."""
    names = ("sequence", "created", "previous_hash", "hash", "case")
    columns = {name: getattr(row, name) for name in names}
    return {"run": run, "body": json.loads(row.body), **columns}
