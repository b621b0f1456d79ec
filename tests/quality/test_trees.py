"""The directories of score trees, their files, broken ones among them, and sums over these."""

import hashlib
import json
import math
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from raylab.config.jobs import QualityConfig
from raylab.config.quality import Layout
from raylab.errors import DataError
from raylab.quality import reading
from raylab.quality.reading import UnitScores, read_unit
from raylab.quality.record import SkippedFile
from raylab.quality.trees import ScoreTree, find_trees


def write(path: Path, accuracy: float | None) -> Path:
    """A score log; without an accuracy it is one of a failed evaluation."""
    path.parent.mkdir(parents=True, exist_ok=True)
    scores = [{"metrics": {"accuracy": {"value": accuracy}}}]
    status = "error" if accuracy is None else "success"
    path.write_text(json.dumps({"status": status, "results": {"scores": scores}}))
    return path


def tree(root: Path, layout: Layout = Layout.AUTO) -> ScoreTree:
    return find_trees(str(root), [], layout)[0]


def units(tree: ScoreTree) -> list[tuple[str, str]]:
    return [(unit.model, unit.generation) for unit in tree.units]


def read(root: Path, replicates: int = 0) -> list[UnitScores]:
    config = QualityConfig(bootstrap=replicates)
    return [read_unit(unit, config) for unit in tree(root).units]


@pytest.mark.parametrize(
    ("files", "expected", "reason"),
    [
        ("m1/g1 m1/g2 m2/g1 m2/g2", "m1/g1 m1/g2 m2/g1 m2/g2", "every model has the same 2 sub"),
        ("m1 m1/g1 m1/g2 m2/g1 m2/g2", "m1/g1 m1/g2 m2/g1 m2/g2", "every model has the same 2 sub"),
        ("m1/g1 m2/g2", "m1/g1 m2/g2", "no score file lies directly under a model"),
        ("m1/algebra m2", "m1/ m2/", "score files lie directly under model m2"),
    ],
)
def test_the_layout_is_told_from_the_directories(
    tmp_path: Path, files: str, expected: str, reason: str
):
    for directory in files.split():
        write(tmp_path / directory / "t.json", 0.5)
    (tmp_path / ".hidden" / "g1").mkdir(parents=True)
    (tmp_path / "m1" / ".cache").mkdir()
    (tmp_path / "notes.txt").touch()
    auto, flat = tree(tmp_path), tree(tmp_path, Layout.FLAT)
    assert ["/".join(unit) for unit in units(auto)] == expected.split()
    assert auto.reason.startswith(reason)
    assert auto.beside == ("m1" in files.split())
    assert (units(flat), flat.reason) == ([("m1", ""), ("m2", "")], "as configured")
    if auto.layout is Layout.FLAT:
        assert [scores.count for scores in read(tmp_path)] == [1, 1]
        with pytest.raises(DataError, match=r"model m2 .* no generation directories"):
            tree(tmp_path, Layout.GENERATIONS)


def test_a_directory_that_is_or_holds_a_prior_is_no_model(tmp_path: Path):
    for path in ("m1/g1", "prior/m1/g1", "earlier/2024/m1/g1", "prior-like/g1"):
        write(tmp_path / path / "t.json", 0.5)
    priors = [str(tmp_path / "prior"), str(tmp_path / "earlier" / "2024")]
    trees = find_trees(str(tmp_path), priors, Layout.AUTO)
    assert units(trees[0]) == [("m1", "g1"), ("prior-like", "g1")]
    assert [units(prior) for prior in trees[1:]] == [[("m1", "g1")], [("m1", "g1")]]
    assert [tree.units[0].tree for tree in trees] == [0, 1, 2]


def test_a_root_without_directories_is_one_of_files_that_name_their_models(tmp_path: Path):
    (tmp_path / "notes.txt").touch()
    with pytest.raises(DataError, match=f"{tmp_path} holds no model directories"):
        tree(tmp_path)
    file = write(tmp_path / "t.json", 0.5)
    for root in (tmp_path, file):
        assert tree(root) == ScoreTree(str(root), Layout.NAMED, tree(root).reason, ())


def test_files_at_any_depth_are_summed(tmp_path: Path):
    directory = tmp_path / "m" / "g"
    write(directory / "a.json", 0.1)
    write(directory / "deep" / "x.json" / "b.json", 0.2)
    write(directory / ".hidden.json", 0.9)
    write(directory / ".hidden" / "d.json", 0.9)
    (directory / "notes.txt").touch()
    (directory / "loop").symlink_to(directory)
    (scores,) = read(tmp_path)
    assert (scores.count, scores.read, scores.total) == (2, 2, math.fsum([0.1, 0.2]))


def put(content: bytes) -> Callable[[Path], Any]:
    return lambda path: path.write_bytes(content)


@pytest.mark.parametrize(
    ("name", "make", "reason"),
    [
        ("x.json", put(b""), "not JSON"),
        ("x.eval", put(b""), "not an Inspect eval log"),
        ("x.json", lambda path: path.symlink_to(path.name), "no file, or a link to nothing"),
        ("x.json", os.mkfifo, "no file, or a link to nothing"),
        (os.fsdecode(b"\xff.json"), put(b""), "not JSON"),
    ],
)
def test_a_broken_file_is_left_out_with_its_reason(
    tmp_path: Path, name: str, make: Callable[[Path], Any], reason: str
):
    write(tmp_path / "m" / "g" / "good.json", 0.5)
    make(tmp_path / "m" / "g" / name)
    (scores,) = read(tmp_path)
    (skipped,) = scores.skipped
    assert (scores.count, scores.total, scores.read) == (1, 0.5, 2)
    shown = name.encode(errors="surrogateescape").decode(errors="backslashreplace")
    assert skipped.path == f"{tmp_path}/m/g/{shown}" and skipped.reason.startswith(reason)


def test_an_error_that_may_pass_is_not_a_broken_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    write(tmp_path / "m" / "g" / "good.json", 0.5)

    def fail(*_: object) -> float:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(reading, "read_score", fail)
    with pytest.raises(OSError, match="Input/output error"):
        read(tmp_path)


@pytest.mark.parametrize("name", ["", "deep/"])
def test_a_directory_that_cannot_be_read_is_left_out_with_its_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
):
    for model in "mn":
        write(tmp_path / model / "g" / "good.json", 0.5)
        write(tmp_path / model / "g" / "deep" / "lost.json", 0.5)
    generations = tree(tmp_path).units
    refused = f"{tmp_path}/n/g/{name}".rstrip("/")
    walk = os.walk

    def refuse(path: str, **more: Any) -> Any:
        # Root may read what others may not.
        if path == refused:
            more["onerror"](PermissionError(13, "Permission denied", path))
        return walk(path, **more)

    monkeypatch.setattr(os, "walk", refuse)
    m, n = (read_unit(unit, QualityConfig()) for unit in generations)
    assert (m.count, m.skipped) == (2, ())
    assert n.count == (1 if name else 0)
    reason = "cannot be read (Permission denied)"
    assert n.skipped == (SkippedFile(path=f"{tmp_path}/n/g/{name}", reason=reason),)


def test_a_directory_that_vanishes_is_named(tmp_path: Path):
    write(tmp_path / "m" / "g" / "t.json", 0.5)
    (unit,) = tree(tmp_path).units
    shutil.rmtree(tmp_path / "m" / "g")
    with pytest.raises(DataError, match=str(tmp_path / "m" / "g")):
        read_unit(unit, QualityConfig())


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
        for number in range(300):
            write(tmp_path / path / f"{number}.json", 0.5)
    trees = find_trees(str(tmp_path / "root"), [str(tmp_path / "prior")], Layout.AUTO)
    config = QualityConfig(bootstrap=200)
    m, n, prior = [read_unit(unit, config) for tree in trees for unit in tree.units]
    assert np.array_equal(m.weights, n.weights)
    assert (len(prior.weights), len(prior.weighted), prior.total) == (0, 0, 150.0)
