"""An evaluation as ARC Prize scores, from the command to its files."""

from pathlib import Path
from typing import Any

import pytest

from jobs.evaluate import run as run_evaluate
from raylab.arc.config.jobs import EvaluateConfig
from raylab.arc.config.sections import (
    DataConfig,
    ScoringConfig,
    TaskSource,
    TaskTrainingConfig,
    VotesConfig,
)
from raylab.arc.data.sources import load_tasks
from raylab.arc.evaluation import prize
from raylab.arc.evaluation.prize import KEYS
from raylab.arc.pages.prize import prize_page
from raylab.arc.records import EvaluationMetrics
from raylab.core.errors import DataError, RunError
from raylab.core.page.page import render
from raylab.core.runs.eval_logs import read_score
from raylab.core.runs.run import Run
from tests.arc.evaluation.models import DATA, evaluation
from tests.arc.tasks import read_json, write_json

ARC = ScoringConfig(
    protocol="arc", metric="two_attempts", votes=VotesConfig(views=4), include_seen=True
)
TASKS = ("25ff71a9", "3c9b0459", "a85d4709")
SMALL = DATA.model_copy(update={"tasks": TASKS, "every": 1})


def scored(storage: Path, name: str, **changes: Any) -> EvaluateConfig:
    one = {"models": ("one",), "generations": ("published",), "data": SMALL, "scoring": ARC}
    return evaluation(storage, name, **(one | changes))


@pytest.fixture(scope="module")
def tree(storage: Path) -> Path:
    run_evaluate(scored(storage, "arc"))
    return storage / "arc"


def answers(storage: Path, name: str, task: str) -> Any:
    return read_json(storage / name / f"answers/one/published/{task}.json")


def arc_json(path: Path, tasks: object) -> DataConfig:
    return DataConfig(source=TaskSource.ARC_JSON, path=write_json(path, tasks))


def test_the_run_has_answers_scores_submission_and_page(tree: Path):
    metrics = read_json(tree / "metrics.json")
    score = metrics["prize"]["one"]["published"]
    assert score["tasks"] == 3
    assert [point["views"] for point in score["curve"]] == [1, 2, 4]
    assert set(metrics["prize_baselines"]) == set(metrics["baselines"])
    assert metrics["models"]["one"]["published"] == score["two_attempts"]
    for task in TASKS:
        with (tree / f"scores/one/published/{task}.json").open("rb") as file:
            assert isinstance(read_score(file, task), float)
    submission = read_json(tree / "submissions/one/published/submission.json")
    assert all(set(entry) == set(KEYS) for entries in submission.values() for entry in entries)
    assert read_json(tree / "record.json")["finished"]
    page = (tree / "report.html").read_text()
    # Nothing is solved, so that the votes have no range to draw.
    assert "two attempts" in page and 'id="votes"' not in page
    record = Run.at(tree).read_record(EvaluationMetrics)
    assert record is not None
    measured = record.prize["one"]["published"]
    curve = [point.model_copy(update={"two_attempts": point.views / 8}) for point in measured.curve]
    better = {"one": {"published": measured.model_copy(update={"curve": curve})}}
    drawn = render(prize_page(Run.at(tree), record.model_copy(update={"prize": better}), []))
    assert 'id="votes"' in drawn and "by the number of views" in drawn


def test_the_tasks_that_two_models_answer_are_diagnosed(storage: Path):
    views = ARC.model_copy(update={"votes": VotesConfig(views=1)})
    run_evaluate(scored(storage, "both", models=("one", "two"), scoring=views))
    diagnosis = read_json(storage / "both/diagnosis.json")
    assert (diagnosis["models"], diagnosis["items"]) == (2, len(TASKS))
    page = (storage / "both/report.html").read_text()
    assert 'href="diagnosis.html"' in page and "Differences between models" in page
    for task in load_tasks(SMALL):
        assert page.count(f"input of task {task.id},") == 2 * len(task.questions)
        assert f"prediction of two, attempt 1 for task {task.id}" in page
    assert (storage / "both/diagnosis.html").exists()


def test_the_submission_of_a_run_has_its_score(storage: Path, tree: Path):
    submission = tree / "submissions/one/published/submission.json"
    run_evaluate(scored(storage, "submitted", models=(), submission=str(submission)))
    theirs = read_json(storage / "submitted/metrics.json")["prize"]["submission"]["published"]
    ours = read_json(tree / "metrics.json")["prize"]["one"]["published"]
    for key in ("first_attempt", "two_attempts", "tasks", "outputs", "errors"):
        assert theirs[key] == ours[key]


def test_nothing_answered_is_answered_again(
    storage: Path,
    tree: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):
    asked: list[tuple[str, ...]] = []
    solve = prize.solve

    def spy(exam: Any, pair: Any, tasks: tuple[str, ...], *rest: Any) -> Any:
        asked.append(tasks)
        # Where models answer, no test output is known.
        posed = exam.tasks["published"].values()
        assert not any(question.is_answered for task in posed for question in task.questions)
        return solve(exam, pair, tasks, *rest)

    monkeypatch.setattr(prize, "solve", spy)
    submission = tree / "submissions/one/published/submission.json"
    before = submission.read_bytes()
    (tree / f"answers/one/published/{TASKS[1]}.json").unlink()
    run_evaluate(scored(storage, "arc", resume=True))
    assert asked == [(TASKS[1],)]
    out = capsys.readouterr().out
    assert "2 of 3 tasks are answered already" in out
    assert f"\nreport {tree / 'report.html'}\n" in out
    assert submission.read_bytes() == before


def test_where_nothing_is_solved_it_is_said_in_counts(storage: Path, tmp_path: Path):
    entry = {"attempt_1": [[7]], "attempt_2": None}
    wrong = {task.id: [entry] * len(task.questions) for task in load_tasks(SMALL)}
    file = write_json(tmp_path / "wrong.json", wrong)
    run_evaluate(scored(storage, "nothing", models=(), submission=str(file)))
    page = (storage / "nothing/report.html").read_text()
    outputs = sum(map(len, wrong.values()))
    assert f"No model solves a test output of 3 tasks with {outputs} test outputs." in page
    assert f"{outputs} attempts of wrong are missing or no grid, and count as wrong." in page
    assert "0 of 3" in page and "0.00 % ±" not in page
    assert "No baseline solves any." in page
    # The first attempt has another size, and the second is missing.
    assert "1 by 1 instead of" in page and "no grid instead of" in page
    assert "0 by 0" not in page


def test_where_all_is_solved_it_is_said_in_counts(
    storage: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    right = {
        task.id: [{key: pair.output.tolist() for key in KEYS} for pair in task.questions]
        for task in load_tasks(SMALL)
    }
    file = write_json(tmp_path / "right.json", right)
    run_evaluate(scored(storage, "all", models=(), submission=str(file)))
    page = (storage / "all/report.html").read_text()
    assert "3 of 3" in page and "100.00 % ±" not in page
    # What a submission was trained on is not known.
    output = capsys.readouterr().out
    assert "3 of 3 tasks are posed, whether seen in training or not" in output
    assert f"submissions of 3 tasks {storage / 'all/submissions'}" in output
    with pytest.raises(ValueError, match="answers the tasks as published"):
        scored(storage, "redrawn", models=(), submission=str(file), generations=(1,))


def test_a_submission_of_small_tasks_says_so(
    storage: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    pair, wide = ({"input": [[1] * n], "output": [[2] * n]} for n in (2, 3))
    tasks = {"small": {"train": [pair], "test": [pair]}, "wide": {"train": [wide], "test": [pair]}}
    data = arc_json(tmp_path / "tasks.json", tasks).model_copy(update={"max_side": 2})
    run_evaluate(scored(storage, "small", data=data))
    output = capsys.readouterr().out
    assert "1 of 1 tasks of sides up to 2 are posed" in output
    assert f"submissions of 1 task {storage / 'small/submissions'}" in output
    page = (storage / "small/report.html").read_text()
    assert "Only part of the tasks or pairs was used (data.max_side)." in page
    both = {id_: [{key: [[2, 2]] for key in KEYS}] for id_ in tasks}
    file = write_json(tmp_path / "both.json", both)
    with pytest.raises(DataError, match=r"answers wide, not among .* without data\.tasks, data\."):
        run_evaluate(scored(storage, "larger", models=(), submission=str(file), data=data))


def test_challenges_without_solutions_give_a_submission_and_no_score(
    storage: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    pair = {"input": [[1, 2]], "output": [[2, 1]]}
    tasks = {"new": {"train": [pair], "test": [{"input": [[3, 4]]}]}}
    data = arc_json(tmp_path / "arc-agi_test_challenges.json", tasks)
    run_evaluate(scored(storage, "kaggle", data=data))
    output = "".join(capsys.readouterr())
    assert "1 of 1 test outputs are not known" in output and "cannot be scored" not in output
    run = storage / "kaggle"
    submission = read_json(run / "submissions/one/published/submission.json")
    assert list(submission) == ["new"] and len(submission["new"]) == 1
    assert not (run / "scores").exists()
    assert read_json(run / "metrics.json")["prize"] == {}


def test_tasks_without_test_inputs_are_refused_before_a_run(storage: Path, tmp_path: Path):
    write_json(tmp_path / "aaaa1111.json", [{"input": [[1]], "output": [[2]]}] * 2)
    data = DataConfig(source=TaskSource.RE_ARC, path=str(tmp_path))
    with pytest.raises(DataError, match=r"data\.split_by=pair"):
        run_evaluate(scored(storage, "unposed", data=data))
    assert not (storage / "unposed").exists()


def test_training_on_tasks_keeps_specialists_that_answer_without_training(storage: Path):
    training = TaskTrainingConfig(steps=2, augmentations=2, keep=True, before=True)
    data = SMALL.model_copy(update={"tasks": TASKS[:1]})

    def run_with(name: str, **changes: Any) -> Any:
        own = training.model_copy(update=changes)
        scoring = ARC.model_copy(update={"votes": VotesConfig(), "test_time_training": own})
        run_evaluate(scored(storage, name, scoring=scoring, data=data))
        score = read_json(storage / name / "metrics.json")["prize"]["one"]["published"]
        return score["trained"]["steps"]

    assert run_with("adapted") == 2
    assert run_with("specialists", keep=False, specialists=str(storage / "adapted")) == 0
    with pytest.raises(RunError, match=r"one/specialists holds no specialist of model one, only"):
        run_with("wrong", specialists=str(storage / "one"))
    assert not (storage / "wrong").exists()
    made, again = (answers(storage, name, TASKS[0]) for name in ("adapted", "specialists"))
    assert made["questions"][0]["candidates"] == again["questions"][0]["candidates"]
    assert made["trained"]["before"] == again["trained"]["before"] != []
    page = (storage / "adapted/report.html").read_text()
    assert "before, two" in page and "training steps" in page
    assert run_with("brief", keep=False, before=False) == 2
    page = (storage / "brief/report.html").read_text()
    assert "before" not in page.partition("Provenance")[0] and "training steps" in page


def test_tasks_without_a_known_output_are_named(
    storage: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    pair = {"input": [[1, 2]], "output": [[2, 1]]}
    tasks = {
        "known": {"train": [pair], "test": [pair]},
        "unknown": {"train": [pair], "test": [{"input": [[3, 4]]}]},
        "empty": {"train": [pair], "test": []},
    }
    data = arc_json(tmp_path / "tasks.json", tasks)
    run_evaluate(scored(storage, "lacking", data=data))
    output = "".join(capsys.readouterr())
    assert "1 of 3 tasks count, no test output is known of empty and unknown" in output
