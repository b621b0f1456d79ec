import itertools
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from raylab.arc.config.jobs import TuneConfig
from raylab.arc.config.models import CustomConfig, DecoderOnlyConfig
from raylab.arc.search import Draws, rungs, trial_config
from raylab.arc.sweep import Drawn, TrialFailure, name_trial, rank_trials
from raylab.core.runs.run import Run
from raylab.core.runs.run_record import RunRecord
from tests.arc.measured import epoch, training_metrics

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
DRAWN: Drawn = {
    "architecture": "decoder_only",
    "decoder_only.layers": 2,
    "decoder_only.dropout": 0.15,
    "training.lr": 0.01,
    "training.batch_size": 32,
    "training.restart_epochs": 4,
}
OBJECTIVE = "val_dense_grid_objective"


def sweep(**changes: object) -> TuneConfig:
    return TuneConfig.model_validate({"space": SPACE, **changes})


def draws(config: TuneConfig, count: int | None = None, score: float = 0.5) -> list[Drawn]:
    """Returns what the trials of a sweep draw that all end with the same score."""
    draws, drawn = Draws(config), list[Drawn]()
    for number in range(count or config.trial_count):
        if (each := draws.draw(str(number))) is not None:
            draws.tell(str(number), score)
            drawn.append(each)
    return drawn


def test_a_draw_holds_the_keys_of_its_architecture_alone():
    drawn = draws(sweep(trials=12, search="random"))
    layers = [each["decoder_only.layers"] for each in drawn if "decoder_only.layers" in each]
    assert {*layers} == {1, 2, 3} and 0 < len(layers) < 12
    for each in drawn:
        own = {"champion.demonstrations"}
        if each["architecture"] == "decoder_only":
            own = {"decoder_only.layers", "decoder_only.dropout"}
        assert each.keys() == {"architecture", *own, *(key for key in DRAWN if "training." in key)}
        assert 0.001 <= float(each["training.lr"] or 0) <= 0.1
        assert each["training.batch_size"] in (8, 16, 32)
        assert each["training.restart_epochs"] in range(2, 10)


def test_every_architecture_comes_once_before_chance_decides():
    drawn = draws(sweep(trials=2))
    assert [each["architecture"] for each in drawn] == ["champion", "decoder_only"]
    assert draws(sweep(trials=2)) == drawn
    assert draws(sweep(trials=2, seed=1)) != drawn


@pytest.mark.parametrize("search", ["grid", "tpe", "random"])
def test_no_configuration_is_drawn_twice_and_all_are_drawn(search: str):
    space: dict[str, Any] = {
        "model": {"champion": {}, "decoder_only": {"layers": {"integer": [1, 2]}}},
        "training": {"batch_size": {"choice": [8, 16, 8]}, "seed": {"choice": [1, 2, 3]}},
    }
    config = sweep(space=space, search=search, trials=50)
    assert config.trial_count == 18
    drawn = draws(config, 20)
    expected = [
        {"architecture": architecture} | own | {"training.batch_size": size, "training.seed": seed}
        for architecture, options in (
            ("champion", [{}]),
            ("decoder_only", [{"decoder_only.layers": layers} for layers in (1, 2)]),
        )
        for seed, size, own in itertools.product((1, 2, 3), (8, 16), options)
    ]
    # A grid is drawn in order.
    assert len(drawn) == 18
    assert drawn == expected if search == "grid" else all(each in drawn for each in expected)


def test_an_architecture_without_keys_is_drawn_once_beside_another_without_end():
    model = {"champion": {}, "decoder_only": {"dropout": {"uniform": [0.0, 0.2]}}}
    drawn = draws(sweep(space={"model": model}, trials=30))
    assert [each["architecture"] for each in drawn] == ["champion"] + 29 * ["decoder_only"]


def test_a_grid_needs_an_end():
    reason = r"space\.model\.decoder_only\.dropout, space\.training\.lr have no end"
    with pytest.raises(ValidationError, match=reason):
        sweep(search="grid")


def sweep_of(restarts: object, **changes: object) -> TuneConfig:
    training = {} if restarts is None else {"restart_epochs": restarts}
    return sweep(space={"model": {"champion": {}}, "training": training}, **changes)


@pytest.mark.parametrize(
    ("restarts", "changes", "expected"),
    [
        # The published restarts after 6, 12, 18 ... epochs: of five epochs of grace the next is 6.
        (None, {}, (6, 18, 54)),
        (None, {"grace_epochs": 7}, (12, 36)),
        # Restarts after 3, 6, 9, 12 ..., after 6, 12 ... and after 12, 24 ... epochs.
        ({"choice": [3, 6, 12]}, {}, (12, 36)),
        # One cosine over the whole training has no end before the last epoch.
        (None, {"training": {"epochs": 6}}, ()),
        ({"integer": [7, 9]}, {}, ()),
        (None, {"training": {"judge_at_restarts": False}}, (5, 15, 45)),
        # Epochs of slow and fast trials are at different places of their schedules.
        (None, {"training": {"judge_at_restarts": False, "max_minutes": 5}}, ()),
    ],
)
def test_trials_are_stopped_where_all_cosines_end(
    restarts: object, changes: dict[str, object], expected: tuple[int, ...]
):
    assert rungs(sweep_of(restarts, **changes)) == expected


def test_a_trial_trains_what_was_drawn_and_the_rest_as_configured():
    config = sweep(training={"epochs": 7, "lr": 0.5}, data={"every": 3})
    trial = trial_config(config, DRAWN, storage="/runs", name="t")
    assert trial.model == DecoderOnlyConfig(layers=2, dropout=0.15)
    assert (trial.training.lr, trial.training.batch_size) == (0.01, 32)
    assert (trial.training.epochs, trial.data.every, trial.cluster) == (7, 3, config.cluster)
    assert (trial.storage, trial.name, trial.resume) == ("/runs", "t", True)
    with pytest.raises(ValidationError):
        trial_config(config, {**DRAWN, "training.lr": -1.0}, storage="/runs", name="t")


@pytest.mark.parametrize(
    ("model", "monitor", "ranked_by"),
    [
        (("champion", "encoder_decoder"), OBJECTIVE, OBJECTIVE),
        (("recursive",), OBJECTIVE, OBJECTIVE),
        (("champion", "recursive"), OBJECTIVE, "val_solve_rate"),
        (("encoder_decoder", "custom"), "val_grid_accuracy", "val_solve_rate"),
        (("champion", "recursive"), "val_shape_accuracy", "val_shape_accuracy"),
        (("champion", "recursive"), "val_loss", "val_loss"),
    ],
)
def test_models_of_both_kinds_are_ranked_by_what_all_measure_free_running(
    model: tuple[str, ...], monitor: str, ranked_by: str
):
    own = {"custom": {"target": {"choice": ["mymodels:TwoLayers"]}}}
    space = {"model": {name: own.get(name, {}) for name in model}}
    config = sweep(space=space, training={"monitor": monitor}, search="random")
    assert config.monitor == ranked_by
    for number, drawn in enumerate(draws(config)):
        trial = trial_config(config, drawn, storage="/runs", name=f"t{number}")
        assert trial.training.monitor == ranked_by


def test_trials_of_a_model_of_ones_own_are_drawn_and_ranked_by_its_options(tmp_path: Path):
    domains = {
        "target": {"choice": ["mymodels:TwoLayers"]},
        "options.width": {"choice": [64, 96]},
        "demonstrations": {"integer": [0, 2]},
    }
    config = sweep(space={"model": {"custom": domains}}, trials=6, storage=str(tmp_path), name="s")

    def own(width: object, shown: object) -> CustomConfig:
        options = {"options": {"width": width}, "demonstrations": shown}
        return CustomConfig.model_validate({"target": "mymodels:TwoLayers", **options})

    assert config.space.classes == [own(64, 0)] and config.space.labels == ["TwoLayers"]
    run, scores = Run.locate(config), dict[str, float]()
    for number, drawn in enumerate(draws(config)):
        name = name_trial(f"t{number}", drawn, config.space)
        trial = trial_config(config, drawn, storage=f"{run}/trials", name=name)
        width, shown = drawn["custom.options.width"], drawn["custom.demonstrations"]
        assert name == f"t{number}-TwoLayers-width-{width}-demonstrations-{shown}"
        assert trial.model == own(width, shown)
        training = Run.locate(trial)
        training.write_record(RunRecord.start(trial, name))
        scores[name] = number % 3 / 4
        metrics = {"dense_grid_objective": scores[name], "cell_accuracy": 0.5, "loss": 1 + number}
        training.write_record(training_metrics(epoch(1, {**metrics, "solve_rate": 0.0})))
    failed = max(scores)
    Run.at(run / f"trials/{failed}").write_record(TrialFailure(message="no pair"))
    scores[failed] = -1.0
    metrics, trained = rank_trials(config, run, [name.partition("-")[0] for name in scores])
    ranked = metrics.trials
    assert trained.keys() == scores.keys() - {failed}
    # Of equal scores the lower loss, of the earlier trial, is first, and the rank is the same.
    assert [trial.trial for trial in ranked] == sorted(scores, key=lambda name: -scores[name])
    assert ranked[-1].failure == "no pair" and ranked[-1].trained is None
    assert [metrics.rank(place) for place in range(len(ranked) - 1)] == [1, 2, 2, 4, 4]
    # All have the same target, which names the model.
    assert ranked[0].description.startswith("TwoLayers width=")
