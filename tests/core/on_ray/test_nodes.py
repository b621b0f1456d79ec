"""A cluster of two real nodes: who may submit, what is submitted, and where its files must be."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Generator
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

from jobs.evaluate import run as run_evaluate
from raylab.arc.config.jobs import EvaluateConfig
from raylab.core.config.compose import load_config
from raylab.core.files import Place
from raylab.together.speed.quality import write_tree
from tests.core.on_ray.nodes import Nodes, ray_nodes
from tests.jobs.test_annotate import (
    Store,
    archived_calls,
    arguments,
    wait_for_cases,
    whole_answers,
    write_cases,
)
from tests.jobs.test_train import ROOT, TINY
from tests.llm.scripted_server import server_process
from tests.object_storage import ObjectStorage, assert_no_secret

pytestmark = [pytest.mark.ray, pytest.mark.slow]


@pytest.fixture(scope="module")
def nodes(object_storage: ObjectStorage) -> Generator[Nodes]:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in object_storage.environment.items():
            patch.setenv(name, value)
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
    assert isinstance(nodes.api("jobs/"), list)


def test_a_job_started_directly_joins_the_cluster_that_it_is_given(
    nodes: Nodes, tmp_path: Path
) -> None:
    write_tree(tmp_path / "scores", 2, 100)
    environment = {key: value for key, value in os.environ.items() if not key.startswith("RAY_")}

    def measure(name: str, **token: str) -> "subprocess.Popen[str]":
        scores = f"quality_eval_cfg.scores_root_dir={tmp_path / 'scores'}"
        order = [scores, f"storage={tmp_path}", f"name={name}", f"cluster.address={nodes.address}"]
        return subprocess.Popen(
            [sys.executable, "jobs/quality.py", *order, "diagnosis=false"],
            cwd=ROOT, env=environment | token, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip

    started = measure("joined", **nodes.authentication), measure("refused")
    joined, refused = (process.communicate(timeout=300)[1] for process in started)
    assert [process.returncode for process in started] == [0, 2], joined
    assert "Traceback" not in refused
    assert f"error: no Ray cluster at {nodes.address} (" in refused
    assert "RAY_AUTH_TOKEN if it asks for a token" in refused


def test_a_model_is_trained_and_scored_on_object_storage(nodes: Nodes, s3: ObjectStorage) -> None:
    runs = Place.at(s3.uri) / "arc"
    train = [*TINY, "training.epochs=2", "cluster.workers=2", f"storage={runs}", "name=two"]
    done = nodes.submit("python", "jobs/train.py", *train, options=["--log-color", "false"])
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Traceback" not in done.stdout
    for epoch in (1, 2):
        assert done.stdout.count(f"epoch {epoch}/2  loss") == 1
    assert done.stdout.count(", 2 worker(s), cpu") == 1
    # Nothing for a terminal, and no line of a worker's own log.
    assert "\x1b" not in done.stdout and "\r" not in done.stdout
    assert "pid=" not in done.stdout
    (best,) = re.findall(rf"best checkpoint {runs}/(\S+)", done.stdout)
    assert (runs / best).exists() and (runs / "two/tensorboard").is_directory()
    assert "copy_source" in json.loads((runs / "two/metrics.json").read())["baselines"]
    assert b"trained for 2 epochs" in (runs / "two/report.html").read()
    order = [f"storage='{runs}'", "name=scores", "models=[two]", "generations=[1]"]
    run_evaluate(load_config(EvaluateConfig, [*order, "data.every=40"]))
    scores = json.loads((runs / "scores/metrics.json").read())["models"]["two"]
    assert scores.keys() == {"seed-1"}
    assert_no_secret(s3, runs)


def test_a_stopped_job_keeps_every_answer(nodes: Nodes, tmp_path: Path) -> None:
    cases, log = write_cases(tmp_path, 200), tmp_path / "calls.jsonl"
    store = Store(str(tmp_path / "archive.db"), None)
    with server_process("--latency-ms", "200", "--log", str(log)) as chat:
        # A call that a busy machine delays would count as lost.
        patient = "llm.endpoints.default.limits.timeout=60"
        command = ["python", f"{ROOT}/jobs/annotate.py", *arguments(tmp_path, chat, store, cases)]
        nodes.api("jobs/", {"entrypoint": shlex.join([*command, patient]), "submission_id": "one"})
        wait_for_cases(store, 20)
        # What `ray job stop` sends.
        nodes.api("jobs/one/stop", {})
        deadline = time.monotonic() + 300
        while nodes.api("jobs/one")["status"] == "RUNNING" and time.monotonic() < deadline:
            time.sleep(0.1)
        followed = nodes.api("jobs/one/logs")["logs"]
    assert "stopping when the calls in flight" in followed
    assert "200/200 cases" not in followed
    assert archived_calls(store, cases) == len(whole_answers(log))


OPEN = """
import sys
from raylab.core.on_ray import workers_for
from raylab.arc.config.jobs import TrainConfig
from raylab.core.errors import RunError
from raylab.core.runs.run import Run
for storage in sys.argv[1:]:
    config = TrainConfig(storage=storage, name='apart', cluster={'workers': 2})
    try:
        with workers_for(config.cluster, Run.open(config)):
            print('nothing is refused')
    except RunError as error:
        print(error)
"""
"""Opens a run in each of these places, as a job does."""


def test_storage_that_a_node_cannot_see_is_refused(
    nodes: Nodes, tmp_path: Path, object_storage: ObjectStorage
) -> None:
    if shutil.which("unshare") is None or subprocess.run(["unshare", "--mount", "true"]).returncode:
        pytest.skip("giving a node a disk of its own needs the right to mount")
    storage = tmp_path / "runs"
    storage.mkdir()
    mount = f'mount -t tmpfs tmpfs {storage} && export AWS_SECRET_ACCESS_KEY=another && exec "$@"'
    nodes.join(before=["unshare", "--mount", "sh", "-c", mount, "sh"])
    done = nodes.submit("python", "-c", OPEN, "runs", str(storage), object_storage.uri)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "runs/apart lies in Ray's copy of the working directory" in done.stdout
    assert "give storage= a directory that all nodes share, or a URI" in done.stdout
    for kind in ("on the disk of one machine", "in remote storage"):
        assert f"is {kind}, and 1 of 3 nodes cannot see it" in done.stdout
    assert object_storage.secret_key not in done.stdout
