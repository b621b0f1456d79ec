import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from raylab.core.runs.run import Run
from tests.arc.evaluation.models import train_small

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


def test_a_signal_interrupts(tmp_path: Path):
    # A batch system sets these, and Lightning would wait for a second process.
    batch = {
        "SLURM_NTASKS": "2",
        "SLURM_JOB_ID": "1",
        "SLURM_JOB_NAME": "some",
        "SLURM_PROCID": "0",
    }
    order = [f"storage={tmp_path}", "name=run", *TINY, "training.epochs=4000"]
    driver = subprocess.Popen(
        [sys.executable, f"{ROOT}/jobs/train.py", *order],
        cwd=tmp_path,
        env=os.environ | batch,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    metrics, deadline = tmp_path / "run" / "metrics.json", time.monotonic() + 300
    while not metrics.exists() or len(json.loads(metrics.read_text())["history"]) < 2:
        assert driver.poll() is None and time.monotonic() < deadline
        time.sleep(0.05)
    driver.send_signal(signal.SIGTERM)
    _, err = driver.communicate(timeout=300)
    assert driver.returncode == 130
    assert err.decode().splitlines()[-1].endswith("the same command with resume=true continues")
    assert json.loads((tmp_path / "run" / "record.json").read_text())["finished"] is None


ENDLESS = "training.epochs=4000"
TWO_WORKERS = ["cluster.workers=2", "cluster.cpus_per_worker=1"]
SWEPT = ["space.model={encoder_decoder: {d_model: {choice: [16]}}}", "stop_early=false"]
SEEDS = [f"generations=[{','.join(map(str, range(1, 100)))}]", "scoring.include_seen=true"]


@pytest.mark.ray
@pytest.mark.parametrize(
    ("job", "keys", "sign", "number"),
    [
        ("train", [*TINY, *TWO_WORKERS, ENDLESS], "epoch ", signal.SIGINT),
        ("tune", [*SWEPT, ENDLESS], "epoch ", signal.SIGINT),
        ("evaluate", ["models=[one]", "cluster.workers=2", *SEEDS], "/99]", signal.SIGTERM),
    ],
)
def test_a_signal_ends_what_ray_runs_with_one_line(
    tmp_path: Path, job: str, keys: list[str], sign: str, number: signal.Signals
) -> None:
    if job == "evaluate":
        train_small(Run.at(tmp_path / "one"))
    order = [f"storage={tmp_path}", "name=run", *keys, "data.every=40"]
    driver = subprocess.Popen(
        [sys.executable, f"{ROOT}/jobs/{job}.py", *order],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert driver.stdout is not None
    assert any(sign in line for line in driver.stdout)
    if number == signal.SIGINT:
        # A terminal sends it to Ray's processes as well.
        os.killpg(driver.pid, number)
    else:
        driver.send_signal(number)
    _, err = driver.communicate(timeout=300)
    # The library of Ray in C++ may log that its driver has gone.
    own = [line for line in err.splitlines() if "task_manager.cc" not in line]
    assert (driver.returncode, own) == (
        130,
        ["interrupted; the same command with resume=true continues"],
    )
    assert json.loads((tmp_path / "run" / "record.json").read_text())["finished"] is None
