"""Sessions of reviewers, on each database."""

from datetime import timedelta

from raylab.archive.store import Archive
from tests.archive.rows import NOON, sha256

KEY = sha256("cookie")
SOON, LATER = NOON + timedelta(hours=1), NOON + timedelta(hours=2)


def test_a_session_holds_until_it_ends_or_expires(archive: Archive, archive_url: str) -> None:
    sessions = archive.run("r").sessions()
    assert sessions.reviewer(KEY, NOON) is None
    sessions.begin(KEY, "Ada", NOON, SOON)
    with Archive.open(archive_url) as other:
        assert other.run("r").sessions().reviewer(KEY, NOON) == "Ada"
        other.start_run("another", {}, {})
        assert other.run("another").sessions().reviewer(KEY, NOON) is None
    assert sessions.reviewer(KEY, SOON) is None
    sessions.begin(sha256("other"), "Bo", LATER, LATER + timedelta(hours=1))
    assert sessions.reviewer(KEY, NOON) is None  # Forgotten.
    for _ in range(2):
        sessions.end(sha256("other"))
    assert sessions.reviewer(sha256("other"), LATER) is None
