"""The directories of score trees, their files, broken ones among them, and sums over these."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from raylab.benchmark.config import Layout, QualityConfig
from raylab.benchmark.figures.record import SkippedFile
from raylab.benchmark.logs import reading
from raylab.benchmark.logs.join import TreeScores
from raylab.benchmark.logs.reading import read_files, read_trees
from raylab.benchmark.logs.trees import ScoreTree, find_tree, find_trees
from raylab.core.errors import DataError
from tests.benchmark.trees import write


def units(tree: ScoreTree) -> list[str]:
    return sorted({f"{source.model}/{source.generation}" for source in tree.logs})


def read(root: Path) -> TreeScores:
    return read_trees([find_tree(str(root))], QualityConfig())[0]


@pytest.mark.parametrize(
    ("files", "expected", "reason"),
    [
        ("m1/g1 m1/g2 m2/g1 m2/g2", "m1/g1 m1/g2 m2/g1 m2/g2", "every model has the same 2 sub"),
        ("m1 m1/g1 m1/g2 m2/g1 m2/g2", "m1/g1 m1/g2 m2/g1 m2/g2", "every model has the same 2 sub"),
        ("m1/g1 m2/g2", "m1/g1 m2/g2", "no score file lies directly under a model"),
        ("m1/algebra m2", "m1/ m2/", "score files lie directly under model m2"),
        ("m1/g1 m1/g2 m2 m2/g1", "m1/ m2/", "score files lie directly under model m2"),
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
    auto, flat = find_tree(str(tmp_path)), find_tree(str(tmp_path), layout=Layout.FLAT)
    assert units(auto) == expected.split()
    assert auto.reason.startswith(reason)
    assert auto.ignored == ("m1" in files.split())
    assert (units(flat), flat.reason) == (["m1/", "m2/"], "as configured")


def test_a_run_stands_for_its_scores(tmp_path: Path):
    for path in ("scores/m1/g1", "scores/m2/g1", "answers/m1/g1", "submissions/m1/g1"):
        write(tmp_path / path / "t.json", 0.5)
    assert units(find_tree(str(tmp_path))) != ["m1/g1", "m2/g1"]
    (tmp_path / "record.json").write_text("{}")
    assert units(find_tree(str(tmp_path))) == ["m1/g1", "m2/g1"]


def test_a_directory_that_is_or_holds_a_prior_is_no_model(tmp_path: Path):
    for path in ("m1/g1", "prior/m1/g1", "earlier/2024/m1/g1", "prior-like/g1"):
        write(tmp_path / path / "t.json", 0.5)
    priors = [str(tmp_path / "prior"), str(tmp_path / "earlier" / "2024")]
    own, *others = find_trees(str(tmp_path), priors, Layout.AUTO)
    assert units(own) == ["m1/g1", "prior-like/g1"]
    assert [units(prior) for prior in others] == [["m1/g1"], ["m1/g1"]]


def test_a_root_without_directories_is_one_of_files_that_name_their_models(tmp_path: Path):
    (tmp_path / "notes.txt").touch()
    with pytest.raises(DataError, match=f"{tmp_path} holds no model directories"):
        find_tree(str(tmp_path))
    file = write(tmp_path / "t.json", 0.5)
    for root in (tmp_path, file):
        tree = find_tree(str(root))
        assert (tree.layout, tree.models, tree.logs) == (Layout.NAMED, (), [])
        assert [source.place.path for source in tree.sources] == [str(file)]


def test_files_at_any_depth_are_read(tmp_path: Path):
    directory = tmp_path / "m" / "g"
    write(directory / "a.json", 0.1)
    write(directory / "deep" / "x.json" / "b.json", 0.2)
    write(directory / ".hidden.json", 0.9)
    write(directory / ".hidden" / "d.json", 0.9)
    # Inspect leaves it beside logs.
    write(directory / "eval-set.json", None)
    (directory / "notes.txt").touch()
    (directory / "loop").symlink_to(directory)
    scores = read(tmp_path)
    rows = [("m", "g", "a.json", "", 0.1, 1.0), ("m", "g", "deep/x.json/b.json", "", 0.2, 1.0)]
    assert list(scores.table.itertuples(index=False, name=None)) == rows
    assert scores.skipped == {"m": []}


def put(content: bytes) -> Callable[[Path], Any]:
    return lambda path: path.write_bytes(content)


@pytest.mark.parametrize(
    ("name", "make", "reason"),
    [
        ("x.json", put(b""), "not JSON"),
        ("x.eval", put(b""), "not an Inspect eval log"),
        ("x.json", lambda path: path.symlink_to(path.name), "no file, or a link to nothing"),
        ("x.json", os.mkfifo, "no file, or a link to nothing"),
    ],
)
def test_a_broken_file_is_left_out_with_its_reason(
    tmp_path: Path, name: str, make: Callable[[Path], Any], reason: str
):
    write(tmp_path / "m" / "g" / "good.json", 0.5)
    make(tmp_path / "m" / "g" / name)
    scores = read(tmp_path)
    ((skipped,),) = scores.skipped.values()
    assert scores.table["score"].tolist() == [0.5]
    assert skipped.path == f"{tmp_path}/m/g/{name}" and skipped.reason.startswith(reason)


def test_an_error_that_may_pass_is_tried_again_and_breaks_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    write(tmp_path / "m" / "g" / "good.json", 0.5)
    read_inspect, failures = reading.read_inspect, [OSError(5, "Input/output error")] * 3

    def fail(*arguments: Any) -> None:
        if failures:
            raise failures.pop()
        read_inspect(*arguments)

    monkeypatch.setattr(reading, "read_inspect", fail)
    assert read(tmp_path).table["score"].tolist() == [0.5]
    failures += [OSError(5, "Input/output error")] * 4
    with pytest.raises(DataError, match=r"after retries: .*Input/output error"):
        read(tmp_path)


@pytest.mark.parametrize("name", ["", "deep/"])
def test_a_directory_that_cannot_be_read_is_left_out_with_its_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
):
    for model in "mn":
        write(tmp_path / model / "g" / "good.json", 0.5)
        write(tmp_path / model / "g" / "deep" / "lost.json", 0.5)
    refused = f"{tmp_path}/n/g/{name}".rstrip("/")
    scan = os.scandir

    def refuse(path: str) -> Any:
        # Root may read what others may not.
        if path == refused:
            raise PermissionError(13, "Permission denied", path)
        return scan(path)

    monkeypatch.setattr(os, "scandir", refuse)
    scores = read(tmp_path)
    assert scores.table["model"].tolist() == ["m", "m", *(["n"] if name else [])]
    lost = SkippedFile(path=f"{tmp_path}/n/g/{name}", reason="cannot be read (Permission denied)")
    assert scores.skipped == {"m": [], "n": [lost]}


def test_a_directory_that_vanishes_is_named(tmp_path: Path):
    write(tmp_path / "m" / "g" / "t.json", 0.5)
    tree = find_tree(str(tmp_path))
    shutil.rmtree(tmp_path / "m" / "g")
    with pytest.raises(DataError, match=f"{tmp_path}/m/g is missing on"):
        read_files(tree.sources, QualityConfig())
