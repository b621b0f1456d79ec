"""A cluster of two real nodes: who may submit, what is submitted, and where its files must be."""

import json
import re
import shutil
import subprocess
from collections.abc import Generator
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

from raylab.archive.store import Archive
from raylab.quality.benchmark import write_tree
from tests.cluster.nodes import Nodes, ray_nodes
from tests.jobs.test_annotate import Store, arguments, wait_for_cases, whole_answers, write_cases
from tests.llm.scripted_server import server_process

pytestmark = [pytest.mark.ray, pytest.mark.slow]


@pytest.fixture(scope="module")
def nodes() -> Generator[Nodes]:
    with ray_nodes(workers=1) as nodes:
        yield nodes


def status_of(url: str, body: bytes | None = None, **headers: str) -> int:
    try:
        with urlopen(Request(url, body, headers)) as response:
            return response.status
    except HTTPError as error:
        return error.code


def test_a_stranger_can_neither_submit_nor_look(nodes: Nodes) -> None:
    jobs = f"{nodes.dashboard}/api/jobs/"
    order = json.dumps({"entrypoint": "touch /tmp/never"}).encode()
    for headers in ({}, {"Authorization": f"Bearer {'0' * 64}"}):
        assert status_of(jobs, order, **headers) in (401, 403)
        assert status_of(jobs, **headers) in (401, 403)
    assert status_of(jobs, Authorization=f"Bearer {nodes.token}") == 200
    refused = nodes.submit("python", "jobs/quality.py", "--help", RAY_AUTH_TOKEN="0" * 64)
    assert refused.returncode != 0
    assert "usage: python jobs/quality.py" not in refused.stdout


def test_a_submitted_job_leaves_its_run_and_its_progress(nodes: Nodes, tmp_path: Path) -> None:
    write_tree(tmp_path / "scores", 2, 2_000)
    done = nodes.submit(
        "python",
        "jobs/quality.py",
        f"quality_eval_cfg.scores_root_dir={tmp_path / 'scores'}",
        f"storage={tmp_path / 'runs'}",
        "name=measured",
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Benchmark quality" in done.stdout
    quality = json.loads((tmp_path / "runs" / "measured" / "quality.json").read_text())
    assert quality["files"]["skipped"] == 0


def test_a_failed_job_ends_with_its_cause_and_a_status(nodes: Nodes, tmp_path: Path) -> None:
    done = nodes.submit("python", "jobs/quality.py", f"storage={tmp_path}", "name=none")
    assert done.returncode != 0
    assert "where are the scores?" in done.stdout
    assert "Traceback" not in done.stdout


def test_a_stopped_job_goes_on_and_asks_nothing_twice(nodes: Nodes, tmp_path: Path) -> None:
    cases, log = write_cases(tmp_path, 200), tmp_path / "calls.jsonl"
    store = Store(str(tmp_path / "archive.db"), None)
    stop = f"{nodes.dashboard}/api/jobs/stopped/stop"
    with server_process("--latency-ms", "200", "--log", str(log)) as chat:
        order = ["python", "jobs/annotate.py", *arguments(tmp_path, chat, store, cases)]
        nodes.submit(*order, options=["--no-wait", "--submission-id", "stopped"])
        wait_for_cases(store, 20)
        # What `ray job stop` sends; the command itself may take longer to start than the job to end.
        assert status_of(stop, b"", Authorization=f"Bearer {nodes.token}") == 200
        followed = nodes.job("logs", "stopped", "--follow").stdout
        assert "stopping when the calls in flight" in followed
        assert "200/200 cases" not in followed
        done = nodes.submit(*order, "resume=true")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "200/200 cases" in done.stdout and "answers known" in done.stdout
    assert max(whole_answers(log).values()) == 1


def test_a_lost_node_loses_no_case(nodes: Nodes, tmp_path: Path) -> None:
    cases, log = write_cases(tmp_path, 300), tmp_path / "calls.jsonl"
    store = Store(str(tmp_path / "archive.db"), None)
    nodes.join()
    with server_process("--latency-ms", "200", "--log", str(log)) as chat:
        # An actor a CPU; the node that was last to join has one of them.
        order = ["python", "jobs/annotate.py", *arguments(tmp_path, chat, store, cases)]
        nodes.submit(*order, options=["--no-wait", "--submission-id", "survivor"])
        wait_for_cases(store, 50)
        nodes.kill(-1)
        followed = nodes.job("logs", "survivor", "--follow")
    assert "300/300 cases" in followed.stdout, followed.stdout + followed.stderr
    assert (
        len(re.findall(r"^node \S+ is lost \(.+\): its work goes on", followed.stdout, re.M)) == 1
    )
    with Archive.open(store.location) as archive:
        assert sum(archive.counts("run").values()) == 300
        assert archive.run("run").finished is not None
        assert archive.verify("run") == []
    # Only what was in flight on the node that died was asked again.
    again = sum(count - 1 for count in whole_answers(log).values())
    assert again <= 64


def test_storage_that_a_node_cannot_see_is_refused(nodes: Nodes, tmp_path: Path) -> None:
    if shutil.which("unshare") is None or subprocess.run(["unshare", "--mount", "true"]).returncode:
        pytest.skip("giving a node a disk of its own needs the right to mount")
    storage = tmp_path / "runs"
    storage.mkdir()
    write_tree(tmp_path / "scores", 2, 2_000)
    nodes.join(before=f"mount -t tmpfs tmpfs {storage}")
    done = nodes.submit(
        "python",
        "jobs/quality.py",
        f"quality_eval_cfg.scores_root_dir={tmp_path / 'scores'}",
        f"storage={storage}",
        "name=apart",
    )
    assert done.returncode != 0
    assert "is on the disk of one machine, and 1 of 3 nodes cannot see it" in done.stdout
