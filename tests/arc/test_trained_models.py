import logging
from collections.abc import Callable
from pathlib import Path

import pytest

from raylab.arc.config.jobs import TrainConfig
from raylab.arc.records import PipelineMetrics
from raylab.arc.trained_models import find_models
from raylab.core.errors import RunError
from raylab.core.runs.records import Record
from raylab.core.runs.run import Run
from raylab.core.runs.run_record import RunRecord
from tests.arc.measured import training_metrics

CHECKPOINT = "checkpoints/epoch-0001/checkpoint.ckpt"
BEST = training_metrics()
Make = Callable[[str, str, Record | None], None]


@pytest.fixture
def runs(tmp_path: Path) -> Make:
    """A maker of run directories with a record and metrics."""

    def make(name: str, job: str, metrics: Record | None) -> None:
        run = Run.at(f"{tmp_path}/{name}")
        record = RunRecord.start(TrainConfig(), name)
        run.write_record(record.model_copy(update={"job": job}).finish())
        if metrics is not None:
            run.write_record(metrics)

    return make


def test_models_of_every_kind_of_run_are_found(
    runs: Make, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    runs("base", "train", BEST)
    both = ("champion", "decoder_only")
    runs("all", "pipeline", PipelineMetrics(models=dict.fromkeys(both, BEST)))
    for model in both:
        runs(f"all/{model}", "train", BEST)
    runs("sweep", "tune", None)
    runs("sweep/trials/aa01", "train", BEST)
    runs("sweep/trials/bb02", "train", None)
    file = tmp_path / "base" / "checkpoints" / "epoch-0007" / "checkpoint.ckpt"
    file.parent.mkdir(parents=True)
    file.touch()
    with caplog.at_level(logging.WARNING):
        found = find_models(["base", "all", "sweep", str(file)], str(tmp_path))
    assert found == {
        "base": f"{tmp_path}/base/{CHECKPOINT}",
        "all-champion": f"{tmp_path}/all/champion/{CHECKPOINT}",
        "all-decoder_only": f"{tmp_path}/all/decoder_only/{CHECKPOINT}",
        "sweep-aa01": f"{tmp_path}/sweep/trials/aa01/{CHECKPOINT}",
        "base-epoch-0007": str(file),
    }
    assert "bb02" in caplog.text
    assert find_models([str(tmp_path / "base")], "/elsewhere") == {"base": found["base"]}


def test_two_models_of_one_name_are_refused(runs: Make, tmp_path: Path):
    for place in ("a", "b"):
        runs(f"{place}/base", "train", BEST)
    with pytest.raises(RunError, match=r"a/base.* and .*b/base.* would both be called base"):
        find_models([f"{tmp_path}/a/base", "b/base"], str(tmp_path))


@pytest.mark.parametrize(
    ("job", "message"),
    [
        ("train", "no epoch of a training is finished"),
        ("pipeline", "no trained model yet"),
        ("tune", "no trained model yet"),
        ("evaluate", "is a run of evaluate"),
    ],
)
def test_runs_without_a_model_are_refused(runs: Make, tmp_path: Path, job: str, message: str):
    runs("run", job, None)
    with pytest.raises(RunError, match=message):
        find_models(["run"], str(tmp_path))


def test_a_model_that_is_nowhere_names_where_it_was_looked_for(tmp_path: Path):
    with pytest.raises(RunError, match=rf"no {tmp_path}/absent/record\.json or .*absent/record"):
        find_models(["absent"], str(tmp_path))
