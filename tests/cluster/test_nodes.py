"""A cluster of two real nodes: who may submit, what is submitted, and where its files must be."""

import json
import shutil
import subprocess
from collections.abc import Generator
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

from raylab.quality.benchmark import write_tree
from tests.cluster.nodes import Nodes, ray_nodes

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
