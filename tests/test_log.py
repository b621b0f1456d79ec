"""What is told, as text and as JSON lines."""

import contextlib
import errno
import io
import json
import logging
import os
import sys
import threading
import warnings
from datetime import UTC, datetime, timedelta
from logging.handlers import QueueHandler
from pathlib import Path
from queue import Queue
from typing import Any

import pytest
from rich.table import Table

from raylab.log import bind_run, log_line, log_tables, structured
from tests.told import lines_of, told_in_json


def table(title: str) -> Table:
    made = Table("a", "b", title=title)
    made.add_row("1", "2")
    return made


def test_text_is_printed_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    log_line("\n  10 % of {it}\n[bold]", done=1)
    log_line("warning: wet", logging.WARNING)
    log_line("error: no", logging.ERROR, status=1)
    log_tables(table("T"), table("U"), data=1)
    out, err = capsys.readouterr()
    assert out.startswith("\n  10 % of {it}\n[bold]\nwarning: wet\n")
    assert out.index(" T ") < out.index(" U ") and out.count("│ 1 │ 2 │") == 2
    assert err == "error: no\n"


def test_foreign_text_does_not_reach_the_terminal_raw(capsys: pytest.CaptureFixture[str]) -> None:
    log_line("case \x1b[2J\u202e\ud800\r1:\n  no")
    assert capsys.readouterr().out == "case \\x1b[2J\\u202e\\ud800\\r1:\n  no\n"


def test_json_has_a_line_for_each_with_its_fields(capsys: pytest.CaptureFixture[str]) -> None:
    before = datetime.now(UTC)
    with told_in_json("train"):
        bind_run("night", "01")
        bind_run("night-part", "02")
        log_line("\n10 % of\nit", done=1, eta_seconds=float("nan"), more={"x": [float("inf"), 2.5]})
        log_tables(table("T"), table("U"), data={"a": 1})
        log_line("warning: wet", logging.WARNING)
        log_line("error: no", logging.ERROR, status=1)
    out, err = map(lines_of, capsys.readouterr())
    about = {"job": "train", "run": "night", "run_id": "01"}
    for line in (*out, *err):
        time = datetime.fromisoformat(line.pop("time"))
        assert time.utcoffset() == timedelta(0)
        assert before - timedelta(milliseconds=1) <= time <= datetime.now(UTC)
    assert out == [
        {**about, "level": "info", "message": "10 % of\nit", "done": 1, "eta_seconds": None}
        | {"more": {"x": [None, 2.5]}},
        {**about, "level": "info", "message": "T; U", "data": {"a": 1}},
    ]
    assert err == [
        {**about, "level": "warning", "message": "wet"},
        {**about, "level": "error", "message": "no", "status": 1},
    ]


def test_warnings_of_all_libraries_are_json_lines(capsys: pytest.CaptureFixture[str]) -> None:
    with told_in_json("train"), warnings.catch_warnings():
        warnings.simplefilter("default")
        logging.captureWarnings(True)
        logging.getLogger("raylab.arc.data.tasks").warning("%d of %s", 2, "them")
        logging.getLogger("other").info("not told")
        warnings.warn("old", DeprecationWarning, stacklevel=1)
        try:
            raise ValueError("bad")
        except ValueError:
            logging.getLogger("other").exception("case %s", "c1")
        thread = threading.Thread(target=lambda: 1 // 0)
        thread.start()
        thread.join()
    out, err = capsys.readouterr()
    assert out == ""
    own, python, other, thread = lines_of(err)
    assert (own["message"], own["logger"], own["run"]) == (
        "2 of them",
        "raylab.arc.data.tasks",
        None,
    )
    assert "DeprecationWarning: old" in python["message"]
    assert other["message"] == "case c1" and "ValueError: bad" in other["exception"]
    assert "ZeroDivisionError" in thread["exception"] and thread["level"] == "error"


def test_a_record_of_another_process_keeps_its_time(capsys: pytest.CaptureFixture[str]) -> None:
    queue: Queue[logging.LogRecord] = Queue()
    record = logging.LogRecord("raylab.x", logging.WARNING, "", 0, "%s", ("wet",), None)
    record.created = 0.0
    QueueHandler(queue).emit(record)
    with told_in_json("train"):
        logging.getLogger("raylab").handle(queue.get())
    (line,) = lines_of(capsys.readouterr().err)
    assert (line["time"], line["message"]) == ("1970-01-01T00:00:00.000+00:00", "wet")


def test_what_others_print_are_json_lines(capsys: pytest.CaptureFixture[str]) -> None:
    with told_in_json("train"):
        sys.stdout.write("one\n\n\x1b[33m(raylet)\x1b[0m two 3\n")
        sys.stderr.write("never ends")
        hushed = io.StringIO()
        with contextlib.redirect_stdout(hushed):
            log_line("hushed")
    out, err = capsys.readouterr()
    assert [(line["message"], line["stream"]) for line in lines_of(out)] == [
        ("one", "stdout"),
        ("(raylet) two 3", "stdout"),
    ]
    (line,) = lines_of(err)
    assert (line["message"], line["level"]) == ("never ends", "warning")
    assert lines_of(hushed.getvalue())[0]["message"] == "hushed"


def test_text_is_back_when_json_ends(capsys: pytest.CaptureFixture[str]) -> None:
    before = threading.excepthook, warnings.showwarning, sys.stdout, sys.stderr
    with told_in_json("train"):
        assert structured()
    assert not structured()
    assert (threading.excepthook, warnings.showwarning, sys.stdout, sys.stderr) == before
    log_line("x", y=1)
    assert capsys.readouterr().out == "x\n"


def test_what_is_no_text_for_utf_8_is_escaped(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # pytest's own copy of the line would not pass between its processes.
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    with told_in_json("annotate"):
        log_line("half \ud800", path=sys.path[0], when=datetime(2026, 1, 2, tzinfo=UTC))
    text = capsys.readouterr().out
    assert text.isascii()
    line = json.loads(text)
    assert (line["message"], line["when"]) == ("half \ud800", "2026-01-02 00:00:00+00:00")


@pytest.mark.parametrize("log", ["text", "json"])
def test_a_line_that_a_full_disk_refuses_ends_nothing(
    log: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # /dev/full refuses every write as a full disk does.
    full = open("/dev/full", "w")
    monkeypatch.setattr(sys, "stdout", full)
    with told_in_json("train") if log == "json" else contextlib.nullcontext():
        log_line("epoch 1")
        log_line("epoch 2")
    # What is still not written is an error when the process flushes its output at the end.
    with pytest.raises(OSError, match="No space left"):
        full.close()


def test_a_line_waits_for_room_on_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Disk(io.FileIO):
        full = True

        def write(self, data: Any, /) -> int:
            if self.full:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return super().write(data)

    disk = Disk(tmp_path / "log", "w")
    with io.TextIOWrapper(io.BufferedWriter(disk)) as stream:
        monkeypatch.setattr(sys, "stdout", stream)
        log_line("epoch 1")
        disk.full = False
        log_line("epoch 2")
    assert (tmp_path / "log").read_text() == "epoch 1\nepoch 2\n"


def test_a_reader_that_is_gone_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    read, write = os.pipe()
    os.close(read)
    monkeypatch.setattr(sys, "stdout", open(write, "w", buffering=1))
    with pytest.raises(BrokenPipeError):
        log_line("epoch 1")
    with contextlib.suppress(BrokenPipeError):
        sys.stdout.close()
