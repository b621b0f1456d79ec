"""Mistakes that are told before Ray is imported, and leave no run."""

import json
import re
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


FILES = {
    "some.ckpt": "no checkpoint",
    "empty/.hidden": "",
    "trees/full/g1/a.json": "{}",
    "trees/hidden/g1/.a.json": "{}",
    "trees/empty/g1/a.txt": "{}",
    "broken.jsonl": '{"id": "a"}\n',
    "cases.jsonl": '{"id": "a", "description": "A system."}\n',
    "runs/taken/notes.txt": "mine",
}
MODELS = [
    "llm=openai",
    *(f"llm.{role}.model=m" for role in ("annotator_a", "annotator_b", "evaluator", "adjudicator")),
    "cases.path=cases.jsonl",
]
NO_KEY = "llm.endpoints.default.api_key_env=null"
ENDPOINT = "llm.endpoints.default.base_url=http://"
"""RFC 6761 reserves the name nowhere.invalid: it never resolves. At port 9 nothing listens."""


@pytest.mark.parametrize(
    ("job", "arguments", "status", "problem"),
    [
        ("evaluate", ["models=[gone]"], 1, "no model gone"),
        ("evaluate", ["models=[some.ckpt]"], 1, "some.ckpt"),
        ("quality", ["quality_eval_cfg.scores_root_dir=gone"], 1, "gone"),
        ("quality", ["quality_eval_cfg.scores_root_dir=empty"], 1, "empty"),
        ("quality", ["quality_eval_cfg.scores_root_dir=trees"], 1, "model empty.*no score file"),
        ("annotate", ["cases.path=gone.jsonl"], 1, "gone.jsonl"),
        ("annotate", ["cases.path=broken.jsonl"], 1, "line 1: description is missing"),
        ("annotate", [*MODELS], 2, "variable OPENAI_API_KEY, which is not set"),
        (
            "annotate",
            [*MODELS, NO_KEY, f"{ENDPOINT}127.0.0.1:9/v1"],
            1,
            "endpoint default.*cannot be reached",
        ),
        (
            "annotate",
            [*MODELS, NO_KEY, f"{ENDPOINT}nowhere.invalid/v1"],
            1,
            "nowhere.invalid.* cannot be reached",
        ),
        # A name that is taken is told before the data are read.
        *(
            (job, [f"name={name}", "data=re_arc", "data.path=gone.zip"], 1, problem)
            for job in ("train", "tune", "pipeline")
            for name, problem in (("taken", "holds notes.txt"), ("free", "gone.zip"))
        ),
        *(
            (job, ["storage=some.ckpt"], 1, "some.ckpt is no directory")
            for job in ("train", "tune")
        ),
        ("annotate", ["storage=some.ckpt", "cases.path=cases.jsonl"], 1, "is no directory"),
    ],
)
def test_mistake_is_told(
    told: Told, tmp_path: Path, job: str, arguments: list[str], status: int, problem: str
):
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    ended, error = told(job, *arguments)
    assert ended == status and re.search(problem, error, re.DOTALL), error


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
