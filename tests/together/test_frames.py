"""What runs leave as DataFrames: the values of the records, a row each."""

from pathlib import Path

import pytest

from raylab.arc.config.jobs import TuneConfig
from raylab.arc.records import PipelineMetrics
from raylab.arc.sweep import SweepMetrics, Trained, Trial
from raylab.core.errors import DataError, RunError
from raylab.label.protocol.run import archive_location, open_archive
from raylab.label.statistics.columns import export_columns
from raylab.together import frames
from raylab.together.config import PipelineConfig
from tests.arc.measured import held_out, training_metrics
from tests.benchmark.trees import write
from tests.label.pages.test_annotation_run import row
from tests.label.protocol.test_run import annotate, configured
from tests.together.runs import CASES, SPACE, every_kind, left, train
from tests.together.runs import content as annotation_report


def test_epochs_of_a_training_and_of_a_pipeline(tmp_path: Path):
    train(tmp_path, "one", 0.25)
    frame = frames.epochs(str(tmp_path / "one"))
    assert frame["model"].tolist() == ["one", "one"]
    assert frame["epoch"].tolist() == [1, 2]
    assert frame["val_grid_accuracy"].tolist() == [0.125, 0.25]
    every_kind(tmp_path, annotation_report())
    piped = frames.epochs(str(tmp_path / "piped"))
    assert piped["model"].tolist() == ["champion", "champion"]
    assert piped["val_grid_accuracy"].tolist() == [0.375, 0.75]
    with pytest.raises(RunError, match="no epochs"):
        frames.epochs(str(tmp_path / "scored"))
    with pytest.raises(RunError, match="is no run"):
        frames.epochs(str(tmp_path / "absent"))


def test_tests_of_a_pipeline_beside_the_baselines(tmp_path: Path):
    first = held_out(
        {"solve_rate": 0.0, "loss": 2.0}, baselines={"copy_source": {"solve_rate": 0.25}}
    )
    after = held_out({"solve_rate": 0.5}, pairs=4, intervals={"solve_rate": (0.125, 0.75)})
    metrics = PipelineMetrics(
        models={"champion": training_metrics(test=first)},
        tuned={"champion-tuned": training_metrics(test=after).model_copy(update={"before": first})},
    )
    config = {"storage": str(tmp_path), "name": "piped", "models": ["champion"]}
    left(PipelineConfig.model_validate(config), metrics)
    table = frames.tests(str(tmp_path / "piped")).set_index("model")
    assert table["solve_rate"].to_dict() == {
        "champion": 0.0, "champion-tuned": 0.5, "champion-tuned before": 0.0,
        "baseline:copy_source": 0.25,
    }  # fmt: skip
    assert table["pairs"].tolist() == [6, 4, 6, 6] and table["epoch"].tolist()[:2] == [1, 1]
    tuned = table.loc["champion-tuned", ["solve_rate_low", "solve_rate_high"]]
    assert tuned.tolist() == [0.125, 0.75]
    train(tmp_path, "one", 0.25)
    with pytest.raises(RunError, match="no tested model"):
        frames.tests(str(tmp_path / "one"))


def test_trials_of_a_sweep(tmp_path: Path):
    trained = Trained(
        score=0.5, epoch=3, loss=0.875, grids=4, solve_rate=0.25, epochs=4, parameters=10,
        teacher_forced=True, checkpoint="x.ckpt",
    )  # fmt: skip
    trials = (
        Trial(trial="t1", drawn={"training.lr": 0.25}, trained=trained, failure=None),
        Trial(trial="t2", drawn={"training.lr": 0.5}, trained=None, failure="no memory"),
    )
    config = TuneConfig.model_validate({"storage": str(tmp_path), "name": "s", "space": SPACE})
    left(config, SweepMetrics(trials=trials))
    frame = frames.trials(str(tmp_path / "s")).set_index("trial")
    assert frame["training.lr"].to_dict() == {"t1": 0.25, "t2": 0.5}
    assert frame["score"].tolist()[0] == 0.5 and frame["score"].isna().tolist() == [False, True]
    assert frame["failure"].tolist()[1] == "no memory"
    train(tmp_path, "one", 0.25)
    with pytest.raises(RunError, match="no ranked trials"):
        frames.trials(str(tmp_path / "one"))


def test_scores_of_a_tree(tmp_path: Path):
    for name, value in {"a/g1": 0.5, "a/g2": 0.75, "b/g1": 1.0, "b/g2": None}.items():
        write(tmp_path / name / "t.json", value)
    frame = frames.scores(str(tmp_path))
    assert frame["file"].tolist() == ["t.json"] * 4
    table = frame.pivot(index="model", columns="generation", values="accuracy")
    assert table.loc["a"].tolist() == [0.5, 0.75]
    assert table["g1"].tolist() == [0.5, 1.0] and table["g2"].isna().tolist() == [False, True]
    assert frame["reason"].iloc[3] == "status is error, not success"
    with pytest.raises(DataError, match="has no directories of models"):
        frames.scores(str(tmp_path / "a" / "g1"))


def test_cases_of_an_annotation_run(tmp_path: Path):
    config = configured(tmp_path)
    run = annotate(config)
    with open_archive(run, archive_location(config.storage, config.archive)) as archive:
        archive.run(run.name).add_cases([row(case, "a system") for case in CASES[:2]])
    frame = frames.cases(run.uri)
    assert frame["case"].tolist() == ["1", "2"]
    assert frame["status"].tolist() == [CASES[0].status, CASES[1].status]
    assert frame["gold"].tolist() == ["Lrn", "Evo"]
    assert set(frame.columns) == set(export_columns("AB"))
    same = frames.cases(f"file://{run.path}/?scheme=x")
    assert same["case"].tolist() == ["1", "2"]
    train(tmp_path, "one", 0.25)
    with pytest.raises(RunError, match="no annotation run"):
        frames.cases(str(tmp_path / "one"))
