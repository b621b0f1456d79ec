from datetime import timedelta

import pytest

from raylab.archive.records import AuditEntry
from raylab.archive.store import Archive
from raylab.errors import ArchiveError, LeaseError
from tests.archive.rows import NOON, case_row, execute

SOON = NOON + timedelta(minutes=10)
CASES = [f"c{n}" for n in range(1, 7)]


@pytest.fixture
def drawn(archive: Archive) -> Archive:
    """Run r with cases c1 to c6, of which c1 to c5 are drawn as records 7 to 11."""
    archive.run("r").add_cases([case_row(case) for case in CASES])
    assert archive.run("r").audit().draw(CASES[:5], {"share": 0.8}) == 5
    return archive


def code(case: str, reviewer: str = "ada", said: str = "Evo") -> AuditEntry:
    return AuditEntry(case, "code", reviewer, {"code": said})


def test_cases_are_drawn_once(drawn: Archive):
    audit = drawn.run("r").audit()
    assert audit.draw(CASES, {"share": 1.0}) == 1 and audit.drawn() == 6
    found = [(one.sequence, one.case, one.body["share"]) for one in audit.entries()]
    shares = [0.8] * 5 + [1.0]
    assert found == list(zip(range(7, 13), CASES, shares, strict=True))
    with pytest.raises(ArchiveError, match="no case 'x'"):
        audit.draw(["x"], {})
    assert drawn.run("r").row().records == 12


def test_reviewers_go_through_the_sample_in_an_order_like_random(drawn: Archive):
    audit = drawn.run("r").audit()
    stored = {case.sha256: case.sequence for case in drawn.run("r").cases()}
    order = [stored[checksum] for checksum in sorted(stored) if stored[checksum] <= 5]
    assert audit.waiting() == order
    leases = audit.leases()
    assert leases.take_next("ada", NOON, SOON) == order[0]
    assert leases.take_next("bo", NOON, SOON) == order[1]
    assert leases.take_next("ada", NOON, SOON, after=order[3]) == order[4]
    assert leases.take_next("bo", NOON, SOON, after=order[4]) == order[1]
    # c6 is not drawn, and none of these waits for a decision.
    assert not leases.take(6, "ada", NOON, SOON)
    assert not drawn.run("r").leases().take(order[2], "ada", NOON, SOON)


def test_a_code_needs_the_lease_and_ends_it(drawn: Archive):
    audit = drawn.run("r").audit()
    leases = audit.leases()
    with pytest.raises(LeaseError, match="no lease"):
        audit.add(code("c2"), leased=True)
    assert leases.take(2, "ada", NOON, SOON)
    with pytest.raises(LeaseError, match="no lease"):
        audit.add(code("c2", "bo"), leased=True)
    audit.add(code("c2"), leased=True)
    assert leases.leases(NOON) == {} and 2 not in audit.waiting()
    assert not leases.take(2, "bo", NOON, SOON)
    with pytest.raises(LeaseError, match="coded already"):
        audit.add(code("c2"), leased=True)
    with pytest.raises(ArchiveError, match="'c6' of run r was not drawn"):
        audit.add(code("c6"))
    assert [one.case for one in audit.coded_by("ada", 9)] == ["c2"]


def test_a_code_that_is_taken_back_waits_again(drawn: Archive):
    audit = drawn.run("r").audit()
    audit.add(code("c2"))
    last = audit.last("c2")
    assert last is not None and last.body == {"code": "Evo"}
    audit.add(code("c2", "bo", "Lrn"))
    undo = AuditEntry("c2", "undo", "ada", {})
    with pytest.raises(LeaseError, match="coded anew"):
        audit.add(undo, after=last.sequence)
    audit.add(undo)
    assert 2 in audit.waiting() and audit.coded_by("bo", 9) == audit.coded_by("ada", 9) == []


@pytest.mark.parametrize("change", ["body = '{}'", "reviewer = 'eve'", "action = 'undo'"])
def test_a_code_that_was_altered_is_refused(drawn: Archive, archive_url: str, change: str):
    drawn.run("r").audit().add(code("c2"))
    execute(archive_url, f"UPDATE decisions SET {change} WHERE action = 'code'")
    with pytest.raises(ArchiveError, match="did not write so"):
        list(drawn.run("r").audit().entries())
