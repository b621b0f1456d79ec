"""Mistakes that are told before Ray is imported, and leave no run."""

import json
import re
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
CODE = """
import contextlib, io, json, os, runpy, sys, traceback
for line in sys.stdin:
    order, said = json.loads(line), io.StringIO()
    sys.argv = order["argv"]
    os.chdir(order["directory"])
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(said):
        try:
            runpy.run_path(sys.argv[0], run_name="__main__")
        except SystemExit as ended:
            status = ended.code
        except BaseException:
            status = traceback.format_exc()
    print(json.dumps([status, said.getvalue(), "ray" in sys.modules]), flush=True)
"""
"""A process that runs one job after the other, as long as none imports Ray."""

Told = Callable[..., tuple[int, str]]


@pytest.fixture(scope="module")
def jobs() -> Iterator["subprocess.Popen[str]"]:
    with subprocess.Popen(
        [sys.executable, "-c", CODE],
        env={"PYTHONPATH": str(ROOT)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        yield process


@pytest.fixture
def told(jobs: "subprocess.Popen[str]", tmp_path: Path) -> Told:
    """Returns exit status and error of a job, which did not import Ray and left no run."""
    runs = tmp_path / "runs"

    def tell(job: str, *arguments: str) -> tuple[int, str]:
        before = sorted(runs.rglob("*"))
        argv = [f"{ROOT}/jobs/{job}.py", f"storage={runs}", *arguments]
        assert jobs.stdin is not None and jobs.stdout is not None
        jobs.stdin.write(json.dumps({"argv": argv, "directory": str(tmp_path)}) + "\n")
        jobs.stdin.flush()
        answer: Any = json.loads(jobs.stdout.readline())
        status, error, imported = answer
        assert isinstance(status, int), status
        assert not imported
        assert sorted(runs.rglob("*")) == before
        return status, error

    return tell


def test_no_such_model(told: Told):
    status, error = told("evaluate", "models=[gone]")
    assert status == 1 and "no model gone" in error


def test_what_is_no_checkpoint(told: Told, tmp_path: Path):
    (tmp_path / "some.ckpt").write_text("no checkpoint")
    status, error = told("evaluate", "models=[some.ckpt]")
    assert status == 1 and "some.ckpt" in error


@pytest.mark.parametrize("there", [False, True])
def test_score_trees_that_are_missing_or_empty(told: Told, tmp_path: Path, there: bool):
    tree = tmp_path / "scores"
    if there:
        tree.mkdir()
    status, error = told("quality", f"quality_eval_cfg.scores_root_dir={tree}")
    assert status == 1 and str(tree) in error


def test_a_model_without_score_files(told: Told, tmp_path: Path):
    for model, file in (("full", "a.json"), ("hidden", ".a.json"), ("empty", "a.txt")):
        directory = tmp_path / "scores" / model / "g1"
        directory.mkdir(parents=True)
        (directory / file).write_text("{}")
    status, error = told("quality", f"quality_eval_cfg.scores_root_dir={tmp_path}/scores")
    assert status == 1 and "model empty" in error and "no score file" in error


def write_cases(tmp_path: Path) -> str:
    path = tmp_path / "cases.jsonl"
    path.write_text(json.dumps({"id": "a", "description": "A system."}) + "\n")
    return f"cases.path={path}"


@pytest.fixture
def refusing() -> Iterator[str]:
    """The URL of a port at which nothing listens."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield f"llm.endpoints.default.base_url=http://127.0.0.1:{taken.getsockname()[1]}/v1"


MODELS = [
    "llm=openai",
    *(f"llm.{role}.model=m" for role in ("annotator_a", "annotator_b", "evaluator", "adjudicator")),
]
NO_KEY = "llm.endpoints.default.api_key_env=null"


def test_cases_that_are_missing_or_broken(told: Told, tmp_path: Path):
    status, error = told("annotate", f"cases.path={tmp_path}/gone.jsonl")
    assert status == 1 and "gone.jsonl" in error
    (tmp_path / "cases.jsonl").write_text('{"id": "a"}\n')
    status, error = told("annotate", f"cases.path={tmp_path}/cases.jsonl")
    assert status == 1 and "line 1: description is missing" in error


def test_a_key_that_is_not_set(told: Told, tmp_path: Path, refusing: str):
    status, error = told("annotate", *MODELS, refusing, write_cases(tmp_path))
    assert status == 2 and "environment variable OPENAI_API_KEY, which is not set" in error


def test_an_endpoint_that_refuses_connections_or_is_not_found(
    told: Told, tmp_path: Path, refusing: str
):
    order = [*MODELS, NO_KEY, write_cases(tmp_path)]
    status, error = told("annotate", *order, refusing)
    assert status == 1 and "endpoint default" in error and "nothing listens at port" in error
    # RFC 6761 reserves the name: it never resolves.
    unknown = "llm.endpoints.default.base_url=http://nowhere.invalid/v1"
    status, error = told("annotate", *order, unknown)
    assert status == 1 and "the host nowhere.invalid is not found" in error


def test_a_storage_that_is_a_file(told: Told, tmp_path: Path):
    (tmp_path / "runs").write_text("a file")
    for job, *arguments in (("annotate", write_cases(tmp_path)), ("train",), ("tune",)):
        status, error = told(job, *arguments)
        assert status == 1 and f"{tmp_path}/runs is no directory" in error


@pytest.mark.parametrize("job", ["train", "tune", "pipeline"])
def test_a_name_that_is_taken_is_told_before_the_data_is_read(told: Told, tmp_path: Path, job: str):
    (tmp_path / "runs" / "taken").mkdir(parents=True)
    (tmp_path / "runs" / "taken" / "notes.txt").write_text("mine")
    gone = ["data=re_arc", f"data.path={tmp_path}/gone.zip"]
    status, error = told(job, "name=taken", *gone)
    assert status == 1 and "holds notes.txt" in error
    status, error = told(job, "name=free", *gone)
    assert status == 1 and "gone.zip" in error


@pytest.mark.parametrize("order", [(), ("export=open.jsonl",), ("import=open.jsonl",)])
def test_a_run_to_review_that_is_missing(tmp_path: Path, order: tuple[str, ...]):
    job = [f"{ROOT}/jobs/review.py", f"storage={tmp_path}/runs", "name=gone", *order]
    ended = subprocess.run(
        [sys.executable, "-X", "importtime", *job],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert ended.returncode == 1
    assert f"{tmp_path}/runs/gone is no annotation run" in ended.stderr
    imported = set(re.findall(r"^import time:.*\| +(\S+)$", ended.stderr, re.MULTILINE))
    assert "raylab.annotation.run" in imported
    # The page and the evaluator take seconds to import.
    assert not imported & {"ray", "openai", "raylab.review.app"}
    assert not list(tmp_path.iterdir())
