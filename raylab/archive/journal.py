"""The journal of a run: the calls it sent and the prompts it used, in one hash chain.

An entry holds the key of a call or prompt and a hash over its content and the hash before it. The
contents stay in the tables of calls and prompts, which the runs of an archive share.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, bindparam, func, insert, select, update

from raylab.archive.chain import call_content, entry_hash, prompt_content
from raylab.archive.database import Database
from raylab.archive.dialects import ContentError
from raylab.archive.queries import find_run
from raylab.archive.records import ChainProblem, Fault
from raylab.archive.rows import AnyRow
from raylab.archive.tables import CALLS, ENTRIES, JOURNALS, PROMPTS

CALL, PROMPT = "call", "prompt"
PAGE = 500
LISTED = 1000
"""Problems of a journal after which the walk through it ends."""

# Statements are built once, because that takes longer than to execute them.
_HEAD = select(JOURNALS).where(JOURNALS.c.run_id == bindparam("run"))
_LOCKED_HEAD = _HEAD.with_for_update()
_MOVE_HEAD = update(JOURNALS).where(JOURNALS.c.run_id == bindparam("run"))
_ENTER = insert(ENTRIES)
_FIRST = (
    select(ENTRIES)
    .where(ENTRIES.c.run_id == bindparam("run"))
    .order_by(ENTRIES.c.sequence)
    .limit(PAGE)
)
_LATER = _FIRST.where(ENTRIES.c.sequence > bindparam("after"))
_CALLS = select(CALLS).where(CALLS.c.key.in_(bindparam("keys", expanding=True)))
_PROMPTS = select(PROMPTS).where(PROMPTS.c.hash.in_(bindparam("keys", expanding=True)))
_STORED = select(func.count()).select_from(CALLS)
_ENTERED = select(func.sum(JOURNALS.c.calls))

Prompts = Mapping[str, tuple[str, str, str]]
"""Prompts by hash: name, version, text."""


def start_journal(connection: Connection, database: Database, run_id: int, run_hash: str) -> None:
    """Starts the journal of a run, unless it has one."""
    new = {"run_id": run_id, "entries": 0, "calls": 0, "hash": run_hash}
    connection.execute(database.dialect.insert_new(JOURNALS), new)


def add_calls(
    connection: Connection, database: Database, calls: Sequence[dict[str, Any]]
) -> set[str]:
    """Stores completed calls, given by their columns, and appends them to their runs' journals.

    Existing calls stay unchanged. Returns the keys of the others.

    Raises:
        ArchiveError: A run does not exist.
    """
    # Writers that insert the same keys in different orders would deadlock.
    columns = sorted(calls, key=lambda call: call["key"])
    new = set(connection.scalars(database.dialect.insert_new(CALLS, CALLS.c.key), columns))
    by_run: dict[str, list[tuple[str, str]]] = {}
    for call in columns:
        if call["key"] in new:
            by_run.setdefault(call["run"], []).append((call["key"], call_content(call)))
    for run in sorted(by_run):
        _append(connection, find_run(connection, database.place, run).id, CALL, by_run[run])
    return new


def add_prompts(connection: Connection, database: Database, run_id: int, prompts: Prompts) -> None:
    """Stores prompts by their hash, and appends those that are new to the journal of a run.

    A prompt that the archive has stays unchanged.
    """
    rows = [
        {"hash": key, "name": name, "version": version, "text": content}
        for key, (name, version, content) in sorted(prompts.items())
    ]
    connection.execute(database.dialect.insert_new(PROMPTS), rows)
    _lock(connection, run_id)
    entered = select(ENTRIES.c.key).where(ENTRIES.c.run_id == run_id, ENTRIES.c.kind == PROMPT)
    known = set(connection.scalars(entered))
    stored = connection.execute(_PROMPTS, {"keys": list(prompts)}).mappings()
    contents = {row["hash"]: prompt_content(row) for row in stored}
    new = [(key, contents[key]) for key in sorted(contents.keys() - known)]
    _append(connection, run_id, PROMPT, new)


def journal_problems(database: Database, run: AnyRow, start: str | None) -> list[ChainProblem]:
    """Returns the problems in the journal of a run.

    Args:
        database: Database of the archive.
        run: Row of the run.
        start: Hash that the first entry follows; None if it is not known.
    """
    head = database.read(lambda connection: connection.execute(_HEAD, {"run": run.id}).first())
    if head is None:
        return [ChainProblem(run.name, 0, "the journal", Fault.MISSING, "it is gone")]
    found: list[ChainProblem] = []

    def note(entry: int, what: str, fault: Fault, detail: str) -> None:
        found.append(ChainProblem(run.name, entry, f"journal: {what}", fault, detail))

    before: str | None = start
    expected, calls = 1, 0
    for entry in _entries(database, run.id):
        if entry.sequence < expected or entry.sequence > head.entries:
            note(entry.sequence, entry.name, Fault.INSERTED, f"the journal has {head.entries}")
            continue
        if entry.sequence > expected:
            note(expected, f"{entry.sequence - expected} entries", Fault.MISSING, "removed")
        elif entry.content is None:
            note(entry.sequence, entry.name, entry.fault, entry.detail)
        elif before is not None and (
            entry_hash(entry.kind, before, entry.sequence, entry.content) != entry.hash
        ):
            note(entry.sequence, entry.name, Fault.ALTERED, "it is not as archived")
        before, expected, calls = entry.hash, entry.sequence + 1, calls + (entry.kind == CALL)
        if len(found) >= LISTED:
            return found
    if expected <= head.entries:
        missing = head.entries + 1 - expected
        note(expected, f"{missing} entries", Fault.MISSING, "removed from the end")
    elif before not in (None, head.hash) or calls != head.calls:
        note(head.entries, "its end", Fault.BROKEN, "the last hash or the count is another")
    return found


def strange_calls(database: Database, run: str | None) -> list[ChainProblem]:
    """Returns a problem for each call without an entry, of one run or of all.

    The calls are only compared one by one if their number is not that of the journals.
    """
    entered = select(ENTRIES.c.key).where(ENTRIES.c.kind == CALL)
    strange = select(CALLS.c.key, CALLS.c.run).where(CALLS.c.key.not_in(entered)).limit(LISTED)
    if run is not None:
        strange = strange.where(CALLS.c.run == run)

    def work(connection: Connection) -> list[ChainProblem]:
        if connection.scalar(_STORED) == (connection.scalar(_ENTERED) or 0):
            return []
        detail = "it is in no journal"
        return [
            ChainProblem(row.run, 0, f"journal: call {row.key}", Fault.INSERTED, detail)
            for row in connection.execute(strange)
        ]

    return database.read(work)


@dataclass(frozen=True)
class _Entry:
    """An entry with the content of its call or prompt; None, with a fault, if that has none."""

    sequence: int
    kind: str
    key: str
    hash: str
    content: str | None
    fault: Fault = Fault.MISSING
    detail: str = "it is gone"

    @property
    def name(self) -> str:
        return f"{self.kind} {self.key}"


def _lock(connection: Connection, run_id: int) -> AnyRow:
    """Returns the head of a journal, locked until the transaction ends."""
    return connection.execute(_LOCKED_HEAD, {"run": run_id}).one()


def _append(
    connection: Connection, run_id: int, kind: str, contents: Sequence[tuple[str, str]]
) -> None:
    """Appends entries, given by key and content."""
    if not contents:
        return
    head = _lock(connection, run_id)
    sequence, last = head.entries, head.hash
    rows: list[dict[str, Any]] = []
    for key, content in contents:
        sequence += 1
        last = entry_hash(kind, last, sequence, content)
        row = {"run_id": run_id, "sequence": sequence, "kind": kind, "key": key, "hash": last}
        rows.append(row)
    connection.execute(_ENTER, rows)
    calls = head.calls + (len(rows) if kind == CALL else 0)
    new = {"run": run_id, "entries": sequence, "calls": calls, "hash": last}
    connection.execute(_MOVE_HEAD, new)


def _entries(database: Database, run_id: int) -> Iterator[_Entry]:
    page = database.read(lambda connection: connection.execute(_FIRST, {"run": run_id}).all())
    while page:
        yield from _read(database, page)
        after = {"run": run_id, "after": page[-1].sequence}
        page = database.read(lambda connection, at=after: connection.execute(_LATER, at).all())


def _read(database: Database, page: Sequence[AnyRow]) -> list[_Entry]:
    """Returns entries with their contents; reads them one by one if one is unreadable."""
    try:
        return database.read(lambda connection: list(_with_contents(connection, page)))
    except ContentError as error:
        if len(page) == 1:
            (row,) = page
            columns = row.sequence, row.kind, row.key, row.hash, None
            return [_Entry(*columns, Fault.ALTERED, f"unreadable: {error.__cause__}")]
        middle = len(page) // 2
        return [*_read(database, page[:middle]), *_read(database, page[middle:])]


def _with_contents(connection: Connection, page: Sequence[AnyRow]) -> Iterator[_Entry]:
    keys = {kind: [row.key for row in page if row.kind == kind] for kind in (CALL, PROMPT)}
    calls = connection.execute(_CALLS, {"keys": keys[CALL]}).mappings()
    prompts = connection.execute(_PROMPTS, {"keys": keys[PROMPT]}).mappings()
    try:
        contents = {(CALL, row["key"]): call_content(row) for row in calls}
        contents |= {(PROMPT, row["hash"]): prompt_content(row) for row in prompts}
    except TypeError as error:
        raise ValueError(str(error)) from error
    for row in page:
        content = contents.get((row.kind, row.key))
        yield _Entry(row.sequence, row.kind, row.key, row.hash, content)
