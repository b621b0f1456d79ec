"""Queries on the tables of an archive: runs by name, pages of records, current statuses."""

from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from typing import Any, TypeVar

from sqlalchemy import (
    ColumnElement,
    Connection,
    Select,
    Table,
    bindparam,
    func,
    insert,
    select,
    update,
)

from raylab.archive.records import (
    DECISION,
    CurrentCase,
    StoredCase,
    StoredDecision,
    StoredRecord,
)
from raylab.archive.rows import AnyRow, seal, unseal
from raylab.archive.tables import CASES, DECISIONS, RUNS
from raylab.errors import ArchiveError

LOOKED_UP = 500
"""Most values of a list in one statement."""
LISTED_RUNS = 10

# Statements are built once, because that takes longer than to execute them.
_RUN = select(RUNS).where(RUNS.c.name == bindparam("name"))
_COUNT_RECORDS = update(RUNS).where(RUNS.c.id == bindparam("run"))
_IS_DECISION = DECISIONS.c.kind == DECISION
_LOCKED_RUN = _RUN.with_for_update()
_NAMED = select(CASES.c.case, CASES.c.sequence, CASES.c.status, CASES.c.description_hash).where(
    CASES.c.run_id == bindparam("run"), CASES.c.case.in_(bindparam("cases", expanding=True))
)

T = TypeVar("T")
S = TypeVar("S", bound=StoredRecord | CurrentCase)


def find_run(connection: Connection, place: str, name: str, lock: bool = False) -> AnyRow:
    """Returns the row of a run.

    Args:
        connection: Connection to the archive.
        place: Place of the archive, for the error.
        name: Name of the run.
        lock: Lock the row until the transaction ends, so that no other record takes the next place.

    Raises:
        ArchiveError: There is no such run.
    """
    row = connection.execute(_LOCKED_RUN if lock else _RUN, {"name": name}).first()
    if row is None:
        latest = select(RUNS.c.name).order_by(RUNS.c.started.desc()).limit(LISTED_RUNS)
        known = ", ".join(connection.scalars(latest)) or "none"
        raise ArchiveError(f"archive {place} has no run {name}; its latest runs: {known}")
    return row


def append_records(
    connection: Connection, table: Table, run: AnyRow, records: Sequence[object], created: datetime
) -> None:
    """Appends records to those of a locked run, in order."""
    if not records:
        return
    values = [
        {**seal(record, sequence=sequence, created=created), "run_id": run.id}
        for sequence, record in enumerate(records, run.records + 1)
    ]
    connection.execute(insert(table), values)
    connection.execute(_COUNT_RECORDS, {"run": run.id, "records": run.records + len(records)})


def chunks(values: Sequence[T]) -> Iterator[Sequence[T]]:
    """Splits a list into pieces that fit into one statement."""
    return (values[start : start + LOOKED_UP] for start in range(0, len(values), LOOKED_UP))


def stream(page: Callable[[int], list[S]]) -> Iterator[S]:
    """Yields the records of consecutive pages; `page` takes the last sequence before its page."""
    after = 0
    while records := page(after):
        yield from records
        last = records[-1]
        after = last.case.sequence if isinstance(last, CurrentCase) else last.sequence


def case_page(
    connection: Connection,
    run: AnyRow,
    after: int | None,
    batch: int,
    *conditions: ColumnElement[bool] | None,
) -> list[StoredCase]:
    """Returns the next cases of a run that meet all conditions, in order of sequence."""
    rows = connection.execute(page_of(CASES, run.id, after, batch, *conditions))
    return [unseal(StoredCase, row, run=run.name) for row in rows]


def decision_page(
    connection: Connection,
    run: AnyRow,
    after: int,
    batch: int,
    condition: ColumnElement[bool],
) -> list[StoredDecision]:
    """Returns the next decisions on a run that meet a condition, in order of sequence."""
    rows = connection.execute(page_of(DECISIONS, run.id, after, batch, condition))
    return [unseal(StoredDecision, row, run=run.name) for row in rows]


def cases_named(connection: Connection, run: AnyRow, cases: Sequence[str]) -> Iterator[AnyRow]:
    """Yields case, sequence, status and description_hash of the given cases that exist."""
    for some in chunks(sorted(set(cases))):
        yield from connection.execute(_NAMED, {"run": run.id, "cases": some})


def with_decisions(
    connection: Connection, run: AnyRow, cases: Sequence[StoredCase], until: int | None = None
) -> list[CurrentCase]:
    """Returns cases with the decisions on each, up to a sequence if one is given."""
    found: dict[str, list[StoredDecision]] = {}
    for some in chunks(cases):
        ids = [case.case for case in some]
        on_these = (DECISIONS.c.run_id == run.id) & DECISIONS.c.case.in_(ids) & _IS_DECISION
        if until is not None:
            on_these &= DECISIONS.c.sequence <= until
        statement = select(DECISIONS).where(on_these).order_by(DECISIONS.c.sequence)
        for row in connection.execute(statement):
            found.setdefault(row.case, []).append(unseal(StoredDecision, row, run=run.name))
    return [CurrentCase(case, tuple(found.get(case.case, ()))) for case in cases]


def current_status(until: int | None = None) -> ColumnElement[str]:
    """Returns the status from the latest decision on a case, or else from the run."""
    on_it = (DECISIONS.c.run_id == CASES.c.run_id) & (DECISIONS.c.case == CASES.c.case)
    on_it &= _IS_DECISION
    if until is not None:
        on_it &= DECISIONS.c.sequence <= until
    decided = (
        select(DECISIONS.c.status)
        .where(on_it)
        .order_by(DECISIONS.c.sequence.desc())
        .limit(1)
        .scalar_subquery()
    )
    return func.coalesce(decided, CASES.c.status)


def page_of(
    table: Table,
    run_id: int,
    after: int | None,
    batch: int,
    *conditions: ColumnElement[bool] | None,
) -> Select[Any]:
    """Returns the query of the next records of a run that meet all conditions, in order."""
    statement = select(table).where(table.c.run_id == run_id)
    if after is not None:
        statement = statement.where(table.c.sequence > after)
    given = [condition for condition in conditions if condition is not None]
    return statement.where(*given).order_by(table.c.sequence).limit(batch)
