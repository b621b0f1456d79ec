"""The command line of the jobs, run as a user runs it, and the errors that it prints."""

import logging
import os
import pickle
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from raylab.arc.config.jobs import TrainConfig, TuneConfig
from raylab.benchmark.config import QualityConfig
from raylab.core.config.base import JobConfig
from raylab.core.config.schema import list_keys
from raylab.core.entrypoint import help_text, main, run_job
from raylab.core.errors import ConfigError, DataError, NonFiniteLossError, RaylabError
from raylab.core.log import log_line, prints_json
from raylab.label.codebooks.codebook import AnswerError
from raylab.label.config.jobs import AnnotateConfig
from raylab.label.review.reviews import UndecidedError
from raylab.together.config import PipelineConfig
from tests.job_configs import JOB_CONFIGS
from tests.log_lines import lines_of

ROOT = Path(__file__).parents[2]
POLICY = "OMP_WAIT_POLICY"
HEAVY = {"torch", "ray", "pandas", "numpy", "pyarrow", "pytorch_lightning"}


def run_script(
    job: str, *arguments: str, cwd: Path, stdout: int = subprocess.PIPE
) -> subprocess.CompletedProcess[str]:
    """Runs a job's script; the standard error lists its imports."""
    # As Ray does with a working directory, which need not have raylab installed.
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-X", "importtime", str(ROOT / "jobs" / f"{job}.py"), *arguments]
    return subprocess.run(
        command, cwd=cwd, env=environment, stdout=stdout, stderr=subprocess.PIPE, text=True
    )


def assert_imports_nothing_heavy(stderr: str) -> None:
    names = re.findall(r"^import time:.*\|\s+([\w.]+)$", stderr, re.MULTILINE)
    packages = {name.split(".")[0] for name in names}
    assert "raylab" in packages and not packages & HEAVY


@pytest.mark.parametrize("job", ["train", "review"])
def test_help_comes_from_any_directory_without_a_heavy_import(job: str, tmp_path: Path) -> None:
    done = run_script(job, "--help", cwd=tmp_path)
    assert done.returncode == 0
    assert done.stdout.startswith(f"usage: python {ROOT}/jobs/{job}.py [--help]")
    assert_imports_nothing_heavy(done.stderr)
    assert list(tmp_path.iterdir()) == []


def test_a_reader_that_goes_away_ends_the_job_quietly(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = run_script("train", "--help", cwd=tmp_path, stdout=writer)
    finally:
        os.close(writer)
    assert done.returncode == 1
    assert all(line.startswith("import time:") for line in done.stderr.splitlines())


@pytest.mark.parametrize("kind", JOB_CONFIGS)
def test_help_opens_with_the_main_keys_and_all_lists_every_key(kind: type[JobConfig]) -> None:
    shown, text = help_text(kind, "Summary.\n\nMore."), help_text(kind, "Doc.", every=True)
    lines = shown.partition("Summary.\n\n")[2].partition("\n\n")[0].splitlines()[1:]
    keys = [line[2:].partition("=")[0] for line in lines if not line.startswith("   ")]
    assert keys == [*kind.main, "storage", "name", "resume"] and len(keys) <= 10
    assert max(map(len, lines)) <= 80
    for key in list_keys(kind):
        if key.type:
            assert f"\n  {key.path}: {key.type} = " in text
        for word in key.doc.split():
            assert word in text
    assert all((field.alias or name) in text for name, field in kind.model_fields.items())


@pytest.mark.parametrize("arguments", [["--help=all"], ["--help", "training.lr=1"], ["-h"]])
def test_help_runs_nothing(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        run_job(TrainConfig, "Doc.", lambda _: pytest.fail("ran"), arguments)
    assert ended.value.code == 0
    assert ("training.warmup" in capsys.readouterr().out) == (arguments == ["--help=all"])


def test_the_command_runs_the_script_of_the_job(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(*arguments: str) -> tuple[object, str, str]:
        monkeypatch.setattr(sys, "argv", ["/usr/bin/raylab", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        out, err = capsys.readouterr()
        return ended.value.code, out, err

    out = run("train", "--help")[1]
    assert out.startswith("usage: raylab train [--help]")
    assert "\n    raylab train\n" in out and " -- python jobs/train.py storage=" in out
    status, out, _ = run()
    assert status == 0 and all(f"\n  {kind.job} " in out for kind in JOB_CONFIGS)
    status, _, err = run("trian")
    assert status == 2 and "there is no job 'trian': the jobs are annotate, " in err
    status, _, err = run("train", "nmae=x")
    assert status == 2 and "raylab train --help=all lists every key" in err
    assert run("../jobs/train")[0] == 2


def test_mistake_ends_with_status_2_without_traceback_or_heavy_import(tmp_path: Path) -> None:
    done = run_script("train", "nmae=x", "log=json", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert "nmae: unknown key; did you mean name?" in done.stderr
    assert "Traceback" not in done.stderr
    assert_imports_nothing_heavy(done.stderr)
    (line,) = lines_of("\n".join(re.findall(r"^{.*", done.stderr, re.MULTILINE)))
    assert line["status"] == 2


def test_unknown_flags_are_refused_without_their_values(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit) as ended:
        run_job(TrainConfig, None, lambda _: pytest.fail("ran"), ["--api-key=hunter2"])
    assert ended.value.code == 2
    words = "unrecognized arguments: --api-key=...\nthe flags are --help, --cfg job and --config"
    assert words in capsys.readouterr().err


@pytest.mark.parametrize(("users", "policy"), [(None, "passive"), ("active", "active")])
def test_threads_of_a_job_sleep_while_they_wait_unless_its_user_says_otherwise(
    users: str | None, policy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Torch reads it when it is imported: within `run`, as tests/test_imports.py holds.
    monkeypatch.delenv(POLICY, raising=False)
    if users is not None:
        monkeypatch.setenv(POLICY, users)
    read: list[str] = []
    with pytest.raises(SystemExit):
        run_job(TrainConfig, None, lambda _: read.append(os.environ[POLICY]), [])
    assert (read, os.environ.get(POLICY)) == ([policy], users)


ENDS: list[tuple[BaseException, int, str]] = [
    (DataError("no such file: a.zip"), 1, "no such file: a.zip"),
    (ConfigError("too few workers"), 2, "too few workers"),
    (KeyboardInterrupt(), 130, "interrupted; the same command with resume=true continues"),
    (SystemExit(0), 1, "code that the job runs called exit(0)"),
    (ZeroDivisionError("zero"), 1, "ZeroDivisionError: zero"),
    (BrokenPipeError("of a connection"), 1, "BrokenPipeError: of a connection"),
]


@pytest.mark.parametrize(("error", "status", "message"), ENDS)
def test_an_error_of_the_run_is_its_message_and_a_fault_of_raylab_has_a_traceback(
    error: BaseException, status: int, message: str, capfd: pytest.CaptureFixture[str]
) -> None:
    def fail(config: TrainConfig) -> None:
        assert config.training.epochs == 3
        log_line("begun", done=0)
        raise error

    is_fault = isinstance(error, Exception) and not isinstance(error, RaylabError)
    with pytest.raises(type(error) if is_fault else SystemExit) as ended:
        run_job(TrainConfig, None, fail, ["training.epochs=3"])
    out, err = capfd.readouterr()
    assert out == "begun\n"
    if not is_fault:
        assert getattr(ended.value, "code", None) == status
        assert err.endswith(f"error: {message}\n" if status != 130 else f"{message}\n")
    with pytest.raises(SystemExit) as ended:
        run_job(TrainConfig, None, fail, ["training.epochs=3", "log=json"])
    assert ended.value.code == status
    out, err = map(lines_of, capfd.readouterr())
    assert [(line["job"], line["message"], line["done"]) for line in out] == [("train", "begun", 0)]
    line = err[-1]
    assert (line["level"], line["message"], line["status"]) == ("error", message, status)
    assert ("Traceback" in line.get("exception", "")) == is_fault
    assert not prints_json()


ENDING = """
import os
from raylab.arc.config.jobs import TrainConfig
from raylab.core.entrypoint import run_job

def run(config):
    if not (child := os.fork()):
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    os._exit(0)

run_job(TrainConfig, None, run, [])
"""


def test_a_job_that_its_code_ends_has_failed_but_processes_that_it_forks_end_as_they_like() -> None:
    ended = subprocess.run([sys.executable, "-c", ENDING], capture_output=True, text=True)
    assert ended.returncode == 1
    assert ended.stderr == "error: code that the job runs called os._exit(0)\n"


MISSING: list[tuple[type[JobConfig], str, str, str]] = [
    (TrainConfig, "torch", "torch", "arc"),
    (TuneConfig, "ray.tune", "ray", "arc,ray"),
    (PipelineConfig, "pytorch_lightning", "pytorch-lightning", "arc"),
    (AnnotateConfig, "genai_prices.data", "genai-prices", "label"),
    (QualityConfig, "ray", "ray", "ray"),
]


@pytest.mark.parametrize(("kind", "module", "package", "extras"), MISSING)
def test_a_missing_package_is_one_line_with_the_command_that_installs_it(
    kind: type[JobConfig],
    module: str,
    package: str,
    extras: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    table = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    requirements = table["dependencies"] + [
        f'{item}; extra == "{extra}"'
        for extra, items in table["optional-dependencies"].items()
        for item in items
    ]
    monkeypatch.setattr(metadata, "requires", {"raylab": requirements}.get)

    def fail(name: str) -> None:
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    with pytest.raises(SystemExit) as ended:
        run_job(kind, None, lambda _: fail(module), [])
    assert ended.value.code == 2
    expected = f"error: raylab {kind.job} needs {package}: pip install 'raylab[{extras}]'\n"
    assert capsys.readouterr().err == expected
    # A package that no extra installs is a fault of raylab.
    with pytest.raises(ModuleNotFoundError):
        run_job(kind, None, lambda _: fail("raylab.absent"), [])


def test_warnings_are_made_printable(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    with pytest.raises(SystemExit):
        run_job(TrainConfig, None, lambda _: logging.getLogger("raylab.x").warning("a\x1b[2Jb"), [])
    assert capsys.readouterr().err == "a\\x1b[2Jb\n"


def kinds(base: type[RaylabError]) -> Iterator[type[RaylabError]]:
    yield base
    for kind in base.__subclasses__():
        yield from kinds(kind)


def test_an_error_crosses_processes_as_itself() -> None:
    every, message = [*kinds(RaylabError)], "the file x is broken: mend it"
    assert {UndecidedError, NonFiniteLossError} <= {*every}
    arguments: dict[type[RaylabError], Any] = {
        UndecidedError: {"code": message},
        AnswerError: {"": message},
    }
    for kind in every:
        error = kind(arguments.get(kind, message))
        again = pickle.loads(pickle.dumps(error))
        assert (type(again), str(again)) == (kind, message)
