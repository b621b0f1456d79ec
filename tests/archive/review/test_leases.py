"""Leases and drafts of reviewers, on each database."""

import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from itertools import cycle
from pathlib import Path
from threading import Barrier

import pytest

from raylab.archive.records import Draft, Lease
from raylab.archive.review.leases import ReviewLeases
from raylab.archive.run import RunArchive
from raylab.archive.store import Archive
from raylab.errors import ArchiveError, LeaseError
from tests.archive.rows import NOON, case_row, decision_row

ROOT = Path(__file__).parents[3]
MINUTE = timedelta(minutes=1)
SOON, LATER = NOON + MINUTE, NOON + 2 * MINUTE
DRAFT = Draft("own", "OPT=Evo", "it breeds", NOON, "a tab", 1)
TAKER = """
import sys
from datetime import datetime, timedelta
from raylab.archive.run import RunArchive
from raylab.archive.store import Archive
location, name, cases = sys.argv[1], sys.argv[2], int(sys.argv[3])
noon = datetime.fromisoformat("2026-03-01T12:00:00+00:00")
later = noon + timedelta(1)
with Archive.open(location) as archive:
    leases = archive.run("r").leases()
    print("ready", flush=True)
    sys.stdin.readline()
    print([case for case in range(1, cases + 1) if leases.take(case, name, noon, later)])
"""


@pytest.fixture
def leases(archive: Archive) -> ReviewLeases:
    archive.run("r").add_cases([case_row("c", "human"), case_row("d", "human"), case_row("e")])
    return archive.run("r").leases()


def test_a_lease_keeps_others_away_until_it_expires(leases: ReviewLeases) -> None:
    assert leases.take(1, "ada", NOON, SOON)
    assert not leases.take(1, "bo", NOON, SOON)
    assert not leases.take(1, "bo", SOON - timedelta(microseconds=1), LATER)
    assert leases.leases(NOON) == {1: Lease("ada", SOON)}
    assert leases.take(1, "bo", SOON, LATER)
    assert leases.leases(SOON) == {1: Lease("bo", LATER)}
    assert not leases.take(1, "ada", SOON, LATER)


def test_a_lease_is_renewed_and_given_back_by_its_holder_alone(leases: ReviewLeases) -> None:
    assert leases.take(1, "ada", NOON, SOON) and leases.take(1, "ada", NOON, LATER)
    assert leases.take(2, "bo", NOON, SOON)
    leases.give_back(1, "bo")
    assert leases.leases(SOON) == {1: Lease("ada", LATER)}
    leases.give_back(1, "ada")
    leases.give_back(1, "ada")
    assert leases.leases(NOON) == {2: Lease("bo", SOON)}


def test_leases_and_drafts_are_of_one_run(archive: Archive, leases: ReviewLeases) -> None:
    archive.start_run("other", {}, {})
    archive.run("other").add_cases([case_row("c", "human")])
    other = archive.run("other").leases()
    leases.save(1, "ada", DRAFT)
    assert leases.take(1, "ada", NOON, SOON) and other.take(1, "bo", NOON, SOON)
    assert other.leases(NOON) == {1: Lease("bo", SOON)} and other.draft(1, "ada") is None


def test_drafts_are_each_reviewers_own_and_the_last_one_stands(leases: ReviewLeases) -> None:
    assert leases.draft(1, "ada") is None and leases.drafted("ada") == set()
    leases.save(1, "ada", replace(DRAFT, choice="", justification=""))
    leases.save(1, "ada", DRAFT)
    leases.save(2, "ada", replace(DRAFT, code="\0\ud800", saved=SOON))
    leases.save(1, "bo", replace(DRAFT, choice="A"))
    assert leases.draft(1, "ada") == DRAFT
    assert leases.draft(2, "ada") == replace(DRAFT, code="\0\ud800", saved=SOON)
    assert leases.drafted("ada") == {1, 2} and leases.drafted("bo") == {1}
    assert leases.draft(1, "bo") == replace(DRAFT, choice="A")
    leases.save(1, "ada", replace(DRAFT, choice="", code="", justification=""))
    assert leases.drafted("ada") == {2} and leases.drafted("bo") == {1}


def test_a_draft_that_was_overtaken_on_its_way_is_dropped(leases: ReviewLeases) -> None:
    older, newer = replace(DRAFT, justification="it"), replace(DRAFT, edit=2)
    for draft in (newer, older):
        leases.save(1, "ada", draft)
    assert leases.draft(1, "ada") == newer
    # Another tab counts its own edits.
    other = replace(older, page="another tab", saved=SOON)
    leases.save(1, "ada", other)
    assert leases.draft(1, "ada") == other


def test_a_settled_case_is_on_nobodys_desk(archive: Archive, leases: ReviewLeases) -> None:
    for reviewer in ("ada", "bo"):
        leases.save(1, reviewer, DRAFT)
    archive.run("r").add_decision(decision_row("c"))
    assert leases.drafted("ada") == set() and leases.drafted("bo") == {1}
    assert not leases.take(1, "ada", NOON, SOON) and leases.leases(NOON) == {}
    assert leases.take_next("ada", NOON, SOON) == 2
    archive.run("r").add_decision(decision_row("c", None))
    assert leases.take(1, "bo", NOON, SOON)


def test_a_decision_follows_the_one_it_is_about(archive: Archive, leases: ReviewLeases) -> None:
    run = archive.run("r")
    assert run.add_decision(decision_row("c"))
    (made,) = run.decisions()
    with pytest.raises(LeaseError, match="a later decision on case c followed"):
        run.add_decision(decision_row("c", None), after=made.sequence - 1)
    taken_back = decision_row("c", None)
    assert run.add_decision(taken_back, after=made.sequence)
    # As after an answer that was lost.
    assert run.add_decision(taken_back, after=made.sequence)
    assert [row.action for row in run.decisions()] == ["decide", "undo"]


def test_the_next_case_is_open_free_and_follows(archive: Archive, leases: ReviewLeases) -> None:
    archive.run("r").add_cases([case_row("f", "human"), case_row("g", "human")])
    assert leases.take_next("ada", NOON, SOON) == 1
    assert leases.take_next("bo", NOON, SOON) == 2
    assert leases.take_next("ada", NOON, SOON, after=1) == 4  # Case 3 was never open.
    assert leases.take_next("cy", NOON, SOON, among=[1, 2, 3]) is None
    assert leases.take_next("cy", NOON, SOON, after=5) is None
    assert leases.take_next("ada", NOON, SOON, after=4, among=[1, 4]) == 1
    assert leases.take_next("cy", SOON, LATER, after=4) == 5
    assert leases.take_next("cy", SOON, LATER, after=5) == 1


def test_what_waits_is_what_no_decision_settled(archive: Archive, leases: ReviewLeases) -> None:
    assert archive.run("r").waiting() == [1, 2]
    archive.run("r").add_decision(decision_row("c"))
    assert archive.run("r").waiting() == [2]
    found = archive.run("r").cases_at([3, 1, 1, 99])
    assert [(one.case.case, len(one.decisions)) for one in found] == [("c", 1), ("e", 0)]
    archive.run("r").add_decision(decision_row("c", None))
    assert archive.run("r").waiting() == [1, 2]
    ask: list[Callable[[RunArchive], object]] = [
        lambda run: run.waiting(),
        lambda run: run.leases(),
        lambda run: run.cases_at([1]),
    ]
    for operation in ask:
        with pytest.raises(ArchiveError, match="has no run gone"):
            operation(archive.run("gone"))


def test_of_threads_that_take_a_case_at_once_one_gets_it(
    archive: Archive, leases: ReviewLeases
) -> None:
    names = [f"reviewer {number}" for number in range(8)]
    archive.run("r").add_cases([case_row(str(number), "human") for number in range(4, 22)])
    open_now = archive.run("r").waiting()
    together = Barrier(len(names))

    def take_all(name: str) -> list[int]:
        together.wait()
        return [case for case in open_now if leases.take(case, name, NOON, SOON)]

    with ThreadPoolExecutor(len(names)) as pool:
        taken = dict(zip(names, pool.map(take_all, names), strict=True))
    assert sorted(case for cases in taken.values() for case in cases) == open_now
    held = {case: lease.reviewer for case, lease in leases.leases(NOON).items()}
    assert held == {case: name for name, cases in taken.items() for case in cases}


def test_of_processes_that_take_a_case_at_once_one_gets_it(
    archive: Archive, leases: ReviewLeases, archive_url: str
) -> None:
    archive.run("r").add_cases([case_row(str(number), "human") for number in range(4, 61)])
    takers = [
        subprocess.Popen(
            [sys.executable, "-c", TAKER, archive_url, name, "60"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )
        for name in ("ada", "bo")
    ]
    for taker in takers:
        assert taker.stdout is not None and taker.stdout.readline() == "ready\n"
    taken = [taker.communicate("go\n", timeout=60)[0] for taker in takers]
    found = [int(case) for line in taken for case in line.strip("[]\n").split(", ") if case]
    assert sorted(found) == archive.run("r").waiting()


def test_two_hundred_reviewers_at_once_get_no_settled_case_and_none_twice(archive: Archive) -> None:
    run, threads = archive.run("r"), 20
    run.add_cases([case_row(str(number), "human") for number in range(1, 401)])
    leases, together = run.leases(), Barrier(threads)

    def review(thread: int) -> list[int]:
        """Ten reviewers who are handed a case each, settle it, and ask again."""
        together.wait()
        handed: list[int] = []
        for name in cycle(f"{thread}-{number}" for number in range(10)):
            case = leases.take_next(name, NOON, SOON)
            if case is None:
                return handed
            handed.append(case)
            run.add_decision(decision_row(str(case), reviewer=name))
        raise AssertionError

    with ThreadPoolExecutor(threads) as pool:
        handed = [case for cases in pool.map(review, range(threads)) for case in cases]
    assert sorted(handed) == list(range(1, 401))
    assert run.waiting() == []
