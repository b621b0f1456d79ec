"""The output of a job: text for people, or with `log=json` one JSON object a line.

All output goes through `log_line` and the tables of `core.page`, except warnings of Python's
logging.
"""

import errno
import io
import json
import logging
import sys
from collections.abc import Generator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any, TextIO

from rich.console import Console
from rich.text import Text

from raylab.core.printable import printable

NO_TERMINAL_WIDTH = 120
PASSING = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EIO})
"""Failures to write that may pass."""

LOGGER = logging.getLogger(__name__)
ALL = logging.getLogger("raylab")


def log_line(message: str, level: int = logging.INFO, /, **fields: Any) -> None:
    """Prints a message at once.

    Args:
        message: Text for people, made printable; errors go to stderr.
        level: A level of `logging`.
        **fields: The data behind the message, as JSON values; printed with `log=json` only.
    """
    if prints_json():
        LOGGER.log(level, message, extra={"fields": fields})
    else:
        _print(printable(message), sys.stderr if level >= logging.ERROR else sys.stdout)


def console() -> Console:
    """Returns a console that wraps tables only on a terminal."""
    terminal = Console()
    return terminal if terminal.is_terminal else Console(width=NO_TERMINAL_WIDTH)


def prints_json() -> bool:
    """Returns True if this process prints JSON."""
    return bool(_active())


@contextmanager
def details() -> Generator[None]:
    """Prints the output of Ray's processes too, for sessions that start while in use."""
    ALL.setLevel(logging.DEBUG)
    try:
        yield
    finally:
        ALL.setLevel(logging.NOTSET)


def prints_details() -> bool:
    """Returns True if this process prints the output of Ray's processes."""
    return ALL.isEnabledFor(logging.DEBUG)


def bind_run(run: str, run_id: str | None) -> None:
    """Tags later lines with the run. The first run stays, because it contains later ones."""
    for lines in _active():
        if lines.run is None:
            lines.run, lines.run_id = run, run_id


class PrintableFormatter(logging.Formatter):
    """Formatter of Python's warnings as printable text."""

    def format(self, record: logging.LogRecord) -> str:
        """Returns the message, with the traceback of an exception."""
        return printable(super().format(record))


@contextmanager
def json_lines(job: str) -> Generator[None]:
    """Prints all output of this process as JSON lines while in use.

    Each line has `time` (ISO 8601, UTC), `level`, `job`, `run` and `run_id` (null before there is a
    run), `message` and the fields of `log_line`. Warnings and errors of libraries have `logger`,
    and `exception` if there is a traceback; other output has `stream`, stdout or stderr. Warnings
    and errors go to stderr.
    """
    handler = _JsonLines(job)
    strays = _Strays(sys.stdout, "stdout", logging.INFO), _Strays(sys.stderr, "stderr")
    sys.stdout, sys.stderr = strays
    LOGGER.setLevel(logging.INFO)
    logging.root.addHandler(handler)
    logging.captureWarnings(True)
    try:
        yield
    finally:
        for stray in strays:
            stray.write("\n")
        sys.stdout, sys.stderr = (stray.behind for stray in strays)
        logging.root.removeHandler(handler)
        logging.captureWarnings(False)


class _JsonLines(logging.Handler):
    def __init__(self, job: str) -> None:
        super().__init__()
        self._job = job
        self.run: str | None = None
        self.run_id: str | None = None

    def emit(self, record: logging.LogRecord) -> None:
        level = record.levelname.lower()
        entry: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": level,
            "job": self._job,
            "run": self.run,
            "run_id": self.run_id,
            "message": record.getMessage().strip().removeprefix(f"{level}: "),
            **getattr(record, "fields", {"logger": record.name}),
        }
        if record.exc_info:
            entry["exception"] = logging.Formatter().formatException(record.exc_info)
        stream = sys.stderr if record.levelno >= logging.WARNING else sys.stdout
        own = stream.behind if isinstance(stream, _Strays) else stream
        # Python writes NaN and infinity, which are not JSON.
        entry = json.loads(json.dumps(entry, default=str), parse_constant=lambda _: None)
        _print(json.dumps(entry), own)


class _Strays(io.TextIOBase):
    """Replacement of a standard stream that logs each line printed to it."""

    def __init__(self, behind: TextIO, name: str, level: int = logging.WARNING) -> None:
        self.behind = behind
        self._level, self._fields = level, {"stream": name}
        self._begun = ""

    def write(self, text: str) -> int:
        # What has no line end yet waits for the next text.
        *lines, self._begun = f"{self._begun}{text}".split("\n")
        for line in lines:
            if plain := Text.from_ansi(line).plain.strip():
                log_line(plain, self._level, **self._fields)
        return len(text)

    def flush(self) -> None:
        self.behind.flush()

    def fileno(self) -> int:
        return self.behind.fileno()


def _print(text: str, stream: TextIO) -> None:
    """Prints a line at once, or on a full disk together with a later one."""
    try:
        print(text, file=stream, flush=True)
    except OSError as error:
        # Python keeps unwritten text and writes it before the next.
        if error.errno not in PASSING:
            raise


def _active() -> list[_JsonLines]:
    return [handler for handler in logging.root.handlers if isinstance(handler, _JsonLines)]
