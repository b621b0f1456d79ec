"""Decisions that wait for the evaluator, on each database."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from threading import Barrier

import pytest

from raylab.archive.records import Lease
from raylab.archive.review.leases import ReviewLeases
from raylab.archive.review.pending import PendingDecision, PendingDecisions
from raylab.archive.store import Archive
from raylab.errors import ArchiveError, LeaseError
from tests.archive.rows import NOON, case_row, decision_row, sha256

SOON = NOON + timedelta(minutes=1)


def decision(case: int = 1, reviewer: str = "ada", token: str = "first") -> PendingDecision:
    body = {"case": "c", "justification": "\0 \ud800"}
    return PendingDecision(case, sha256(token), reviewer, NOON, body, 0, "", NOON)


@pytest.fixture
def leases(archive: Archive) -> ReviewLeases:
    archive.run("r").add_cases([case_row("c", "human"), case_row("d", "human"), case_row("e")])
    return archive.run("r").leases()


@pytest.fixture
def pending(archive: Archive, leases: ReviewLeases) -> PendingDecisions:
    assert leases.take(1, "ada", NOON, SOON)
    return archive.run("r").pending()


def test_a_decision_waits_and_keeps_others_from_its_case(
    archive: Archive, pending: PendingDecisions, leases: ReviewLeases
) -> None:
    assert pending.submit(decision()) == decision()
    assert pending.all() == [decision()] and pending.on(1) == decision()
    assert pending.on(2) is None and leases.leases(NOON) == {}
    assert not leases.take(1, "bo", NOON, SOON) and not leases.take(1, "ada", NOON, SOON)
    assert leases.take_next("bo", NOON, SOON) == 2
    assert leases.take_next("cy", NOON, SOON) is None
    assert archive.run("r").waiting() == [1, 2]


def test_equal_submissions_at_once_are_one(pending: PendingDecisions) -> None:
    together = Barrier(4)

    def submit(number: int) -> PendingDecision:
        together.wait()
        return pending.submit(decision(token=str(number)))

    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(submit, range(4)))
    assert pending.all() == [found[0]] == [found[1]] == [found[2]] == [found[3]]


def test_a_case_is_submitted_by_who_holds_it_while_it_is_open(
    archive: Archive, pending: PendingDecisions, leases: ReviewLeases
) -> None:
    with pytest.raises(LeaseError, match="bo has no lease on case 1"):
        pending.submit(decision(reviewer="bo"))
    archive.run("r").add_decision(decision_row("c"))
    with pytest.raises(LeaseError, match="case 1 does not wait any more"):
        pending.submit(decision())
    assert pending.all() == [] and pending.submit(decision(), leased=False) == decision()
    with pytest.raises(ArchiveError, match="has no run gone"):
        archive.run("gone").pending().all()


def test_a_decision_can_be_taken_back_by_its_reviewer_until_it_is_judged(
    archive: Archive, pending: PendingDecisions, leases: ReviewLeases
) -> None:
    run, judged = archive.run("r"), decision()
    pending.submit(judged)
    assert not pending.cancel(1, "bo") and not pending.cancel(2, "ada")
    assert pending.cancel(1, "ada") and not pending.cancel(1, "ada")
    # The evaluator answers now.
    assert not run.add_decision(decision_row("c"), judged=judged.token)
    assert list(run.decisions()) == [] and leases.take(1, "bo", NOON, SOON)
    # A decision that is submitted again is another one.
    leases.give_back(1, "bo")
    leases.take(1, "ada", NOON, SOON)
    pending.submit(decision(token="second"))
    assert not run.add_decision(decision_row("c"), judged=judged.token)
    for _ in range(2):  # As after an answer that was lost.
        assert run.add_decision(decision_row("c"), judged=sha256("second"))
    assert not pending.cancel(1, "ada") and pending.all() == []
    assert len(list(run.decisions())) == 1


def test_a_decision_that_is_refused_gives_its_case_back(
    archive: Archive, pending: PendingDecisions, leases: ReviewLeases
) -> None:
    pending.submit(decision())
    refused = decision_row("c", status="human")
    archive.run("r").add_decision(refused, judged=decision().token, lease_until=SOON)
    assert pending.all() == [] and leases.leases(NOON) == {1: Lease("ada", SOON)}


def test_why_a_decision_still_waits_is_kept(pending: PendingDecisions) -> None:
    pending.submit(decision())
    pending.postpone(decision().token, "no answer", 3, SOON)
    pending.postpone(sha256("gone"), "no answer", 3, SOON)
    assert pending.all() == [replace(decision(), problem="no answer", tries=3, due=SOON)]
