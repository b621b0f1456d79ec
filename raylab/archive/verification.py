"""The verification of the chains of an archive, which names every changed record."""

import heapq
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from sqlalchemy import Connection, RowMapping, Select, Table, bindparam, func, select

from raylab.archive.chain import content_key, digest, record_hash, run_hash
from raylab.archive.database import Database
from raylab.archive.dialects import ContentError
from raylab.archive.journal import journal_problems, strange_calls
from raylab.archive.queries import find_run
from raylab.archive.records import ChainHead, ChainProblem, Fault
from raylab.archive.rows import AnyRow
from raylab.archive.tables import AUDITS, CASES, DECISIONS, ENTRIES, JOURNALS, RUNS
from raylab.errors import ArchiveError

RECORDS = (CASES, DECISIONS, AUDITS)
"""The tables whose rows form the chain of a run."""
PAGE = 200
LISTED = 1000
"""Problems of a run after which the walk through it ends."""

# Statements are built once, because that takes longer than to execute them.
_RUN = select(RUNS).where(RUNS.c.id == bindparam("run"))


@dataclass(frozen=True)
class _Link:
    """A record on the walk.

    Attributes:
        sequence: Its place; any integer if someone tampered with it.
        name: The record in words.
        previous: Stored hash of the record before it.
        hash: Stored hash.
        hash_after: Computes its hash after a given one.
        faults: Its faults apart from its hash.
    """

    sequence: int
    name: str
    previous: str
    hash: str
    hash_after: Callable[[str], str]
    faults: tuple[tuple[Fault, str], ...]


@dataclass(frozen=True)
class _Unreadable:
    """A row of the database that cannot be read as a record."""

    sequence: int
    name: str
    reason: str


@dataclass
class _Walk:
    """The state of a walk along one chain.

    Attributes:
        run: Name of the run.
        expected: Next sequence.
        before: Hash that the next record follows; None if it is not known.
        problems: Problems found so far.
    """

    run: str
    before: str | None
    expected: int = 1
    problems: list[ChainProblem] = field(default_factory=list[ChainProblem])

    def note(self, sequence: int, record: str, fault: Fault, detail: str) -> None:
        self.problems.append(ChainProblem(self.run, sequence, record, fault, detail))

    def step(self, link: _Link | _Unreadable) -> None:
        if link.sequence < self.expected:
            where = f"there is another record at {link.sequence}"
            detail = where if link.sequence > 0 else "the chain starts at 1"
            self.note(link.sequence, link.name, Fault.INSERTED, detail)
            return
        if link.sequence > self.expected:
            self.skip_to(link.sequence)
        self.expected = link.sequence + 1
        if isinstance(link, _Unreadable):
            self.note(link.sequence, link.name, Fault.ALTERED, f"unreadable: {link.reason}")
            self.before = None
        else:
            self._check(link)

    def fits(self, link: _Link | _Unreadable) -> bool:
        """Returns True if a record is intact and follows the previous one.

        This decides between two records at the same place.
        """
        return (
            isinstance(link, _Link)
            and link.previous == self.before
            and link.hash_after(link.previous) == link.hash
        )

    def skip_to(self, sequence: int) -> None:
        """Notes that the records before `sequence` are missing."""
        first, last = self.expected, sequence - 1
        record = f"record {first}" if first == last else f"records {first} to {last}"
        self.note(first, record, Fault.MISSING, "removed from the chain")
        self.before = None

    def _check(self, link: _Link) -> None:
        for fault, detail in link.faults:
            self.note(link.sequence, link.name, fault, detail)
        own = link.hash_after(link.previous)
        if own != link.hash:
            moved = self.before is not None and link.hash_after(self.before) == link.hash
            detail = "the hash before it" if moved else "its content or its hash"
            self.note(link.sequence, link.name, Fault.ALTERED, f"{detail} is not as archived")
            self.before = None
            return
        if self.before is not None and link.previous != self.before:
            if link.sequence == 1:
                detail = "name, configuration, versions, start or id are not as archived"
                self.note(0, "the run itself", Fault.ALTERED, detail)
            else:
                detail = f"record {link.sequence - 1} was replaced, and its hash with it"
                self.note(link.sequence, link.name, Fault.BROKEN, detail)
        self.before = own


def verify_chains(
    database: Database, run: str | None, noted: Sequence[ChainHead] = ()
) -> list[ChainProblem]:
    """Returns the problems of a run, or of all runs; see `RunArchive.verify`.

    Args:
        database: Database of the archive.
        run: Name of the run; None for all.
        noted: Heads of the one run that were kept elsewhere.

    Raises:
        ArchiveError: There is no such run, or the archive cannot be read at all.
    """
    named = select(RUNS.c.id, RUNS.c.name).order_by(RUNS.c.id)
    if run is not None:
        named = named.where(RUNS.c.name == run)
    runs = database.read(lambda connection: connection.execute(named).all())
    if run is not None and not runs:
        raise ArchiveError(f"archive {database.place} has no run {run}")
    found = [problem for row in runs for problem in _run_problems(database, row.id, row.name)]
    found += strange_calls(database, run)
    if run is None:
        return found + _without_run(database)
    return found + missing_heads(database, run, noted)


def head_of(connection: Connection, run: AnyRow) -> ChainHead:
    """Returns the present ends of the chains of a run."""
    journal = connection.execute(select(JOURNALS).where(JOURNALS.c.run_id == run.id)).one()
    return ChainHead(run.head_sequence, run.head_hash, journal.entries, journal.hash)


def missing_heads(database: Database, name: str, noted: Sequence[ChainHead]) -> list[ChainProblem]:
    """Returns a problem for each noted head that the chains of a run do not hold."""

    def work(connection: Connection) -> list[ChainProblem]:
        run = find_run(connection, database.place, name)
        return [
            ChainProblem(name, count, record, Fault.MISSING, f"{detail}, as noted beside the run")
            for head in dict.fromkeys(noted)
            for count, record, detail in _missing(connection, run, head)
        ]

    return database.read(work)


def _missing(
    connection: Connection, run: AnyRow, head: ChainHead
) -> Iterator[tuple[int, str, str]]:
    """Yields place, name and fault of each end of a noted head that is not in the archive."""
    detail = "it is no longer as it was"
    if head.records_hash not in _hashes_at(connection, run, head.records, *RECORDS):
        yield head.records, f"the end of {head.records} records", detail
    if head.entries is None:
        return
    if head.entries_hash not in _hashes_at(connection, run, head.entries, ENTRIES):
        yield head.entries, f"journal: the end of {head.entries} entries", detail


def _hashes_at(
    connection: Connection, run: AnyRow, sequence: int, *tables: Table
) -> list[str | None]:
    """Returns the hashes at a place of a chain; at 0 that of the run itself."""
    if not sequence:
        return [_start_of(run)]
    place = {"run": run.id, "sequence": sequence}
    return [found for table in tables for found in connection.scalars(_hash_at(table), place)]


def _start_of(run: AnyRow) -> str:
    return run_hash(run.name, run.config, run.versions, run.started, run.uid)


def _run_problems(database: Database, run_id: int, name: str) -> list[ChainProblem]:
    try:
        row = database.read(lambda connection: connection.execute(_RUN, {"run": run_id}).one())
    except ContentError as error:
        return [ChainProblem(name, 0, "the run itself", Fault.ALTERED, f"unreadable: {error}")]
    walk = _Walk(row.name, _start_of(row))
    links = _links(database, run_id, row.head_sequence)
    for _, group in itertools.groupby(links, key=lambda link: link.sequence):
        rivals = list(group)
        if len(rivals) > 1:
            rivals.sort(key=walk.fits, reverse=True)
        for link in rivals:
            walk.step(link)
        if len(walk.problems) >= LISTED:
            return walk.problems
    if walk.expected <= row.head_sequence:
        walk.skip_to(row.head_sequence + 1)
    if walk.before is not None and row.head_hash != walk.before:
        if row.head_sequence:
            detail = "replaced, and its hash with it: the run's last hash is another"
            walk.note(row.head_sequence, "the last record", Fault.BROKEN, detail)
        else:
            detail = "name, configuration, versions, start or id are not as archived"
            walk.note(0, "the run itself", Fault.ALTERED, detail)
    walk.problems += database.read(lambda connection: _beyond(connection, run_id))
    altered = any(problem.sequence == 0 for problem in walk.problems)
    return walk.problems + journal_problems(database, row, None if altered else _start_of(row))


def _beyond(connection: Connection, run_id: int) -> list[ChainProblem]:
    """Returns a problem for each record after the end of the chain."""
    run = connection.execute(_RUN, {"run": run_id}).one()
    beyond = {"run": run_id, "head": run.head_sequence}
    return [
        ChainProblem(
            run.name,
            row.sequence,
            f"{kind} {row.case!r}",
            Fault.INSERTED,
            f"the chain ends at {run.head_sequence}",
        )
        for kind, table in zip(("case", "decision on", "audit of"), RECORDS, strict=True)
        for row in connection.execute(_beyond_head(table), beyond)
    ]


def _without_run(database: Database) -> list[ChainProblem]:
    """Returns a problem for each missing run that still has records."""

    def work(connection: Connection) -> dict[int, int]:
        found: dict[int, int] = {}
        for table in (*RECORDS, ENTRIES):
            counted = select(table.c.run_id, func.count()).group_by(table.c.run_id)
            strange = table.c.run_id.not_in(select(RUNS.c.id))
            for run_id, count in connection.execute(counted.where(strange)):
                found[run_id] = found.get(run_id, 0) + count
        return found

    return [
        ChainProblem(
            f"#{run_id}", 0, "the run itself", Fault.MISSING, f"{count} records belong to it"
        )
        for run_id, count in sorted(database.read(work).items())
    ]


@cache
def _hash_at(table: Table) -> Select[*tuple[Any, ...]]:
    mine = table.c.run_id == bindparam("run")
    return select(table.c.hash).where(mine, table.c.sequence == bindparam("sequence"))


@cache
def _beyond_head(table: Table) -> Select[*tuple[Any, ...]]:
    later = (table.c.run_id == bindparam("run")) & (table.c.sequence > bindparam("head"))
    columns = table.c.sequence, table.c.case
    return select(*columns).where(later).order_by(table.c.sequence).limit(LISTED)


@cache
def _sequences(table: Table) -> tuple[Select[*tuple[Any, ...]], Select[*tuple[Any, ...]]]:
    """Returns the statements of the first page of sequences of a chain, and of the next."""
    mine = (table.c.run_id == bindparam("run")) & (table.c.sequence <= bindparam("head"))
    first = select(table.c.sequence).where(mine).order_by(table.c.sequence).limit(PAGE)
    return first, first.where(table.c.sequence > bindparam("after"))


@cache
def _between(table: Table) -> Select[*tuple[Any, ...]]:
    within = table.c.sequence.between(bindparam("first"), bindparam("last"))
    mine = table.c.run_id == bindparam("run")
    return select(table).where(mine, within).order_by(table.c.sequence)


def _links(database: Database, run_id: int, head: int) -> Iterator[_Link | _Unreadable]:
    """Returns the records of a chain, of all kinds, by their sequence."""
    kinds = zip(RECORDS, (_case_link, _decision_link, _audit_link), strict=True)
    records = (_records(database, table, run_id, head, link) for table, link in kinds)
    return heapq.merge(*records, key=lambda link: link.sequence)


def _records(
    database: Database,
    table: Table,
    run_id: int,
    head: int,
    link_of: Callable[[RowMapping], _Link],
) -> Iterator[_Link | _Unreadable]:
    first, later = _sequences(table)
    mine = {"run": run_id, "head": head}
    page = database.read(lambda connection: connection.scalars(first, mine).all())
    while page:
        yield from _read(database, table, run_id, page, link_of)
        after = {**mine, "after": page[-1]}
        page = database.read(lambda connection, at=after: connection.scalars(later, at).all())


def _read(
    database: Database,
    table: Table,
    run_id: int,
    page: Any,
    link_of: Callable[[RowMapping], _Link],
) -> list[_Link | _Unreadable]:
    """Returns the records of some sequences; reads them one by one if one is unreadable."""
    within = {"run": run_id, "first": page[0], "last": page[-1]}

    def work(connection: Connection) -> list[_Link | _Unreadable]:
        return [link_of(row) for row in connection.execute(_between(table), within).mappings()]

    try:
        return database.read(work)
    except ContentError as error:
        if len(page) == 1:
            return [_Unreadable(page[0], f"a row of {table.name}", str(error.__cause__))]
        middle = len(page) // 2
        return [
            link
            for half in (page[:middle], page[middle:])
            for link in _read(database, table, run_id, half, link_of)
        ]


def _case_link(row: RowMapping) -> _Link:
    texts = _texts(row, "case", "description_hash", "description", "status")
    faults = _key_faults(row)
    if texts["description_hash"] != digest(texts["description"]):
        faults.append((Fault.DESCRIPTION, "its hash is not the SHA-256 of its description"))
    return _link("case", f"case {texts['case']!r}", row, texts, faults)


def _decision_link(row: RowMapping) -> _Link:
    texts = _texts(row, "case", "action", "reviewer", "status")
    faults = _key_faults(row)
    if row["key"] != content_key(texts, *_texts(row, "body").values()):
        faults.append((Fault.ALTERED, "its column key is not as its content says"))
    return _link("decision", f"decision on {texts['case']!r}", row, texts, faults)


def _audit_link(row: RowMapping) -> _Link:
    texts = _texts(row, "case", "action", "reviewer")
    return _link("audit", f"audit of {texts['case']!r}", row, texts, _key_faults(row))


def _link(
    kind: str,
    name: str,
    row: RowMapping,
    texts: dict[str, str],
    faults: list[tuple[Fault, str]],
) -> _Link:
    sequence, created = row["sequence"], row["created"]
    body, previous, own = _texts(row, "body", "previous_hash", "hash").values()

    def hash_after(before: str) -> str:
        return record_hash(kind, before, sequence, created, texts, body)

    return _Link(sequence, name, previous, own, hash_after, tuple(faults))


def _texts(row: RowMapping, *names: str) -> dict[str, str]:
    texts = {name: row[name] for name in names}
    if not all(isinstance(text, str) for text in texts.values()):
        raise ValueError("a column holds no text")
    return texts


def _key_faults(row: RowMapping) -> list[tuple[Fault, str]]:
    if row["case_key"] == digest(row["case"]):
        return []
    return [(Fault.ALTERED, "its column case_key is not as its content says")]
