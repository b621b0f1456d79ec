import numpy as np
import pytest

from raylab.benchmark.checks.two_parameter import fit_two_parameter
from tests.benchmark.checks.simulation import as_matrix

Array = np.ndarray


def simulate(seed: int, models: int, items: int) -> tuple[Array, Array, Array, Array]:
    """Scores, and discriminations, difficulties and abilities on the scale of these models."""
    draw = np.random.default_rng(seed)
    abilities = draw.normal(size=models)
    abilities = (abilities - abilities.mean()) / abilities.std()
    slopes, difficulties = np.exp(draw.normal(0, 0.4, items)), draw.normal(size=items)
    chances = 1 / (1 + np.exp(-slopes * (abilities[:, None] - difficulties)))
    return (draw.random(chances.shape) < chances).astype(float), slopes, difficulties, abilities


def test_parameters_are_recovered_with_their_errors() -> None:
    scores, slopes, difficulties, _ = simulate(1, 200, 500)
    fit = fit_two_parameter(as_matrix(scores))
    used = [int(name[1:]) for name in fit.items["item"]]
    items, slopes, difficulties = fit.items, slopes[used], difficulties[used]
    assert np.corrcoef(items["difficulty"], difficulties)[0, 1] >= 0.95
    assert np.corrcoef(items["discrimination"], slopes)[0, 1] >= 0.8
    for name, truth in (("difficulty", difficulties), ("discrimination", slopes)):
        away = np.abs(items[name] - truth) / items[f"{name}_error"]
        assert 0.91 <= np.mean(away < 1.96) <= 0.985
    assert 0.02 <= np.mean(items["misfit_p"] < 0.05) <= 0.08
    assert fit.misfits <= 2 and "Of " in fit.sentence


def test_missing_scores_are_left_out() -> None:
    scores, slopes, difficulties, _ = simulate(2, 200, 200)
    scores[np.random.default_rng(0).random(scores.shape) < 0.2] = np.nan
    fit = fit_two_parameter(as_matrix(scores))
    used = [int(name[1:]) for name in fit.items["item"]]
    assert np.corrcoef(fit.items["difficulty"], difficulties[used])[0, 1] >= 0.95
    assert np.corrcoef(fit.items["discrimination"], slopes[used])[0, 1] >= 0.75


def test_items_that_do_not_follow_the_model_are_named() -> None:
    scores, *_, abilities = simulate(4, 300, 60)
    between = np.abs(abilities) < 0.7
    scores[:, 0] = between ^ (np.random.default_rng(0).random(300) < 0.05)
    fit = fit_two_parameter(as_matrix(scores))
    worst = fit.items.loc[fit.items["misfit_p"].idxmin()]
    assert worst["item"] == "i00000" and 1 <= fit.misfits <= 4


@pytest.mark.parametrize(
    ("shape", "reason"), [((49, 100), "there are 49"), ((60, 4), "at least 10 items")]
)
def test_too_few_models_or_items_give_a_reason(shape: tuple[int, int], reason: str) -> None:
    scores = np.random.default_rng(0).integers(2, size=shape).astype(float)
    fit = fit_two_parameter(as_matrix(scores))
    assert reason in fit.reason and fit.reason in fit.sentence and fit.items.empty
