from pathlib import Path

from raylab.arc.search import trial_config
from raylab.arc.sweep import Drawn, name_trial, rank_trials
from raylab.config.jobs import TuneConfig
from raylab.runs.run import Run
from raylab.runs.run_record import RunRecord
from tests.arc.measured import epoch, training_metrics

DOMAINS = {"target": {"choice": ["mymodels:TwoLayers"]}, "options.width": {"choice": [64, 96]}}


def test_trials_of_a_model_of_ones_own_are_ranked_by_the_options_that_were_drawn(tmp_path: Path):
    space = {"model": {"custom": DOMAINS}}
    config = TuneConfig.model_validate({"space": space, "storage": str(tmp_path), "name": "sweep"})
    drawn: Drawn = {
        "architecture": "custom",
        "custom.target": "mymodels:TwoLayers",
        "custom.options.width": 96,
    }
    sweep = Run.named(config, config.job)
    trial = trial_config(
        config, drawn, storage=f"{sweep}/trials", name=name_trial("abc", drawn, config.space)
    )
    run = Run.named(trial, trial.job)
    assert run.name == "abc-custom-width-96"
    run.write_record(RunRecord.of(trial, trial.job, run.name))
    metrics = {"dense_grid_objective": 0.5, "grid_accuracy": 0.5, "cell_accuracy": 0.75}
    run.write_record(training_metrics(epoch(1, metrics)))
    (ranked,) = rank_trials(config, sweep, ["abc"]).trials
    # All have the same target, so it was not searched.
    assert ranked.drawn == {"architecture": "custom", "custom.options.width": 96}
    assert ranked.description == "custom width=96"
