"""The archive: runs, the journal of calls, the chain of cases and decisions, prompts.

Every operation is one transaction, durable when it returns, and changes nothing when it is done
again, so that a caller who lost the answer may repeat it. Where two writers disagree the first one
stands.
"""

import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self, TypeVar

from sqlalchemy import (
    ColumnElement,
    Connection,
    Executable,
    RowMapping,
    Select,
    Table,
    func,
    insert,
    select,
    update,
)

from raylab.annotation.export import write_cases
from raylab.archive.chain import canonical, content_key, digest, run_hash
from raylab.archive.database import Database
from raylab.archive.leases import ReviewLeases, clear, require_lease
from raylab.archive.opening import prepare
from raylab.archive.records import (
    HUMAN,
    CallRow,
    CaseRow,
    CurrentCase,
    DecisionRow,
    Json,
    Problem,
    RunRow,
    Spent,
    StoredCase,
    StoredDecision,
)
from raylab.archive.rows import (
    call_row,
    call_values,
    chained_values,
    run_row,
    stored_case,
    stored_decision,
    texts_of,
)
from raylab.archive.tables import CALLS, CASES, DECISIONS, PROMPTS, RUNS
from raylab.archive.verification import problems_of
from raylab.config.schema import differences
from raylab.errors import ArchiveError

PATIENCE_SECONDS = 60.0
OPENING_SECONDS = 5.0
LOOKED_UP = 500
"""Values of a list in one statement."""
BATCH = 100
LISTED_RUNS = 10

LOGGER = logging.getLogger(__name__)

T = TypeVar("T")
Prompts = Mapping[str, tuple[str, str, str]]
"""By hash: name, version, text."""


class Archive:
    """An archive that is open; a context manager that closes it. Any thread may use it."""

    def __init__(self, database: Database) -> None:
        """Takes over a database at the latest version; see `open`."""
        self._database = database

    @classmethod
    def open(
        cls,
        location: str | Path,
        *,
        create: bool = True,
        patience: float = PATIENCE_SECONDS,
        wait: float = OPENING_SECONDS,
    ) -> Self:
        """Opens an archive, makes it if there is none, and brings it to the latest schema.

        Args:
            location: Path of an SQLite file, whose directories are made, or URL such as
                postgresql://user@host:5432/database. The password is taken from PGPASSWORD or
                ~/.pgpass, never from the URL.
            create: Whether to make an archive where there is none.
            patience: Seconds for which an operation is tried again at most while the database is
                locked, restarting or not reached.
            wait: Seconds for which a server is waited for now, before it was ever reached.

        Raises:
            ArchiveError: The place holds something else, a newer schema or a damaged file, cannot
                be reached or written, or holds nothing and is not to be made.
        """
        database = Database(location, patience)
        try:
            prepare(database, create, wait)
        except BaseException:
            database.close()
            raise
        return cls(database)

    def __enter__(self) -> Self:
        """The archive."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Closes it."""
        self.close()

    def __repr__(self) -> str:
        """The place, which never holds a password."""
        return f"Archive({self.place!r})"

    @property
    def place(self) -> str:
        """The file, or the URL, fit to be shown."""
        return self._database.place

    def close(self) -> None:
        """Closes all connections; again does nothing."""
        self._database.close()

    def start_run(self, name: str, config: Json, versions: Json, uid: str | None = None) -> RunRow:
        """Starts a run, or goes on with it, which clears its finish.

        Args:
            name: Name of the run; unique in an archive.
            config: What the run does, as JSON values, without where and how fast it does it.
            versions: What it runs with; `protocol` and `taxonomy` are columns too. Those of the
                first start are kept.
            uid: Id of the run in its record; that of the first start is kept.

        Raises:
            ArchiveError: The name is taken by a run of another configuration.
        """
        values = {"name": name, "config": canonical(config), "versions": canonical(versions)}
        values |= {key: str(versions.get(key) or "") for key in ("protocol", "taxonomy")}
        started = datetime.now(UTC)
        head = run_hash(name, values["config"], values["versions"], started, uid)
        new = {**values, "uid": uid, "started": started, "head_sequence": 0, "head_hash": head}

        def work(connection: Connection) -> RunRow:
            connection.execute(self._database.insert_new(RUNS), new)
            row = connection.execute(select(RUNS).where(RUNS.c.name == name)).mappings().one()
            self._refuse_other_work(row, values["config"])
            if row["versions"] != values["versions"]:
                LOGGER.info("run %s goes on with other versions than it was started with", name)
            connection.execute(update(RUNS).where(RUNS.c.id == row["id"]).values(finished=None))
            return run_row(row, finished=None)

        return self._database.write(work)

    def finish_run(self, name: str) -> None:
        """Notes that all of a run is done; again does nothing.

        Raises:
            ArchiveError: There is no such run.
        """

        def work(connection: Connection) -> None:
            run = self._run(connection, name)
            unfinished = (RUNS.c.id == run["id"]) & RUNS.c.finished.is_(None)
            connection.execute(update(RUNS).where(unfinished).values(finished=datetime.now(UTC)))

        self._database.write(work)

    def runs(self) -> list[RunRow]:
        """All runs, the earliest first."""
        statement = select(RUNS).order_by(RUNS.c.started, RUNS.c.id)
        return self._database.read(
            lambda connection: [run_row(row) for row in _rows(connection, statement)]
        )

    def run(self, name: str) -> RunRow:
        """A run.

        Raises:
            ArchiveError: There is no such run.
        """
        return self._database.read(lambda connection: run_row(self._run(connection, name)))

    def add_prompts(self, prompts: Prompts) -> None:
        """Keeps prompts by their hash; those that are there already are left."""
        rows = [
            {"hash": key, "name": name, "version": version, "text": content}
            for key, (name, version, content) in sorted(prompts.items())
        ]
        self._insert_new(PROMPTS, rows)

    def prompts(self) -> dict[str, tuple[str, str, str]]:
        """All prompts ever used: name, version and text by hash."""
        statement = select(PROMPTS).order_by(PROMPTS.c.hash)
        rows = self._database.read(lambda connection: _rows(connection, statement))
        return {row["hash"]: (row["name"], row["version"], row["text"]) for row in rows}

    def add_calls(self, rows: Sequence[CallRow]) -> None:
        """Keeps completed calls; those whose key is there already are left.

        Raises:
            ValueError: A time has no zone.
        """
        # Writers that insert the same keys in different orders would wait for each other.
        ordered = sorted(rows, key=lambda row: row.key)
        self._insert_new(CALLS, [call_values(row) for row in ordered])

    def calls_of(self, description_hashes: Sequence[str]) -> list[CallRow]:
        """All calls ever made about any of these texts, by the SHA-256 of each."""
        unique = sorted(set(description_hashes))

        def work(connection: Connection) -> list[CallRow]:
            return [
                call_row(row)
                for some in _chunks(unique)
                for row in _rows(
                    connection, select(CALLS).where(CALLS.c.description_hash.in_(some))
                )
            ]

        return self._database.read(work)

    def call(self, key: str) -> CallRow | None:
        """The call of this key."""

        def work(connection: Connection) -> CallRow | None:
            found = _rows(connection, select(CALLS).where(CALLS.c.key == key))
            return call_row(found[0]) if found else None

        return self._database.read(work)

    def add_cases(self, run: str, rows: Sequence[CaseRow]) -> None:
        """Appends cases to the chain of a run.

        A case that the run has already is left as it is, also when its new body differs: a case
        that was run again after a lost answer has other times, and may have other replies.

        Args:
            run: Name of a run that was started.
            rows: What became of the cases.

        Raises:
            ArchiveError: There is no such run, or it has one of the cases with another
                description; then nothing is written.
        """
        bodies = {row.case: canonical(row.body) for row in rows}
        created = datetime.now(UTC)

        def work(connection: Connection) -> None:
            head = self._head(connection, run)
            named = _cases_named(connection, head["id"], [row.case for row in rows])
            there = {row["case"]: row["description_hash"] for row in named}
            values: list[Json] = []
            sequence, last = head["head_sequence"], head["head_hash"]
            for row in rows:
                if row.case in there:
                    self._refuse_other_description(run, row, there[row.case])
                    continue
                there[row.case] = row.description_hash
                sequence += 1
                value = chained_values("case", row, bodies[row.case], last, sequence, created)
                values.append({**value, "run_id": head["id"]})
                last = value["hash"]
            self._append(connection, CASES, head["id"], values)

        if rows:
            self._database.write(work)

    def known(self, run: str, cases: Sequence[str]) -> dict[str, str]:
        """The status, as the run left it, of those of these cases that it has.

        Raises:
            ArchiveError: There is no such run.
        """
        return self._of_cases(run, cases, "status")

    def description_hashes(self, run: str, cases: Sequence[str]) -> dict[str, str]:
        """The SHA-256 of the description of those of these cases that a run has.

        Raises:
            ArchiveError: There is no such run.
        """
        return self._of_cases(run, cases, "description_hash")

    def counts(self, run: str, now: bool = False) -> dict[str, int]:
        """Cases of a run by status.

        Args:
            run: Name of the run.
            now: Count by the status that decisions gave since, instead of the run's own.

        Raises:
            ArchiveError: There is no such run.
        """

        def work(connection: Connection) -> dict[str, int]:
            run_id = self._run(connection, run)["id"]
            status = _current_status() if now else CASES.c.status
            inner = select(status.label("status")).where(CASES.c.run_id == run_id).subquery()
            counted = select(inner.c.status, func.count()).group_by(inner.c.status)
            return {status: count for status, count in connection.execute(counted)}

        return self._database.read(work)

    def cases(
        self, run: str, status: str | None = None, batch: int = BATCH
    ) -> Iterator[StoredCase]:
        """The cases of a run as it left them, in the order in which they were archived.

        Cases that are added meanwhile come too; no more than a batch is held in memory.

        Args:
            run: Name of the run.
            status: Only cases that the run left with this status.
            batch: Cases that are read at once.

        Raises:
            ArchiveError: There is no such run, or reading fails.
        """
        run_id = self._run_id(run)
        condition = CASES.c.status == status if status is not None else None

        def page(after: int) -> list[StoredCase]:
            return self._database.read(
                lambda connection: _case_page(connection, run, run_id, after, batch, condition)
            )

        return _stream(page)

    def case(self, run: str, case: str) -> StoredCase | None:
        """A case of a run, as it left it; None if it has none of this id.

        Raises:
            ArchiveError: There is no such run.
        """

        def work(connection: Connection) -> StoredCase | None:
            run_id = self._run(connection, run)["id"]
            condition = CASES.c.case_key == digest(case)
            found = _case_page(connection, run, run_id, None, 1, condition)
            return found[0] if found else None

        return self._database.read(work)

    def current_cases(
        self,
        run: str,
        status: str | None = None,
        batch: int = BATCH,
        until: int | None = None,
    ) -> Iterator[CurrentCase]:
        """The cases of a run with what was decided on them since, in the order of `cases`.

        Args:
            run: Name of the run.
            status: Only cases that have this status now.
            batch: Cases that are read at once.
            until: Only records up to this sequence, so that what is added meanwhile is left out.

        Raises:
            ArchiveError: There is no such run, or reading fails.
        """
        run_id = self._run_id(run)
        conditions: list[ColumnElement[bool]] = []
        if status is not None:
            conditions.append(_current_status(until) == status)
        if until is not None:
            conditions.append(CASES.c.sequence <= until)

        def work(connection: Connection, after: int) -> list[CurrentCase]:
            found = _case_page(connection, run, run_id, after, batch, *conditions)
            decided = _decisions_on(connection, run, run_id, found, until)
            return [CurrentCase(case, tuple(decided.get(case.case, ()))) for case in found]

        def page(after: int) -> list[CurrentCase]:
            return self._database.read(lambda connection: work(connection, after))

        return _stream(page)

    def open_cases(self, run: str, batch: int = BATCH) -> Iterator[CurrentCase]:
        """The cases of a run that wait for a person now.

        Raises:
            ArchiveError: There is no such run, or reading fails.
        """
        return self.current_cases(run, HUMAN, batch)

    def waiting(self, run: str) -> list[int]:
        """Sequences of the cases of a run that wait for a person now, in order.

        Raises:
            ArchiveError: There is no such run.
        """

        def work(connection: Connection) -> list[int]:
            run_id = self._run(connection, run)["id"]
            open_now = (CASES.c.run_id == run_id) & (_current_status() == HUMAN)
            statement = select(CASES.c.sequence).where(open_now).order_by(CASES.c.sequence)
            return list(connection.scalars(statement))

        return self._database.read(work)

    def cases_at(self, run: str, sequences: Sequence[int]) -> list[CurrentCase]:
        """The cases of a run at these places of its chain, in order; others are passed over.

        Raises:
            ArchiveError: There is no such run.
        """

        def work(connection: Connection) -> list[CurrentCase]:
            run_id = self._run(connection, run)["id"]
            found: list[StoredCase] = []
            for some in _chunks(sorted(set(sequences))):
                condition = CASES.c.sequence.in_(some)
                found += _case_page(connection, run, run_id, None, len(some), condition)
            decided = _decisions_on(connection, run, run_id, found, None)
            return [CurrentCase(case, tuple(decided.get(case.case, ()))) for case in found]

        return self._database.read(work)

    def sequences(self, run: str, cases: Sequence[str]) -> dict[str, int]:
        """The places in the chain of a run of those of these cases that it has.

        Raises:
            ArchiveError: There is no such run.
        """
        return self._of_cases(run, cases, "sequence")

    def desk(self, run: str) -> ReviewLeases:
        """Leases and drafts of those who review a run.

        Raises:
            ArchiveError: There is no such run.
        """
        return ReviewLeases(self._database, self._run_id(run))

    def add_decision(self, run: str, row: DecisionRow, leased: bool = False) -> None:
        """Appends a decision to the chain of a run.

        A decision equal in everything, its body with the time of deciding included, to one that
        is there already changes nothing.

        Args:
            run: Name of the run.
            row: What was decided.
            leased: Take it only from the reviewer who holds the case's lease; one that settles
                the case ends the lease and drops the draft.

        Raises:
            ArchiveError: There is no such run, or it has no such case.
            LeaseError: The lease is another's or nobody's; nothing is written.
        """
        body = canonical(row.body)
        key = content_key(texts_of(row), body)
        created = datetime.now(UTC)

        def work(connection: Connection) -> None:
            head = self._head(connection, run)
            case = next(_cases_named(connection, head["id"], [row.case]), None)
            if case is None:
                raise ArchiveError(
                    f"run {run} of archive {self.place} has no case {row.case!r} to decide on: "
                    "check the id and the run"
                )
            same = (DECISIONS.c.run_id == head["id"]) & (DECISIONS.c.key == key)
            if connection.execute(select(DECISIONS.c.sequence).where(same)).first() is not None:
                return
            if leased:
                require_lease(connection, head["id"], case["sequence"], row.reviewer)
                if row.status != HUMAN:
                    clear(connection, head["id"], case["sequence"], row.reviewer)
            place = head["head_hash"], head["head_sequence"] + 1
            values = chained_values("decision", row, body, *place, created)
            values |= {"run_id": head["id"], "key": key}
            self._append(connection, DECISIONS, head["id"], [values])

        self._database.write(work)

    def decisions(
        self, run: str, case: str | None = None, batch: int = BATCH
    ) -> Iterator[StoredDecision]:
        """The decisions on a run, or on one case of it, in the order in which they were archived.

        Raises:
            ArchiveError: There is no such run, or reading fails.
        """
        run_id = self._run_id(run)
        condition = DECISIONS.c.case_key == digest(case) if case is not None else None

        def work(connection: Connection, after: int) -> list[StoredDecision]:
            statement = _page(DECISIONS, run_id, after, batch, condition)
            return [stored_decision(run, row) for row in _rows(connection, statement)]

        def page(after: int) -> list[StoredDecision]:
            return self._database.read(lambda connection: work(connection, after))

        return _stream(page)

    def spent(self, run: str) -> Spent:
        """What the calls that a run sent have cost, those of cases that have not ended included.

        Calls that are answered from the journal were paid by the run that sent them. Equal calls
        that two processes sent at once are kept, and count, once.

        Raises:
            ArchiveError: There is no such run.
        """

        def work(connection: Connection) -> Spent:
            self._run(connection, run)
            prompt, completion, cost, unpriced = tuple(connection.execute(_spent_by(run)).one())
            return Spent(int(prompt), int(completion), float(cost), unpriced)

        return self._database.read(work)

    def verify(self, run: str | None = None) -> list[Problem]:
        """What is wrong in the chain of a run, or of all runs; nothing if all is as written.

        The walk through a run ends after 1,000 problems. Memory stays bounded, and writers may go
        on meanwhile. Whoever can write the database and recomputes all hashes up to the run's own
        head is found out only by a `RunRow.head_hash` that was noted elsewhere.

        Raises:
            ArchiveError: There is no such run, or reading fails altogether.
        """
        return problems_of(self._database, run)

    def export(
        self, run: str, path: str | Path, format: Literal["parquet", "jsonl"] = "parquet"
    ) -> int:
        """Writes the cases of a run with the decisions on them, one file, whole or not at all.

        A row has the case, its numbers as columns, and body, meta and decisions whole: as JSON
        values in JSONL, as JSON text in Parquet. It shows the run as it is when this is called.

        Args:
            run: Name of the run.
            path: The file, or a URI that pyarrow's filesystems open; one that exists is replaced.
            format: parquet or jsonl.

        Returns:
            Cases written.

        Raises:
            ArchiveError: There is no such run.
            RunError: The file cannot be written.
        """
        until = self.run(run).records
        return write_cases(self.current_cases(run, until=until), path, format)

    def _of_cases(self, run: str, cases: Sequence[str], column: str) -> dict[str, Any]:
        def work(connection: Connection) -> dict[str, Any]:
            run_id = self._run(connection, run)["id"]
            return {row["case"]: row[column] for row in _cases_named(connection, run_id, cases)}

        return self._database.read(work)

    def _run_id(self, name: str) -> int:
        return self._database.read(lambda connection: self._run(connection, name)["id"])

    def _run(self, connection: Connection, name: str, lock: bool = False) -> RowMapping:
        statement = select(RUNS).where(RUNS.c.name == name)
        row = (
            connection.execute(statement.with_for_update() if lock else statement)
            .mappings()
            .first()
        )
        if row is None:
            names = connection.scalars(
                select(RUNS.c.name).order_by(RUNS.c.started.desc()).limit(LISTED_RUNS)
            ).all()
            known = ", ".join(names) or "none"
            raise ArchiveError(f"archive {self.place} has no run {name}; its latest runs: {known}")
        return row

    def _head(self, connection: Connection, name: str) -> RowMapping:
        """The run, locked until the transaction ends, so that its chain cannot fork.

        On SQLite the transaction itself is the only writer.
        """
        return self._run(connection, name, lock=True)

    def _append(
        self, connection: Connection, table: Table, run_id: int, values: Sequence[Json]
    ) -> None:
        if not values:
            return
        connection.execute(insert(table), values)
        head = {"head_sequence": values[-1]["sequence"], "head_hash": values[-1]["hash"]}
        connection.execute(update(RUNS).where(RUNS.c.id == run_id).values(head))

    def _insert_new(self, table: Table, rows: list[Json]) -> None:
        if rows:
            statement = self._database.insert_new(table)
            self._database.write(lambda connection: connection.execute(statement, rows))

    def _refuse_other_work(self, row: RowMapping, config: str) -> None:
        if row["config"] == config:
            return
        differing = differences(json.loads(row["config"]), json.loads(config))
        raise ArchiveError(
            f"archive {self.place} has a run {row['name']} of another configuration:"
            f"{differing}\nset these as the run has them, or choose another name="
        )

    def _refuse_other_description(self, run: str, row: CaseRow, description_hash: str) -> None:
        if row.description_hash != description_hash:
            raise ArchiveError(
                f"run {run} of archive {self.place} has case {row.case!r} with another "
                "description: ids must tell the cases of a run apart, and descriptions stay as "
                "they are; for changed ones choose another name="
            )


def _rows(connection: Connection, statement: Executable) -> Sequence[RowMapping]:
    return connection.execute(statement).mappings().all()


def _chunks(values: Sequence[T]) -> Iterator[Sequence[T]]:
    return (values[start : start + LOOKED_UP] for start in range(0, len(values), LOOKED_UP))


S = TypeVar("S", StoredCase, StoredDecision, CurrentCase)


def _stream(page: Callable[[int], list[S]]) -> Iterator[S]:
    """The records of page after page, each after the last sequence of the one before."""
    after = 0
    while records := page(after):
        yield from records
        last = records[-1]
        after = last.case.sequence if isinstance(last, CurrentCase) else last.sequence


def _page(
    table: Table,
    run_id: int,
    after: int | None,
    batch: int,
    *conditions: ColumnElement[bool] | None,
) -> Select[Any]:
    statement = select(table).where(table.c.run_id == run_id)
    if after is not None:
        statement = statement.where(table.c.sequence > after)
    given = [condition for condition in conditions if condition is not None]
    return statement.where(*given).order_by(table.c.sequence).limit(batch)


def _case_page(
    connection: Connection,
    run: str,
    run_id: int,
    after: int | None,
    batch: int,
    *conditions: ColumnElement[bool] | None,
) -> list[StoredCase]:
    rows = connection.execute(_page(CASES, run_id, after, batch, *conditions)).mappings()
    return [stored_case(run, row) for row in rows]


def _cases_named(connection: Connection, run_id: int, cases: Sequence[str]) -> Iterator[RowMapping]:
    keys = sorted({digest(case) for case in cases})
    columns = (CASES.c.case, CASES.c.sequence, CASES.c.status, CASES.c.description_hash)
    for some in _chunks(keys):
        named = (CASES.c.run_id == run_id) & CASES.c.case_key.in_(some)
        yield from connection.execute(select(*columns).where(named)).mappings()


def _decisions_on(
    connection: Connection,
    run: str,
    run_id: int,
    cases: Sequence[StoredCase],
    until: int | None,
) -> dict[str, list[StoredDecision]]:
    found: dict[str, list[StoredDecision]] = {}
    for some in _chunks(cases):
        keys = [digest(case.case) for case in some]
        on_these = (DECISIONS.c.run_id == run_id) & DECISIONS.c.case_key.in_(keys)
        if until is not None:
            on_these &= DECISIONS.c.sequence <= until
        statement = select(DECISIONS).where(on_these).order_by(DECISIONS.c.sequence)
        for row in connection.execute(statement).mappings():
            found.setdefault(row["case"], []).append(stored_decision(run, row))
    return found


def _current_status(until: int | None = None) -> ColumnElement[str]:
    on_it = (DECISIONS.c.run_id == CASES.c.run_id) & (DECISIONS.c.case_key == CASES.c.case_key)
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


def _spent_by(run: str) -> Select[Any]:
    sums = [
        func.coalesce(func.sum(column), 0)
        for column in (CALLS.c.prompt_tokens, CALLS.c.completion_tokens, CALLS.c.cost)
    ]
    unpriced = func.count() - func.count(CALLS.c.cost)
    return select(*sums, unpriced).where(CALLS.c.run == run)
