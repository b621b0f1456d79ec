"""A Ray cluster of real nodes on this machine, its user, and what may happen to it.

Each node is a `ray start` with one CPU.
"""

import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import psutil

CHECKOUT = Path(__file__).parents[3]
RAY = str(Path(sys.executable).with_name("ray"))
SECONDS_TO_START = 180.0
SECONDS_TO_STOP = 5.0


@dataclass
class Nodes:
    """A head and workers that demand a token, and what a user who has it may do."""

    directory: Path
    """Ray's files and the nodes' logs."""
    address: str
    dashboard: str
    """Address that jobs are submitted to."""
    token: str
    processes: "list[subprocess.Popen[bytes]]" = field(default_factory=list)
    """The head, then the workers in the order in which they were started."""

    @property
    def authentication(self) -> dict[str, str]:
        """Environment variables that hold the token."""
        return {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": self.token}

    def join(self, before: Sequence[str] = ()) -> None:
        """Starts a worker node; `before` is a command that runs the rest of the command line."""
        self._wait(self._start(f"--address={self.address}", before=before))

    def start(self, workers: int) -> None:
        """Starts the head and worker nodes, side by side."""
        port, dashboard = (url.rpartition(":")[2] for url in (self.address, self.dashboard))
        loopback = ("--dashboard-host=127.0.0.1", f"--dashboard-port={dashboard}")
        numbers = [self._start("--head", f"--port={port}", *loopback)]
        numbers += [self._start(f"--address={self.address}") for _ in range(workers)]
        for number in numbers:
            self._wait(number)

    def stop(self) -> None:
        """Ends all nodes."""
        families = [process for node in self.processes for process in family(node.pid)]
        for node in reversed(self.processes):
            node.send_signal(signal.SIGTERM)
        _, alive = psutil.wait_procs(families, SECONDS_TO_STOP)
        for process in alive:
            with suppress(psutil.NoSuchProcess):  # one may end by itself meanwhile
                process.kill()
        for node in self.processes:
            node.wait()

    def submit(
        self, *command: str, options: Sequence[str] = ()
    ) -> "subprocess.CompletedProcess[str]":
        """Submit a job of this checkout, as README says, and wait for its end."""
        return subprocess.run(
            [RAY, "job", "submit", "--working-dir", str(CHECKOUT), *options, "--", *command],
            env=self._environment() | {"RAY_ADDRESS": self.dashboard},
            capture_output=True,
            text=True,
            timeout=300,
        )

    def api(self, path: str, order: object = None) -> Any:
        """What the dashboard answers to one who has the token; `order` is sent to it."""
        body = None if order is None else json.dumps(order).encode()
        headers = {"Authorization": f"Bearer {self.token}"}
        with urlopen(Request(f"{self.dashboard}/api/{path}", body, headers)) as response:
            return json.load(response)

    def running(self, title: str) -> list[tuple[int, psutil.Process]]:
        """The processes whose command line has this in it, each with the number of its node."""
        return [
            (number, process)
            for number, node in enumerate(self.processes)
            for process in family(node.pid)
            if title in _command_line(process)
        ]

    def kill(self, number: int) -> None:
        """Kill a node and all of its processes, as a power cut would."""
        for process in family(self.processes[number].pid):
            # The first that dies takes others along.
            with suppress(psutil.NoSuchProcess):
                process.kill()
        self.processes[number].wait()

    def _environment(self) -> dict[str, str]:
        """Of one who has the token; workers run the first Python in PATH."""
        path = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
        others = {key: value for key, value in os.environ.items() if key != "RAY_ADDRESS"}
        return {**others, **self.authentication, "PATH": path}

    def _start(self, *arguments: str, before: Sequence[str] = ()) -> int:
        """Starts a node; returns its number."""
        number = len(self.processes)
        command = [*before, RAY, "start", *arguments, "--num-cpus=1", "--block"]
        command += ["--node-ip-address=127.0.0.1", "--disable-usage-stats"]
        command += [f"--dashboard-agent-listen-port={_free_port()}"]
        # Nodes that share a directory overwrite each other's copy of a job's working directory.
        command += [f"--temp-dir={self.directory}/{number}"]
        with self._log(number).open("wb") as log:
            node = subprocess.Popen(
                command, env=self._environment(), stdout=log, stderr=log, start_new_session=True
            )
        self.processes.append(node)
        return number

    def _log(self, number: int) -> Path:
        return self.directory / f"node-{number}.log"

    def _wait(self, number: int) -> None:
        node, written = self.processes[number], self._log(number)
        deadline = time.monotonic() + SECONDS_TO_START
        while "will now block forever" not in (text := written.read_text(errors="replace")):
            if node.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"ray start fails:\n{text[-3000:]}")
            time.sleep(0.1)


def family(pid: int) -> list[psutil.Process]:
    """Returns a process and all of its descendants; an empty list if it has ended."""
    try:
        process = psutil.Process(pid)
        return [*process.children(recursive=True), process]
    except psutil.NoSuchProcess:
        return []


@contextmanager
def ray_nodes(workers: int) -> Generator[Nodes]:
    """Starts a head and `workers` worker nodes of one CPU, and ends them after use."""
    # Socket paths have a maximum length.
    with tempfile.TemporaryDirectory(dir="/tmp", ignore_cleanup_errors=True) as directory:
        gcs, dashboard = f"127.0.0.1:{_free_port()}", f"http://127.0.0.1:{_free_port()}"
        nodes = Nodes(Path(directory), gcs, dashboard, secrets.token_hex(32))
        try:
            nodes.start(workers)
            yield nodes
        finally:
            nodes.stop()


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def _command_line(process: psutil.Process) -> str:
    with suppress(psutil.Error):
        return " ".join(process.cmdline())
    return ""
