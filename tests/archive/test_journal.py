"""The chain of calls and prompts, and heads of chains that are kept elsewhere."""

from collections.abc import Callable

import pytest

from raylab.archive.records import ChainHead, ChainProblem, Fault
from raylab.archive.store import Archive
from raylab.errors import ArchiveError
from tests.archive.rows import call_row, canonical, case_row, decision_row, execute, sha256

PROMPTS = {sha256(name): (name, "1", f"text of {name}") for name in ("classify", "evaluate")}


def faults(problems: list[ChainProblem]) -> list[tuple[int, Fault]]:
    return [(problem.sequence, problem.fault) for problem in problems]


def fill(archive: Archive, run: str = "r", calls: int = 5) -> ChainHead:
    """Adds two prompts, calls, three cases and a decision; returns the head of the run."""
    archive.run(run).add_prompts(PROMPTS)
    archive.add_calls([call_row(f"{run}{number}", run=run) for number in range(calls)])
    archive.run(run).add_cases([case_row("a"), case_row("b", "human"), case_row("c")])
    archive.run(run).add_decision(decision_row("b"))
    return archive.run(run).head()


def test_an_entry_is_hashed_with_the_one_before_it(archive: Archive, archive_url: str):
    start = archive.run("r").row().head_hash
    archive.run("r").add_prompts({"h": ("classify", "1", "a \0 text")})
    archive.add_calls([call_row("k", text="caf\u00e9 \ud800")])
    prompt = {"hash": "h", "name": "classify", "version": "1", "text": "a \0 text"}
    call = {
        "key": sha256("k"),
        "description_hash": sha256("a system"),
        "run": "r",
        "role": "classify-a",
        "endpoint": "https://host/v1",
        "model": "m",
        "response_model": "m-2026",
        "seed": 7,
        "parameters": canonical({"temperature": 0.5, "stop": ["\n"], "extra": {"b": 1, "a": None}}),
        "text": "caf\u00e9 \ud800",
        "finish_reason": "stop",
        "prompt_tokens": 11,
        "completion_tokens": 5,
        "cost": 0.25,
        "seconds": 1.5,
        "attempts": 2,
        "created": "2026-03-01T12:00:00.000000+00:00",
    }
    first = sha256(start + canonical({"content": prompt, "kind": "prompt", "sequence": 1}))
    second = sha256(first + canonical({"content": call, "kind": "call", "sequence": 2}))
    rows = execute(archive_url, "SELECT sequence, kind, hash FROM journal_entries ORDER BY 1")
    assert rows == [(1, "prompt", first), (2, "call", second)]
    assert archive.run("r").head() == ChainHead(0, start, 2, second)


def test_what_is_added_again_is_entered_once(archive: Archive):
    head = fill(archive)
    archive.run("r").add_prompts(PROMPTS)
    archive.add_calls([call_row("r0", text="another reply"), call_row("r0", run="r")])
    archive.run("r").add_prompts({})
    assert archive.run("r").head() == head and head.entries == 7
    archive.start_run("s", {}, {})
    archive.run("s").add_prompts(PROMPTS)
    archive.add_calls([call_row("r0", run="s"), call_row("k", run="s")])
    assert archive.run("s").head().entries == 3 and archive.verify() == []


def test_a_call_of_a_run_that_does_not_exist_is_refused(archive: Archive):
    with pytest.raises(ArchiveError, match="no run none"):
        archive.add_calls([call_row("k"), call_row("l", run="none")])
    assert archive.call(sha256("k")) is None and archive.verify() == []


CHANGES: dict[str, tuple[str, list[tuple[int, Fault]]]] = {
    "a reply": (
        "UPDATE calls SET text = 'OPT=Evo' WHERE key = :key",
        [(3, Fault.ALTERED)],
    ),
    "a price": ("UPDATE calls SET cost = 0 WHERE key = :key", [(3, Fault.ALTERED)]),
    "a time": (
        "UPDATE calls SET created = '2026-03-01T12:00:00.000001+00:00' WHERE key = :key",
        [(3, Fault.ALTERED)],
    ),
    "a call removed": ("DELETE FROM calls WHERE key = :key", [(3, Fault.MISSING)]),
    "a prompt": ("UPDATE prompts SET text = 'Say Lrn'", [(1, Fault.ALTERED), (2, Fault.ALTERED)]),
    "prompts removed": ("DELETE FROM prompts", [(1, Fault.MISSING), (2, Fault.MISSING)]),
    "an entry removed": (
        "DELETE FROM journal_entries WHERE key = :key",
        [(3, Fault.MISSING), (7, Fault.BROKEN)],
    ),
    "a hash": (
        f"UPDATE journal_entries SET hash = '{'0' * 64}' WHERE key = :key",
        [(3, Fault.ALTERED), (4, Fault.ALTERED)],
    ),
    "the end": (
        "DELETE FROM journal_entries WHERE sequence > 5",
        [(6, Fault.MISSING)],
    ),
    "the journal": ("DELETE FROM journals", [(0, Fault.MISSING)]),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_from_outside_is_found(archive: Archive, archive_url: str, change: str):
    fill(archive)
    statement, expected = CHANGES[change]
    first = min(sha256(f"r{number}") for number in range(5))
    execute(archive_url, statement, key=first)
    assert faults(archive.run("r").verify()) == expected


def test_a_call_put_in_from_outside_is_found(archive: Archive, archive_url: str):
    """It would answer a question that no run has asked yet."""
    fill(archive)
    forged = "INSERT INTO calls SELECT :key, " + ", ".join(
        column for column in COLUMNS if column != "key"
    )
    execute(archive_url, f"{forged} FROM calls LIMIT 1", key=sha256("asked later"))
    (problem,) = archive.run("r").verify()
    assert problem.fault is Fault.INSERTED and sha256("asked later") in problem.record
    execute(
        archive_url, "UPDATE calls SET run = 'ghost' WHERE key = :key", key=sha256("asked later")
    )
    (problem,) = archive.verify()
    assert (problem.run, problem.fault) == ("ghost", Fault.INSERTED)


COLUMNS = (
    "key",
    "description_hash",
    "run",
    "role",
    "endpoint",
    "model",
    "response_model",
    "seed",
    "finish_reason",
    "prompt_tokens",
    "completion_tokens",
    "cost",
    "seconds",
    "attempts",
    "created",
    "parameters",
    "text",
)


def test_a_value_that_cannot_be_read_is_one_problem(archive: Archive, archive_url: str):
    if archive_url.startswith("postgresql"):
        pytest.skip("PostgreSQL refuses values of another type")
    fill(archive)
    for column, value in {"seconds": "'x'", "created": "'noon'", "text": "x'00'"}.items():
        execute(archive_url, f"UPDATE calls SET {column} = {value} WHERE key = '{sha256('r1')}'")
        (problem,) = archive.run("r").verify()
        assert problem.fault is Fault.ALTERED and "unreadable" in problem.detail


def test_a_tail_that_two_statements_cut_off_is_found_by_a_noted_head(
    archive: Archive, archive_url: str
):
    early = fill(archive)
    archive.run("r").add_cases([case_row("d"), case_row("e")])
    noted = archive.run("r").head()
    execute(
        archive_url,
        "DELETE FROM cases WHERE sequence > 4",
        f"UPDATE runs SET head_sequence = 4, head_hash = '{early.records_hash}'",
    )
    assert archive.run("r").verify([early]) == [] == archive.run("r").missing([early])
    problems = archive.run("r").verify([early, noted])
    assert faults(problems) == [(6, Fault.MISSING)] == faults(archive.run("r").missing([noted]))
    # Other records in their place do not help.
    archive.run("r").add_cases([case_row("f"), case_row("g")])
    assert faults(archive.run("r").verify([noted])) == [(6, Fault.MISSING)]


def test_a_journal_cut_off_with_its_calls_is_found_by_a_noted_head(
    archive: Archive, archive_url: str
):
    early = fill(archive)
    archive.add_calls([call_row("later")])
    noted = archive.run("r").head()
    execute(
        archive_url,
        f"DELETE FROM calls WHERE key = '{sha256('later')}'",
        "DELETE FROM journal_entries WHERE sequence > 7",
        f"UPDATE journals SET entries = 7, calls = 5, hash = '{early.entries_hash}'",
    )
    assert archive.run("r").verify([early]) == []
    assert faults(archive.run("r").verify([noted])) == [(8, Fault.MISSING)]


def test_another_run_in_its_place_does_not_hold_a_noted_head(archive: Archive):
    empty = archive.run("r").head()
    other = ChainHead(0, sha256("other"), 0, sha256("other"))
    assert archive.run("r").verify([empty]) == []
    assert len(archive.run("r").missing([other, other])) == 2


def delete_run(location: str) -> None:
    tables = ("cases", "decisions", "journal_entries", "journals")
    deletes = [f"DELETE FROM {table} WHERE run_id = 1" for table in tables]
    execute(
        location, *deletes, "DELETE FROM calls WHERE run = 'r'", "DELETE FROM runs WHERE id = 1"
    )


LEFT_BEHIND: dict[str, Callable[[str], object]] = {
    "records": lambda location: execute(location, "DELETE FROM runs WHERE id = 1"),
    "calls": lambda location: execute(
        location,
        *(f"DELETE FROM {table}" for table in ("cases", "decisions", "journal_entries")),
        *(f"DELETE FROM {table}" for table in ("journals", "runs")),
    ),
}


@pytest.mark.parametrize("left", LEFT_BEHIND)
def test_a_deleted_run_is_found_by_what_is_left_of_it(
    archive: Archive, archive_url: str, left: str
):
    fill(archive)
    LEFT_BEHIND[left](archive_url)
    assert archive.verify() != []


def test_a_wholly_deleted_run_is_missed_by_whoever_noted_its_head(
    archive: Archive, archive_url: str
):
    noted = fill(archive)
    delete_run(archive_url)
    assert archive.verify() == []
    with pytest.raises(ArchiveError, match="has no run r"):
        archive.run("r").verify([noted])
    archive.start_run("r", {"prompt": "maximal"}, {})
    assert len(archive.run("r").verify([noted])) == 2
