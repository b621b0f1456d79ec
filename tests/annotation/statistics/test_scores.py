import json
from typing import Any

import pytest

from raylab.annotation.outcome import Side
from raylab.annotation.statistics.scores import CANDIDATES, annotator_names, score_files
from raylab.config.jobs import QualityConfig
from raylab.config.llm import ChatModel
from raylab.errors import ConfigError
from raylab.opt.code import Root
from raylab.quality.measure import measure
from raylab.quality.reading import read_unit
from raylab.quality.trees import find_trees
from tests.annotation.outcomes import CODEBOOK, answer, outcome


def chat(model: str, seed: int | None = 1) -> ChatModel:
    return ChatModel(model=model, seed=seed)


def names_of(a: ChatModel, b: ChatModel) -> dict[Side, str]:
    return annotator_names({"annotator_a": a, "annotator_b": b})


def test_annotators_of_one_model_are_named_by_seed_or_side():
    assert names_of(chat("a"), chat("b")) == {"A": "a", "B": "b"}
    assert names_of(chat("x/a:1"), chat("x/a:1", 2)) == {
        "A": "x-a-1@seed1",
        "B": "x-a-1@seed2",
    }
    assert names_of(chat("a"), chat("a")) == {"A": "a@A", "B": "a@B"}
    assert names_of(chat(".a/b"), chat("a b")) == {"A": "a-b@A", "B": "a-b@B"}
    assert names_of(chat("A"), chat("a", 2)) == {"A": "A@seed1", "B": "a@seed2"}


GOLD = [
    outcome(f"{root}{n}", root.value, "Lrn" if n % 2 else root.value, gold=root.value)
    for root in Root
    for n in range(12)
]


def test_the_score_tree_is_measured_as_any_benchmark(tmp_path: Any):
    names = names_of(chat("good"), chat("poor"))
    found = score_files(GOLD, ("published", 1, 2), names, CODEBOOK, "2026-03-01T12:00:00+00:00")
    assert found.left_out == ()
    assert len(found.files) == 2 * 3 * 7
    for file in found.files:
        path = tmp_path / file.path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(file.log.content()))
    config = QualityConfig(bootstrap=200)
    (tree,) = find_trees(str(tmp_path), [], config.layout)
    measured = measure([tree], config, [read_unit(unit, config) for unit in tree.units])
    assert set(measured.generations["good"]) == {"published", "seed-1", "seed-2"}
    assert measured.models["good"] == 1.0
    # Half of each root's cases but those of Lrn, which is always right: (6 x 0.5 + 1) / 7.
    assert measured.generations["poor"]["published"] == pytest.approx(4 / 7)
    assert measured.figures["difficulty"].value == 0.0
    assert measured.figures["consistency"].value is not None
    assert "usable files" in (measured.figures["separability"].no_interval or "")


def test_generations_are_told_for_what_they_are(tmp_path: Any):
    file = str(tmp_path / "reworded.jsonl")
    cases = [*GOLD, *(one.model_copy(update={"generation": "reworded"}) for one in GOLD)]
    found = score_files(cases, ("published", 1, file), {"A": "x", "B": "y"}, CODEBOOK, "2026-03-01")
    kinds = {one.generation: one.log.metadata["generation_kind"] for one in found.files}
    assert kinds == {"published": "all cases", "seed-1": "random half", "reworded": "case file"}
    halves, files = found.notes
    assert "seed-1" in halves and "measures subsampling alone" in halves
    assert "reworded" in files and "case files of their own" in files
    assert score_files(GOLD, ("published",), {"A": "x", "B": "y"}, CODEBOOK, "n").notes == ()


def test_score_files_hold_accuracy_its_error_and_the_other_measures():
    cases = [
        outcome("1", "Evo/Lrn", "Evo", gold="Evo/Lrn"),
        outcome("2", "Lrn+Evo", answer(None), gold="Evo/Lrn"),
        outcome("3", "Evo", "Evo", gold="Evo/Lrn"),
        outcome("4", "Lrn", None, gold="Evo"),
        outcome("5", "Lrn", "Lrn"),
    ]
    found = score_files(cases, ("published",), {"A": "x", "B": "y"}, CODEBOOK, "2026-03-01")
    assert [file.path for file in found.files] == ["x/published/Evo.json", "y/published/Evo.json"]
    assert found.left_out[-2:] == (
        "1 cases without held-out gold",
        "1 cases with gold that lack an answer",
    )
    a, b = (file.log for file in found.files)
    assert (a.samples, a.task, a.dataset) == (3, "Evo", "opt-code/published")
    assert a.metrics["accuracy"] == pytest.approx(2 / 3)
    # An error of three cases would mislead.
    assert "stderr" not in a.metrics
    assert a.metrics["exact"] == pytest.approx(1 / 3)
    assert a.metrics["jaccard"] == pytest.approx(2.5 / 3)
    # Half of the mass of {Evo, Lrn} moves .80 to {Evo}.
    assert a.metrics["weighted"] == pytest.approx((1 + 1 + 0.6) / 3)
    assert (b.metrics["accuracy"], b.metadata["unparsable"]) == (0.0, 1)


def test_candidates_stand_in_place_of_the_annotators():
    right, wrong = outcome("a", "Evo", None, gold="Evo"), outcome("b", "Lrn", None, gold="Evo")
    found = score_files([right, wrong], ("published",), CANDIDATES, CODEBOOK, "t")
    (file,) = found.files
    assert (file.path, file.log.samples) == ("candidates/published/Evo.json", 2)
    assert file.log.metrics["accuracy"] == 0.5


def test_a_root_that_some_generation_lacks_is_left_out_of_all():
    file = [
        outcome(f"new/{n}", root, root, gold=root, generation="new")
        for n, root in enumerate(["Lrn", "Lrn", "Evo"])
    ]
    found = score_files(
        [*GOLD, *file], ("published", "/data/new.jsonl"), {"A": "x", "B": "y"}, CODEBOOK, "t"
    )
    assert {file.path for file in found.files} == {
        f"{name}/{generation}/{root}.json"
        for name in "xy"
        for generation in ("published", "new")
        for root in ("Lrn", "Evo")
    }
    assert found.left_out[0] == (
        "Sym: too few cases with this primary root in gold (0 in new; 1 are needed in every "
        "generation)"
    )
    samples = {file.path: file.log.samples for file in found.files}
    assert (samples["x/published/Lrn.json"], samples["x/new/Lrn.json"]) == (12, 2)
    many = score_files(GOLD, ("published",), {"A": "x", "B": "y"}, CODEBOOK, "t", least=13)
    assert many.files == ()
    assert len(many.left_out) == 7


def test_a_case_file_may_not_have_the_name_of_a_seed():
    with pytest.raises(ConfigError, match="seed 1"):
        score_files([], (1, "/data/seed-1.jsonl"), {"A": "x", "B": "y"}, CODEBOOK, "t")
