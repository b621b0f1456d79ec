"""The command line of the jobs, run as a user runs it."""

import logging
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from raylab.config.base import JobConfig
from raylab.config.jobs import (
    BenchmarkConfig,
    PipelineConfig,
    ReportConfig,
    ReviewConfig,
    TrainConfig,
)
from raylab.config.schema import keys_of
from raylab.entrypoint import help_text, run_job
from raylab.errors import ConfigError, DataError
from raylab.log import log_line, structured
from tests.told import lines_of

ROOT = Path(__file__).parents[1]
JOBS: list[type[JobConfig]] = [
    TrainConfig,
    PipelineConfig,
    ReportConfig,
    ReviewConfig,
    BenchmarkConfig,
]
HEAVY = {"torch", "ray", "pandas", "numpy", "pyarrow", "pytorch_lightning"}


def run_script(
    job: str,
    *arguments: str,
    cwd: Path,
    options: tuple[str, ...] = (),
    stdout: int = subprocess.PIPE,
) -> subprocess.CompletedProcess[str]:
    # As Ray does with a working directory, which need not have raylab installed.
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, *options, str(ROOT / "jobs" / f"{job}.py"), *arguments]
    return subprocess.run(
        command, cwd=cwd, env=environment, stdout=stdout, stderr=subprocess.PIPE, text=True
    )


def imported(importtime: str) -> set[str]:
    names = re.findall(r"^import time:.*\|\s+([\w.]+)$", importtime, re.MULTILINE)
    return {name.split(".")[0] for name in names}


@pytest.mark.parametrize("kind", JOBS)
def test_help_comes_from_any_directory_without_a_heavy_import(
    kind: type[JobConfig], tmp_path: Path
) -> None:
    done = run_script(kind.job, "--help", cwd=tmp_path, options=("-X", "importtime"))
    assert done.returncode == 0
    assert done.stdout.startswith(f"usage: python jobs/{kind.job}.py")
    assert "raylab" in imported(done.stderr)
    assert not imported(done.stderr) & HEAVY
    assert list(tmp_path.iterdir()) == []


def test_mistake_ends_with_status_2_without_traceback_or_heavy_import(tmp_path: Path) -> None:
    done = run_script("train", "nmae=x", cwd=tmp_path, options=("-X", "importtime"))
    assert done.returncode == 2
    assert "nmae: unknown key; did you mean name?" in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""
    assert not imported(done.stderr) & HEAVY


def test_the_value_of_an_unknown_flag_is_not_repeated(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        run_job(TrainConfig, None, print, ["--api-key=hunter2"])
    assert ended.value.code == 2
    assert "unrecognized arguments: --api-key=...\n" in capsys.readouterr().err


def test_cfg_prints_the_resolved_configuration(tmp_path: Path) -> None:
    done = run_script("train", "--cfg", "job", "training.lr=0.5", cwd=tmp_path)
    assert done.returncode == 0
    config = TrainConfig.model_validate(yaml.safe_load(done.stdout))
    assert config.training.lr == 0.5
    assert config.storage == str(tmp_path / "runs")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("arguments", [("--help",), ("--cfg", "job")])
def test_a_reader_that_goes_away_ends_the_job_quietly(
    arguments: tuple[str, ...], tmp_path: Path
) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = run_script("train", *arguments, cwd=tmp_path, stdout=writer)
    finally:
        os.close(writer)
    assert (done.returncode, done.stderr) == (1, "")


@pytest.mark.parametrize("kind", JOBS)
def test_help_lists_every_key_with_its_type_default_and_doc(kind: type[JobConfig]) -> None:
    text = help_text(kind, "Doc.")
    for key in keys_of(kind):
        if key.type:
            assert f"\n  {key.path}: {key.type} = " in text
        for word in key.doc.split():
            assert word in text
    assert all((field.alias or name) in text for name, field in kind.model_fields.items())


def test_keys_cover_every_field_of_every_architecture() -> None:
    paths = {(key.path, key.variant) for key in keys_of(TrainConfig)}
    assert ("training.objective.w_ex", None) in paths
    assert ("model.rope_theta", "model.architecture=decoder_only") in paths
    assert ("model.context_heads", "model.architecture=champion") in paths
    assert ("model.architecture", None) in paths


def test_help_shows_the_default_that_the_jobs_yaml_sets() -> None:
    assert "models: list of champion" in help_text(PipelineConfig, None)
    default = '= ["champion", "encoder_decoder", "decoder_only", "recursive"]'
    assert default in help_text(PipelineConfig, None)


def test_run_gets_the_validated_configuration() -> None:
    got: list[TrainConfig] = []
    with pytest.raises(SystemExit) as ended:
        run_job(TrainConfig, None, got.append, ["training.epochs=3"])
    assert ended.value.code == 0
    assert [config.training.epochs for config in got] == [3]


def test_warnings_are_made_printable(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    with pytest.raises(SystemExit):
        run_job(TrainConfig, None, lambda _: logging.getLogger("raylab.x").warning("a\x1b[2Jb"), [])
    assert capsys.readouterr().err == "a\\x1b[2Jb\n"


@pytest.mark.parametrize(
    ("error", "status", "printed"),
    [
        (DataError("no such file: a.zip"), 1, "error: no such file: a.zip\n"),
        (ConfigError("too few workers"), 2, "error: too few workers\n"),
        (KeyboardInterrupt(), 130, "interrupted; the same command with resume=true goes on\n"),
    ],
)
def test_errors_of_the_run_print_their_message_alone(
    error: BaseException, status: int, printed: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(_: TrainConfig) -> None:
        raise error

    with pytest.raises(SystemExit) as ended:
        run_job(TrainConfig, None, fail, [])
    assert ended.value.code == status
    assert capsys.readouterr() == ("", printed)


@pytest.mark.parametrize(
    ("error", "status", "message"),
    [
        (DataError("no such file: a.zip"), 1, "no such file: a.zip"),
        (ConfigError("too few workers"), 2, "too few workers"),
        (KeyboardInterrupt(), 130, "interrupted; the same command with resume=true goes on"),
        (ZeroDivisionError("zero"), 1, "ZeroDivisionError: zero"),
        (BrokenPipeError("of a connection"), 1, "BrokenPipeError: of a connection"),
    ],
)
@pytest.mark.parametrize("in_a_file", [False, True])
def test_errors_of_the_run_are_json_lines_where_asked_for(
    error: BaseException,
    status: int,
    message: str,
    in_a_file: bool,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    def fail(_: TrainConfig) -> None:
        log_line("begun", done=0)
        raise error

    file = tmp_path / "settings.yaml"
    file.write_text("log: json\n")
    with pytest.raises(SystemExit) as ended:
        run_job(TrainConfig, None, fail, ["--config", str(file)] if in_a_file else ["log=json"])
    assert ended.value.code == status
    out, err = map(lines_of, capfd.readouterr())
    assert [(line["job"], line["message"], line["done"]) for line in out] == [("train", "begun", 0)]
    (line,) = err
    assert (line["level"], line["message"], line["status"]) == ("error", message, status)
    expected = isinstance(error, Exception) and not isinstance(error, DataError | ConfigError)
    assert ("Traceback" in line.get("exception", "")) == expected
    assert not structured()


def test_a_configuration_that_cannot_be_used_is_a_json_line_too(tmp_path: Path) -> None:
    done = run_script("train", "nmae=x", "log=json", cwd=tmp_path)
    (line,) = lines_of(done.stderr)
    assert (done.returncode, done.stdout, line["status"]) == (2, "", 2)
    assert "nmae: unknown key; did you mean name?" in line["message"]


@pytest.mark.parametrize("error", [ZeroDivisionError, BrokenPipeError])
def test_a_fault_of_raylab_keeps_its_traceback(error: type[Exception]) -> None:
    """A broken pipe too, where it is not that of the output."""

    def fail(_: TrainConfig) -> None:
        raise error

    with pytest.raises(error):
        run_job(TrainConfig, None, fail, [])


@pytest.mark.parametrize("flag", ["--multirun", "--cfg=hydra", "--config-name=x"])
def test_unknown_flags_are_refused_with_the_known_ones(
    flag: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        run_job(TrainConfig, None, lambda _: pytest.fail("ran"), [flag])
    assert ended.value.code == 2
    assert "the flags are --help, --cfg job and --config FILE" in capsys.readouterr().err


def test_a_file_of_settings_is_a_local_one(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        run_job(TrainConfig, None, lambda _: None, ["--config", "s3://bucket/best.yaml"])
    assert ended.value.code == 2
    assert "--config takes a local file" in capsys.readouterr().err


def test_flags_may_stand_between_overrides(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        run_job(TrainConfig, None, lambda _: None, ["name=a", "--cfg", "job", "resume=true"])
    assert ended.value.code == 0
    printed = yaml.safe_load(capsys.readouterr().out)
    assert (printed["name"], printed["resume"]) == ("a", True)
