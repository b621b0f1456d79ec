"""Logs and tables of all formats that name their models, through jobs/quality.py."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from raylab.benchmark.checks.diagnosis import Diagnosis
from raylab.benchmark.config import Layout, QualityEvalConfig
from raylab.benchmark.figures.record import Quality
from raylab.core.files import Place
from tests.benchmark.logs.eval_logs import harness, inspect_file, sample, table
from tests.benchmark.trees import measure as run_job
from tests.benchmark.trees import write_scores
from tests.object_storage import ObjectStorage

Scores = Mapping[str, Sequence[float]]

DRAWN = np.random.default_rng(0).random((3, 60)) < [[0.8], [0.6], [0.5]]
SCORES: Scores = {f"org/m{number}": row.astype(float).tolist() for number, row in enumerate(DRAWN)}


def write_inspect(root: Path, scores: Scores, suffix: str = "eval") -> Path:
    """A directory as Inspect leaves it; one epoch and scorer."""
    for number, (model, row) in enumerate(scores.items()):
        samples = [sample(item, {"match": "C" if score else "I"}) for item, score in enumerate(row)]
        inspect_file(root / f"2026-01-0{number + 1}_quiz.{suffix}", model, samples)
    return root


def write_table(root: Path, scores: Scores, name: str = "t.parquet") -> Path:
    cells = [(model, i, score) for model, row in scores.items() for i, score in enumerate(row)]
    model, item, score = zip(*cells, strict=True)
    table(root / name, model=model, item=item, score=score)
    return root / name


def write_directories(root: Path, scores: Scores) -> Path:
    """Logs in directories of another meaning."""
    for number, (model, row) in enumerate(scores.items()):
        write_inspect(root / f"run{number % 2}" / f"set{number}", {model: row}, "json")
    return root


def write_mixture(root: Path, scores: Scores) -> Path:
    first, second, third = ({model: row} for model, row in scores.items())
    write_inspect(root / "logs", first)
    for model, row in second.items():
        harness(root / "harness", model, [{"acc": score} for score in row], task="quiz")
    write_table(root, third, "t.csv")
    return root


def measure(root: object, storage: Path, **keys: Any) -> tuple[Quality, Diagnosis]:
    run = run_job(storage, **{"scores": str(root), "bootstrap": 200, "strict": True} | keys)
    quality, record = run.read_record(Quality), run.read_record(Diagnosis)
    assert quality is not None and record is not None and run.is_finished
    return quality, record


FORMATS: dict[str, tuple[Callable[[Path, Scores], Path], Layout]] = {
    "inspect": (write_inspect, Layout.AUTO),
    "mixture": (write_mixture, Layout.AUTO),
    "directories": (write_directories, Layout.NAMED),
}


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> Quality:
    """The figures by a log for each item, which the published definitions are of."""
    directory = tmp_path_factory.mktemp("expected")
    scores = {model.removeprefix("org/"): {"": list(row)} for model, row in SCORES.items()}
    tree = write_scores(directory / "tree", scores)
    quality = run_job(directory, scores=str(tree)).read_record(Quality)
    assert quality is not None
    return quality


@pytest.mark.parametrize("kind", FORMATS)
def test_the_same_scores_have_the_same_figures_in_every_form_of_tree(
    tmp_path: Path, kind: str, s3: ObjectStorage, expected: Quality
) -> None:
    write, layout = FORMATS[kind]
    root: object = write(tmp_path / "tree", SCORES)
    if kind == "mixture":
        place = Place.at(f"{s3.uri}/{tmp_path.name}")
        for file in Place.at(tmp_path / "tree").files("**/*"):
            (place / file.path.removeprefix(f"{tmp_path}/tree/")).write(file.read())
        root = place
    quality, record = measure(root, tmp_path, layout=layout)
    assert quality.layout is Layout.NAMED and quality.file_counts == dict.fromkeys(SCORES, 60)
    assert (record.models, record.items) == (3, 60)
    assert quality.models == pytest.approx(
        {f"org/{name}": accuracy for name, accuracy in expected.models.items()}
    )
    for name in ("difficulty", "separability"):
        figure, other = quality.figures[name], expected.figures[name]
        assert figure.value == pytest.approx(other.value)
        # The draws of the bootstrap are of the names of items, which are not those of files.
        assert figure.interval == pytest.approx(other.interval, abs=0.03)


def test_novelty_compares_named_trees_with_others(tmp_path: Path) -> None:
    root = write_table(tmp_path / "own", SCORES)
    prior = write_inspect(tmp_path / "prior", {model: row[:30] for model, row in SCORES.items()})
    priors = QualityEvalConfig(prior_datasets=(str(prior),))
    quality, _ = measure(root, tmp_path, quality_eval_cfg=priors)
    (accuracies,) = quality.priors.values()
    assert accuracies == {m: pytest.approx(np.mean(row[:30])) for m, row in SCORES.items()}
    assert quality.figures["novelty"].value is not None


def test_responses_that_cannot_be_compared_have_a_diagnosis_and_the_reason(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write_table(tmp_path / "own", SCORES)
    frame = pd.read_parquet(file)
    frame["generation"] = np.where(frame["model"] == "org/m0", "second", "first")
    frame.loc[0, "score"] = None
    frame.to_parquet(file)
    quality, record = measure(file, tmp_path, strict=False)
    reasons = {figure.reason for figure in quality.figures.values()}
    assert len(reasons) == 1 and "have different generations" in str(reasons)
    assert record.items == 60 and not quality.models
    assert [file.reason for file in quality.skipped] == ["1 samples without a score"]
    assert "warning: no figures: the models of" in capsys.readouterr().out


def test_logs_that_name_other_models_than_their_directories_are_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = write_directories(tmp_path / "tree", SCORES)
    quality, record = measure(root, tmp_path, layout=Layout.FLAT)
    assert set(quality.models) == {"run0", "run1"} and record.models == 3
    assert "name other models than its directories" in capsys.readouterr().out
    measure(root, tmp_path / "again")
    assert "layout named, the logs name other models than the directories run0 and run1" in (
        capsys.readouterr().out
    )
