"""What jobs do without Ray and whatever else takes seconds to import: mistakes, and comparisons."""

import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.together.runs import train

ROOT = Path(__file__).parents[2]
CODE = """
import io, json, os, runpy, sys, traceback
import matplotlib.figure, pandas, pyarrow.fs, scipy.stats, sqlalchemy
import raylab.together.config, raylab.core.entrypoint
SLOW = {"ray", "torch", "pytorch_lightning", "openai"}
for line in sys.stdin:
    sys.argv, directory = json.loads(line)
    if os.fork():
        os.wait()
        continue
    os.chdir(directory)
    answers, sys.stdout, sys.stderr = sys.stdout, io.StringIO(), io.StringIO()
    try:
        runpy.run_path(sys.argv[0], run_name="__main__")
    except SystemExit as ended:
        status = ended.code
    except BaseException:
        status = traceback.format_exc()
    said = sys.stdout.getvalue(), sys.stderr.getvalue()
    print(json.dumps([status, *said, sorted(SLOW & sys.modules.keys())]), file=answers, flush=True)
    os._exit(0)
"""
"""A process that runs each job in a copy of itself, which has imported nothing slow yet."""


@dataclass(frozen=True)
class Ended:
    """What a job said, and the slow packages that it imported."""

    status: int
    out: str
    error: str
    imported: list[str]


RunJob = Callable[..., Ended]


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
def run_job(jobs: "subprocess.Popen[str]", tmp_path: Path) -> RunJob:
    def run(job: str, *arguments: str) -> Ended:
        assert jobs.stdin is not None and jobs.stdout is not None
        argv = [f"{ROOT}/jobs/{job}.py", *arguments]
        jobs.stdin.write(json.dumps([argv, str(tmp_path)]) + "\n")
        jobs.stdin.flush()
        ended = Ended(*json.loads(jobs.stdout.readline()))
        assert isinstance(ended.status, int), ended
        return ended

    return run


FILES = {
    "some.ckpt": "no checkpoint",
    "trees/full/g1/a.json": "{}",
    "trees/hidden/g1/.a.json": "{}",
    "trees/empty/g1/a.txt": "{}",
    "broken.jsonl": '{"id": "a"}\n',
    "cases.jsonl": '{"id": "a", "description": "A system."}\n',
    "runs/taken/notes.txt": "mine",
}
MODELS = [
    "llm=openai",
    *(f"llm.{key}.model=m" for key in ("annotators.0", "annotators.1", "evaluator", "adjudicator")),
    "cases.path=cases.jsonl",
]
NO_KEY = "llm.endpoints.default.api_key_env=null"
ENDPOINT = "llm.endpoints.default.base_url=http://"
"""RFC 6761 reserves the name nowhere.invalid: it never resolves."""


@pytest.mark.parametrize(
    ("job", "arguments", "status", "problem"),
    [
        ("evaluate", ["models=[some.ckpt]"], 1, "some.ckpt"),
        ("quality", ["quality_eval_cfg.scores_root_dir=gone"], 1, "gone"),
        (
            "quality",
            ["quality_eval_cfg.scores_root_dir=trees"],
            1,
            "model empty .*no usable score file",
        ),
        ("annotate", ["cases.path=broken.jsonl"], 1, "no column description"),
        ("annotate", [*MODELS], 2, "variable OPENAI_API_KEY, which is not set"),
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
        ("train", ["storage=some.ckpt"], 1, "some.ckpt is no directory"),
        ("train", ["name=a", "data.split=gone.json"], 1, "gone.json cannot be read"),
        ("train", ["name=a", "init_from=gone.ckpt"], 1, "gone.ckpt; .* has no runs; give storage="),
        ("review", ["name=gone"], 1, "runs/gone is no annotation run"),
        ("report", ["runs=[absent]"], 1, r"no run absent: .*/runs/absent/\S+ or \S+/absent/\S+"),
    ],
)
def test_mistake_is_told(
    run_job: RunJob, tmp_path: Path, job: str, arguments: list[str], status: int, problem: str
):
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    before = sorted(tmp_path.rglob("*"))
    ended = run_job(job, *arguments)
    assert ended.status == status and re.search(problem, ended.error, re.DOTALL), ended
    assert "Traceback" not in ended.error
    needed = {"evaluate": ["torch"], "annotate": ["openai"]}.get(job, [])
    assert ended.imported == (["torch"] if "init_from=gone.ckpt" in arguments else needed)
    assert sorted(tmp_path.rglob("*")) == before


def test_runs_are_compared_without_ray_and_torch(run_job: RunJob, tmp_path: Path):
    train(tmp_path / "runs", "a", 0.25)
    train(tmp_path / "runs", "b", 0.5)
    done = run_job("report", "runs=[a,b]", "name=c")
    assert (done.status, done.imported) == (0, []), done
    assert "25.00" in done.out and "50.00" in done.out, done.out
    assert (tmp_path / "runs" / "c" / "report.html").exists()
