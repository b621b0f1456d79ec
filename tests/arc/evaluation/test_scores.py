import re
import shutil
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from jobs.evaluate import run as run_evaluate
from raylab.arc.checkpoints import read_checkpoint
from raylab.arc.config.sections import DataConfig, ScoringConfig
from raylab.core import live
from raylab.core.errors import DataError, RunError
from raylab.core.log import json_lines
from tests.arc.evaluation.models import CHECKPOINT, evaluation
from tests.arc.tasks import read_json, write_json
from tests.log_lines import id_in, lines_of


@pytest.fixture(scope="module")
def tree(storage: Path) -> Path:
    run_evaluate(evaluation(storage, "scored"))
    return storage / "scored"


def metrics_in(path: Path) -> dict[str, Any]:
    values = read_json(path)["results"]["scores"][0]["metrics"]
    return {name: value["value"] for name, value in values.items()}


def times(tree: Path) -> dict[Path, int]:
    return {path: path.stat().st_mtime_ns for path in (tree / "scores").rglob("*.json")}


def test_every_model_and_rule_is_scored_on_the_tasks_that_no_model_has_seen(
    storage: Path, tree: Path
):
    seen = read_checkpoint(storage / "one" / CHECKPOINT).seen.tasks().ids
    assert len(seen) == 8
    units = read_json(tree / "scores.json")["units"]
    assert len(units) == 2 and not seen & units.keys()
    metrics = read_json(tree / "metrics.json")
    means, baselines = metrics["models"], metrics["baselines"]
    scored = [(model, generation) for model, by in means.items() for generation in by]
    assert scored == list(product(("one", "two"), ("published", "seed-1")))
    for model, generation in scored:
        files = list((tree / "scores" / model / generation).iterdir())
        assert {path.name for path in files} == {f"{unit}.json" for unit in units}
        values = [metrics_in(path)["accuracy"] for path in files]
        assert means[model][generation] == pytest.approx(sum(values) / len(values))
    assert means["one"]["published"] != means["one"]["seed-1"]
    assert list(baselines) == ["copy_source", "previous_cell", "copy_else_previous"]
    assert all(list(by) == ["published", "seed-1"] for by in baselines.values())
    assert all(0 < value < 1 for by in baselines.values() for value in by.values())
    assert read_json(tree / "scores-baselines.json")["baselines"] == baselines
    assert read_json(tree / "record.json")["finished"]
    diagnosis = read_json(tree / "diagnosis.json")
    assert (diagnosis["models"], diagnosis["items"]) == (2, 2)
    assert (tree / "diagnosis.html").exists()


def test_files_hold_every_metric_and_inspect_reads_them(tree: Path):
    inspect = pytest.importorskip("inspect_ai.log")
    for path in (tree / "scores").rglob("*.json"):
        metrics = metrics_in(path)
        assert metrics["accuracy"] == metrics["cell_accuracy"]
        assert {"solve_rate", "dense_grid_objective"} <= metrics.keys()
        log = read_json(path)["eval"]
        assert log["run_id"] == id_in(tree)
        assert (log["model"], log["dataset"]["name"]) == path.relative_to(tree).parts[1:3]
        read = inspect.read_eval_log(str(path))
        assert read.status == "success"
        assert read.results.scores[0].metrics["accuracy"].value == metrics["accuracy"]


def test_resuming_makes_what_is_missing_and_nothing_else(
    tree: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    again = Path(shutil.copytree(tree, tree.parent / "again"))
    lost = sorted((again / "scores").rglob("*.json"))[0]
    before, metrics = times(again), metrics_in(lost)
    lost.unlink()
    settings = evaluation(tree.parent, "again", resume=True)
    run_evaluate(settings)
    after = times(again)
    assert {path for path in before if after[path] != before[path]} == {lost}
    assert metrics_in(lost) == metrics
    out = capsys.readouterr().out
    assert "3 of 4 pairs of model and generation are scored already" in out
    assert re.search(r"\[1/1\] one on published: cell_accuracy \S+ % over 2 tasks", out)

    def refuse(*arguments: Any) -> None:
        raise AssertionError("a checkpoint was read")

    monkeypatch.setattr("raylab.arc.scoring.plan.read_checkpoint", refuse)
    with json_lines("evaluate"):
        run_evaluate(settings)
    assert times(again) == after
    lines = lines_of(capsys.readouterr().out)
    assert {line["run_id"] for line in lines} == {id_in(again)}
    assert read_json(tree / "metrics.json")["models"] in [line.get("models") for line in lines]


def test_the_time_that_is_left_is_told_before_the_first_pair_has_ended(
    storage: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    # With 0 the thread that prints would not let go of the interpreter.
    monkeypatch.setattr(live, "LINE_SECONDS", 0.01)
    scoring = ScoringConfig(metric="cell_accuracy", batch_size=1)
    run_evaluate(evaluation(storage, "slow", generations=("published",), scoring=scoring))
    out = capsys.readouterr().out
    line = r"  \d+ % of 2 pairs of model and generation after .*, ETA "
    assert re.search(line, out.partition("[1/2]")[0])


def test_scores_of_another_checkpoint_or_of_a_broken_file_are_not_mixed(storage: Path, tree: Path):
    mixed = Path(shutil.copytree(tree, storage / "mixed"))
    state = read_json(mixed / "scores.json")
    state["models"]["one"] += " earlier"
    write_json(mixed / "scores.json", state)
    with pytest.raises(RunError, match=r"begun when one was .* earlier, and now"):
        run_evaluate(evaluation(storage, "mixed", resume=True))
    broken = Path(shutil.copytree(tree, storage / "broken"))
    file = next((broken / "scores/two/published").iterdir())
    file.write_text("{")
    with pytest.raises(RunError, match=rf"{file.name} cannot be used .*resume=true writes it"):
        run_evaluate(evaluation(storage, "broken", resume=True))


def test_seen_tasks_are_scored_when_asked_for_by_group(storage: Path):
    seen = read_checkpoint(storage / "one" / CHECKPOINT).seen.tasks().ids
    data = DataConfig(tasks=tuple(sorted(seen)))
    with pytest.raises(DataError, match=r"each of the 8 tasks .*scoring\.include_seen=true"):
        run_evaluate(evaluation(storage, "none", data=data))
    scoring = ScoringConfig(include_seen=True, unit="group")
    run_evaluate(evaluation(storage, "groups", generations=("published",), scoring=scoring))
    units = read_json(storage / "groups" / "scores.json")["units"]
    assert sum(map(len, units.values())) == 10
    names = {path.stem for path in (storage / "groups" / "scores/one/published").iterdir()}
    assert names == {unit.replace("/", "-") for unit in units}


def test_a_generation_that_lacks_tasks_is_told(storage: Path, tmp_path: Path):
    """The tasks of the archive `data.path` are there, those of the generation are not."""
    whole, part = tmp_path / "whole", tmp_path / "part"
    for place in (whole / "task0.json", whole / "task1.json", part / "task0.json"):
        index = int(place.stem[-1])
        write_json(place, [{"input": [[index, 1]], "output": [[1, index]]}] * 3)
    data = DataConfig.model_validate({"source": "re_arc", "path": str(whole)})
    run_evaluate(evaluation(storage, "archive", data=data, generations=("published", str(whole))))
    assert (storage / "archive" / "scores/one/whole/task1.json").exists()
    with pytest.raises(DataError, match=r"holds no task task1"):
        run_evaluate(evaluation(storage, "without-task1", data=data, generations=(str(part),)))
    assert not (storage / "without-task1" / "scores").exists()
