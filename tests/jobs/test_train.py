import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TINY = [
    "model=encoder_decoder",
    "model.d_model=16",
    "model.d_ff=32",
    "model.heads=2",
    "data.every=40",
    "training.batch_size=4",
    "training.patience=null",
]

pytestmark = pytest.mark.slow


def command(job: str, tmp_path: Path, *arguments: str) -> list[str]:
    return [sys.executable, f"{ROOT}/jobs/{job}.py", f"storage={tmp_path}", *TINY, *arguments]


def epochs_of(path: Path) -> list[int]:
    return [row["epoch"] for row in json.loads(path.read_text())["history"]]


def until_two_epochs_are_stored(driver: subprocess.Popen[bytes], metrics: Path) -> None:
    deadline = time.monotonic() + 300
    while not (metrics.exists() and len(epochs_of(metrics)) >= 2):
        assert driver.poll() is None and time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.fault
def test_killed_driver_is_resumed_where_it_was(tmp_path: Path):
    arguments = command("train", tmp_path, "name=run", "training.epochs=40")
    metrics = tmp_path / "run" / "metrics.json"
    driver = subprocess.Popen(
        arguments, cwd=tmp_path, stdout=subprocess.DEVNULL, start_new_session=True
    )
    until_two_epochs_are_stored(driver, metrics)
    os.killpg(driver.pid, signal.SIGKILL)
    driver.wait()
    before = epochs_of(metrics)
    assert len(before) < 40

    refused = subprocess.run(arguments, cwd=tmp_path, capture_output=True, text=True)
    assert refused.returncode == 1
    assert "resume=true" in refused.stderr and "Traceback" not in refused.stderr

    resumed = subprocess.run(
        [*arguments, "resume=true"], cwd=tmp_path, capture_output=True, text=True
    )
    assert resumed.returncode == 0, resumed.stderr
    assert epochs_of(metrics) == list(range(1, 41))
    # At most the epoch in flight was trained twice.
    assert f"epoch {len(before) - 1:>2}/40  loss" not in resumed.stdout
    assert "copy_source" in json.loads(metrics.read_text())["rules"]
    assert "trained for 40 epochs" in (tmp_path / "run" / "report.html").read_text()
    assert len(json.loads((tmp_path / "run" / "record.json").read_text())["resumed"]) == 1


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_interrupts(tmp_path: Path, sent: signal.Signals):
    # The variables of a batch system, by which Lightning would wait for a second process.
    batch = {
        "SLURM_NTASKS": "2",
        "SLURM_JOB_ID": "1",
        "SLURM_JOB_NAME": "some",
        "SLURM_PROCID": "0",
    }
    driver = subprocess.Popen(
        command("train", tmp_path, "name=run", "training.epochs=4000"),
        cwd=tmp_path,
        env=os.environ | batch,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    until_two_epochs_are_stored(driver, tmp_path / "run" / "metrics.json")
    driver.send_signal(sent)
    _, err = driver.communicate(timeout=60)
    assert driver.returncode == 130
    assert err.decode().splitlines()[-1].endswith("the same command with resume=true goes on")
    assert json.loads((tmp_path / "run" / "record.json").read_text())["finished"] is None
