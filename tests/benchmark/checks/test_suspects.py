"""Suspects: faults that were planted are found, and few others."""

from itertools import product

import numpy as np
import pandas as pd
import pytest
from scipy.special import expit

from raylab.benchmark.checks.items import judge_items
from raylab.benchmark.checks.suspects import LIKELY, Fault, Suspect, find_suspects
from raylab.benchmark.checks.wrong_keys import estimate_abilities, wrong_key_chances
from raylab.benchmark.responses import make_responses
from tests.benchmark.checks.simulation import Array, as_responses

ITEMS, CHOICES = 500, 4
SEEDS = range(10)
WRONG_KEYS, ALWAYS_RIGHT, DUPLICATES = (
    set(range(*ends)) for ends in ((0, 20), (20, 35), (490, 500))
)
PLANTED = WRONG_KEYS | DUPLICATES | ALWAYS_RIGHT


def simulate(seed: int, models: int, spread: float = 1, guess: float = 0.25) -> tuple[Array, Array]:
    """Returns scores without and with planted faults; slopes, levels and abilities are drawn."""
    rng = np.random.default_rng(seed)
    abilities, levels = rng.normal(0, spread, (models, 1)), rng.normal(0.7, 1.2, ITEMS)
    slopes = np.exp(rng.normal(0, 0.3, ITEMS))
    chances = guess + (1 - guess) * expit(slopes * (abilities + levels))
    faulty = chances.copy()
    faulty[:, list(WRONG_KEYS)] = (1 - chances[:, list(WRONG_KEYS)]) / (CHOICES - 1)
    faulty[:, list(ALWAYS_RIGHT)] = 1
    draws = rng.random(chances.shape)
    return (draws < chances).astype(float), (draws < faulty).astype(float)


def draw_items(seed: int) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    texts = ["".join(map(chr, row)) for row in rng.integers(97, 123, (ITEMS, 60))]
    for place in DUPLICATES:
        texts[place] = texts[place - 100].upper()
    return pd.DataFrame({"text": texts}).rename("i{:05}".format)


def suspect(scores: Array, items: pd.DataFrame, answer: str = "") -> tuple[Suspect, ...]:
    rows = as_responses(scores[..., None, None]).table.assign(answer="")
    rows.loc[(rows["model"] == "m00000") & (rows["item"] == "i00000"), "answer"] = answer
    responses = make_responses(rows, items)
    return find_suspects(responses, judge_items(responses.matrix))


def names(suspects: tuple[Suspect, ...], kind: Fault) -> set[str]:
    return {s.item for s in suspects if any(reason.kind == kind for reason in s.reasons)}


def rates(suspects: set[int], planted: set[int]) -> tuple[float, float]:
    """Returns precision and recall."""
    right = len(suspects & planted)
    return right / max(len(suspects), 1), right / len(planted)


@pytest.mark.parametrize(
    ("models", "least", "precision", "recall"),
    [(6, 0.8, 0.55, 0.55), (12, 0.9, 0.85, 0.75), (50, 0.95, 0.9, 0.9)],
)
def test_planted_faults_are_detected(
    models: int, least: float, precision: float, recall: float
) -> None:
    results = list[tuple[float, ...]]()
    for seed in SEEDS:
        scores = simulate(seed, models)[1]
        suspects = suspect(scores, draw_items(seed))
        unanimous = set(np.flatnonzero(np.ptp(scores, axis=0) == 0).tolist())
        # Items that are always right by chance are easy to see: they would only flatter precision.
        places = {int(s.item[1:]) for s in suspects} - (unanimous - PLANTED)
        keys = {int(name[1:]) for name in names(suspects, Fault.WRONG_KEY)}
        results.append((*rates(places, PLANTED), *rates(keys, WRONG_KEYS)))
    assert (np.mean(results, axis=0) > (least, least, precision, recall)).all()


@pytest.mark.parametrize("models", [6, 12, 50])
def test_sound_items_are_hardly_ever_suspected(models: int) -> None:
    for spread in (0, 1):
        shares = [
            np.mean(wrong_key_chances(simulate(seed, models, spread, guess)[0]) > LIKELY)
            for seed, guess in product(SEEDS, (0, 0.25))
        ]
        assert np.mean(shares) < 0.005


def test_pure_noise_has_no_wrong_keys() -> None:
    noise = np.random.default_rng(0).integers(0, 2, (12, 500)).astype(float)
    assert not np.any(wrong_key_chances(noise) > LIKELY)
    assert np.isnan(wrong_key_chances(noise[:4])).all()
    assert np.isnan(wrong_key_chances(noise[:, :10])).all()
    # As much as is left of it: the standard error of a logit is 0.09.
    assert np.std(estimate_abilities(noise)) < 0.09


def test_missing_scores_are_no_wrong_ones() -> None:
    scores = simulate(0, 12)[1]
    scores[np.random.default_rng(1).random(scores.shape) < 0.2] = np.nan
    keys = set(np.flatnonzero(wrong_key_chances(scores) > LIKELY).tolist())
    precision, recall = rates(keys, WRONG_KEYS)
    assert precision > 0.7
    assert recall > 0.6


def test_the_worst_reason_comes_first() -> None:
    scores = simulate(0, 12)[1]
    scores[:, 0] = 0
    items = pd.DataFrame({"text": ["A", "b", " a"], "target": ["x", "", "z"]})
    items.index = ["i00000", "i00003", "i00499"]
    first, *others = suspect(scores, items, "y")
    assert (first.text, first.target, first.answers) == ("A", "x", {"m00000": "y"})
    assert [reason.kind for reason in first.reasons] == [Fault.WRONG_KEY, Fault.ALWAYS_WRONG]
    assert first.reasons[0].sentence.endswith("the mean score of 12 models is 0.00.")
    last = next(s for s in others if s.item == "i00499")
    assert last.reasons[-1].sentence == "It has the text of i00000, with another target."
    kinds = [list(Fault).index(s.reasons[0].kind) for s in (first, *others)]
    assert kinds == sorted(kinds)
