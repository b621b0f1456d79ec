import optuna
import pytest
from pydantic import ValidationError

from raylab.arc.search import draw, first_points, rungs, sampler, trial_config
from raylab.arc.sweep import Drawn, describe
from raylab.config.jobs import TuneConfig
from raylab.config.models import CustomConfig, DecoderOnlyConfig

SPACE = {
    "model": {
        "champion": {"demonstrations": {"choice": [1, 2]}},
        "decoder_only": {"layers": {"integer": [1, 3]}, "dropout": {"uniform": [0.1, 0.2]}},
    },
    "training": {
        "lr": {"log_uniform": [0.001, 0.1]},
        "batch_size": {"choice": [8, 16, 32]},
        "restart_epochs": {"integer": [2, 9]},
    },
}
DEPTH = {"integer": [0, 2]}
TRAINING = {"training.lr", "training.batch_size", "training.restart_epochs"}


def sweep(**changes: object) -> TuneConfig:
    return TuneConfig.model_validate({"space": SPACE, **changes})


def draws(config: TuneConfig) -> list[Drawn]:
    study = optuna.create_study(sampler=sampler(config.search, config.seed))
    for point in first_points(config.space):
        study.enqueue_trial(point)
    return [draw(config.space, study.ask()) for _ in range(config.trials)]


def test_a_draw_holds_the_keys_of_its_architecture_alone():
    drawn = draws(sweep(trials=40, search="random"))
    keys = {
        "champion": {"champion.demonstrations"},
        "decoder_only": {"decoder_only.layers", "decoder_only.dropout"},
    }
    assert {each["architecture"] for each in drawn} == keys.keys()
    for each in drawn:
        assert set(each) == {"architecture"} | TRAINING | keys[str(each["architecture"])]
        assert 0.001 <= float(each["training.lr"] or 0) <= 0.1
        assert each["training.batch_size"] in (8, 16, 32)
        assert each["training.restart_epochs"] in range(2, 10)
    assert {each["decoder_only.layers"] for each in drawn if "decoder_only.layers" in each} == {
        1,
        2,
        3,
    }


def test_learning_rates_are_even_in_the_logarithm():
    drawn = draws(sweep(trials=400, search="random"))
    # Of [0.001, 0.1] the half below 0.01 in the logarithm; evenly it would be 9 %.
    low = sum(float(each["training.lr"] or 0) < 0.01 for each in drawn)
    assert 160 < low < 240


def test_every_architecture_comes_once_before_chance_decides():
    drawn = draws(sweep(trials=2))
    assert [each["architecture"] for each in drawn] == ["champion", "decoder_only"]
    assert draws(sweep(trials=2)) == drawn
    assert draws(sweep(trials=2, seed=1)) != drawn


def sweep_of(restarts: object, **changes: object) -> TuneConfig:
    training = {} if restarts is None else {"restart_epochs": restarts}
    return sweep(space={"model": {"champion": {}}, "training": training}, **changes)


@pytest.mark.parametrize(
    ("restarts", "changes", "expected"),
    [
        # The published restarts after 6, 12, 18 ... epochs: of five epochs of grace the next is 6.
        (None, {}, (6, 18, 54)),
        (None, {"grace_epochs": 7}, (12, 36)),
        (None, {"reduction_factor": 2, "training": {"epochs": 48}}, (6, 12, 24)),
        # Restarts after 3, 6, 9, 12 ..., after 6, 12 ... and after 12, 24 ... epochs.
        ({"choice": [3, 6, 12]}, {}, (12, 36)),
        # After 2, 4, 6 ... and after 3, 6 ...
        ({"integer": [2, 3]}, {"grace_epochs": 1}, (6, 18, 54)),
        # One cosine over the whole training has no end before the last epoch.
        (None, {"training": {"epochs": 6}}, ()),
        ({"integer": [7, 9]}, {}, ()),
        (None, {"training": {"judge_at_restarts": False}}, (5, 15, 45)),
        (None, {"training": {"judge_at_restarts": False, "epochs": 5}}, ()),
    ],
)
def test_trials_are_stopped_where_all_cosines_end(
    restarts: object, changes: dict[str, object], expected: tuple[int, ...]
):
    assert rungs(sweep_of(restarts, **changes)) == expected


DRAWN: Drawn = {
    "architecture": "decoder_only",
    "decoder_only.layers": 2,
    "decoder_only.dropout": 0.15,
    "training.lr": 0.01,
    "training.batch_size": 32,
    "training.restart_epochs": 4,
}


def test_a_trial_trains_what_was_drawn_and_the_rest_as_configured():
    config = sweep(training={"epochs": 7, "lr": 0.5}, data={"every": 3})
    trial = trial_config(config, DRAWN, storage="/runs", name="t")
    assert trial.model == DecoderOnlyConfig(layers=2, dropout=0.15)
    assert (trial.training.lr, trial.training.batch_size) == (0.01, 32)
    assert (trial.training.epochs, trial.data.every, trial.cluster) == (7, 3, config.cluster)
    assert (trial.storage, trial.name, trial.resume) == ("/runs", "t", True)
    with pytest.raises(ValidationError):
        trial_config(config, {**DRAWN, "training.lr": -1.0}, storage="/runs", name="t")


def test_the_options_of_a_model_of_ones_own_are_drawn():
    target = {"choice": ["mymodels:TwoLayers"]}
    domains = {"target": target, "options.width": {"choice": [64, 96]}, "demonstrations": DEPTH}
    config = TuneConfig.model_validate({"space": {"model": {"custom": domains}}, "trials": 20})
    drawn = draws(config)
    trials = [trial_config(config, each, storage="/runs", name="t").model for each in drawn]
    assert {each["custom.options.width"] for each in drawn} == {64, 96}
    assert trials == [
        CustomConfig(
            target="mymodels:TwoLayers",
            options={"width": int(each["custom.options.width"] or 0)},
            demonstrations=int(each["custom.demonstrations"] or 0),
        )
        for each in drawn
    ]


def test_a_draw_is_described_on_one_line():
    assert describe(DRAWN) == (
        "decoder_only layers=2 dropout=0.15 lr=0.01 batch_size=32 restart_epochs=4"
    )
