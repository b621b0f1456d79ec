import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

from raylab.arc.checkpoints import read_checkpoint
from raylab.arc.config.jobs import TrainConfig
from raylab.arc.data.split import load_sides
from raylab.arc.training import local
from raylab.core.runs.run import Run
from tests.log_lines import id_in, lines_of

ROOT = Path(__file__).parents[2]
SPACE = [
    "space.training.batch_size.choice=[4,8]",
    *(
        f"space.model.{architecture}.{key}.choice=[{value}]"
        for architecture in ("champion", "encoder_decoder", "decoder_only")
        for key, value in (("d_model", 16), ("d_ff", 32), ("heads", 2))
    ),
]
SWEEP = [
    "name=sweep",
    "trials=6",
    "data.every=40",
    "training.epochs=4",
    "training.patience=null",
    "grace_epochs=2",
    *SPACE,
]

pytestmark = [pytest.mark.ray, pytest.mark.slow]


def finished_trials(sweep: Path) -> dict[str, str]:
    """Metrics, as text, of each trial that is trained to its end."""
    records = {path.parent: json.loads(path.read_text()) for path in sweep.glob("*/record.json")}
    return {
        directory.name: (directory / "metrics.json").read_text()
        for directory, record in records.items()
        if record["finished"]
    }


def started_trials(sweep: Path) -> list[Path]:
    return [path.parent for path in sweep.glob("*/metrics.json")]


@pytest.mark.fault
def test_killed_sweep_finishes_what_is_left_and_repeats_nothing(tmp_path: Path):
    command = [sys.executable, f"{ROOT}/jobs/tune.py", f"storage={tmp_path}", *SWEEP]
    trials = tmp_path / "sweep" / "trials"
    # What Tune stores from time to time is never stored here.
    seldom = os.environ | {"TUNE_GLOBAL_CHECKPOINT_S": "3600"}
    driver = subprocess.Popen(
        command, cwd=tmp_path, env=seldom, stdout=subprocess.DEVNULL, start_new_session=True
    )
    deadline = time.monotonic() + 400
    while not (finished_trials(trials) and len(started_trials(trials)) >= 3):
        assert driver.poll() is None and time.monotonic() < deadline
        time.sleep(0.05)
    os.killpg(driver.pid, signal.SIGKILL)
    driver.wait()
    before = finished_trials(trials)
    started = {path.name for path in started_trials(trials)}
    assert len(before) < 6

    resumed = subprocess.run(
        [*command, "resume=true", "log=json"], cwd=tmp_path, capture_output=True, text=True
    )
    assert resumed.returncode == 0, resumed.stderr
    lines = lines_of(resumed.stdout)
    assert resumed.stderr == ""
    assert {line["run_id"] for line in lines} == {id_in(tmp_path / "sweep")}
    assert max(line["done"] for line in lines if "done" in line) == 6
    sweep = json.loads((tmp_path / "sweep" / "metrics.json").read_text())
    ranked = [trial["trial"] for trial in sweep["trials"]]
    assert len(set(ranked)) == 6 == len(list(trials.iterdir()))
    assert started <= set(ranked)
    after = finished_trials(trials)
    # The best one is tested besides.
    history = {name: json.loads(record)["history"] for name, record in after.items()}
    assert all(history[name] == json.loads(before[name])["history"] for name in before)
    trained = [trial["trained"] for trial in sweep["trials"]]
    scores = [(each["score"], each["cell_accuracy"]) for each in trained]
    assert scores == sorted(scores, reverse=True)
    architectures = {trial["drawn"]["architecture"] for trial in sweep["trials"]}
    assert architectures == {"champion", "encoder_decoder", "decoder_only"}

    # The winner's epochs are those of the same training called directly, to the last digit.
    record = json.loads((trials / ranked[0] / "record.json").read_text())
    alone = TrainConfig.of_record(record["config"], storage=str(tmp_path), name="alone")
    again = local.fit(alone, Run.open(alone), load_sides(alone.data))
    losses = [epoch["train_loss"] for epoch in history[ranked[0]]]
    assert [epoch.train_loss for epoch in again.history] == losses

    best = yaml.safe_load((tmp_path / "sweep" / "best.yaml").read_text())
    kept = read_checkpoint(Path(trained[0]["checkpoint"])).model
    assert kept.model_dump(mode="json") == best["model"]
    page = (tmp_path / "sweep" / "report.html").read_text()
    assert all(f">{trial.partition('-')[0]}</td>" in page for trial in ranked)
    accepted = subprocess.run(
        [sys.executable, f"{ROOT}/jobs/train.py", "--config", "sweep/best.yaml", "--cfg", "job"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    printed = yaml.safe_load(accepted.stdout)
    assert {key: printed[key] for key in best} == best
