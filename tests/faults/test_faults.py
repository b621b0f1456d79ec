"""Each job loses a node, its driver, or the head, in the middle of its work on real nodes."""

import time
from collections.abc import Callable, Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from tests.cluster.nodes import Nodes, ray_nodes
from tests.faults.conftest import ROW
from tests.faults.jobs import JOBS, Work, write_inputs

pytestmark = [pytest.mark.fault, pytest.mark.ray, pytest.mark.slow]

WORKERS = 2
SECONDS = 900.0

each_job = pytest.mark.parametrize("kind", JOBS, ids=lambda kind: kind.job)
Kind = type[Work]


@dataclass
class Job:
    """Work submitted to a cluster."""

    nodes: Nodes
    work: Work
    name: str

    @classmethod
    def submit(cls, nodes: Nodes, work: Work, *more: str) -> "Job":
        name = uuid4().hex
        order = ["python", f"jobs/{work.job}.py", *work.order, *more]
        done = nodes.submit(*order, options=["--no-wait", "--submission-id", name])
        assert done.returncode == 0, done.stdout + done.stderr
        return cls(nodes, work, name)

    @property
    def state(self) -> Any:
        return self.nodes.api(f"jobs/{self.name}")

    @property
    def log(self) -> str:
        return self.nodes.api(f"jobs/{self.name}/logs")["logs"]

    def wait_until(self, condition: Callable[[], object]) -> None:
        """Wait while the job runs."""
        deadline = time.monotonic() + SECONDS
        while not condition():
            status = self.state["status"]
            assert status in ("PENDING", "RUNNING", "SUCCEEDED"), self.log
            assert time.monotonic() < deadline, self.log
            time.sleep(0.1)

    def succeed(self) -> str:
        """Wait for the end; the log."""
        self.wait_until(lambda: self.state["status"] == "SUCCEEDED")
        assert "Traceback" not in self.log, self.log
        return self.log

    def reach_the_middle(self) -> list[int]:
        """Wait until some of the work is stored and a worker node is at it.

        Returns:
            The nodes of all processes that do the work.
        """
        at: list[int] = []

        def in_the_middle() -> bool:
            at[:] = [number for number, _ in self.nodes.running(self.work.process)]
            return any(at) and self.work.is_under_way()

        self.wait_until(in_the_middle)
        self.work.remember()
        return at

    def tasks_tried_again(self) -> int:
        which = {"name": self.work.process.removeprefix("ray::"), "job_id": self.state["job_id"]}
        filters = "&".join(
            f"filter_keys={key}&filter_predicates=%3D&filter_values={value}"
            for key, value in which.items()
        )
        answer = self.nodes.api(f"v0/tasks?limit=10000&{filters}")
        return sum(t["attempt_number"] > 0 for t in answer["data"]["result"]["result"])


@dataclass(frozen=True)
class Undisturbed:
    """What came of a job that nothing happened to."""

    outcome: Any
    seconds: float


@pytest.fixture(scope="module")
def nodes() -> Generator[Nodes]:
    with ray_nodes(WORKERS) as nodes:
        yield nodes


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("inputs")
    write_inputs(directory)
    return directory


@pytest.fixture
def work(kind: Kind, tmp_path: Path, inputs: Path) -> Generator[Work]:
    work = kind(tmp_path, inputs)
    with work.ready():
        yield work


@pytest.fixture(scope="module")
def undisturbed(
    nodes: Nodes, inputs: Path, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[Kind], Undisturbed]:
    known: dict[Kind, Undisturbed] = {}

    def run(kind: Kind) -> Undisturbed:
        work = kind(tmp_path_factory.mktemp(kind.job), inputs)
        with work.ready():
            start = time.monotonic()
            Job.submit(nodes, work).succeed()
            return Undisturbed(work.outcome(), time.monotonic() - start)

    def once(kind: Kind) -> Undisturbed:
        if kind not in known:
            known[kind] = run(kind)
        return known[kind]

    return once


@pytest.fixture
def record(
    record_property: Callable[[str, object], None], work: Work, undisturbed: Any
) -> Callable[[str, str, float], None]:
    """Puts what a test observed into the table, once all that it checks is right."""

    def put(lost: str, redone: str, seconds: float) -> None:
        whole = undisturbed(type(work))
        assert work.outcome() == whole.outcome
        times = f"{seconds:.0f} s, undisturbed {whole.seconds:.0f} s"
        record_property(ROW, [lost, redone, times])

    return put


@each_job
def test_lost_node(work: Work, nodes: Nodes, record: Any) -> None:
    start = time.monotonic()
    job = Job.submit(nodes, work)
    at = job.reach_the_middle()
    nodes.kill(max(at))
    try:
        log = job.succeed()
    finally:
        nodes.join()
    seconds = time.monotonic() - start
    # Ray needs some 15 s to miss a node; a job may be through before, its tasks tried again.
    assert "has been marked dead" in log or "will be retried" in log, log
    lost = f"a node with {at.count(max(at))} of {len(at)} {work.parts}"
    record(lost, work.done_again(job.tasks_tried_again()), seconds)


@each_job
def test_lost_driver(work: Work, nodes: Nodes, record: Any) -> None:
    start = time.monotonic()
    job = Job.submit(nodes, work)
    at = job.reach_the_middle()
    for _, process in nodes.running(f"jobs/{work.job}.py"):
        process.kill()
    while job.state["status"] == "RUNNING":
        time.sleep(0.1)
    assert job.state["status"] == "FAILED"
    Job.submit(nodes, work, "resume=true").succeed()
    seconds = time.monotonic() - start
    lost = f"the driver, and with it {len(at)} {work.parts}"
    record(lost, work.done_again(len(at)), seconds)


@each_job
def test_lost_head(work: Work, record: Any) -> None:
    with ray_nodes(WORKERS) as lost:
        start = time.monotonic()
        at = Job.submit(lost, work).reach_the_middle()
        lost.kill(0)
        # The other nodes of the lost cluster are still there, and must do no harm.
        with ray_nodes(WORKERS) as nodes:
            Job.submit(nodes, work, "resume=true").succeed()
            seconds = time.monotonic() - start
    lost_too = f"the head and the driver, and with them {len(at)} {work.parts}"
    record(lost_too, work.done_again(len(at)), seconds)
