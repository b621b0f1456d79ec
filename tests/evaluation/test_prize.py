"""An evaluation as ARC Prize scores, from the command to its files."""

import json
from pathlib import Path
from typing import Any

import pytest

from jobs.evaluate import run as run_evaluate
from raylab.arc.data.sources import load_tasks
from raylab.arc.prize.submissions import KEYS
from raylab.config.arc import (
    DataConfig,
    ScoringConfig,
    TaskSource,
    TaskTrainingConfig,
    VotesConfig,
)
from raylab.config.jobs import EvaluateConfig
from raylab.errors import DataError, RunError
from raylab.evaluation import prize
from raylab.runs.eval_logs import read_score
from raylab.runs.run import Run
from tests.evaluation.models import DATA, evaluation, train_small

VOTES = VotesConfig(views=4)
ARC = ScoringConfig(protocol="arc", metric="two_attempts", votes=VOTES)
SEEN = ARC.model_copy(update={"include_seen": True})
TASKS = ("25ff71a9", "3c9b0459", "a85d4709")
SMALL = DATA.model_copy(update={"tasks": TASKS, "every": 1})


@pytest.fixture(scope="module")
def storage(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("runs")
    train_small(Run.at(f"{path}/one"))
    return path


def scored(storage: Path, name: str, **changes: Any) -> EvaluateConfig:
    one = {"models": ("one",), "generations": ("published",), "data": SMALL, "scoring": SEEN}
    return evaluation(storage, name, **(one | changes))


@pytest.fixture(scope="module")
def tree(storage: Path) -> Path:
    run_evaluate(scored(storage, "arc"))
    return storage / "arc"


def test_the_run_has_answers_scores_submission_and_page(tree: Path):
    metrics = json.loads((tree / "metrics.json").read_text())
    score = metrics["prize"]["one"]["published"]
    assert score["tasks"] == 3
    assert [of["views"] for of in score["curve"]] == [1, 2, 4]
    assert set(metrics["prize_rules"]) == set(metrics["rules"])
    assert metrics["models"]["one"]["published"] == score["two_attempts"]
    assert {path.stem for path in (tree / "scores/one/published").iterdir()} == set(TASKS)
    for path in (tree / "scores/one/published").iterdir():
        with path.open("rb") as file:
            assert isinstance(read_score(file, path.name), float)
    submission = json.loads((tree / "submissions/one/published/submission.json").read_text())
    assert all(set(entry) == set(KEYS) for of in submission.values() for entry in of)
    page = (tree / "report.html").read_text()
    assert "two attempts" in page and "by the number of views" in page
    assert json.loads((tree / "record.json").read_text())["finished"]


def test_the_submission_of_a_run_has_its_score(storage: Path, tree: Path):
    submission = tree / "submissions/one/published/submission.json"
    config = scored(storage, "again", models=(), submission=str(submission))
    run_evaluate(config)
    again, first = (
        json.loads((storage / name / "metrics.json").read_text())["prize"]
        for name in ("again", "arc")
    )
    theirs, ours = again["submission"]["published"], first["one"]["published"]
    for key in ("first_attempt", "two_attempts", "tasks", "outputs", "errors"):
        assert theirs[key] == ours[key]


def test_nothing_answered_is_answered_again(
    storage: Path,
    tree: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):
    asked: list[tuple[str, ...] | None] = []
    solve = prize.solve

    def spy(checkpoint: Any, pair: Any, data: DataConfig, tasks: Any, *rest: Any) -> Any:
        asked.append(tasks)
        return solve(checkpoint, pair, data, tasks, *rest)

    monkeypatch.setattr(prize, "solve", spy)
    lost = TASKS[1]
    before = (tree / "submissions/one/published/submission.json").read_bytes()
    (tree / f"answers/one/published/{lost}.json").unlink()
    run_evaluate(scored(storage, "arc", resume=True))
    assert asked == [(lost,)]
    assert f"\nreport {tree / 'report.html'}\n" in capsys.readouterr().out
    assert (tree / "submissions/one/published/submission.json").read_bytes() == before


def test_challenges_without_solutions_give_a_submission_and_no_score(storage: Path, tmp_path: Path):
    pair = {"input": [[1, 2]], "output": [[2, 1]]}
    path = tmp_path / "arc-agi_test_challenges.json"
    path.write_text(json.dumps({"new": {"train": [pair], "test": [{"input": [[3, 4]]}]}}))
    data = DataConfig(source=TaskSource.ARC_JSON, path=str(path))
    run_evaluate(scored(storage, "kaggle", data=data, scoring=ARC))
    run = storage / "kaggle"
    submission = json.loads((run / "submissions/one/published/submission.json").read_text())
    assert list(submission) == ["new"] and len(submission["new"]) == 1
    assert not (run / "scores").exists()
    assert json.loads((run / "metrics.json").read_text())["prize"] == {}


def test_outputs_of_test_inputs_are_not_read(storage: Path, tree: Path, tmp_path: Path):
    """The same tasks with other test outputs have the same answers."""
    tasks = {
        of.id: {
            "train": [
                {"input": pair.input.tolist(), "output": pair.output.tolist()}
                for pair in of.demonstrations
            ],
            "test": [{"input": pair.input.tolist(), "output": [[7]]} for pair in of.questions],
        }
        for of in load_tasks(SMALL)
    }
    path = tmp_path / "altered.json"
    path.write_text(json.dumps(tasks))
    data = DataConfig(source=TaskSource.ARC_JSON, path=str(path))
    run_evaluate(scored(storage, "altered", data=data))
    for task in tasks:
        answers = [
            json.loads((storage / name / f"answers/one/published/{task}.json").read_text())
            for name in ("arc", "altered")
        ]
        assert answers[0]["questions"] == answers[1]["questions"]


def test_tasks_without_test_inputs_are_refused_before_a_run(storage: Path, tmp_path: Path):
    (tmp_path / "tasks").mkdir()
    pair = {"input": [[1]], "output": [[2]]}
    (tmp_path / "tasks/aaaa1111.json").write_text(json.dumps([pair, pair]))
    data = DataConfig(source=TaskSource.RE_ARC, path=str(tmp_path))
    with pytest.raises(DataError, match=r"data\.split_by=pair"):
        run_evaluate(scored(storage, "none", data=data))
    assert not (storage / "none").exists()


def test_training_on_tasks_keeps_specialists_that_answer_without_training(storage: Path):
    training = TaskTrainingConfig(steps=2, rank=2, augmentations=2, keep=True)
    arc = SEEN.model_copy(update={"votes": VotesConfig()})
    task = TASKS[0]
    data = SMALL.model_copy(update={"tasks": (task,)})

    def run_with(training: TaskTrainingConfig, name: str) -> None:
        scoring = arc.model_copy(update={"test_time_training": training})
        run_evaluate(scored(storage, name, scoring=scoring, data=data))

    run_with(training, "adapted")
    loaded = training.model_copy(update={"keep": False, "specialists": str(storage / "adapted")})
    run_with(loaded, "specialists")
    costs: list[float] = []
    for name in ("adapted", "specialists"):
        metrics = json.loads((storage / name / "metrics.json").read_text())
        costs.append(metrics["prize"]["one"]["published"]["trained"]["steps"])
    assert costs == [2, 0]
    wrong = training.model_copy(update={"specialists": str(storage / "one")})
    with pytest.raises(RunError, match=r"one/specialists holds no specialist of model one, only"):
        run_with(wrong, "wrong")
    assert not (storage / "wrong").exists()
    made, again = (
        json.loads((storage / name / f"answers/one/published/{task}.json").read_text())
        for name in ("adapted", "specialists")
    )
    assert made["questions"][0]["candidates"] == again["questions"][0]["candidates"]
    assert made["trained"]["before"] == again["trained"]["before"]
    page = (storage / "adapted/report.html").read_text()
    assert "before, two" in page and "steps a task" in page
