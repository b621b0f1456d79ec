"""Each job loses a node, its driver, or the head, in the middle of its work on real nodes."""

import time
from collections.abc import Callable, Generator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from tests.core.on_ray.nodes import Nodes, ray_nodes
from tests.faults.conftest import ROW
from tests.faults.jobs import JOBS, Elastic, Work, write_inputs

pytestmark = [pytest.mark.fault, pytest.mark.ray, pytest.mark.slow]

WORKERS = 2
SECONDS = 1800.0

each_job = pytest.mark.parametrize("kind", JOBS, ids=lambda kind: kind.job)
Kind = type[Work]


@dataclass
class Job:
    """Work submitted to a cluster."""

    nodes: Nodes
    work: Work
    name: str
    start: float

    @classmethod
    def submit(cls, nodes: Nodes, work: Work, *more: str) -> "Job":
        name, start = uuid4().hex, time.monotonic()
        order = ["python", f"jobs/{work.job}.py", *work.order, *more]
        done = nodes.submit(*order, options=["--no-wait", "--submission-id", name])
        assert done.returncode == 0, done.stdout + done.stderr
        return cls(nodes, work, name, start)

    @property
    def state(self) -> Any:
        return self.nodes.api(f"jobs/{self.name}")

    @property
    def log(self) -> str:
        return self.nodes.api(f"jobs/{self.name}/logs")["logs"]

    def wait_until(self, condition: Callable[[], object]) -> None:
        """Wait while the job runs."""
        deadline = time.monotonic() + SECONDS
        status = "PENDING"
        while not condition():
            assert status in ("PENDING", "RUNNING"), self.log
            assert time.monotonic() < deadline, self.log
            time.sleep(0.1)
            status = self.state["status"]

    def succeed(self) -> str:
        """Wait for the end; the log."""
        self.wait_until(lambda: self.state["status"] not in ("PENDING", "RUNNING"))
        assert self.state["status"] == "SUCCEEDED", self.log
        assert "Traceback" not in self.log, self.log
        return self.log

    def reach_the_middle(self) -> list[int]:
        """Waits until a worker node is at it and some is stored; the nodes of all who work."""
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
def undisturbed(nodes: Nodes, inputs: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Runs a job that nothing happens to; returns its outcome and the seconds it took."""

    @cache
    def run(kind: Kind) -> tuple[Any, float]:
        work = kind(tmp_path_factory.mktemp(kind.job), inputs)
        with work.ready():
            job = Job.submit(nodes, work)
            job.succeed()
            return work.outcome(), time.monotonic() - job.start

    return run


@pytest.fixture
def record(
    record_property: Callable[[str, object], None], work: Work, undisturbed: Any
) -> Callable[[Job, str, str], None]:
    """Puts what a test observed since a job began into the table, once all it checks is right."""

    def put(job: Job, lost: str, redone: str) -> None:
        seconds = time.monotonic() - job.start
        outcome, whole = undisturbed(type(work))
        assert work.ends_as(outcome)
        record_property(ROW, [work.job, lost, redone, f"{seconds:.0f} s ({whole:.0f} s)"])

    return put


@each_job
def test_lost_node(work: Work, nodes: Nodes, record: Any) -> None:
    job = Job.submit(nodes, work)
    at = job.reach_the_middle()
    nodes.kill(max(at))
    try:
        log = job.succeed()
    finally:
        nodes.join()
    # Ray needs some 15 s to miss a node; a job may be through before, its tasks tried again.
    assert "has been marked dead" in log or "will be retried" in log, log
    lost = f"a node, {at.count(max(at))} of {len(at)} {work.parts}"
    record(job, lost, work.done_again(job.tasks_tried_again()))


@pytest.mark.parametrize("kind", [Elastic], ids=["train"])
def test_resized(work: Elastic, nodes: Nodes, record: Any) -> None:
    def wait_for_workers(count: int, time: int) -> None:
        job.wait_until(lambda: job.log.count(f"{count} worker(s), ") == time)

    job = Job.submit(nodes, work)
    at = job.reach_the_middle()
    wait_for_workers(work.most, 1)
    nodes.kill(max(at))
    try:
        wait_for_workers(work.most - 1, 1)
    finally:
        nodes.join()
    wait_for_workers(work.most, 2)
    assert job.state["status"] == "RUNNING"
    job.succeed()
    lost = f"a node, 1 of {work.most} {work.parts}; another joins later"
    record(job, lost, work.done_again(0))


@each_job
def test_lost_driver(work: Work, nodes: Nodes, record: Any) -> None:
    job = Job.submit(nodes, work)
    at = job.reach_the_middle()
    for _, process in nodes.running(f"jobs/{work.job}.py"):
        process.kill()
    while job.state["status"] == "RUNNING":
        time.sleep(0.1)
    assert job.state["status"] == "FAILED"
    Job.submit(nodes, work, "resume=true").succeed()
    record(job, f"the driver, {len(at)} {work.parts}", work.done_again(len(at)))


@each_job
def test_lost_head(work: Work, record: Any) -> None:
    with ray_nodes(WORKERS) as before:
        job = Job.submit(before, work)
        at = job.reach_the_middle()
        before.kill(0)
        # The other nodes of the lost cluster are still there, and must do no harm.
        with ray_nodes(WORKERS) as nodes:
            Job.submit(nodes, work, "resume=true").succeed()
            lost = f"head and driver, {len(at)} {work.parts}"
            record(job, lost, work.done_again(len(at)))
