"""The part of the benchmark that needs no Ray, its record, and the plain loop over score trees."""

from itertools import islice
from pathlib import Path

import numpy as np
import pytest
import torch

from jobs.benchmark import run
from raylab.arc.config.sections import TrainingConfig
from raylab.arc.data.tasks import PAD, store_pairs
from raylab.core.runs.run import Run
from raylab.together.config import BenchmarkConfig, StageConfig
from raylab.together.speed import arc
from raylab.together.speed.figures import BenchmarkRates
from raylab.together.speed.quality import plain_means, write_tree
from raylab.together.speed.train import random_steps, training_steps
from tests.arc.conftest import SMALL_MODELS, make_tasks


def test_training_is_timed_against_the_baseline(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = BenchmarkConfig(
        storage=str(tmp_path),
        name="b",
        models=(SMALL_MODELS["champion"], SMALL_MODELS["recursive"]),
        data=BenchmarkConfig().data.model_copy(update={"every": 100}),
        threads=torch.get_num_threads(),
        batch_size=2,
        rounds=2,
    )
    run(config)
    made = Run.at(tmp_path / "b")
    record = made.read_record(BenchmarkRates)
    assert made.is_finished and record is not None
    assert list(record.rates) == ["champion", "recursive"]
    for rounds in record.rates.values():
        assert len(rounds) == 2 and all(rate > 0 for pair in rounds for rate in pair)
    assert f"{config.threads} threads" in record.conditions and "batch size 2" in record.conditions
    printed = " ".join(capsys.readouterr().out.split())
    assert printed.count(" round 2/2: ") == 2 and "minimum / median / maximum" in printed


def test_a_speedrun_answers_the_tasks_at_moments_of_its_last_stage(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arc, "MOMENT_SECONDS", 0.0)
    data = BenchmarkConfig().data.model_copy(update={"every": 100})
    stage = {"model": SMALL_MODELS["recursive"], "data": data.model_copy(update={"every": 40})}
    trainings = [TrainingConfig(epochs=epochs, batch_size=8) for epochs in (1, 3)]
    config = BenchmarkConfig(
        storage=str(tmp_path),
        name="b",
        part="arc",
        data=data,
        stages=tuple(StageConfig.model_validate(stage | {"training": own}) for own in trainings),
        threads=1,
    )
    run(config)
    made = Run.at(tmp_path / "b")
    record = made.read_record(arc.Speedrun)
    assert made.is_finished and record is not None and record.tasks == 4
    # After each epoch, and with the chosen one at the end.
    assert len(record.moments) == 4
    assert all(0 <= own.first_attempt <= own.two_attempts <= 4 for own in record.moments)
    last = Run.at(made / "stage-2")
    assert last.record.config["init_from"].startswith(f"{made}/stage-1/checkpoints/epoch-0001/")
    printed = " ".join(capsys.readouterr().out.split())
    assert last.is_finished and "Seconds to solved tasks, of 4" in printed


def test_seconds_to_solved_tasks_are_those_of_the_first_moment_with_them() -> None:
    moments = [(60.0, 3.0), (120.5, 10.5), (180.0, 9.0), (240.0, 15.0)]
    record = arc.Speedrun(
        tasks=78,
        moments=tuple(
            arc.Moment(seconds=seconds, first_attempt=0.0, two_attempts=solved)
            for seconds, solved in moments
        ),
    )
    assert [record.seconds_to(goal) for goal in arc.GOALS] == [120.5, 240.0, None]


@pytest.mark.parametrize("name", ["champion", "decoder_only"])
def test_both_train_the_same_pairs(name: str) -> None:
    """An epoch of raylab has every pair once; a step of the baseline is a batch of random ones."""
    config = SMALL_MODELS[name]
    store = store_pairs(make_tasks(6))
    total = len(store.task_of)
    trained = np.zeros(total, dtype=np.int64)
    for step in training_steps(config, store, 8):
        for batch in step.batches:
            np.add.at(trained, batch.pairs.numpy(), 1)
        if trained.sum() >= total:
            break
    assert (trained == 1).all()
    for step in islice(random_steps(config, store, 8), 3):
        (batch,) = step.batches
        assert len(batch.pairs.unique()) == step.grids == 8
        assert step.cells == int((batch.target.cells != PAD).sum())
        assert batch.demo_index.shape == (8, config.context_pairs)


def test_the_plain_loop_averages_generations_of_a_tree(tmp_path: Path) -> None:
    """Accuracies are (7 m + 3 g + 11 t) mod 101 / 100; of model 0, g of 0..4 and t of 0, 1."""
    assert write_tree(tmp_path / "tree", 2, 2000) == 500
    expected = sum((3 * g + (3 * g + 11)) / 2 for g in range(5)) / 5 / 100
    assert abs(plain_means(tmp_path / "tree")["model-00"] - expected) < 1e-12
