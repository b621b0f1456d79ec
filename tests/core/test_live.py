"""Progress as a bar on a terminal, and as lines elsewhere."""

import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest

from raylab.core.live import bars, log_progress, progress
from raylab.core.log import json_lines
from tests.log_lines import lines_of

ROOT = Path(__file__).parents[2]
CODE = """
import sys, time
from raylab.core.live import bars, log_progress, progress
from raylab.core.log import log_line
with bars(), progress():
    log_progress("epoch 1", done=10, total=40, unit="steps", figures="loss 0.5", cost=0.25)
    log_line("note: \\x1b[2Jmeanwhile")
    print("trouble", file=sys.stderr)
    with progress():
        log_progress("epoch 2", done=20, total=40, unit="steps", eta_seconds=90.0)
        time.sleep(0.6)
    sys.exit("stopped")
"""
"""Work within other work, which ends early."""


def run_on_terminal(**environment: str) -> tuple[str, str]:
    """Returns what the code prints on a terminal of 80 columns, and to a standard error of a file.

    What the terminal shows for a moment is there too.
    """
    parent, child = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", CODE],
        env={"PYTHONPATH": str(ROOT), "TERM": "xterm", "COLUMNS": "80", **environment},
        stdout=child,
        stderr=subprocess.PIPE,
        text=True,
    )
    os.close(child)
    shown = b""
    try:
        while block := os.read(parent, 1 << 16):
            shown += block
    except OSError:
        # So ends a terminal whose last writer has gone.
        pass
    os.close(parent)
    error = process.communicate(timeout=300)[1]
    return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", shown.decode()), error


def test_a_terminal_has_a_bar_and_keeps_the_last_line() -> None:
    shown, error = run_on_terminal()
    assert "10/40 steps" in shown and "cost 0.25" in shown
    # The figures stay until there are others.
    assert re.search(r"20/40 steps.*ETA (90 s|89 s|2 min)\s+loss 0\.5", shown)
    assert "note: \\x1b[2Jmeanwhile" in shown
    assert "epoch 1" not in shown and shown.rstrip().endswith("epoch 2")
    assert error == "trouble\nstopped\n"


def test_a_terminal_that_cannot_move_its_cursor_has_lines() -> None:
    shown, _ = run_on_terminal(TERM="dumb")
    assert [line.strip() for line in shown.splitlines()] == [
        "epoch 1",
        "note: \\x1b[2Jmeanwhile",
        "epoch 2",
    ]


def test_lines_come_when_they_are_due(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [100.0]
    monkeypatch.setattr("raylab.core.live.time.monotonic", lambda: clock[0])
    with bars(), progress():
        for clock[0], message in (
            (129.0, "early"),
            (130.0, "due"),
            (159.0, "early"),
            (160.0, "due"),
        ):
            log_progress(message, done=1, total=2, unit="steps", every=30.0)
        log_progress("always", done=2, total=2, unit="steps")
        with json_lines("train"):
            log_progress("json", done=2, total=2, unit="steps", figures="loss 1", eta_seconds=0.0)
    *lines, last = capsys.readouterr().out.splitlines()
    assert lines == ["due", "due", "always"]
    (line,) = lines_of(last)
    assert line | {"done": 2, "total": 2, "eta_seconds": 0.0, "message": "json"} == line
    assert not {"unit", "figures", "every"} & line.keys()
