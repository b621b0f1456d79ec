"""Responses read from logs and tables of all formats."""

import io
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from raylab.benchmark.config import QualityConfig
from raylab.benchmark.logs import inspect_logs, log
from raylab.benchmark.logs.log import (
    CANCELLED,
    ERRORED,
    INVALIDATED,
    NO_NUMBER,
    UNNAMED,
    UNSCORED,
)
from raylab.benchmark.logs.reading import read_responses
from raylab.benchmark.logs.trees import find_tree
from raylab.benchmark.responses import Responses
from raylab.core.errors import DataError
from raylab.together import frames
from tests.benchmark.logs.eval_logs import ever, harness, inspect_file, inspect_log, sample, table


def read_from(path: Path, **keys: Any) -> Responses:
    return read_responses(find_tree(str(path)), QualityConfig(**keys))


def cells(responses: Responses) -> dict[tuple[str, ...], float]:
    """Scores by model and item, and by generation and epoch where these are not the first."""
    rows = responses.table[["model", "item", "generation", "epoch", "score"]]
    return {
        (model, item, *filter(None, (generation, f"epoch {epoch}" if epoch > 1 else ""))): score
        for model, item, generation, epoch, score in rows.itertuples(index=False)
    }


def about(responses: Responses, name: str) -> tuple[str, str, dict[str, str]]:
    """The text and target of an item, and the models' answers to it."""
    matrix, answers = responses.matrix, responses.answers
    codes = answers.codes[:, matrix.items.index(name)]
    given = {m: answers.names[c] for m, c in zip(matrix.models, codes, strict=True) if c >= 0}
    return responses.items.at[name, "text"], responses.items.at[name, "target"], given


def reasons(responses: Responses) -> dict[str, int]:
    return {reason.partition(":")[0]: count for reason, count in responses.left_out.items()}


# Inspect


@pytest.fixture(scope="module")
def evaluated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("evaluated")
    script = Path(__file__).with_name("evaluation.py")
    subprocess.run([sys.executable, script, directory], check=True, timeout=300)
    return directory


@pytest.mark.parametrize("kind", ["eval", "json"])
def test_samples_of_an_evaluation_that_inspect_ran(evaluated: Path, kind: str) -> None:
    name, logs = "mockllm/model", evaluated / kind / "2"
    read = read_from(logs)
    assert cells(read) == {(name, "a"): 1.0, (name, "a", "epoch 2"): 0.0}
    assert {row.used for row in read.reading.scorers} == {"right"}
    assert read.reading.scorers[0].others == ("tone", "length", "style")
    assert read.left_out == {UNSCORED: 2, ERRORED: 2}
    assert read.examples[ERRORED].endswith(f".{kind}: failed")
    assert about(read, "a") == ("What is a?", "A", {name: "A1"})
    tone = read_from(logs, scorer="tone")
    length = read_from(logs, scorer="style", metric="length")
    assert set(cells(tone).values()) == {0.5} and set(cells(length).values()) == {1.0}
    assert len(tone.table) == 4
    cancelled = read_from(evaluated / kind / "1")
    assert cells(cancelled) == {(name, "a"): 1.0} and cancelled.left_out == {CANCELLED: 1}


VALUES: dict[Any, float | str] = {
    "C": 1.0,
    "I": 0.0,
    "P": 0.5,
    "N": 0.0,
    True: 1.0,
    "no": 0.0,
    "0.25": 0.25,
    0.125: 0.125,
    "maybe": NO_NUMBER,
    float("inf"): NO_NUMBER,
    float("nan"): UNSCORED,
}


@pytest.mark.parametrize("suffix", ["json", "eval"])
def test_values_of_scores_are_read_or_left_out_with_the_reason(tmp_path: Path, suffix: str) -> None:
    error = inspect_log.EvalSample(
        id="stopped",
        epoch=1,
        input="?",
        target="A",
        error={"message": "CancelledError()", "traceback": "", "traceback_ansi": ""},
    )
    samples = [sample(str(value), {"match": value}) for value in VALUES]
    samples.append(sample("list", {"match": [1, 0]}))
    missing = sample("missing", {"other": "C"})
    inspect_file(tmp_path / f"log.{suffix}", "m", [*samples, error, missing])
    read = read_from(tmp_path)
    scores = {("m", str(v)): score for v, score in VALUES.items() if isinstance(score, float)}
    assert cells(read) == scores
    assert read.left_out == {NO_NUMBER: 3, UNSCORED: 2, CANCELLED: 1}
    with pytest.raises(DataError, match=r"3 scores that are not numbers.*set strict=false"):
        read_from(tmp_path, strict=True)


@pytest.mark.parametrize("suffix", ["json", "eval"])
def test_invalidated_samples_are_left_out(tmp_path: Path, suffix: str) -> None:
    provenance = inspect_log.ProvenanceData(author="me", reason="leak")
    samples = [sample("a", {"match": "C"}), sample("b", {"match": "C"}, invalidation=provenance)]
    inspect_file(tmp_path / f"log.{suffix}", "m", samples, invalidated=True)
    read = read_from(tmp_path)
    assert cells(read) == {("m", "a"): 1.0} and read.left_out == {INVALIDATED: 1}


def test_a_picture_is_the_same_text_in_a_sample_and_its_summary(tmp_path: Path) -> None:
    from inspect_ai.model import ChatMessageUser, ContentImage, ContentText

    parts = [ContentImage(image="data:image/png;base64,AAAA"), ContentText(text="What?")]
    samples = [sample("a", {"match": "C"}, input=[ChatMessageUser(content=parts)])]
    inspect_file(tmp_path / "log.json", "m", samples)
    inspect_file(tmp_path / "log.eval", "n", samples)
    inspect_file(tmp_path / "other.eval", "o", [sample("a", {"match": "C"})])
    read = read_from(tmp_path)
    assert read.matrix.models == ("m", "n") and about(read, "a")[0] == "(Image)\nWhat?"
    assert list(read.left_out.values()) == [1]
    assert len(read_from(tmp_path, match="text").matrix.items) == 2


def without(path: Path, *names: str) -> None:
    """Writes an `.eval` log anew without some of its members."""
    with zipfile.ZipFile(io.BytesIO(path.read_bytes())) as old, zipfile.ZipFile(path, "w") as new:
        for member in old.namelist():
            if member not in names:
                new.writestr(member, old.read(member))


def test_samples_are_read_where_a_log_has_no_summaries(tmp_path: Path) -> None:
    path = inspect_file(tmp_path / "log.eval", "m", [sample("a/b", {"match": "C"}), sample(7, {})])
    without(path, "summaries.json")
    read = read_from(path)
    assert cells(read) == {("m", "a/b"): 1.0} and read.left_out == {UNSCORED: 1}
    without(path, "header.json", "_journal/start.json")
    with pytest.raises(DataError, match=r"1 files .unfinished: the log has no header\.json"):
        read_from(path)


def test_long_texts_are_the_same_in_summaries_and_samples(tmp_path: Path) -> None:
    passage = "word " * 2000
    for model, suffix in (("m", "json"), ("n", "eval")):
        samples = [
            sample(place, {"match": "C"}, input=f"{passage}{place}?", choices=["x", "y"])
            for place in range(2)
        ]
        inspect_file(tmp_path / f"{model}.{suffix}", model, samples)
    read = read_from(tmp_path)
    assert not read.left_out and read.items["choices"].tolist() == [2, 2]
    assert [text[-6:] for text in read.items["text"]] == ["0?\nx\ny", "1?\nx\ny"]


# Trees with a directory per model


def test_directories_name_models_where_the_logs_name_one(tmp_path: Path) -> None:
    for model, file in np.ndindex(2, 2):
        path = tmp_path / f"m{model}" / f"sums{file}.json"
        samples = [sample(f"{file}/{n}", {"match": "C"}) for n in range(60)]
        inspect_file(path, "x", samples, "same")
    read = read_from(tmp_path)
    assert read.matrix.scores.shape == (2, 120) and not read.left_out
    assert set(read.table["run"]) == {1} and read.matrix.models == ("m0", "m1")
    assert about(read, "1/59")[2] == {"m0": "B", "m1": "B"}
    pd.testing.assert_frame_equal(frames.responses(str(tmp_path)), read.table)


@pytest.mark.parametrize(
    ("directories", "models"),
    [
        ({"2026-01-01": "org/m", "2026-01-02": "org/m"}, ["org/m"]),
        ({"quiz": "org/m", "other": "org/m"}, ["org/m"]),
        ({"m-1": "org/M_1", "m-2": "org/M_2"}, ["m-1", "m-2"]),
        ({"ok": "org/m", "cancelled": "org/n"}, ["org/m", "org/n"]),
        ({"day1": "org/m org/n", "day2": "org/m org/n"}, ["org/m", "org/n"]),
    ],
)
def test_directories_of_tasks_and_dates_are_no_models(
    tmp_path: Path, directories: dict[str, str], models: list[str]
) -> None:
    for day, (directory, names) in enumerate(directories.items(), 1):
        for place, name in enumerate(names.split()):
            created = f"2026-01-0{day}T00:00:00+00:00"
            path = tmp_path / directory / f"{place}.json"
            inspect_file(path, name, [sample("a", {"match": "C"})], created=created)
    read = read_from(tmp_path)
    assert list(read.matrix.models) == models
    logs = sum(len(names.split()) for names in directories.values())
    assert max(read.table["run"].tolist()) == logs / len(models)


# Other formats


def test_lm_eval_is_read_by_filter_and_metric(tmp_path: Path) -> None:
    for model, scores in {"org/m": [1.0, 0.0, None, float("nan")], "org/n": [0.0, 1.0]}.items():
        rows = [
            {
                "doc": {"question": f"What is {number}?", "answer": "4"},
                "doc_id": number,
                "doc_hash": f"{number:064x}",
                "target": "4",
                "arguments": {"gen_args_0": {"arg_0": "Q: ...", "arg_1": {"until": []}}},
                "filtered_resps": ["4"],
                "filter": name,
                "metrics": ["exact_match", "f1"],
                "exact_match": value if name == "strict-match" else 1.0,
                "f1": 0.75,
            }
            for name in ("strict-match", "flexible-extract")
            for number, value in enumerate(scores)
        ]
        harness(tmp_path, model, rows)
    read = read_from(tmp_path)
    assert cells(read) == {
        ("org/m", "0"): 1.0,
        ("org/m", "1"): 0.0,
        ("org/n", "0"): 0.0,
        ("org/n", "1"): 1.0,
    }
    (used,) = read.reading.scorers
    assert used.used == "exact_match of strict-match"
    assert used.others == ("f1", "exact_match of flexible-extract")
    assert read.left_out == {UNSCORED: 2}
    assert about(read, "1") == ("What is 1?", "4", {"org/m": "4", "org/n": "4"})
    loose = read_from(tmp_path, scorer="flexible-extract")
    assert len(loose.table) == 6 and set(loose.table["score"]) == {1.0}
    assert set(read_from(tmp_path, metric="f1").table["score"]) == {0.75}
    with pytest.raises(DataError, match="no filter none, it has strict-match, flexible-extract"):
        read_from(tmp_path, scorer="none")


def result(name: str, metric: str) -> dict[str, Any]:
    return {
        "evaluation_result_id": f"{name}/{metric}",
        "evaluation_name": name,
        "metric_config": {"metric_id": metric, "lower_is_better": False},
    }


def graded(name: str, score: Any, **fields: Any) -> dict[str, Any]:
    grade = {"score": score, "is_correct": score == 1}
    return {"sample_id": name, "evaluation": grade, **fields}


def test_every_eval_ever_is_read_by_metric(tmp_path: Path) -> None:
    rows = [
        graded("a", 1.0, evaluation_result_id="quiz/accuracy"),
        graded("a", 0.5, evaluation_result_id="quiz/f1"),
        graded("a", 0.0, evaluation_result_id="quiz/accuracy"),
        graded("b", 0.0, error="timeout"),
        graded("c", "x"),
        graded("d", 0.0, metadata={"lm_eval_metrics": "{}"}),
        graded("e", 0.0, metadata={"lm_eval_metrics": '{"acc": 0.0}'}, sample_hash=None),
    ]
    results = [result("quiz", "accuracy"), result("quiz", "f1")]
    ever(tmp_path, "org/m", rows, evaluation_results=results)
    read = read_from(tmp_path)
    scores = {("org/m", "a"): 1.0, ("org/m", "a", "epoch 2"): 0.0, ("org/m", "e"): 0.0}
    assert cells(read) == scores
    assert read.left_out == {ERRORED: 1, NO_NUMBER: 1, UNSCORED: 1}
    assert "accuracy was read of quiz; there is also f1" in read.reading.sentences[0]
    assert about(read, "a")[1:] == ("A; a", {"org/m": "A"})
    assert cells(read_from(tmp_path, metric="f1"))["org/m", "a"] == 0.5
    with pytest.raises(DataError, match="no metric bleu, it has accuracy, f1"):
        read_from(tmp_path, metric="bleu")


ROWS = {
    "model": ["m", "m", "m", "n", "n", "n"],
    "item": ["007", "1", "7", "007", "1", None],
    "score": [1.0, 0.5, None, None, 0.25, 1.0],
    "group": ["g", "g", None, "g", "g", "g"],
    "generation": ["a", "a", "a", "a", "b", "b"],
    "weight": [2.0, None, 1.0, 1.0, 1.0, 1.0],
    "other": [None] * 6,
}


@pytest.mark.parametrize("suffix", ["csv", "parquet", "jsonl"])
def test_a_long_table(tmp_path: Path, suffix: str) -> None:
    table(tmp_path / f"t.{suffix}", **ROWS)
    read = read_from(tmp_path / f"t.{suffix}")
    assert cells(read) == {("m", "007", "a"): 1.0, ("m", "1", "a"): 0.5, ("n", "1", "b"): 0.25}
    assert reasons(read) == {UNSCORED: 2, UNNAMED: 1}
    assert read.table["weight"].tolist() == [2.0, 1.0, 1.0]
    assert set(read.table["group"]) == {"g"}
    assert read.reading.left_out["n"] == {UNSCORED: 1, UNNAMED: 1}
    table(tmp_path / f"t.{suffix}", model=["m"], item=[1], score=["C"])
    assert cells(read_from(tmp_path)) == {("m", "1"): 1.0}
    table(tmp_path / f"t.{suffix}", model=["m"], score=[1])
    with pytest.raises(DataError, match="without"):
        read_from(tmp_path)


@pytest.mark.parametrize("suffix", ["json", "eval"])
def test_a_log_that_is_written_counts_and_an_id_counts_once(tmp_path: Path, suffix: str) -> None:
    twice = [sample(1, {"match": "C"}), sample("1", {"match": "I"}), sample(2, {"match": "C"})]
    inspect_file(tmp_path / f"a.{suffix}", "m", twice, status="started", results=None)
    read = read_from(tmp_path)
    assert cells(read)["m", "1"] in (0.0, 1.0) and cells(read)["m", "2"] == 1.0
    # Inspect itself keeps one of both in a zip.
    assert cells(read).get(("m", "1", "epoch 2")) == (0.0 if suffix == "json" else None)


# What is hostile or broken


def bomb(content: bytes) -> bytes:
    with io.BytesIO() as stream:
        with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("header.json", "{}")
            archive.writestr("summaries.json", content)
        return stream.getvalue()


HOSTILE = {
    "bomb.eval": bomb(b" " * (1 << 24)),
    "deep.json": b'{"eval": {}, "samples": [' + b"[" * 100_000,
    "deep.jsonl": b'{"model": ' + b"[" * 100_000,
    "early.json": b'{"eval": {"model": "m"}, "samples": [{"id": 1}, {"id"',
    "other.json": b'{"a": 1}',
    "torn.jsonl": b'{"model": "m", "item"',
    "empty.csv": b"",
    "torn.parquet": b"PAR1 and no more",
    "quotes.csv": b"model,item,score\nm,a," + b"1" * 200_000,
    "no.eval": b"PK\3\4",
}


def test_hostile_files_are_left_out_with_their_reasons(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inspect_logs, "SAMPLE_BYTES", 1 << 22)
    for name, content in HOSTILE.items():
        (tmp_path / name).write_bytes(content)
    (tmp_path / "nothing.json").symlink_to(tmp_path / "nowhere")
    (tmp_path / "a\nb\x1b[31m.json").write_text("{")
    (tmp_path / "t.jsonl").write_text('{"model": "\\ud800", "item": "a", "score": 1}')
    table(tmp_path / "t.csv", model=["m\x1b[2J"], item=["x" * 500], score=[1])
    read = read_from(tmp_path)
    ((model, item), surrogate) = cells(read)
    assert surrogate == (r"\ud800", "a") and model == "m\\x1b[2J" and len(item) < 250
    assert sum(read.left_out.values()) == len(HOSTILE) + 2, read.examples
    assert all(text.isprintable() for text in [*read.left_out, *read.examples.values()])


def test_a_file_that_expands_is_left_out_and_none_of_its_rows_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log, "MAX_ROWS", 3)
    table(tmp_path / "a.csv", model=["m"], item=[1], score=[1])
    many = ["n"] * 4
    table(tmp_path / "b.parquet", model=many, item=[*range(4)], score=[1] * 4)
    read = read_from(tmp_path)
    assert cells(read) == {("m", "1"): 1.0} and len(read.left_out) == 1
