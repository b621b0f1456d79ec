"""What is told, as text and as JSON lines."""

import contextlib
import io
import logging
import sys
import warnings
from datetime import UTC, datetime, timedelta

import pytest

from raylab.core.log import bind_run, json_lines, log_line
from raylab.core.page.table import Table, print_tables
from tests.log_lines import lines_of

TABLES = [Table(title, ["a", "b"], [["1", "2"]]) for title in "TU"]


def test_text_is_printed_as_it_is_but_for_what_a_terminal_would_obey(
    capsys: pytest.CaptureFixture[str],
) -> None:
    log_line("\n  10 % of {it}\n[bold]", done=1)
    log_line("case \x1b[2J\u202e\ud800\r1:")
    log_line("warning: wet", logging.WARNING)
    log_line("error: no", logging.ERROR, status=1)
    print_tables(*TABLES, data=1)
    out, err = capsys.readouterr()
    assert out.startswith(
        "\n  10 % of {it}\n[bold]\ncase \\x1b[2J\\u202e\\ud800\\r1:\nwarning: wet\n"
    )
    assert out.index(" T ") < out.index(" U ") and out.count("│ 1 │ 2 │") == 2
    assert err == "error: no\n"


def test_json_has_a_line_for_each_with_its_fields(capsys: pytest.CaptureFixture[str]) -> None:
    before = datetime.now(UTC)
    with json_lines("train"):
        bind_run("night", "01")
        bind_run("night-part", "02")
        log_line("\n10 % of\nit", done=1, eta_seconds=float("nan"), more={"x": [float("inf"), 2.5]})
        print_tables(*TABLES, data={"a": 1})
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
    with json_lines("train"), warnings.catch_warnings():
        warnings.simplefilter("default")
        logging.captureWarnings(True)
        logging.getLogger("raylab.x").warning("%d of %s", 2, "them")
        logging.getLogger("other").info("not told")
        warnings.warn("old", DeprecationWarning, stacklevel=1)
        try:
            raise ValueError("bad")
        except ValueError:
            logging.getLogger("other").exception("case %s", "c1")
    out, err = capsys.readouterr()
    assert out == ""
    own, python, other = lines_of(err)
    assert (own["message"], own["logger"], own["run"]) == ("2 of them", "raylab.x", None)
    assert "DeprecationWarning: old" in python["message"]
    assert other["message"] == "case c1" and "ValueError: bad" in other["exception"]


def test_what_others_print_are_json_lines(capsys: pytest.CaptureFixture[str]) -> None:
    with json_lines("train"):
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


@pytest.mark.parametrize("log", ["text", "json"])
def test_a_line_that_a_full_disk_refuses_ends_nothing(
    log: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # /dev/full refuses every write as a full disk does.
    full = open("/dev/full", "w")
    monkeypatch.setattr(sys, "stdout", full)
    with json_lines("train") if log == "json" else contextlib.nullcontext():
        log_line("epoch 1")
        log_line("epoch 2")
    # What is still not written is an error when the process flushes its output at the end.
    with pytest.raises(OSError, match="No space left"):
        full.close()
