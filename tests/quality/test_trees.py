import hashlib
import json
import math
import os
from pathlib import Path

import numpy as np
import pytest

from raylab.config.quality import Layout
from raylab.errors import ConfigError, DataError
from raylab.quality.reading import LISTED_FILES, UnitScores, read_unit
from raylab.quality.trees import ScoreTree, find_trees

YEAR_2020 = 1_577_836_800


def write(path: Path, accuracy: float | None) -> Path:
    """A score log that changed long ago; without an accuracy it is one of a failed evaluation."""
    path.parent.mkdir(parents=True, exist_ok=True)
    scores = [{"metrics": {"accuracy": {"value": accuracy}}}]
    status = "error" if accuracy is None else "success"
    path.write_text(json.dumps({"status": status, "results": {"scores": scores}}))
    os.utime(path, (YEAR_2020, YEAR_2020))
    return path


def tree(root: Path, layout: Layout = Layout.AUTO, priors: tuple[Path, ...] = ()) -> ScoreTree:
    return find_trees(str(root), [str(prior) for prior in priors], layout)[0]


def units(found: ScoreTree) -> list[tuple[str, str]]:
    return [(unit.model, unit.generation) for unit in found.units]


def read(root: Path, replicates: int = 0) -> list[UnitScores]:
    return [read_unit(unit, replicates) for unit in tree(root).units]


def test_same_subdirectories_are_generations(tmp_path: Path):
    for model in ("m1", "m2"):
        for generation in ("g1", "g2"):
            write(tmp_path / model / generation / "t.json", 0.5)
    write(tmp_path / "m1" / "t.json", 0.5)
    (tmp_path / ".hidden" / "g1").mkdir(parents=True)
    (tmp_path / "m1" / ".cache").mkdir()
    (tmp_path / "notes.txt").touch()
    found = tree(tmp_path)
    assert units(found) == [("m1", "g1"), ("m1", "g2"), ("m2", "g1"), ("m2", "g2")]
    assert (found.layout, found.beside) == (Layout.GENERATIONS, 1)
    assert found.reason == "every model has the same 2 subdirectories"
    flat = tree(tmp_path, Layout.FLAT)
    assert units(flat) == [("m1", ""), ("m2", "")]
    assert flat.reason == "as configured"


def test_subdirectories_without_files_beside_them_are_generations(tmp_path: Path):
    write(tmp_path / "m1" / "g1" / "t.json", 0.5)
    write(tmp_path / "m2" / "g2" / "t.json", 0.5)
    found = tree(tmp_path)
    assert units(found) == [("m1", "g1"), ("m2", "g2")]
    assert found.reason == "no score file lies directly under a model"


def test_files_beside_different_subdirectories_are_flat(tmp_path: Path):
    write(tmp_path / "m1" / "algebra" / "t.json", 0.5)
    write(tmp_path / "m2" / "t.json", 0.5)
    found = tree(tmp_path)
    assert found.layout is Layout.FLAT and "directly under model m2" in found.reason
    assert [scores.count for scores in read(tmp_path)] == [1, 1]
    with pytest.raises(DataError, match=r"model m2 .* no generation directories"):
        tree(tmp_path, Layout.GENERATIONS)


def test_a_directory_that_is_or_holds_a_prior_is_no_model(tmp_path: Path):
    write(tmp_path / "m1" / "g1" / "t.json", 0.5)
    write(tmp_path / "prior" / "m1" / "g1" / "t.json", 0.1)
    write(tmp_path / "earlier" / "2024" / "m1" / "g1" / "t.json", 0.2)
    (tmp_path / "prior-like").mkdir()
    write(tmp_path / "prior-like" / "g1" / "t.json", 0.1)
    priors = (tmp_path / "prior", tmp_path / "earlier" / "2024")
    found = find_trees(str(tmp_path), [str(prior) for prior in priors], Layout.AUTO)
    assert units(found[0]) == [("m1", "g1"), ("prior-like", "g1")]
    assert [units(prior) for prior in found[1:]] == [[("m1", "g1")], [("m1", "g1")]]
    assert [prior.units[0].tree for prior in found] == [0, 1, 2]


@pytest.mark.parametrize("make", ["missing", "file", "empty", "only files", "only priors"])
def test_a_root_without_models_is_refused(tmp_path: Path, make: str):
    root, priors = tmp_path / "root", ()
    if make == "file":
        root.touch()
    elif make == "empty":
        root.mkdir()
    elif make == "only files":
        write(root / "t.json", 0.5)
    elif make == "only priors":
        write(root / "prior" / "m" / "t.json", 0.5)
        priors = (root / "prior",)
    with pytest.raises(DataError, match=str(root)):
        tree(root, priors=priors)


def test_an_unknown_kind_of_location_is_refused():
    with pytest.raises(ConfigError, match="nowhere://x"):
        find_trees("nowhere://x", [], Layout.AUTO)


def test_a_local_path_and_its_uri_read_the_same(tmp_path: Path):
    write(tmp_path / "scores" / "m" / "a" / "t.json", 0.25)
    uri = f"file://{tmp_path}/scores"
    (unit,) = find_trees(uri, [], Layout.AUTO)[0].units
    scores = read_unit(unit)
    assert (scores.count, scores.total) == (1, 0.25)


def test_files_at_any_depth_are_summed_and_unusable_ones_listed(tmp_path: Path):
    directory = tmp_path / "m" / "g"
    write(directory / "a.json", 0.1)
    write(directory / "deep" / "er" / "b.json", 0.2)
    write(directory / "c.json", None)
    write(directory / ".hidden.json", 0.9)
    write(directory / ".hidden" / "d.json", 0.9)
    (directory / "notes.txt").touch()
    (directory / "loop").symlink_to(directory)
    (directory / "gone.json").symlink_to(tmp_path / "nowhere")
    (scores,) = read(tmp_path)
    assert (scores.count, scores.skipped, scores.read, scores.hidden) == (2, 2, 4, 2)
    assert scores.total == math.fsum([0.1, 0.2])
    assert [(f.path, f.reason) for f in scores.listed] == [
        (f"{directory}/c.json", "status is error, not success"),
        (f"{directory}/gone.json", "a link to nothing"),
    ]


def test_skipped_files_are_all_counted_but_not_all_listed(tmp_path: Path):
    for index in range(LISTED_FILES + 5):
        write(tmp_path / "m" / "g" / f"{index}.json", None)
    (scores,) = read(tmp_path)
    assert (scores.skipped, len(scores.listed)) == (LISTED_FILES + 5, LISTED_FILES)


def test_a_directory_that_vanishes_is_named(tmp_path: Path):
    write(tmp_path / "m" / "g" / "t.json", 0.5)
    found = tree(tmp_path)
    (tmp_path / "m" / "g" / "t.json").unlink()
    (tmp_path / "m" / "g").rmdir()
    with pytest.raises(DataError, match=str(tmp_path / "m" / "g")):
        read_unit(found.units[0])


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


def test_weights_are_hashed_poisson_draws_of_the_path_below_the_unit(tmp_path: Path):
    write(tmp_path / "m" / "g" / "a.json", 0.25)
    write(tmp_path / "m" / "g" / "deep" / "b.json", 0.5)
    write(tmp_path / "m" / "g" / "c.json", None)
    (scores,) = read(tmp_path, replicates=300)
    a, b = poisson("0/a.json", 300), poisson("0/deep/b.json", 300)
    assert scores.weights.tolist() == [x + y for x, y in zip(a, b, strict=True)]
    assert scores.weighted.tolist() == [0.25 * x + 0.5 * y for x, y in zip(a, b, strict=True)]


def test_a_task_is_drawn_jointly_and_priors_are_not_drawn(tmp_path: Path):
    for path in ("root/m/g", "root/n/h", "prior/m/g"):
        write(tmp_path / path / "a.json", 0.5)
    trees = find_trees(str(tmp_path / "root"), [str(tmp_path / "prior")], Layout.AUTO)
    m, n, prior = [read_unit(unit, 200) for found in trees for unit in found.units]
    assert np.array_equal(m.weights, n.weights)
    assert (len(prior.weights), len(prior.weighted), prior.total) == (0, 0, 0.5)


def test_weights_have_mean_and_variance_one(tmp_path: Path):
    for index in range(600):
        write(tmp_path / "m" / "g" / f"{index}.json", 1.0)
    (scores,) = read(tmp_path, replicates=1000)
    # 600 independent Poisson(1): mean 600, variance 600; bounds of 5 standard errors.
    assert abs(scores.weights.mean() - 600) < 5 * math.sqrt(600 / 1000)
    assert abs(scores.weights.var() / 600 - 1) < 5 * math.sqrt(2 / 1000)
    assert scores.weighted.tolist() == scores.weights.tolist()
