from pathlib import Path
from typing import Any

import pytest

from raylab.archive.records import ChainProblem, Fault
from raylab.archive.store import Archive
from tests.archive.rows import (
    canonical,
    case_row,
    decision_row,
    execute,
    sha256,
)

Found = list[tuple[int, Fault]]


@pytest.fixture
def filled(archive_url: str) -> str:
    """A closed archive whose runs r and s have cases c1 to c5, and a decision on c2 as record 6."""
    with Archive.open(archive_url) as archive:
        fill(archive, "r")
        fill(archive, "s")
    return archive_url


def fill(archive: Archive, run: str) -> None:
    archive.start_run(run, {"prompt": "maximal"}, {"protocol": "1"})
    archive.run(run).add_cases([case_row(f"c{n}", "human") for n in range(1, 6)])
    archive.run(run).add_decision(decision_row("c2"))


def records_of(run: str) -> str:
    """A condition of SQL."""
    return f"run_id = (SELECT id FROM runs WHERE name = '{run}')"


def faults_of(found: list[ChainProblem]) -> Found:
    return [(problem.sequence, problem.fault) for problem in found]


IN_R = records_of("r")


def problems(location: str, run: str | None = None) -> list[ChainProblem]:
    with Archive.open(location) as archive:
        return archive.run(run).verify()


def faults(location: str) -> Found:
    """Problems of run r, after a look that s, which nobody touched, has none."""
    assert problems(location, "s") == []
    found = problems(location)
    assert all(problem.run == "r" for problem in found)
    return [(problem.sequence, problem.fault) for problem in found]


def test_an_untouched_archive_has_no_problems(filled: str):
    assert problems(filled) == [] and problems(filled, "r") == []


ALTERATIONS = {
    "UPDATE cases SET status = 'accepted' WHERE {r} AND sequence = 3": 3,
    "UPDATE cases SET body = '{{}}' WHERE {r} AND sequence = 1": 1,
    "UPDATE cases SET body = replace(body, ',', ', ') WHERE {r} AND sequence = 5": 5,
    "UPDATE cases SET body = '[]' WHERE {r} AND sequence = 2": 2,
    "UPDATE cases SET body = 'no JSON' WHERE {r} AND sequence = 2": 2,
    "UPDATE cases SET \"case\" = 'c9' WHERE {r} AND sequence = 3": 3,
    "UPDATE cases SET hash = :other WHERE {r} AND sequence = 3": 3,
    "UPDATE cases SET previous_hash = :other WHERE {r} AND sequence = 3": 3,
    "UPDATE cases SET case_key = :other WHERE {r} AND sequence = 3": 3,
    "UPDATE decisions SET reviewer = 'eve' WHERE {r}": 6,
    "UPDATE decisions SET status = 'human' WHERE {r}": 6,
    "UPDATE decisions SET action = 'undo' WHERE {r}": 6,
    "UPDATE decisions SET key = :other WHERE {r}": 6,
    "UPDATE decisions SET body = replace(body, 'Evo', 'Lrn') WHERE {r}": 6,
    "UPDATE runs SET config = '{{}}' WHERE name = '{name}'": 0,
    "UPDATE runs SET versions = '{{}}' WHERE name = '{name}'": 0,
    "UPDATE runs SET uid = 'other' WHERE name = '{name}'": 0,
}
"""SQL, and the record that it alters."""


def test_an_altered_record_is_named(archive_url: str):
    with Archive.open(archive_url) as archive:
        expected: dict[str, set[tuple[int, Fault]]] = {}
        found: dict[str, set[tuple[int, Fault]]] = {}
        for number, (change, sequence) in enumerate(ALTERATIONS.items()):
            name = f"run{number}"
            fill(archive, name)
            statement = change.format(r=records_of(name), name=name)
            execute(archive_url, statement, other=sha256("other"))
            expected[change] = {(sequence, Fault.ALTERED)}
            found[change] = set(faults_of(archive.run(name).verify()))
        assert found == expected


def test_an_altered_time_is_named(filled: str):
    # As text on SQLite, by the clock on PostgreSQL.
    later = "'2030-01-01T00:00:00.000000+00:00'"
    execute(filled, f"UPDATE cases SET created = {later} WHERE {IN_R} AND sequence = 4")
    assert faults(filled) == [(4, Fault.ALTERED)]
    execute(filled, f"UPDATE runs SET started = {later} WHERE name = 'r'")
    assert faults(filled) == [(0, Fault.ALTERED), (4, Fault.ALTERED)]


def test_an_altered_description_does_not_fit_its_hash(filled: str):
    execute(filled, f"UPDATE cases SET description = 'mine' WHERE {IN_R} AND sequence = 2")
    assert faults(filled) == [(2, Fault.DESCRIPTION), (2, Fault.ALTERED)]
    execute(
        filled,
        f"UPDATE cases SET description_hash = :description_hash WHERE {IN_R} AND sequence = 2",
        description_hash=sha256("mine"),
    )
    assert faults(filled) == [(2, Fault.ALTERED)]


def test_a_removed_record_is_missing(archive_url: str):
    expected = {
        "sequence = 1": [(1, "record 1")],
        "sequence = 3": [(3, "record 3")],
        "sequence IN (2, 3)": [(2, "records 2 to 3")],
        "sequence IN (1, 3)": [(1, "record 1"), (3, "record 3")],
        "sequence < 9": [(1, "records 1 to 5")],
    }
    with Archive.open(archive_url) as archive:
        found: dict[str, list[tuple[int, str]]] = {}
        for number, removed in enumerate(expected):
            name = f"run{number}"
            fill(archive, name)
            execute(archive_url, f"DELETE FROM cases WHERE {records_of(name)} AND {removed}")
            missing = archive.run(name).verify()
            assert {problem.fault for problem in missing} == {Fault.MISSING}
            found[removed] = [(problem.sequence, problem.record) for problem in missing]
        assert found == expected


def test_a_tail_that_is_cut_off_is_missing(filled: str):
    execute(filled, f"DELETE FROM decisions WHERE {IN_R}")
    assert faults(filled) == [(6, Fault.MISSING)]
    execute(filled, f"DELETE FROM cases WHERE {IN_R} AND sequence > 3")
    (problem,) = problems(filled)
    assert (problem.sequence, problem.record) == (4, "records 4 to 6")
    # Whoever sets the head back as well must know the hash of the record that is last then.
    execute(filled, "UPDATE runs SET head_sequence = 3 WHERE name = 'r'")
    assert faults(filled) == [(3, Fault.BROKEN)]


def rehashed(filled: str, sequence: int, **changes: str) -> str:
    """Alters a case and recomputes its hash, as someone does who knows how; returns the hash."""
    with Archive.open(filled) as archive:
        case = next(case for case in archive.run("r").cases() if case.sequence == sequence)
    names = ("case", "description_hash", "description", "status", "body")
    record = {name: getattr(case, name) for name in names} | changes
    created = case.created.isoformat(timespec="microseconds")
    record |= {"kind": "case", "sequence": sequence, "created": created}
    record["subject"] = record.pop("description_hash")
    forged = sha256(case.previous_hash + canonical(record))
    for name, value in {**changes, "hash": forged}.items():
        statement = f"UPDATE cases SET {name} = :value WHERE {IN_R} AND sequence = {sequence}"
        execute(filled, statement, value=value)
    return forged


def test_a_record_altered_with_its_hash_breaks_the_next_link(filled: str):
    rehashed(filled, 3, status="accepted")
    (problem,) = problems(filled)
    assert (problem.sequence, problem.fault) == (4, Fault.BROKEN)
    assert "record 3 was replaced" in problem.detail


def test_the_last_record_altered_with_its_hash_does_not_fit_the_head(filled: str):
    execute(filled, f"DELETE FROM decisions WHERE {IN_R}")
    with Archive.open(filled) as archive:
        last = list(archive.run("r").cases())[-1].hash
    execute(
        filled, "UPDATE runs SET head_sequence = 5, head_hash = :last WHERE name = 'r'", last=last
    )
    assert faults(filled) == []
    rehashed(filled, 5, status="accepted")
    assert faults(filled) == [(5, Fault.BROKEN)]


def copied(sequence: str, case: str, run: str = "r") -> str:
    """SQL that puts a copy of c1 in at another place and under another name."""
    columns = "created, previous_hash, hash, description_hash, description, body"
    return (
        f'INSERT INTO cases (run_id, sequence, case_key, status, "case", {columns}) '
        f"SELECT run_id, {sequence}, '{sha256(case)}', 'accepted', '{case}', {columns} FROM cases "
        f"WHERE {records_of(run)} AND sequence = 1"
    )


def test_a_record_put_in_is_named(archive_url: str):
    with Archive.open(archive_url) as archive:
        # At 6 there is the decision already.
        for sequence in (-1, 0, 6, 7, 100):
            name = f"run{sequence}"
            fill(archive, name)
            execute(archive_url, copied(str(sequence), "mine", name))
            (problem,) = archive.run(name).verify()
            assert (problem.sequence, problem.fault) == (sequence, Fault.INSERTED)
            assert problem.record == "case 'mine'"


def test_a_record_put_in_the_place_of_another_is_named(filled: str):
    execute(filled, f"DELETE FROM cases WHERE {IN_R} AND sequence = 3", copied("3", "mine"))
    assert faults(filled) == [(3, Fault.ALTERED)]


def test_a_record_put_in_with_the_others_moved_up_is_named(filled: str):
    execute(
        filled,
        f"UPDATE decisions SET sequence = sequence + 1 WHERE {IN_R}",
        f"UPDATE cases SET sequence = -sequence - 1 WHERE {IN_R} AND sequence > 3",
        f"UPDATE cases SET sequence = -sequence WHERE {IN_R} AND sequence < 0",
        copied("4", "mine"),
        "UPDATE runs SET head_sequence = 7 WHERE name = 'r'",
    )
    assert faults(filled) == [(n, Fault.ALTERED) for n in (4, 5, 6, 7)]


def test_two_records_that_changed_places_are_named(filled: str):
    execute(
        filled,
        f"UPDATE cases SET sequence = 100 WHERE {IN_R} AND sequence = 2",
        f"UPDATE cases SET sequence = 2 WHERE {IN_R} AND sequence = 3",
        f"UPDATE cases SET sequence = 3 WHERE {IN_R} AND sequence = 100",
    )
    assert [sequence for sequence, _ in faults(filled)] == [2, 3]


def test_a_run_that_was_removed_is_missing(filled: str):
    (number,) = execute(filled, "SELECT id FROM runs WHERE name = 'r'")[0]
    execute(filled, "DELETE FROM runs WHERE name = 'r'")
    (problem,) = problems(filled)
    assert (problem.run, problem.fault) == (f"#{number}", Fault.MISSING)
    assert "6 records" in problem.detail


def test_a_renamed_run_is_one_problem(filled: str):
    execute(filled, "UPDATE runs SET name = 'better' WHERE name = 'r'")
    (problem,) = problems(filled)
    assert (problem.run, problem.sequence, problem.fault) == ("better", 0, Fault.ALTERED)


def test_a_run_without_records_is_checked_too(archive_url: str):
    with Archive.open(archive_url) as archive:
        archive.start_run("r", {}, {})
    assert problems(archive_url) == []
    execute(archive_url, "UPDATE runs SET config = :config", config='{"a":1}')
    assert faults_of(problems(archive_url)) == [(0, Fault.ALTERED)]


def test_records_that_cannot_be_read_are_named(tmp_path: Path):
    location = str(tmp_path / "archive.db")
    with Archive.open(location) as archive:
        archive.start_run("r", {}, {})
        archive.run("r").add_cases([case_row(f"c{n}") for n in range(1, 500)])
    # SQLite takes anything in any column.
    changes = {
        1: "description = CAST(x'ff' AS TEXT)",
        2: "body = x'ff00'",
        250: "hash = x'ff00'",
        300: "status = x'ff00'",
        450: "created = 'yesterday'",
        499: "created = 12",
    }
    for sequence, change in changes.items():
        execute(location, f"UPDATE cases SET {change} WHERE sequence = {sequence}")
    found = problems(location)
    assert faults_of(found) == [(sequence, Fault.ALTERED) for sequence in changes]
    for problem in found:
        assert "unreadable" in problem.detail
        assert str(problem).startswith(f"run r, record {problem.sequence} (")


def test_a_fractional_place_is_named(tmp_path: Path):
    location = str(tmp_path / "archive.db")
    with Archive.open(location) as archive:
        archive.start_run("r", {}, {})
        archive.run("r").add_cases([case_row(f"c{n}") for n in range(1, 6)])
    execute(location, copied("2.5", "mine"))
    (problem,) = problems(location)
    assert (problem.sequence, problem.fault) == (2.5, Fault.INSERTED)


def test_a_chain_of_many_pages_is_walked_while_it_grows(
    filled: str, monkeypatch: pytest.MonkeyPatch
):
    with Archive.open(filled) as archive, Archive.open(filled) as other:
        archive.run("r").add_cases([case_row(f"d{n}", description=f"{n}") for n in range(500)])
        for n in range(0, 500, 25):
            archive.run("r").add_decision(decision_row(f"d{n}"))
        read = archive._database.read
        pages = 0

        def read_and_write(work: Any) -> Any:
            nonlocal pages
            pages += 1
            other.run("r").add_cases([case_row(f"late{pages}")])
            return read(work)

        monkeypatch.setattr(archive._database, "read", read_and_write)
        assert archive.verify() == []
        assert pages > 5
        monkeypatch.undo()
        execute(filled, f"UPDATE decisions SET action = 'undo' WHERE {IN_R} AND sequence = 510")
        assert faults(filled) == [(510, Fault.ALTERED), (510, Fault.ALTERED)]
        assert archive.run("s").verify() == []
