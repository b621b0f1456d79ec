import hashlib
import math
import random
import re
import statistics
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from raylab.benchmark.config import Layout, QualityConfig
from raylab.benchmark.figures.intervals import deviations
from raylab.benchmark.figures.measure import add_up, measure
from raylab.benchmark.figures.record import Quality, SkippedFile
from raylab.benchmark.logs.join import COLUMNS, TreeScores
from raylab.benchmark.logs.reading import read_trees
from raylab.benchmark.logs.trees import ScoreTree, find_trees
from raylab.benchmark.responses import Reading
from raylab.core.errors import DataError
from tests.benchmark.figures.test_metrics import exactly
from tests.benchmark.trees import Scores, write_scores


def quality(tmp_path: Path, scores: Scores, *priors: Scores, **changes: Any) -> Quality:
    roots = [tmp_path / "root", *(tmp_path / f"prior{i}" for i, _ in enumerate(priors))]
    for root, content in zip(roots, (scores, *priors), strict=True):
        write_scores(root, content)
    config = QualityConfig(**{"bootstrap": 0, **changes})
    trees = find_trees(str(roots[0]), [str(root) for root in roots[1:]], config.layout)
    return measure(read_trees(trees, QualityConfig()), config)


def values(measured: Quality) -> dict[str, float | None]:
    return {name: figure.value for name, figure in measured.figures.items()}


TWO = {"m1": {"g1": [0.5, 0.7], "g2": [1.0]}, "m2": {"g1": [0.2], "g2": [0.4, 0.8, 0.0]}}
"""Generation means .6 1 and .2 .4, so accuracies .8 and .3."""


def test_a_model_is_the_mean_over_its_generations_means(tmp_path: Path):
    write_scores(tmp_path / "root", {"m1": [0.9, 0.9]})
    measured = quality(tmp_path, TWO)
    assert measured.models == {"m1": exactly(0.8), "m2": exactly(0.3)}
    assert measured.generations["m1"] == {"g1": exactly(0.6), "g2": exactly(1.0)}
    assert values(measured) == {
        "difficulty": exactly(0.2),
        "separability": exactly(0.25),
        # Deviations .4 / sqrt 2 and .2 / sqrt 2, mean .3 / sqrt 2.
        "consistency": exactly(1 - 0.3 / 2**0.5),
        "novelty": None,
    }
    assert "prior_datasets" in (measured.figures["novelty"].reason or "")
    (beside,) = measured.warnings
    assert measured.layout == "generations" and "2 score files directly under a model" in beside


def test_without_generations_a_model_is_the_mean_over_its_files(tmp_path: Path):
    scores = {"m1": [0.5, 0.7, None], "m2": {"any": {"depth": [0.2]}, "x": [0.4, 0.9]}}
    measured = quality(tmp_path, scores)
    assert measured.models == {"m1": exactly(0.6), "m2": exactly(0.5)}
    assert (measured.layout, measured.generations) == ("flat", {})
    assert measured.file_counts == {"m1": 2, "m2": 3}
    assert measured.figures["consistency"].reason == "it needs two generations"
    assert measured.files.skipped == 1
    path = str(tmp_path / "root" / "m1" / "2.json")
    assert measured.skipped == (SkippedFile(path=path, reason="status is error, not success"),)


def test_novelty_against_priors_of_other_layouts(tmp_path: Path):
    # Slope: x = -.2 0 .2, y = .1 -.3 .2 -> (-.02 + .04) / .08 = .25 > 0, so predictions rank
    # 1 2 3 and actuals 2 1 3: 1 - 6 * 2 / 24 = 0.5.
    current = {"a": {"g1": [0.4], "g2": [0.6]}, "b": {"g1": [0.1], "g2": [0.1]}}
    current["c"] = {"g1": [0.6], "g2": [0.6]}
    prior = {"a": [0.2, 0.4], "b": [0.5], "c": [0.7]}
    measured = quality(tmp_path, current, prior)
    assert values(measured)["novelty"] == exactly(0.5)
    assert "steps" in (measured.figures["novelty"].reason or "")
    assert measured.priors == {
        str(tmp_path / "prior0"): {"a": exactly(0.3), "b": exactly(0.5), "c": exactly(0.7)}
    }
    assert "needs 6 models or more" in measured.warnings[0]


def test_priors_with_uneven_generations_can_be_pooled(tmp_path: Path):
    # a: mean of means (.2 + .8) / 2, of the files (3 * .2 + .8) / 4.
    prior = {"a": {"g1": [0.2] * 3, "g2": [0.8]}, "b": {"g1": [0.4], "g2": [0.4]}}
    current = {"a": [0.5], "b": [0.6]}
    pooled = {"reference_datasets": ({"name": "prior0"},)}
    (even,) = quality(tmp_path / "1", current, prior).priors.values()
    (uneven,) = quality(tmp_path / "2", current, prior, **pooled).priors.values()
    assert even == {"a": exactly(0.5), "b": exactly(0.4)}
    assert uneven == {"a": exactly(0.35), "b": exactly(0.4)}


MISSING = {
    "m1": {"g1": [0.5], "g2": [0.7], "g3": [0.9]},
    "m2": {"g1": [0.1], "g2": [0.3], "g3": [None]},
}


def test_missing_generations_are_dropped(tmp_path: Path):
    measured = quality(tmp_path, MISSING, on_missing_generation="drop")
    assert measured.models == {"m1": exactly(0.6), "m2": exactly(0.2)}
    assert "left out" in measured.warnings[0] and "g3" in measured.warnings[0]


@pytest.mark.parametrize(
    ("scores", "priors", "changes", "message"),
    [
        ({"m1": [0.5], "m2": [None, None]}, [], {}, r"m2 .*no usable .* 2 score .*\(2 status is"),
        ({"m1": [0.5], "m2": []}, [], {}, "model m2 .*no usable"),
        ({"a": [0.5], "b": [0.5]}, [{"b": [0.1], "z": [0.2]}], {}, "missing a; extra z"),
        ({"a": [0.5, None]}, [], {"strict": True}, r"1 score file c(?s:.*)1.json: status is"),
        (MISSING, [], {}, r"m2 has 2 of 3, .* in g3. 1 score file cannot be used \(1 status"),
        (
            {"m1": {"g1": [0.5]}, "m2": {"g2": [0.5]}},
            [],
            {"on_missing_generation": "drop"},
            "use the 0 that every model has",
        ),
    ],
)
def test_wrong_trees(
    tmp_path: Path, scores: Scores, priors: list[Scores], changes: dict[str, Any], message: str
):
    with pytest.raises(DataError, match=message):
        quality(tmp_path, scores, *priors, **changes)


def accuracies(tasks: int, generations: int) -> Scores:
    """Tasks differ in difficulty, models in skill: both show in every accuracy."""
    draw = random.Random(3)
    hard = [draw.random() for _ in range(tasks)]
    return {
        model: {
            f"g{g}": [min(1.0, skill * (1 - h) + 0.2 * draw.random()) for h in hard]
            for g in range(generations)
        }
        for model, skill in {"m1": 0.8, "m2": 0.5, "m3": 0.4}.items()
    }


def test_the_interval_of_a_clear_best_is_that_of_its_mean(tmp_path: Path):
    # 400 tasks in one generation: the best model's mean +- 1.96 standard errors.
    scores = {model: rows["g0"] for model, rows in accuracies(400, 1).items()}
    measured = quality(tmp_path, scores, bootstrap=2000).figures["difficulty"]
    half = 1.96 * statistics.stdev(scores["m1"]) / 400**0.5
    value = 1 - statistics.fmean(scores["m1"])
    assert measured.value == exactly(value)
    assert measured.interval == pytest.approx((value - half, value + half), abs=half / 10)


UNSOLVED: Scores = {model: {"g1": [0.0] * 30, "g2": [0.0] * 30} for model in ("m1", "m2")}


@pytest.mark.parametrize(
    ("scores", "replicates", "metric", "reason"),
    [
        ({"m": [0.1] * 30}, 0, "difficulty", "bootstrap=0"),
        (
            {"m": [0.1, 0.2]},
            9,
            "difficulty",
            "has 2 usable files, items or clusters: the interval over",
        ),
        # 30 tasks of .1: 3 right.
        ({"m": [0.1] * 30}, 9, "difficulty", "right on 3.0 of 30 tasks"),
        (dict.fromkeys("abcdefgh", [0.5, 0.6] * 10), 9, "separability", "8 models .* needs 21"),
        (accuracies(20, 4), 9, "consistency", "3 models and 4 .* needs 27"),
        (UNSOLVED, 9, "separability", "no task tells the models or generations apart"),
        (UNSOLVED, 9, "consistency", "no task tells the models or generations apart"),
    ],
)
def test_why_there_is_no_interval(
    tmp_path: Path, scores: Scores, replicates: int, metric: str, reason: str
):
    figure = quality(tmp_path, scores, bootstrap=replicates).figures[metric]
    assert figure.interval is None and figure.corrected is None
    assert re.search(reason, figure.reason or "")


def test_figures_that_are_not_wanted_or_not_there_say_so(tmp_path: Path):
    wanted = ("separability", "mmd")
    figures = quality(tmp_path, TWO, metrics_to_compute=wanted).figures
    assert figures["separability"].value == exactly(0.25)
    reasons = {name: figure.reason or "" for name, figure in figures.items()}
    assert reasons["difficulty"] == "metrics_to_compute leaves it out"
    assert "scores: difficulty, separability, consistency, novelty" in reasons["mmd"]


def poisson(key: str, replicates: int) -> list[int]:
    """Poisson(1) by inversion, from its definition, two bytes a draw."""
    digest = hashlib.shake_128(key.encode()).digest(2 * replicates)
    drawn: list[int] = []
    for i in range(replicates):
        probability = (int.from_bytes(digest[2 * i : 2 * i + 2], "little") + 0.5) / 65536
        count, below = 0, math.exp(-1)
        while below < probability:
            count += 1
            below += math.exp(-1) / math.factorial(count)
        drawn.append(count)
    return drawn


def test_items_are_drawn_by_hashed_poisson_weights_together_for_all_models(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr("raylab.benchmark.figures.measure.CHUNK", 2)
    rows = [
        ("m", "g", "a", "", 0.0, 1.0),
        ("m", "g", "a", "", 0.5, 1.0),
        ("m", "g", "b", "", 0.5, 2.0),
        ("n", "g", "b", "", 1.0, 2.0),
        ("n", "h", "c", "p", 0.25, 1.0),
        ("n", "g", "c", "p", 0.25, 1.0),
        ("n", "g", "d", "p", 1.0, 1.0),
    ]
    table = pd.DataFrame(rows, columns=list(COLUMNS))
    tree = ScoreTree("tree", Layout.NAMED, "", (), ())
    scores = TreeScores(tree, table, {}, DataError(""), Reading(), 0)
    units = add_up(scores, QualityConfig(on_missing_generation="drop"), replicates=300)
    assert (units.models, units.generations, units.dropped) == (["m", "n"], ["g"], ["h"])
    assert (units.counts.tolist(), units.drawn.tolist()) == ([[2], [3]], [[2], [2]])
    # Epochs of a are averaged to .25, and b counts twice.
    assert units.means.tolist() == [[pytest.approx((0.25 + 2 * 0.5) / 3)], [3.25 / 4]]
    # c and d are of one cluster.
    a, b, p = (np.array(poisson(key, 300)) for key in ("0/a", "0/b", "1/p"))
    weighted = np.stack([0.25 * a + b, 2 * b + 1.25 * p], axis=1)[..., None]
    weights = np.stack([a + 2 * b, 2 * b + 2 * p], axis=1)[..., None]
    expected = deviations(weighted * 1.0, weights * 1.0, units.drawn)
    np.testing.assert_allclose(units.noise, expected, atol=1e-15)


def test_declared_clusters_widen_the_intervals(tmp_path: Path):
    """Four items on a passage have one score: the interval is that of forty passages."""
    draw = np.random.default_rng(4)
    rows = [
        f"{model},{passage}-{item},passage {passage},{int(right)}"
        for model, skill in (("m", 0.6), ("n", 0.2))
        for passage, right in enumerate(draw.random(40) < skill)
        for item in range(4)
    ]
    (tmp_path / "scores.csv").write_text("\n".join(["model,item,passage,score", *rows]))
    tree = find_trees(str(tmp_path / "scores.csv"), [], None)
    halves = list[float]()
    for cluster in (None, "passage"):
        config = QualityConfig(bootstrap=4000, clusters=cluster)
        figure = measure(read_trees(tree, config), config).figures["difficulty"]
        assert figure.value is not None and figure.interval is not None
        halves.append((figure.interval[1] - figure.interval[0]) / 2)
        share = 1 - figure.value
    # 1.96 standard errors over items, and over passages.
    for half, units in zip(halves, (160, 40), strict=True):
        assert half == pytest.approx(1.96 * (share * (1 - share) / (units - 1)) ** 0.5, rel=0.06)
