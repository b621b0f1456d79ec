import logging
import re
import shutil
import sqlite3
import threading
import traceback
from pathlib import Path

import pytest

from raylab.core.errors import ArchiveError
from raylab.label.archive.store import Archive
from tests.label.archive.postgres import PostgresServer
from tests.label.archive.rows import case_row, execute, statuses

SECRET = "hunter-2-hunter"


def refusal(location: str | Path, **options: object) -> str:
    with pytest.raises(ArchiveError) as raised:
        Archive.open(location, **options).close()
    return str(raised.value)


def test_an_archive_is_made_with_its_directories_and_opened_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("HOME", str(tmp_path))
    path = tmp_path / "runs" / "deep" / "archive ?#%.db"
    with Archive.open("~/runs/deep/archive ?#%.db") as archive:
        archive.start_run("r", {}, {})
        assert archive.place == str(path)
        first = archive.id
    for location in (path, f"sqlite:///{str(path).replace('?#%', '%3F%23%25')}"):
        with Archive.open(location, create=False) as archive:
            assert [run.name for run in archive.runs()] == ["r"]
    shutil.copy(path, tmp_path / "copy.db")
    with Archive.open(tmp_path / "copy.db") as copy, Archive.open(tmp_path / "b.db") as other:
        assert copy.id == first != other.id


def test_places_without_an_archive_are_refused_and_left_alone(tmp_path: Path):
    text_file, other, empty = tmp_path / "notes.txt", tmp_path / "other.db", tmp_path / "none.db"
    text_file.write_text("these are notes, and long enough to be no empty database " * 20)
    with sqlite3.connect(other) as connection:
        connection.execute("CREATE TABLE measurements (a)")
    connection.close()
    content = {path: path.read_bytes() for path in (text_file, other)}
    assert f"{tmp_path} cannot be used (unable to open" in refusal(tmp_path)
    assert f"{text_file} cannot be used (file is not a database): free it" in refusal(text_file)
    assert "is no archive, it holds tables that raylab did not make (measurements)" in refusal(
        other
    )
    assert f"there is no archive {empty}" in refusal(empty, create=False)
    assert "cannot be made: " in refusal(text_file / "archive.db")
    assert "unable to open database file" in refusal("/proc/archive.db")
    assert "needs a file" in refusal(":memory:") and "needs a file" in refusal("sqlite://")
    for location in ("mysql://user@host/db", "s3://bucket/db", "postgresql://user@host:port/db"):
        assert "names no database that can hold an archive: give a file" in refusal(location)
    assert not empty.exists()
    assert {path: path.read_bytes() for path in (text_file, other)} == content


def test_a_damaged_page_is_reported_when_it_is_read(tmp_path: Path):
    path = tmp_path / "archive.db"
    with Archive.open(path) as archive:
        archive.start_run("r", {}, {})
        archive.run("r").add_cases([case_row(f"c{n}", description="x" * 3000) for n in range(50)])
    content = path.read_bytes()
    path.write_bytes(content[: 30 * 4096] + b"\xaa" * (len(content) - 30 * 4096))
    with Archive.open(path) as archive, pytest.raises(ArchiveError, match="image is malformed"):
        list(archive.run("r").cases())


def test_a_full_disk_loses_nothing_that_was_acknowledged(tmp_path: Path):
    with Archive.open(tmp_path / "archive.db") as archive:
        archive.start_run("r", {}, {})
        archive.run("r").add_cases([case_row("c")])
        # As on a full disk: SQLite may not take another page.
        full = "PRAGMA max_page_count = 1"
        archive._database.read(lambda connection: connection.exec_driver_sql(full).scalar())
        with pytest.raises(ArchiveError, match=r"disk is full\): .*make room"):
            archive.run("r").add_cases([case_row("d", description="x" * 100_000)])
    with Archive.open(tmp_path / "archive.db") as archive:
        assert statuses(archive) == {"c": "accepted"}


def test_servers_that_cannot_be_used_are_named(postgres: PostgresServer):
    away = refusal("postgresql://user@127.0.0.1:1/db", wait=0.2)
    assert re.search(r"://user@127.0.0.1:1/db cannot be used for 0.2 s .*refused.*PGPASSWORD", away)
    assert 'database "nowhere" does not exist' in refusal(postgres.url("nowhere"))
    assert 'invalid connection option "nonsense"' in refusal(f"{postgres.url('x')}&nonsense=1")
    other = postgres.create_database("other")
    assert "there is no archive postgresql://" in refusal(other, create=False)
    execute(other, "CREATE TABLE theirs (a int)")
    Archive.open(other).close()
    strange = postgres.create_schema("strange")
    execute(strange, "CREATE TABLE cases (a int)")
    assert "holds tables that raylab did not make (cases)" in refusal(strange)
    execute(other, "CREATE ROLE stranger LOGIN")
    stranger = other.replace("raylab@", "stranger@")
    assert "cannot be used (permission denied" in refusal(stranger)


def test_an_archive_of_another_version_is_refused(archive_url: str):
    Archive.open(archive_url).close()
    execute(archive_url, "UPDATE archive SET version = 9999")
    assert "is of version 9999, this raylab reads 1: go on with the" in refusal(archive_url)


def everything_told(location: str, caplog: pytest.LogCaptureFixture) -> str:
    """All that opening and using a location says: errors, tracebacks, logs, representations."""
    told: list[str] = []
    with caplog.at_level(logging.DEBUG):
        try:
            with Archive.open(location, wait=0.1) as archive:
                archive.start_run("r", {}, {})
                told += [f"opened {archive.place}", repr(archive), repr(vars(archive._database))]
        except ArchiveError as error:
            told += [str(error), repr(error), "".join(traceback.format_exception(error))]
    return "\n".join([*told, caplog.text])


@pytest.mark.parametrize(
    "location",
    [
        f"postgresql://user:{SECRET}@127.0.0.1:1/db",
        f"postgresql://user@127.0.0.1:1/db?sslpassword={SECRET}",
        # This cannot be parsed, and the parser's error would repeat it.
        f"postgresql://user:1/{SECRET}@127.0.0.1/db",
    ],
)
def test_a_password_in_a_url_is_refused_and_never_shown(
    location: str, caplog: pytest.LogCaptureFixture
):
    told = everything_told(location, caplog)
    assert "ArchiveError" in told and SECRET not in told


def test_the_password_of_the_environment_is_used_and_never_shown(
    postgres: PostgresServer, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
):
    postgres.create_database("locked")
    location = postgres.loopback_url("locked")
    assert "no password supplied" in everything_told(location, caplog)
    monkeypatch.setenv("PGPASSWORD", SECRET)
    told = everything_told(location, caplog)
    assert "password authentication failed" in told and SECRET not in told
    monkeypatch.setenv("PGPASSWORD", postgres.password)
    caplog.clear()
    told = everything_told(location, caplog)
    assert f"opened {location}" in told and postgres.password not in told


def test_a_server_that_starts_late_is_waited_for(postgres: PostgresServer):
    location = postgres.create_schema("late")
    postgres.kill()
    starting = threading.Timer(0.3, postgres.start)
    try:
        assert "cannot be used for 0.1 s" in refusal(location, wait=0.1)
    finally:
        starting.start()
    Archive.open(location).close()
    starting.join()
