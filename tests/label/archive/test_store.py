import tracemalloc
from datetime import UTC, datetime, timedelta, timezone

import pytest

from raylab.core.errors import ArchiveError
from raylab.label.archive.records import CaseRow
from raylab.label.archive.store import Archive
from raylab.label.judgement import HUMAN
from tests.label.archive.rows import (
    NOON,
    add_calls,
    call_row,
    case_row,
    cases_of,
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
    "%s :name {x} \\ \n\r\t",
    "x" * 5000,
]
PAIR = "pair of surrogates \ud83d\ude00"
"""As JSON it is the character that it stands for."""


@pytest.fixture(autouse=True)
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("raylab.label.archive.run.BATCH", 2)


def test_a_run_is_started_once(archive: Archive):
    run = archive.run("r")
    first = run.row()
    assert (first.config, first.versions["taxonomy"]) == ({"prompt": "maximal"}, "opt-1")
    assert first.records == 0
    assert timedelta(0) <= datetime.now(UTC) - first.started < timedelta(minutes=1)
    assert archive.start_run("r", {"prompt": "maximal"}, {"protocol": "2"}).row() == first
    archive.start_run("b", {}, {})
    assert [row.name for row in archive.runs()] == ["r", "b"]


def test_a_run_of_another_configuration_or_id_is_refused(archive: Archive):
    before = archive.start_run("s", {"llm": {"a": {"seed": 1}}, "fresh": False}, {}, "0a1b").row()
    for seed, uid, told in (
        (2, "0a1b", "a run s of another configuration:\n  llm.a.seed: the run has 1, now 2\nset"),
        (1, "0c2d", r"another run of the name s, started 20.*archive="),
    ):
        with pytest.raises(ArchiveError, match=told):
            archive.start_run("s", {"llm": {"a": {"seed": seed}}, "fresh": False}, {}, uid)
    assert archive.run("s").row() == before


def test_an_unknown_run_is_an_error_that_names_those_there_are(archive: Archive):
    run = archive.run("none")
    for operation in (lambda: run.add_cases([case_row("c")]), lambda: next(run.cases()), run.own):
        with pytest.raises(ArchiveError, match="no run none; its latest runs: r"):
            operation()


def test_calls_are_kept_once_and_found_by_description_and_key(archive: Archive):
    in_tokyo = datetime(2026, 3, 1, 21, 0, 0, 123456, timezone(timedelta(hours=9)))
    rows = [call_row("k1", "x", created=in_tokyo), call_row("k2", "x", seed=None, cost=None)]
    rows += [call_row("k3", "y", seed=-(2**63))]
    add_calls(archive, rows)
    add_calls(archive, [call_row("k1", "x", text="another reply"), call_row("k4", "z")])
    add_calls(archive, [])
    of_x = archive.calls_of([sha256("x"), sha256("x"), sha256("nothing")])
    assert sorted(of_x, key=lambda row: row.reply.key) == sorted(
        rows[:2], key=lambda row: row.reply.key
    )
    assert {str(row.created.tzinfo) for row in of_x} == {"UTC"}
    assert archive.calls_of([sha256("y")]) == [rows[2]]
    with pytest.raises(ValueError, match="no time zone"):
        add_calls(archive, [call_row("k5", created=NOON.replace(tzinfo=None))])


def test_cases_are_kept_once_and_in_order(archive: Archive):
    run = archive.run("r")
    run.add_cases([case_row("b"), case_row("a", "human")])
    run.add_cases([case_row("a", "failed", other=1), case_row("c"), case_row("c", "human")])
    run.add_cases([])
    cases = cases_of(archive)
    assert [(case.sequence, case.case) for case in cases] == [(1, "b"), (2, "a"), (3, "c")]
    assert cases[1].status == "human" and "other" not in cases[1].body
    assert [current.case for current in run.cases("accepted")] == [cases[0], cases[2]]
    assert [current.case for current in run.cases(places=[3, 1, 9])] == cases[::2]
    assert run.counts() == {"accepted": 2, "human": 1} and run.row().records == 3
    with pytest.raises(ArchiveError, match="case 'a' with another description"):
        run.add_cases([case_row("d"), case_row("a", description="changed")])
    assert [*run.find_heads(["a", "d"])] == ["a"]


ALTERED = {
    "cases": ("description = 'another'", "body = '{}'", "sequence = 7"),
    "decisions": ("reviewer = 'eve'", "body = 'no JSON'"),
    "calls": ("model = 'another'", "reply = '{}'", "created = :later"),
}


@pytest.mark.parametrize("table", ALTERED)
def test_a_record_that_was_altered_is_refused_when_it_is_read(
    table: str, archive: Archive, archive_url: str
):
    archive.run("r").add_cases([case_row("a", "human")])
    archive.run("r").reviews().add(decision_row("a"))
    add_calls(archive, [call_row("k")])
    later = "2030-01-01T00:00:00.000000+00:00"
    for change in ALTERED[table]:
        column = change.partition(" ")[0]
        ((before,),) = execute(archive_url, f"SELECT {column} FROM {table}")
        execute(archive_url, f"UPDATE {table} SET {change}", later=later)
        with pytest.raises(ArchiveError, match=r"did not write so .*(SHA|JSON).*restore the"):
            if table == "calls":
                archive.calls_of([sha256("a system")])
            else:
                list(archive.run("r").cases())
        execute(archive_url, f"UPDATE {table} SET {column} = :before", before=before)


def test_every_text_comes_back_as_it_was(archive: Archive):
    run = archive.run("r")
    cases = [CaseRow(odd, sha256(odd), odd, HUMAN, {odd or "k": [odd]}) for odd in STRANGE]
    cases.append(CaseRow(PAIR, sha256(PAIR), PAIR, HUMAN, {}))
    run.add_cases(cases)
    assert [(c.case, c.description, c.body) for c in cases_of(archive)] == [
        (c.case, c.description, c.body) for c in cases
    ]
    assert set(run.find_heads(STRANGE)) == set(STRANGE)
    texts = [*STRANGE, PAIR]
    calls = [
        call_row(f"{n}", text=odd.removesuffix(PAIR), role=odd, model=odd)
        for n, odd in enumerate(texts)
    ]
    add_calls(archive, calls)
    by_key = {call.reply.key: call for call in archive.calls_of([sha256("a system")])}
    assert [by_key[call.reply.key] for call in calls] == calls
    for odd in texts:
        run.reviews().add(decision_row(odd, reviewer=odd))
    assert [decision.reviewer for decision in run.decisions()] == texts


def test_large_descriptions_are_read_in_bounded_memory(archive: Archive):
    for index in range(24):
        archive.run("r").add_cases([case_row(f"c{index}", description=f"{index}" + "x" * 250_000)])
    tracemalloc.start()
    assert sum(1 for _ in archive.run("r").cases()) == 24
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 3_000_000


def test_a_decision_supersedes_and_undoing_it_reopens(archive: Archive):
    run = archive.run("r")
    run.add_cases([case_row("a", "human"), case_row("b", "human"), case_row("c")])
    reviews = run.reviews()

    def state(status: str | None = None) -> list[tuple[str, str, int]]:
        cases = run.cases(status)
        return [(one.case.case, one.status, len(one.decisions)) for one in cases]

    before = run.row().records
    assert state(HUMAN) == [("a", "human", 0), ("b", "human", 0)]
    for decision, expected in (
        (decision_row("a"), ("a", "accepted", 1)),
        (decision_row("a", None), ("a", "human", 2)),
        (decision_row("b", "OPT=Swm", status="human"), ("b", "human", 1)),
        (decision_row("c", "OPT=Sym"), ("c", "accepted", 1)),
        (decision_row("b", "OPT=Prb"), ("b", "accepted", 2)),
    ):
        reviews.add(decision)
        reviews.add(decision)
        assert expected in state() and (expected in state(HUMAN)) == (expected[1] == "human")
    assert run.counts() == {"human": 2, "accepted": 1}
    assert run.counts(now=True) == {"human": 1, "accepted": 2}
    assert [(row.sequence, row.case) for row in run.decisions()] == list(
        enumerate(["a", "a", "b", "c", "b"], start=4)
    )
    (current,) = run.cases(HUMAN)
    assert [row.action for row in current.decisions] == ["decide", "undo"]
    early = [(current.status, current.decisions) for current in run.cases(until=before)]
    assert early == [("human", ()), ("human", ()), ("accepted", ())]
