import threading
import tracemalloc
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone

import pytest

from raylab.archive.records import CaseRow
from raylab.archive.store import Archive
from raylab.errors import ArchiveError
from tests.archive.rows import (
    NOON,
    add_calls,
    call_row,
    canonical,
    case_row,
    decision_row,
    execute,
    sha256,
)

STRANGE = [
    "",
    " ",
    "é 日本語 🎉 \u202e",
    "quo'te\"s; -- DROP TABLE cases",
    "a\0b\x1a0000\x1a\x1b",
    "lone \ud800 \udfff and not \U0001f600",
    "pair of surrogates \ud83d\ude00",
    "%s :name {x} \\ \n\r\t",
    "x" * 5000,
]


def names(records: object) -> list[str]:
    return [record.case for record in records]  # type: ignore[attr-defined]


def test_a_run_is_started_gone_on_with_and_finished(archive: Archive):
    first = archive.run("r").row()
    assert (first.config, first.versions["taxonomy"]) == ({"prompt": "maximal"}, "opt-1")
    assert first.finished is None and first.records == 0
    assert timedelta(0) <= datetime.now(UTC) - first.started < timedelta(minutes=1)
    again = archive.start_run("r", {"prompt": "maximal"}, {"protocol": "2"})
    assert again.row() == first
    archive.run("r").finish()
    finished = archive.run("r").row().finished
    archive.run("r").finish()
    assert finished is not None and archive.run("r").row().finished == finished
    assert archive.start_run("r", {"prompt": "maximal"}, {}).row().finished == finished
    archive.run("r").reopen()
    assert archive.run("r").row() == first


def test_a_run_of_another_configuration_is_refused_with_what_differs(archive: Archive):
    archive.start_run("s", {"llm": {"a": {"seed": 1}}, "fresh": False}, {})
    with pytest.raises(ArchiveError) as raised:
        archive.start_run("s", {"llm": {"a": {"seed": 2}}, "fresh": False}, {})
    told = "a run s of another configuration:\n  llm.a.seed: the run has 1, now 2\nset"
    assert told in str(raised.value)
    assert archive.run("s").row().config == {"llm": {"a": {"seed": 1}}, "fresh": False}


def test_runs_are_listed_in_the_order_of_their_start(archive: Archive):
    archive.start_run("b", {}, {})
    archive.start_run("a", {}, {})
    assert [run.name for run in archive.runs()] == ["r", "b", "a"]


NEEDING_A_RUN: list[Callable[[Archive], object]] = [
    lambda archive: archive.run("none").add_cases([case_row("c")]),
    lambda archive: archive.run("none").statuses(["c"]),
    lambda archive: archive.run("none").cases(),
    lambda archive: archive.run("none").open_cases(),
    lambda archive: archive.run("none").finish(),
    lambda archive: archive.run("none").reviews().add(decision_row("c")),
    lambda archive: archive.run("none").cost(),
]


def test_an_unknown_run_is_an_error_that_names_those_there_are(archive: Archive):
    for operation in NEEDING_A_RUN:
        with pytest.raises(ArchiveError, match="no run none"):
            operation(archive)


def test_calls_are_kept_once_and_found_by_description_and_key(archive: Archive):
    rows = [call_row("k1", "x"), call_row("k2", "x", seed=None, cost=None), call_row("k3", "y")]
    add_calls(archive, rows)
    add_calls(archive, [call_row("k1", "x", text="another reply"), call_row("k4", "z")])
    add_calls(archive, [])
    of_x = archive.calls_of([sha256("x"), sha256("x"), sha256("nothing")])
    assert sorted(of_x, key=lambda row: row.key) == sorted(rows[:2], key=lambda row: row.key)
    assert archive.call(sha256("k3")) == rows[2]
    assert archive.call(sha256("k4")) is not None and archive.call(sha256("k5")) is None
    assert archive.knows_endpoint(rows[0].endpoint)
    assert not archive.knows_endpoint(f"{rows[0].endpoint}/other")


def test_calls_of_more_descriptions_than_a_statement_takes(archive: Archive):
    rows = [call_row(f"k{index}", f"s{index}") for index in range(1203)]
    add_calls(archive, rows)
    found = archive.calls_of([sha256(f"s{index}") for index in range(70_000)])
    assert sorted(row.key for row in found) == sorted(row.key for row in rows)


def test_times_come_back_in_utc_and_need_a_zone(archive: Archive):
    in_tokyo = datetime(2026, 3, 1, 21, 0, 0, 123456, timezone(timedelta(hours=9)))
    add_calls(archive, [call_row("k", created=in_tokyo)])
    found = archive.call(sha256("k"))
    assert found is not None and found.created == in_tokyo
    assert found.created.isoformat() == "2026-03-01T12:00:00.123456+00:00"
    with pytest.raises(ValueError, match="no time zone"):
        add_calls(archive, [call_row("k2", created=NOON.replace(tzinfo=None))])


def test_cases_are_kept_once_and_in_order(archive: Archive):
    archive.run("r").add_cases([case_row("b"), case_row("a", "human")])
    archive.run("r").add_cases([case_row("a", "failed", other=1), case_row("c"), case_row("c")])
    archive.run("r").add_cases([])
    found = list(archive.run("r").cases())
    assert [(case.sequence, case.case) for case in found] == [(1, "b"), (2, "a"), (3, "c")]
    assert found[1].status == "human" and "other" not in found[1].body
    assert archive.run("r").case("a") == found[1] and archive.run("r").case("d") is None
    assert names(archive.run("r").cases("accepted", batch=1)) == ["b", "c"]
    assert archive.run("r").counts() == {"accepted": 2, "human": 1}
    assert archive.run("r").row().records == 3


def test_a_case_with_another_description_is_refused_with_its_batch(archive: Archive):
    archive.run("r").add_cases([case_row("a")])
    with pytest.raises(ArchiveError, match="case 'a' with another description"):
        archive.run("r").add_cases([case_row("b"), case_row("a", description="changed")])
    assert names(archive.run("r").cases()) == ["a"]
    assert archive.run("r").description_hashes(["a", "b"]) == {"a": sha256("a system")}


def test_the_same_cases_belong_to_each_run_apart(archive: Archive):
    archive.start_run("s", {}, {})
    archive.run("r").add_cases([case_row("a")])
    archive.run("s").add_cases([case_row("a", "human"), case_row("b")])
    assert archive.run("r").statuses(["a", "b"]) == {"a": "accepted"}
    assert archive.run("s").statuses(["a", "b"]) == {"a": "human", "b": "accepted"}
    assert [case.sequence for case in archive.run("s").cases()] == [1, 2]


def test_known_takes_any_number_of_cases(archive: Archive):
    archive.run("r").add_cases([case_row(f"c{index}") for index in range(0, 3000, 3)])
    known = archive.run("r").statuses([f"c{index}" for index in range(3000)])
    assert known == {f"c{index}": "accepted" for index in range(0, 3000, 3)}


def test_the_checksum_of_a_record_is_that_of_its_canonical_json(archive: Archive):
    archive.run("r").add_cases([case_row("c1", "human", "dé\0")])
    case = next(archive.run("r").cases())
    content = {
        "sequence": 1,
        "case": "c1",
        "created": case.created.isoformat(timespec="microseconds"),
        "description_hash": sha256("dé\0"),
        "description": "dé\0",
        "status": "human",
        "body": canonical(case.body),
    }
    assert case.sha256 == sha256(canonical(content))


ALTERED = {
    "cases": ("description = 'another'", "body = '{}'", "status = 'failed'", "sequence = 7"),
    "decisions": ("reviewer = 'eve'", "body = '{}'", "status = 'human'"),
    "calls": ("text = 'another'", "prompt_tokens = 1", "cost = 0", "created = :later"),
}


@pytest.mark.parametrize(("table", "change"), [(t, c) for t in ALTERED for c in ALTERED[t]])
def test_a_record_that_was_altered_is_refused_when_it_is_read(
    table: str, change: str, archive: Archive, archive_url: str
):
    archive.run("r").add_cases([case_row("a", "human")])
    archive.run("r").reviews().add(decision_row("a"))
    add_calls(archive, [call_row("k")])
    later = "2030-01-01T00:00:00.000000+00:00"
    execute(archive_url, f"UPDATE {table} SET {change}", later=later)
    read = {
        "cases": lambda: archive.run("r").case("a"),
        "decisions": lambda: list(archive.run("r").current_cases()),
        "calls": lambda: archive.calls_of([sha256("a system")]),
    }
    with pytest.raises(ArchiveError, match=r"did not write so .*SHA-256.*restore the archive"):
        read[table]()


def test_an_error_of_the_caller_is_not_told_as_an_altered_record(archive: Archive):
    def work(connection: object) -> None:
        raise ValueError("a mistake")

    with pytest.raises(ValueError, match="a mistake"):
        archive._database.write(work)


def test_another_run_of_the_same_name_is_refused_and_changes_nothing(archive: Archive):
    run = archive.start_run("s", {}, {}, "0a1b")
    run.finish()
    before = run.row()
    with pytest.raises(ArchiveError, match=r"another run of the name s, started 20.*archive="):
        archive.start_run("s", {}, {}, "0c2d")
    assert run.row() == before


def test_every_text_comes_back_as_it_was(archive: Archive):
    cases = [
        CaseRow(odd, sha256(odd), odd, "accepted", {"meta": {odd or "k": odd}, "code": None})
        for odd in STRANGE
        if "\ud83d" not in odd
    ]
    pair = STRANGE[6]
    cases.append(CaseRow(pair, sha256(pair), pair, "accepted", {}))
    archive.run("r").add_cases(cases)
    assert [(c.case, c.description, c.body) for c in archive.run("r").cases()] == [
        (c.case, c.description, c.body) for c in cases
    ]
    assert set(archive.run("r").statuses(STRANGE)) == set(STRANGE)
    calls = [call_row(f"{n}", text=odd, role=odd, model=odd) for n, odd in enumerate(STRANGE)]
    add_calls(archive, calls)
    assert [archive.call(call.key) for call in calls] == calls
    for odd in STRANGE:
        archive.run("r").reviews().add(decision_row(odd, reviewer=odd))
        assert [decision.reviewer for decision in archive.run("r").decisions(odd)] == [odd]
    prompts = {sha256(odd): (odd, odd, odd) for odd in STRANGE}
    archive.run("r").add_prompts(prompts)
    archive.run("r").add_prompts({sha256(""): ("other", "2", "text")})
    assert archive.prompts() == prompts


def test_values_that_json_has_not_become_null(archive: Archive):
    archive.run("r").add_cases([case_row("c", meta={"a": float("nan"), "b": [float("-inf"), 1.5]})])
    stored = archive.run("r").case("c")
    assert stored is not None and stored.body["meta"] == {"a": None, "b": [None, 1.5]}


def test_a_number_beyond_64_bits_is_refused(archive: Archive):
    with pytest.raises(ArchiveError):
        add_calls(archive, [call_row("k", seed=2**64)])
    add_calls(archive, [call_row("k", seed=-(2**63))])


def test_large_descriptions_are_read_in_bounded_memory(archive: Archive):
    for index in range(24):
        archive.run("r").add_cases([case_row(f"c{index}", description=f"{index}" + "x" * 250_000)])
    tracemalloc.start()
    try:
        assert (
            sum(len(case.description) > 250_000 for case in archive.run("r").cases(batch=2)) == 24
        )
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 3_000_000


def test_cases_come_while_another_writes(archive: Archive, archive_url: str):
    archive.run("r").add_cases([case_row(f"c{index}") for index in range(4)])
    seen: list[str] = []
    with Archive.open(archive_url) as other:
        for case in archive.run("r").cases(batch=2):
            seen.append(case.case)
            if case.sequence <= 4:
                other.run("r").add_cases([case_row(f"late{case.sequence}")])
    assert seen == ["c0", "c1", "c2", "c3", "late1", "late2", "late3", "late4"]


def test_a_decision_supersedes_and_undoing_it_reopens(archive: Archive):
    archive.run("r").add_cases([case_row("a", "human"), case_row("b", "human"), case_row("c")])

    def state() -> list[tuple[str, str, int]]:
        found = archive.run("r").current_cases(batch=2)
        return [(one.case.case, one.status, len(one.decisions)) for one in found]

    def waiting() -> list[str]:
        return [current.case.case for current in archive.run("r").open_cases(batch=1)]

    accepted = ("c", "accepted", 0)
    assert state() == [("a", "human", 0), ("b", "human", 0), accepted]
    assert waiting() == ["a", "b"]
    archive.run("r").reviews().add(decision_row("a"))
    assert state() == [("a", "accepted", 1), ("b", "human", 0), accepted]
    assert waiting() == ["b"]
    archive.run("r").reviews().add(decision_row("a", None))
    assert state()[0] == ("a", "human", 2) and waiting() == ["a", "b"]
    refused = decision_row("b", "OPT=Swm", status="human")
    archive.run("r").reviews().add(refused)
    assert state()[1] == ("b", "human", 1)
    archive.run("r").reviews().add(decision_row("c", "OPT=Sym"))
    assert state()[2] == ("c", "accepted", 1)
    assert archive.run("r").counts() == {"human": 2, "accepted": 1}
    assert archive.run("r").counts(now=True) == {"human": 2, "accepted": 1}
    archive.run("r").reviews().add(decision_row("b", "OPT=Prb"))
    assert archive.run("r").counts(now=True) == {"human": 1, "accepted": 2}
    assert [d.action for d in archive.run("r").decisions("a")] == ["decide", "undo"]
    assert [(d.sequence, d.case) for d in archive.run("r").decisions(batch=2)] == list(
        enumerate(["a", "a", "b", "c", "b"], start=4)
    )
    current = list(archive.run("r").open_cases())
    assert [d.action for d in current[0].decisions] == ["decide", "undo"]


def test_a_repeated_decision_changes_nothing(archive: Archive):
    archive.run("r").add_cases([case_row("a", "human")])
    later = {"classification": {"code": "OPT=Evo"}, "decided": "2026-03-01T13:00:00Z"}
    for row in (decision_row("a"), decision_row("a"), decision_row("a", None)):
        archive.run("r").reviews().add(row)
    assert [d.action for d in archive.run("r").decisions()] == ["decide", "undo"]
    archive.run("r").reviews().add(decision_row("a", body=later))
    assert [d.action for d in archive.run("r").decisions()] == ["decide", "undo", "decide"]


def test_a_decision_needs_its_case(archive: Archive):
    with pytest.raises(ArchiveError, match="has no case 'a'"):
        archive.run("r").reviews().add(decision_row("a"))
    assert archive.run("r").row().records == 0


def test_threads_share_an_archive(archive: Archive):
    def write(name: str) -> None:
        for index in range(10):
            archive.run("r").add_cases([case_row(f"{name}{index}"), case_row(f"shared{index}")])

    threads = [threading.Thread(target=write, args=(name,)) for name in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert archive.run("r").counts() == {"accepted": 50}
    records = list(archive.run("r").cases())
    assert [record.sequence for record in records] == list(range(1, 51))


def test_a_closed_archive_says_so(archive_url: str):
    archive = Archive.open(archive_url)
    archive.close()
    archive.close()
    with pytest.raises(ArchiveError, match="is closed"):
        archive.runs()
