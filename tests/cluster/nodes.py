"""A Ray cluster of real nodes on this machine, started as a user starts one."""

import os
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psutil

RAY = str(Path(sys.executable).with_name("ray"))
CHECKOUT = Path(__file__).parents[2]
SECONDS_TO_START = 60.0


@dataclass
class Nodes:
    """A head and workers, each a `ray start` of its own, with token authentication.

    Attributes:
        directory: Ray's files, the token among them.
        address: where nodes join.
        dashboard: where jobs are submitted.
        token: the secret that all who join or submit must have.
        processes: the head, then the workers in the order in which they were started.
    """

    directory: Path
    address: str
    dashboard: str
    token: str
    processes: "list[subprocess.Popen[bytes]]" = field(default_factory=list)

    @property
    def environment(self) -> dict[str, str]:
        """Of a user who has the token."""
        path = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
        authentication = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": self.token}
        return os.environ | authentication | {"PATH": path, "RAY_ADDRESS": self.dashboard}

    def start(self, *arguments: str, before: str = "") -> None:
        """Start a node; `before` is a shell command that runs first, in the node's own mounts."""
        command = [RAY, "start", *arguments, "--num-cpus=1", "--node-ip-address=127.0.0.1"]
        command += ["--disable-usage-stats", f"--dashboard-agent-listen-port={_free_port()}"]
        # Nodes that share a directory replace each other's copy of a job's working directory.
        command += ["--block", f"--temp-dir={self.directory}/{len(self.processes)}"]
        if before:
            command = ["unshare", "--mount", "sh", "-c", f'{before} && exec "$@"', "sh", *command]
        environment = {k: v for k, v in self.environment.items() if k != "RAY_ADDRESS"}
        with (self.directory / f"node-{len(self.processes)}.log").open("wb") as log:
            process = subprocess.Popen(
                command, env=environment, stdout=log, stderr=log, start_new_session=True
            )
        self.processes.append(process)
        self._wait(len(self.processes) - 1)

    def join(self, before: str = "") -> None:
        """Start a worker node."""
        self.start(f"--address={self.address}", before=before)

    def submit(
        self,
        *command: str,
        options: Sequence[str] = (),
        directory: Path = CHECKOUT,
        **environment: str,
    ) -> "subprocess.CompletedProcess[str]":
        """Submit a job with this working directory, as README says, and wait for its end."""
        job = ["submit", "--working-dir", str(directory), *options, "--", *command]
        return self.job(*job, **environment)

    def job(self, *arguments: str, **environment: str) -> "subprocess.CompletedProcess[str]":
        """Run `ray job` with these arguments."""
        return subprocess.run(
            [RAY, "job", *arguments],
            env=self.environment | environment,
            capture_output=True,
            text=True,
            timeout=300,
        )

    def kill(self, number: int) -> None:
        """Kill a node and all of its processes, as a power cut would."""
        for process in _family(self.processes[number].pid):
            process.kill()
        self.processes[number].wait()

    def stop(self) -> None:
        """End all nodes."""
        families = [p for node in self.processes for p in _family(node.pid)]
        for node in reversed(self.processes):
            node.send_signal(signal.SIGTERM)
        _, alive = psutil.wait_procs(families, 5)
        for process in alive:
            process.kill()
        for node in self.processes:
            node.wait()

    def _wait(self, number: int) -> None:
        log = self.directory / f"node-{number}.log"
        deadline = time.monotonic() + SECONDS_TO_START
        while "will now block forever" not in log.read_text(errors="replace"):
            if self.processes[number].poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"ray start fails:\n{log.read_text(errors='replace')[-3000:]}")
            time.sleep(0.1)


@contextmanager
def ray_nodes(workers: int) -> Generator[Nodes]:
    """A head and so many workers, of one CPU each."""
    # The path of Ray's sockets must be short.
    with tempfile.TemporaryDirectory(dir="/tmp", ignore_cleanup_errors=True) as directory:
        gcs, dashboard = _free_port(), _free_port()
        nodes = Nodes(
            Path(directory),
            f"127.0.0.1:{gcs}",
            f"http://127.0.0.1:{dashboard}",
            secrets.token_hex(32),
        )
        try:
            nodes.start(
                "--head",
                f"--port={gcs}",
                "--dashboard-host=127.0.0.1",
                f"--dashboard-port={dashboard}",
            )
            for _ in range(workers):
                nodes.join()
            yield nodes
        finally:
            nodes.stop()


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def _family(pid: int) -> list[psutil.Process]:
    try:
        process = psutil.Process(pid)
        return [*process.children(recursive=True), process]
    except psutil.NoSuchProcess:
        return []
