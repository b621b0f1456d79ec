import json
from collections.abc import Iterable, Mapping
from pathlib import Path

import pytest

from raylab.benchmark.config import QualityConfig
from raylab.benchmark.figures.measure import measure
from raylab.benchmark.logs.reading import read_trees
from raylab.benchmark.logs.trees import find_tree
from raylab.core.runs.eval_logs import EvalLog
from raylab.label.opt.code import Root
from raylab.label.protocol.outcome import Annotator, Outcome
from raylab.label.statistics.scores import ScoreTreeReport, annotator_names, score_tree
from raylab.llm.config import ChatModel
from tests.label.protocol.outcomes import answer, outcome, tables

NAMES: Mapping[Annotator, str] = {"A": "x", "B": "y"}
GOLD = [
    outcome(f"{root}{n}", root.value, "Lrn" if n % 2 else root.value, gold=root.value)
    for root in Root
    for n in range(12)
]


def tree(
    cases: Iterable[Outcome], names: Mapping[Annotator, str] = NAMES
) -> tuple[dict[str, EvalLog], ScoreTreeReport]:
    return score_tree(tables(cases), names, "2026-03-01T12:00:00+00:00")


@pytest.mark.parametrize(
    ("models", "expected"),
    [
        (("a", "b"), ("a", "b")),
        (("x/a:1", "x/a:1"), ("x-a-1@A", "x-a-1@B")),
        ((".a/b", "a b", "A-B"), ("a-b@A", "a-b@B", "A-B@C")),
    ],
)
def test_annotators_of_one_model_are_told_apart(models: tuple[str, ...], expected: tuple[str, ...]):
    names = annotator_names([ChatModel(model=name) for name in models])
    assert tuple(names.values()) == expected


def test_the_score_tree_is_measured_as_any_benchmark(tmp_path: Path):
    logs, report = tree(GOLD, {"A": "good", "B": "poor"})
    assert (report.left_out, report.files, len(logs)) == ((), 14, 14)
    for name, log in logs.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(log.content()))
    place = find_tree(str(tmp_path))
    (scores,) = read_trees([place], QualityConfig())
    measured = measure([scores], QualityConfig(bootstrap=200))
    # Half of each root's cases but those of Lrn, which is always right: (6 x 0.5 + 1) / 7.
    assert measured.models["good"] == 1.0
    assert measured.generations["poor"]["published"] == pytest.approx(4 / 7)


def test_score_files_hold_accuracy():
    cases = [
        outcome("1", "Evo/Lrn", answer(None), gold="Evo/Lrn"),
        outcome("2", "Lrn+Evo", "Evo", gold="Evo/Lrn"),
        outcome("3", "Evo", "Evo", gold="Evo/Lrn"),
        outcome("4", "Lrn", None, gold="Evo"),
        outcome("5", "Lrn", "Lrn"),
    ]
    logs, report = tree(cases)
    assert list(logs) == ["x/published/Evo.json", "y/published/Evo.json"]
    assert report.left_out[-2:] == (
        "1 case without held-out gold",
        "1 case with gold and without all answers",
    )
    a, b = logs.values()
    assert (a.samples, a.task, a.dataset) == (3, "Evo", "opt-code/published")
    # An error of three cases would mislead.
    assert (a.metrics, b.metrics) == ({"accuracy": pytest.approx(2 / 3)}, {"accuracy": 0.0})


def test_a_root_that_a_generation_lacks_is_in_none():
    file = [
        outcome(f"new/{n}", root, root, gold=root, generation="new")
        for n, root in enumerate(["Lrn", "Lrn", "Evo"])
    ]
    logs, report = tree([*GOLD, *file])
    assert {log.task for log in logs.values()} == {"Lrn", "Evo"}
    assert report.left_out[0] == "Sym: no case with this first label in gold in new"
    samples = {path: log.samples for path, log in logs.items()}
    assert (samples["x/published/Lrn.json"], samples["x/new/Lrn.json"]) == (12, 2)
