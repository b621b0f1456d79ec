"""Owners of runs, and what their ledgers grant, end and count, on each database."""

import os
import platform
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from raylab.archive import ledger
from raylab.archive.database import utc_now
from raylab.archive.ledger import AnswerRow, CallResults, ClaimRow, EndRow, Ledger, Ownership
from raylab.archive.records import CallRow, Cost, RunCost
from raylab.archive.store import Archive
from raylab.config.llm import Budget
from raylab.errors import OwnerError
from tests.archive.rows import call_row, find_call, sha256

ROOT = Path(__file__).parents[2]
KEY, OTHER_KEY = sha256("k"), sha256("k2")
MOST = Cost(1, 60, 40, 0.5)
OWNERSHIPS: list[Ownership] = []
NOTHING = RunCost(Cost(), Cost())
CLAIMANT = """
import sys
from raylab.archive.ledger import ClaimRow
from raylab.archive.records import Cost
from raylab.archive.store import Archive
from raylab.config.llm import Budget
location, run, key = sys.argv[1:]
with Archive.open(location) as archive, archive.run(run).own() as owner:
    ledger = archive.run(run).ledger(owner.token, Budget())
    assert ledger.write([ClaimRow(key, "of the dead", Cost(1, 60, 40, 0.5))]).refused == {}
    print("claimed", flush=True)
    sys.stdin.readline()
"""


def claim(name: str, key: str = KEY) -> ClaimRow:
    return ClaimRow(key, name, MOST)


def answer(name: str, key: str = "k", **changes: object) -> AnswerRow:
    return AnswerRow(call_row(key, **changes), name)


class Owner:
    """An owner of a run, with its ledger."""

    def __init__(self, archive: Archive, run: str = "r", budget: Budget | None = None) -> None:
        archive.start_run(run, {"prompt": "maximal"} if run == "r" else {}, {})
        self.run = archive.run(run)
        self.ownership = self.run.own()
        assert self.ownership.take()
        OWNERSHIPS.append(self.ownership)
        self.ledger: Ledger = self.run.ledger(self.ownership.token, budget or Budget())

    def claims(self, *rows: ClaimRow, claimant: str = "") -> CallResults:
        return self.ledger.write(rows, claimant)

    @property
    def cost(self) -> RunCost:
        return self.run.cost()


@pytest.fixture(autouse=True)
def ending(archive: Archive) -> Iterator[None]:
    """Ends what the owners of a test hold."""
    yield
    while OWNERSHIPS:
        OWNERSHIPS.pop().end()


@pytest.fixture
def owner(archive: Archive) -> Owner:
    return Owner(archive)


def test_an_answer_is_billed_to_the_run_that_sent_it_and_known_to_all(
    archive: Archive, owner: Owner
) -> None:
    assert owner.claims(claim("1")).refused == {}
    assert owner.cost == RunCost(Cost(), MOST)
    owner.ledger.write([answer("1")])
    # 11 and 5 tokens at 0.25.
    assert owner.cost == RunCost(Cost(1, 11, 5, 0.25), Cost())
    # An answered call needs no budget.
    known = Owner(archive, "t", Budget(tokens=1)).claims(claim("2")).refused["2"]
    assert isinstance(known, CallRow) and known == call_row("k")
    assert archive.run("t").cost() == NOTHING


def test_a_call_in_flight_is_granted_to_nobody_else(archive: Archive, owner: Owner) -> None:
    other = Owner(archive, "s")
    assert owner.claims(claim("1"), claim("2")).refused == {"2": None}
    assert other.claims(claim("4"), claim("5", OTHER_KEY)).refused == {"4": None}
    owner.ledger.write([EndRow(KEY, "1", paid=False)])
    assert other.claims(claim("6")).refused == {} and owner.cost == NOTHING


def test_an_attempt_that_may_be_billed_stays_counted(owner: Owner) -> None:
    owner.ledger.write([claim("0"), EndRow(KEY, "0", paid=False)])
    assert owner.claims(claim("1")).refused == {}
    owner.ledger.write([EndRow(KEY, "1", paid=True), claim("2")])
    owner.ledger.write([answer("2", prompt_tokens=0, completion_tokens=0, cost=0.0)])
    assert owner.cost == RunCost(Cost(), Cost(2, 120, 80, 1.0))


def test_every_write_may_be_repeated(owner: Owner) -> None:
    third = sha256("k3")
    for rows in (
        [claim("1"), claim("2", OTHER_KEY), claim("3", third)],
        [answer("1"), EndRow(OTHER_KEY, "2", paid=True), EndRow(third, "3", paid=False)],
    ):
        assert owner.ledger.write(rows) == owner.ledger.write(rows) == CallResults({})
    assert owner.cost == RunCost(Cost(1, 11, 5, 0.25), MOST)


def test_without_a_price_the_tokens_count_alone(owner: Owner) -> None:
    owner.claims(replace(claim("1"), most=Cost.of_attempt(60, 40, None)))
    assert owner.cost.uncertain == Cost(1, 60, 40, 0.0, unpriced=1)
    owner.ledger.write([answer("1", cost=None)])
    assert owner.cost == RunCost(Cost(1, 11, 5, 0.0, unpriced=1), Cost())


@pytest.mark.parametrize("budget", [Budget(tokens=200), Budget(money=1.0)])
def test_a_budget_covers_what_is_spent_and_in_flight(archive: Archive, budget: Budget) -> None:
    owner = Owner(archive, budget=budget)
    keys = [f"{number:064x}" for number in range(3)]
    # Two of 100 tokens at 0.5 fit; the third waits until both have ended.
    results = owner.claims(*(claim(str(n), key) for n, key in enumerate(keys)))
    assert results.refused == {"2": None}
    for number, refusal in enumerate([None, RunCost(Cost(), Cost(2, 120, 80, 1.0))]):
        owner.ledger.write([EndRow(keys[number], str(number), paid=True)])
        assert owner.claims(claim("3", keys[2])).refused == {"3": refusal}


def test_a_budget_of_money_is_not_lost_to_rounding(archive: Archive) -> None:
    owner = Owner(archive, budget=Budget(money=0.3))
    for number in range(3):
        key = sha256(f"m{number}")
        assert owner.claims(ClaimRow(key, str(number), Cost(1, 1, 1, 0.1))).refused == {}
        owner.ledger.write([EndRow(key, str(number), paid=True)])


def test_the_claims_of_a_process_that_started_again_end(owner: Owner) -> None:
    owner.claims(claim("1"), claimant="annotator-0")
    owner.claims(claim("2", OTHER_KEY), claimant="annotator-1")
    owner.ledger.void("annotator-0")
    assert owner.claims(claim("3"), claim("4", OTHER_KEY)).refused == {"4": None}
    assert owner.cost.uncertain == Cost(3, 180, 120, 1.5)


def lose_lock() -> None:
    """Frees a lock as the system does when a connection to the server is lost."""
    release = OWNERSHIPS.pop()._release
    assert release is not None
    release()


def test_a_former_owner_claims_nothing_and_stores_what_nobody_else_sends(
    archive: Archive, owner: Owner
) -> None:
    owner.claims(claim("1"), claim("2", OTHER_KEY))
    lose_lock()
    again = Owner(archive)
    again.claims(claim("3"))
    assert owner.claims(claim("4")).lost == {"4"}
    assert owner.ledger.write([answer("1"), answer("2", "k2")]).lost == {"1"}
    assert find_call(archive, OTHER_KEY) is not None and find_call(archive, KEY) is None
    assert again.ledger.write([answer("3", text="mine")]).lost == frozenset()
    kept = find_call(archive, KEY)
    assert kept is not None and kept.text == "mine"
    assert again.cost == RunCost(Cost(1, 11, 5, 0.25), Cost(2, 120, 80, 1.0))


def test_the_run_of_a_killed_process_is_free_and_its_call_counted_there(
    archive: Archive, archive_url: str
) -> None:
    archive.start_run("dead", {}, {})
    command = [sys.executable, "-c", CLAIMANT, archive_url, "dead", KEY]
    child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT)
    owner = Owner(archive)
    with child:
        assert child.stdout is not None and child.stdout.readline() == b"claimed\n"
        assert owner.claims(claim("1")).refused == {"1": None}
        with pytest.raises(OwnerError, match=f"process {child.pid} on"):
            archive.run("dead").own().__enter__()
        child.kill()
        child.wait()
        # A server notices a moment later that the connection is gone.
        while owner.claims(claim("1")).refused:
            pass
        with archive.run("dead").own():
            pass
    assert archive.run("dead").cost() == RunCost(Cost(), MOST) == owner.cost
    owner.ledger.write([answer("1")])
    assert owner.cost == RunCost(Cost(1, 11, 5, 0.25), Cost())


# Owners


def test_a_run_has_one_owner_whom_the_error_names_until_it_ends(
    archive: Archive, archive_url: str
) -> None:
    archive.start_run("other", {}, {})
    with archive.run("r").own(), archive.run("other").own():
        for hours in (-2, 0, 2):
            leaped = utc_now() + timedelta(hours=hours)
            with Archive.open(archive_url) as later:
                later._database.now = lambda leaped=leaped: leaped
                with pytest.raises(OwnerError) as raised:
                    later.run("r").own().__enter__()
    message = str(raised.value)
    assert "run r of archive" in message and "wait=true" in message
    assert f"(process {os.getpid()} on {platform.node()})" in message
    assert Path(sys.argv[0]).name in message
    with archive.run("r").own():
        pass
    assert archive_url.startswith("postgresql") or not [*Path(archive_url).parent.glob("*.lock")]


def test_who_waits_goes_on_after_the_owner(
    archive: Archive, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledger, "POLL_SECONDS", 0.01)
    first = archive.run("r").own()
    assert first.take()
    threading.Timer(0.2, first.end).start()
    with archive.run("r").own(wait=True), pytest.raises(OwnerError):
        archive.run("r").own().__enter__()
