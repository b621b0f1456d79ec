"""The work of people on a run, on each database: queues, leases, decisions, the audit."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from itertools import cycle
from threading import Barrier

import pytest

from raylab.core.errors import LeaseError
from raylab.label.archive.records import Lease
from raylab.label.archive.reviews import Queue, RunReviews
from raylab.label.archive.store import Archive
from raylab.label.judgement import AUDIT, DECISION
from tests.label.archive.rows import NOON, case_row, decision_row

MINUTE = timedelta(minutes=1)
SOON, LATER = NOON + MINUTE, NOON + 2 * MINUTE


@pytest.fixture
def reviews(archive: Archive) -> RunReviews:
    archive.run("r").add_cases([case_row("c", "human"), case_row("d", "human"), case_row("e")])
    return archive.run("r").reviews()


def unconfirmed(case: str, **changes: object):
    return decision_row(case, status="unconfirmed", **changes)


# Leases


def test_a_lease_keeps_others_away_until_it_expires_or_is_given_back(
    archive: Archive, reviews: RunReviews
) -> None:
    other = archive.start_run("other", {}, {})
    other.add_cases([case_row("c", "human")])
    assert other.reviews().take([1], "cy", NOON, LATER) == 1
    assert reviews.take([1], "ada", NOON, SOON) == 1
    assert reviews.take([1], "bo", SOON - timedelta(microseconds=1), LATER) is None
    assert reviews.leases(NOON) == {1: Lease("ada", SOON)}
    assert reviews.take([1], "bo", SOON, LATER) == 1
    assert reviews.take([1], "ada", SOON, LATER) is None
    assert reviews.take([1], "bo", SOON, LATER + MINUTE) == 1
    assert reviews.take([1, 3, 2], "ada", SOON, LATER) == 2  # Case 3 was never open.
    reviews.give_back(1, "ada")
    reviews.give_back(2, "ada")
    assert reviews.leases(SOON) == {1: Lease("bo", LATER + MINUTE)}
    after = LATER + 2 * MINUTE
    assert reviews.leases(after) == {} and reviews.take([1], "ada", after, after + MINUTE) == 1


def test_sixty_reviewers_at_once_get_no_settled_case_and_none_twice(
    archive: Archive, archive_url: str
) -> None:
    run, threads = archive.run("r"), 6
    run.add_cases([case_row(str(number), "human") for number in range(1, 61)])
    together = Barrier(threads)

    def review(thread: int) -> list[int]:
        """Ten reviewers, at a page of their own, who settle the case that each is handed."""
        handed: list[int] = []
        with Archive.open(archive_url) as page:
            reviews = page.run("r").reviews()
            together.wait()
            for name in cycle(f"{thread}-{number}" for number in range(10)):
                case = reviews.take(Queue(reviews).look(DECISION)[0], name, NOON, SOON)
                if case is None:
                    return handed
                handed.append(case)
                reviews.add(decision_row(str(case), reviewer=name), leased=True)
        raise AssertionError

    with ThreadPoolExecutor(threads) as pool:
        handed = [case for cases in pool.map(review, range(threads)) for case in cases]
    # A thread that finds all open cases leased ends early; the others settle what is left.
    assert sorted(handed) == list(range(1, 61))
    assert Queue(run.reviews()).look(DECISION)[0] == []


# Decisions


def test_what_waits_is_what_no_decision_settled(archive: Archive, reviews: RunReviews) -> None:
    assert Queue(reviews).look(DECISION)[0] == [1, 2]
    for row, waiting in (
        (unconfirmed("c"), [2]),
        (decision_row("c", None), [1, 2]),
        (decision_row("c", status="unclear"), [2]),
        (decision_row("d"), []),
    ):
        reviews.add(row)
        assert Queue(reviews).look(DECISION)[0] == waiting
    assert reviews.take([1, 2, 3], "ada", NOON, SOON) is None
    assert archive.run("r").counts(now=True) == {"unclear": 1, "accepted": 2}


def test_a_decision_needs_a_lease_on_a_case_that_waits(reviews: RunReviews) -> None:
    with pytest.raises(LeaseError, match="nobody works on case c now"):
        reviews.add(unconfirmed("c"), leased=True)
    reviews.take([1], "bo", NOON, SOON)
    with pytest.raises(LeaseError, match="bo works on case c now"):
        reviews.add(unconfirmed("c"), leased=True)
    reviews.add(unconfirmed("c", reviewer="bo"), leased=True)
    assert reviews.leases(NOON) == {}
    # As after an answer that was lost.
    reviews.add(unconfirmed("c", reviewer="bo"), leased=True)
    for case in ("c", "e"):
        with pytest.raises(LeaseError, match=f"case {case} does not wait any more"):
            reviews.add(unconfirmed(case), leased=True)


def test_a_decision_follows_the_one_it_is_about(archive: Archive, reviews: RunReviews) -> None:
    reviews.add(decision_row("c"), after=0)
    (made,) = archive.run("r").decisions()
    for wrong in (0, made.sequence - 1):
        with pytest.raises(LeaseError, match="a later decision on case c followed"):
            reviews.add(decision_row("c", None), after=wrong)
    for _ in range(2):
        reviews.add(decision_row("c", None), after=made.sequence)
    assert [row.action for row in archive.run("r").decisions()] == ["decide", "undo"]


def test_a_decision_is_judged_once(archive: Archive, reviews: RunReviews) -> None:
    reviews.add(unconfirmed("c"))
    (before,) = archive.run("r").decisions()
    refused = decision_row("c", status="human", body={"confirmation": {"score": 20}})
    assert [reviews.confirm(before.sequence, refused) for _ in range(2)] == [True, False]
    (after,) = archive.run("r").decisions()
    assert after == replace(
        refused, sequence=before.sequence, created=before.created, sha256=after.sha256
    )
    assert Queue(reviews).look(DECISION)[0] == [1, 2]
    reviews.add(unconfirmed("d"))
    (*_, made) = archive.run("r").decisions()
    reviews.add(decision_row("d", None))
    # It was taken back.
    assert not reviews.confirm(made.sequence, decision_row("d"))


def test_a_reviewer_sees_their_own_decisions_the_last_one_first(reviews: RunReviews) -> None:
    reviews.add(decision_row("c"))
    reviews.add(decision_row("d", reviewer="bo"))
    reviews.add(decision_row("c", None))
    reviews.add(decision_row("d", "OPT=Sym"))
    made = [
        (place, row.case, row.action, latest)
        for place, row, latest in reviews.made_by("ada", DECISION, 10)
    ]
    assert made == [(2, "d", "decide", True), (1, "c", "undo", True), (1, "c", "decide", False)]
    assert len(list(reviews.made_by("ada", DECISION, 2))) == 2
    ((_, _, latest),) = reviews.made_by("bo", DECISION, 10)
    assert not latest


# The audit


def test_drawn_cases_wait_once_for_a_code(archive: Archive, reviews: RunReviews) -> None:
    archive.run("r").add_cases([case_row(name) for name in "fgh"])
    with pytest.raises(LeaseError, match="case e does not wait"):
        reviews.add(decision_row("e", kind=AUDIT), leased=True)
    drawn = {"share": 0.5, "seed": 5}
    assert [reviews.draw(list("efg"), drawn), reviews.draw(list("efgh"), drawn)] == [3, 1]
    # By the SHA-256 of their ids: 25 of f, 3f of e, aa of h, cd of g.
    assert Queue(reviews).look(AUDIT)[0] == [4, 3, 6, 5] and Queue(reviews).look(DECISION)[0] == [
        1,
        2,
    ]
    assert reviews.take([3], "ada", NOON, SOON) == 3
    reviews.add(decision_row("e", kind=AUDIT), leased=True)
    with pytest.raises(LeaseError, match="case e does not wait any more"):
        reviews.add(decision_row("e", "OPT=Sym", kind=AUDIT), leased=True)
    assert Queue(reviews).look(AUDIT)[0] == [4, 6, 5]
    reviews.add(decision_row("e", None, kind=AUDIT))
    assert Queue(reviews).look(AUDIT)[0] == [4, 3, 6, 5]
    # The audit leaves the status of its cases, and is none of the decisions.
    assert archive.run("r").counts(now=True) == {"accepted": 4, "human": 2}
    assert list(archive.run("r").decisions()) == []
    assert reviews.look(99, NOON) is None
    opened, lease = reviews.look(3, NOON) or (None, None)
    assert opened is not None and lease is None
    assert (opened.standing.queue, opened.status) == (AUDIT, "human")
    assert [row.action for row in opened.decisions] == ["draw", "decide", "undo"]
