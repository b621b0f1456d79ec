"""Processes as an archive names them, so that another process can tell whether one still runs."""

import os
import platform
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import psutil

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
PID_NAMESPACE = "/proc/self/ns/pid"
LONGEST_COMMAND = 300
SAME_START_SECONDS = 1.0
"""Most by which two readings of one process's start differ."""


@dataclass(frozen=True)
class ProcessName:
    """A process, as far as others need to find it.

    Attributes:
        host: name of its machine.
        machine: what its pid is unique in: a boot of the machine and a container of it; empty if
            that cannot be told.
        pid: its number there.
        started: its start, in seconds since the epoch; a pid is used again after some time.
        command: its command line.
    """

    host: str
    machine: str
    pid: int
    started: float
    command: str

    @classmethod
    def current(cls) -> Self:
        """Returns the name of this process."""
        return cls(
            platform.node(),
            _machine(),
            os.getpid(),
            psutil.Process().create_time(),
            shlex.join(sys.argv)[:LONGEST_COMMAND],
        )

    def is_dead(self) -> bool:
        """Returns True if it ran on this machine and is gone; False if that cannot be told."""
        if not self.machine or self.machine != _machine():
            return False
        try:
            process = psutil.Process(self.pid)
            if abs(process.create_time() - self.started) > SAME_START_SECONDS:
                return True
            return process.status() == psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return True
        except psutil.AccessDenied:
            return False

    def __str__(self) -> str:
        return f"{self.command} (process {self.pid} on {self.host})"


def _machine() -> str:
    try:
        return f"{BOOT_ID.read_text().strip()} {os.readlink(PID_NAMESPACE)}"
    except OSError:
        return ""
