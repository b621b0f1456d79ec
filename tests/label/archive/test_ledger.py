"""Owners of runs, and what their ledgers grant, end and count, on each database."""

import os
import platform
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from raylab.core.errors import OwnerError
from raylab.label.archive.ledger import CallOperation, CallResults, ClaimEnd
from raylab.label.archive.records import RunCost
from raylab.label.archive.run import RunArchive
from raylab.label.archive.store import Archive
from raylab.label.judgement import NEVER
from raylab.llm.chat import BatchCall, CallBatch, Claim, Cost
from raylab.llm.config import Budget
from tests.label.archive.rows import call_row, find_call, sha256

ROOT = Path(__file__).parents[3]
KEY, OTHER_KEY = sha256("k"), sha256("k2")
MOST = Cost(1, 60, 40, 0.5)
BUDGET = Budget()
NOTHING = RunCost(Cost(), Cost())
CLAIMANT = """
import sys
from raylab.label.archive.store import Archive
from raylab.llm.chat import Claim, Cost
from raylab.llm.config import Budget
location, run, key = sys.argv[1:]
with Archive.open(location) as archive, archive.run(run).own() as owner:
    ledger = archive.run(run).ledger(owner.token, Budget())
    assert ledger.write([Claim("of the dead", key, Cost(1, 60, 40, 0.5))]).refused == {}
    print("claimed", flush=True)
    sys.stdin.readline()
"""


def claim(name: str, key: str = KEY) -> Claim:
    return Claim(name, key, MOST)


def answer(name: str, key: str = "k", **changes: object) -> ClaimEnd:
    return ClaimEnd(claim(name, sha256(key)), call_row(key, **changes))


class Owner:
    """An owner of a run, with its ledger."""

    def __init__(self, run: RunArchive, budget: Budget) -> None:
        self._run, self.ownership = run, run.own()
        assert self.ownership.take()
        self.ledger = run.ledger(self.ownership.token, budget)

    def write(self, *rows: CallOperation, claimant: str = "") -> CallResults:
        return self.ledger.write(rows, claimant)

    def die(self) -> None:
        """Frees its lock, as the system does when its process or its connection ends."""
        release, self.ownership._release = self.ownership._release, None
        assert release is not None
        release()

    @property
    def cost(self) -> RunCost:
        return self._run.cost()


Own = Callable[..., Owner]


@pytest.fixture
def own(archive: Archive) -> Iterator[Own]:
    """Makes owners of runs, which give them back at the end."""
    with ExitStack() as stack:

        def take(run: str = "r", budget: Budget = BUDGET) -> Owner:
            if run != "r":
                archive.start_run(run, {}, {})
            owner = Owner(archive.run(run), budget)
            stack.callback(owner.ownership.end)
            return owner

        yield take


@pytest.fixture
def owner(own: Own) -> Owner:
    return own()


def test_an_answer_is_billed_to_the_run_that_sent_it_and_known_to_all(
    own: Own, owner: Owner
) -> None:
    assert owner.write(claim("1")).refused == {}
    assert owner.cost == RunCost(Cost(), MOST)
    owner.write(answer("1"))
    # 11 and 5 tokens at 0.25.
    assert owner.cost == RunCost(Cost(1, 11, 5, 0.25), Cost())
    # An answered call needs no budget.
    other = own("t", Budget(tokens=1))
    assert other.write(claim("2")).refused == {"2": call_row("k")}
    assert other.cost == NOTHING


def test_every_end_of_a_claim_is_counted_once_though_it_is_repeated(owner: Owner) -> None:
    names = ("answered", "unpriced", "silent", "paid", "free")
    keys = {name: sha256(name) for name in names}
    endings = (
        answer("answered", "answered"),
        answer("unpriced", "unpriced", cost=None),
        # Without tokens it may cost what was held.
        answer("silent", "silent", prompt_tokens=0, completion_tokens=0, cost=0.0),
        ClaimEnd(claim("paid", keys["paid"]), paid=True),
        ClaimEnd(claim("free", keys["free"])),
    )
    for rows in ([claim(name, keys[name]) for name in names], endings):
        assert owner.write(*rows) == owner.write(*rows) == CallResults({})
    assert owner.cost == RunCost(Cost(2, 22, 10, 0.25), MOST + MOST)


@pytest.mark.parametrize("budget", [Budget(tokens=200), Budget(money=1.0)])
def test_a_budget_covers_the_calls_that_ended_and_those_in_flight(own: Own, budget: Budget) -> None:
    owner = own(budget=budget)
    keys = [f"{number:064x}" for number in range(3)]
    # Two of 100 tokens at 0.5 fit; the third waits until both have ended.
    results = owner.write(*(claim(str(n), key) for n, key in enumerate(keys)))
    assert results.refused == {"2": None}
    for number, refusal in enumerate([None, RunCost(Cost(), Cost(2, 120, 80, 1.0))]):
        owner.write(ClaimEnd(claim(str(number), keys[number]), paid=True))
        assert owner.write(claim("3", keys[2])).refused == {"3": refusal}


def test_the_claims_of_a_process_that_started_again_end(owner: Owner) -> None:
    owner.write(claim("1"), claimant="annotator-0")
    owner.write(claim("2", OTHER_KEY), claimant="annotator-1")
    owner.ledger.void("annotator-0")
    assert owner.write(claim("3"), claim("4", OTHER_KEY)).refused == {"4": None}
    assert owner.cost.uncertain == Cost(3, 180, 120, 1.5)


def test_a_former_owner_claims_nothing_and_stores_what_nobody_else_sends(
    archive: Archive, own: Own, owner: Owner
) -> None:
    owner.write(claim("1"), claim("2", OTHER_KEY))
    owner.die()
    again = own()
    again.write(claim("3"))
    assert owner.write(claim("4")).lost == {"4"}
    assert owner.write(answer("1"), answer("2", "k2")).lost == {"1"}
    assert find_call(archive, OTHER_KEY) is not None and find_call(archive, KEY) is None
    assert again.write(answer("3", text="mine")).lost == frozenset()
    kept = find_call(archive, KEY)
    assert kept is not None and kept.reply.text == "mine"
    assert again.cost == RunCost(Cost(1, 11, 5, 0.25), Cost(2, 120, 80, 1.0))


def test_the_run_of_a_killed_process_is_free_and_its_call_counted_there(
    archive: Archive, archive_url: str, owner: Owner
) -> None:
    archive.start_run("dead", {}, {})
    command = [sys.executable, "-c", CLAIMANT, archive_url, "dead", KEY]
    child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT)
    with child:
        assert child.stdout is not None and child.stdout.readline() == b"claimed\n"
        assert owner.write(claim("1")).refused == {"1": None}
        with pytest.raises(OwnerError, match=f"process {child.pid} on"):
            archive.run("dead").own().__enter__()
        child.kill()
        child.wait()
        # A server notices a moment later that the connection is gone.
        while owner.write(claim("1")).refused:
            pass
        with archive.run("dead").own():
            pass
    assert archive.run("dead").cost() == RunCost(Cost(), MOST) == owner.cost
    owner.write(answer("1"))
    assert owner.cost == RunCost(Cost(1, 11, 5, 0.25), Cost())


def test_a_batch_ends_only_as_it_is_known_and_its_claims_outlive_the_owner(
    own: Own, owner: Owner
) -> None:
    call = BatchCall(claim("1"), "hash", "classify-a", "m", None, {})
    batch = CallBatch("b", "http://host/v1", NEVER, (call,), None)
    assert owner.ledger.open_batch(batch, "annotator-0").refused == {}
    assert owner.ledger.note_batch("b", "file-1", None)
    uploaded = owner.ledger.find_batch("b")
    assert uploaded == replace(batch, file="file-1")
    # Another process finds what the server made of the file, and has its id journalled.
    assert owner.ledger.note_batch("b", "file-1", "batch-1")
    assert not owner.ledger.note_batch("b", "file-2", None)
    assert not owner.ledger.note_batch("b", "file-1", "batch-2")
    assert uploaded is not None
    owner.ledger.end_batch(uploaded, [ClaimEnd(claim("1"))])
    assert owner.cost == RunCost(Cost(), MOST)
    owner.die()
    other = own("t")
    assert other.write(claim("2")).refused == {"2": "b"}
    found = other.ledger.find_batch("b")
    assert found == replace(batch, file="file-1", server_id="batch-1", is_abandoned=True)
    for _ in range(2):
        other.ledger.end_batch(found, [answer("1")])
    # The run that sent it pays.
    assert (owner.cost, other.cost) == (RunCost(Cost(1, 11, 5, 0.25), Cost()), NOTHING)
    assert other.ledger.find_batch("b") is None


# Owners


def test_a_run_has_one_owner_whom_the_error_names_until_it_ends(
    archive: Archive, archive_url: str
) -> None:
    archive.start_run("other", {}, {})
    with archive.run("r").own(), archive.run("other").own(), Archive.open(archive_url) as later:
        with pytest.raises(OwnerError) as raised:
            later.run("r").own().__enter__()
    message = str(raised.value)
    assert "run r of archive" in message
    assert f"(process {os.getpid()} on {platform.node()})" in message
    assert Path(sys.argv[0]).name in message
    with archive.run("r").own():
        pass
    assert archive_url.startswith("postgresql") or not [*Path(archive_url).parent.glob("*.lock")]
