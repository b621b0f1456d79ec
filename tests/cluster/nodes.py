"""A user of a Ray cluster of real nodes on this machine, and what may happen to it."""

import json
import os
import subprocess
import sys
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import psutil

from raylab.benchmarks import local_nodes as nodes
from raylab.benchmarks.local_nodes import RAY, family, local_nodes

CHECKOUT = Path(__file__).parents[2]


class Nodes(nodes.Nodes):
    """A head and workers, of which a user has the token."""

    @property
    def environment(self) -> dict[str, str]:
        """Of a user who has the token."""
        path = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
        address = {"PATH": path, "RAY_ADDRESS": self.dashboard}
        return {**os.environ, **self.authentication, **address}

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

    def api(self, path: str) -> Any:
        """What the dashboard answers to one who has the token."""
        headers = {"Authorization": f"Bearer {self.token}"}
        with urlopen(Request(f"{self.dashboard}/api/{path}", headers=headers)) as response:
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


@contextmanager
def ray_nodes(workers: int) -> Generator[Nodes]:
    """A head and so many workers, of one CPU each."""
    with local_nodes(workers) as started:
        yield Nodes(**vars(started))


def _command_line(process: psutil.Process) -> str:
    with suppress(psutil.Error):
        return " ".join(process.cmdline())
    return ""
