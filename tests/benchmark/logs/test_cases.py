"""Trees as people have them, one situation each, with what is right to read of them."""

import json
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pytest

from raylab.benchmark.config import QualityConfig
from raylab.benchmark.logs.join import TreeScores
from raylab.benchmark.logs.reading import read_trees
from raylab.benchmark.logs.trees import find_tree
from raylab.benchmark.responses import Responses
from raylab.core.errors import DataError
from raylab.core.workers import WorkersHere
from tests.benchmark.logs.eval_logs import every_eval_ever_files, lines_file

DAY = "2026-11-0{}T10:00:00+00:00"
ITEMS = 10


def inspect(path: Path, model: str, values: list[Any], **fields: Any) -> None:
    """A JSON log of Inspect; a value is that of a score, or the fields of a sample."""
    name = fields.get("scorer", "choice")
    samples = [
        {
            "id": f"q{place}",
            "epoch": 1,
            "input": f"{fields.get('input', 'What is')} {place}?",
            "choices": ["one", "two"],
            "target": "A",
        }
        | (value if isinstance(value, dict) and "_" in value else {"scores": {name: score(value)}})
        for place, value in enumerate(values)
    ]
    heads = fields.get(
        "heads", [{"name": name, "scorer": name, "metrics": fields.get("metrics", {})}]
    )
    about = {
        "model": model,
        "task": fields.get("task", "quiz"),
        "created": fields.get("day", DAY.format(1)),
    }
    about |= {"eval_id": "e", "task_id": fields.get("task_id", "t")}
    about |= {
        "task_args": fields.get("args", {}),
        "model_generate_config": fields.get("config", {}),
    }
    status = fields.get("status", "success")
    log = {"version": 2, "status": status, "eval": about, "results": {"scores": heads}}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(log | ({} if fields.get("bare") else {"samples": samples})))


def score(value: Any) -> dict[str, Any]:
    return {"value": value, "answer": "A"}


def failed(value: Any = None, message: str = "RateLimitError") -> dict[str, Any]:
    scores = {} if value is None else {"choice": score(value)}
    return {"_": 0, "error": {"message": message}, "scores": scores}


def shares(right: int, of: int = ITEMS) -> list[str]:
    return ["C"] * right + ["I"] * (of - right)


def harness(
    root: Path, model: str, rows: list[dict[str, Any]], time: str = "1", **fields: Any
) -> None:
    """Samples of lm-evaluation-harness; a row adds to that of a document."""
    stamp = f"2026-11-0{time}T10-00-00.000000"
    base = {"filter": "none", "target": "A", "filtered_resps": ["A"], "metrics": ["acc"]}
    whole = [
        {**base, "doc_id": place, "doc": {"question": f"q {place}"}, "doc_hash": f"{place}", **row}
        for place, row in enumerate(rows)
    ]
    task, home = fields.get("task", "arc"), root / model.replace("/", "__")
    lines_file(home / f"samples_{task}_{stamp}.jsonl", whole)
    if "published" in fields:
        results = {"model_name": model, "results": {task: {"acc,none": fields["published"]}}}
        (home / f"results_{stamp}.json").write_text(json.dumps(results))


def table(root: Path, name: str = "t.csv", **columns: Any) -> None:
    frame = pd.DataFrame(columns)
    frame.to_parquet(root / name) if name.endswith("t") else frame.to_csv(root / name, index=False)


def each_model(write: Callable[..., None], *names: str, **fields: Any) -> Callable[[Path], None]:
    """A log for each model, right on 6, 5, ... of the items."""

    def make(root: Path) -> None:
        for number, name in enumerate(names):
            write(root / f"{name}.json", name, shares(6 - number), **fields)

    return make


def two_seeds(root: Path) -> None:
    for model, seed in np.ndindex(2, 2):
        values, day = shares(4 + model + 2 * seed), DAY.format(seed + 1)
        inspect(root / f"m{model}-s{seed}.json", f"m{model}", values, day=day)


def arguments(root: Path) -> None:
    for model, name in (("m", "easy"), ("m", "hard"), ("n", "easy"), ("n", "hard")):
        values = shares(8 if name == "easy" else 2)
        inspect(root / f"{model}-{name}.json", model, values, args={"subset": name}, input=name)


def efforts(root: Path) -> None:
    for effort, right in (("low", 3), ("high", 7)):
        config = {"reasoning_effort": effort, "seed": right}
        inspect(root / f"{effort}.json", "m", shares(right), config=config)


def two_tasks(root: Path, below: str = "") -> None:
    for model, task in np.ndindex(2, 2):
        path = root / (f"task{task}" if below else "") / f"{model}-{task}.json"
        inspect(path, f"m{model}", shares(8 - 3 * model - task), task=f"task{task}")


def attempts(order: tuple[str, str]) -> Callable[[Path], None]:
    def make(root: Path) -> None:
        for day, status in enumerate(order, 1):
            values = shares(7) if status == "success" else ["I"] * 4
            inspect(root / f"{day}.json", "m", values, status=status, day=DAY.format(day))

    return make


def statuses(below: bool) -> Callable[[Path], None]:
    def make(root: Path) -> None:
        for status, size in (("success", 10), ("error", 4), ("cancelled", 4)):
            path = root / status / "log.json" if below else root / f"{status}.json"
            inspect(path, f"org/m{size}{status[0]}", shares(size // 2, size), status=status)

    return make


def crashed(root: Path) -> None:
    inspect(root / "x.json", "m", shares(3, 4))
    log = json.loads((root / "x.json").read_text())
    (root / "x.json").unlink()
    with zipfile.ZipFile(root / "started.eval", "w") as archive:
        archive.writestr("_journal/start.json", json.dumps({"version": 2, "eval": log["eval"]}))
        for each in log["samples"]:
            archive.writestr(f"samples/{each['id']}_epoch_1.json", json.dumps(each))


def reducers(root: Path, bare: bool = False) -> None:
    heads = [
        {
            "name": "choice",
            "scorer": "choice",
            "reducer": name,
            "metrics": {"accuracy": {"value": value}},
        }
        for name, value in (("max", 0.9), ("mean", 0.5))
    ]
    epochs = [
        {"_": 0, "id": "a", "input": "?", "epoch": n, "scores": {"choice": score(v)}}
        for n, v in ((1, 0), (2, 1))
    ]
    inspect(root / "m.json", "m", epochs, heads=heads, bare=bare)


def graders(root: Path) -> None:
    values = [{"_": 0, "scores": {"qa": score("C"), "qa1": score("I")}} for _ in range(4)]
    heads = [{"name": name, "scorer": "qa", "metrics": {}} for name in ("qa", "qa1")]
    inspect(root / "m.json", "m", values, heads=heads)


def long_texts(root: Path) -> None:
    for model in "mn":
        inspect(root / f"{model}.json", model, shares(5), input="word " * 3000)


def same_stem(root: Path) -> None:
    for model in "mn":
        values = [
            {
                "_": 0,
                "input": "Which is right?",
                "choices": [f"{n}", "x"],
                "scores": {"choice": score(1)},
            }
            for n in range(4)
        ]
        inspect(root / f"{model}.json", model, values)


def no_texts(root: Path) -> None:
    same = {"_": 0, "input": "see the file", "choices": None, "scores": {"choice": score("C")}}
    inspect(root / "m.json", "m", [same] * 5)


def shuffled(root: Path) -> None:
    for model, order in (("m", (0, 1, 2)), ("n", (0, 1, 2)), ("o", (2, 0, 1))):
        values = [
            {"_": 0, "input": f"text {n}", "scores": {"choice": score(float(n == 0))}}
            for n in order
        ]
        inspect(root / f"{model}.json", model, values)


def filters(root: Path) -> None:
    rows = [
        {"doc_id": n, "filter": name, "acc": float(name == "loose")}
        for name in ("strict", "loose")
        for n in range(4)
    ]
    harness(root, "m", rows)


def metric_kinds(root: Path) -> None:
    harness(root, "m", [{"metrics": ["bleu"], "bleu": ["a", "b"]}] * 3, task="translate")
    values = {"metrics": ["strict", "loose"], "strict": True, "loose": [True, False]}
    harness(root, "m", [values] * 3, task="follow")
    harness(root, "m", [{"metrics": ["ppl"], "ppl": [-3.5, 12]}] * 3, task="text")


def two_metrics(root: Path) -> None:
    rows = [
        {"sample_id": str(n), "evaluation": {"score": float(m == "f1")}, "metadata": {"metric": m}}
        for n in range(3)
        for m in ("exact", "f1")
    ]
    every_eval_ever_files(root, "m", rows)


def helm(root: Path) -> None:
    run = root / "mmlu:subject=law,model=org_m"
    run.mkdir()
    stats = [
        {
            "instance_id": f"id{n}",
            "train_trial_index": 0,
            "stats": [stat("num_tokens", 9), stat("exact_match", n % 2)],
        }
        for n in range(4)
    ]
    stats.append({**stats[0], "perturbation": {"name": "typos"}, "stats": [stat("exact_match", 0)]})
    (run / "per_instance_stats.json").write_text(json.dumps(stats))
    spec = {"name": "mmlu:subject=law,model=org_m", "adapter_spec": {"model": "org/m"}}
    (run / "run_spec.json").write_text(json.dumps(spec))
    references = [
        {"output": {"text": text}, "tags": ["correct"] * (text == "yes")} for text in ("no", "yes")
    ]
    asked = [
        {
            "instance": {"id": f"id{n}", "input": {"text": f"Q{n}"}, "references": references},
            "output_mapping": {"A": "no", "B": "yes"},
            "result": {"completions": [{"text": " B"}]},
        }
        for n in range(4)
    ]
    (run / "scenario_state.json").write_text(json.dumps({"request_states": asked}))


def stat(name: str, value: float) -> dict[str, Any]:
    return {"name": {"name": name, "split": "test"}, "count": 1, "mean": value}


def measurements(root: Path) -> None:
    columns = {"subject_id": ["m"] * 4 + ["n"] * 2, "item_id": ["a", "b"] * 3}
    columns |= {
        "benchmark_id": ["quiz"] * 6,
        "trial": [0, 0, 0, 0, 0, 1],
        "response": [1, 1, 0, 0, 1, 0],
    }
    conditions = ["low", "low", "high", "high", None, None]
    table(root, "response.parquet", **columns, test_condition=conditions)


def foreign(root: Path) -> None:
    table(root, model=["m"], item=["a"], score=[1])
    results = {"results": {"arc": {"acc,none": 0.5}}, "model_name": "m", "n-shot": {"arc": 0}}
    (root / "results_1.json").write_text(json.dumps(results))
    (root / "list.json").write_text(json.dumps([{"task_id": 1, "reward": 1.0}]))
    (root / "info.json").write_text(json.dumps({"gpt": {"resolved": []}}))


def two_runs(root: Path) -> None:
    for n in range(2):
        harness(root, "org/m", [{"acc": float(n)}] * 2, str(n + 1), published=0.5)


class Case(NamedTuple):
    write: Callable[[Path], None]
    means: Mapping[str, float] | None
    """None where no response counts."""
    items: int = ITEMS
    keys: Mapping[str, Any] = {}
    left: Mapping[str, int] = {}
    """Beginnings of reasons."""
    says: tuple[str, ...] = ()
    """Parts of notes, or of the error."""
    runs: int = 1
    tasks: int = 1


def judges(root: Path) -> None:
    inspect(root / "m.json", "m", [1, 8, 9, 10], scorer="judge")
    inspect(root / "n.json", "n", [0, 1, 1, 0], scorer="judge")


def percent(root: Path) -> None:
    table(root, model=["m", "m", "n", "n"], item=["a", "b"] * 2, score=[85.0, 15.0, 0.0, 1.0])


def other_names(root: Path) -> None:
    table(root, Model=["m", "m"], question_id=["a", "b"], correct=["C", "I"])


def wide(root: Path) -> None:
    table(root, item=["a", "b"], gpt=[1, 0], claude=[1, 1])


def repeated_ids(root: Path) -> None:
    table(root, model=["m"] * 3, item=["a", "a", "b"], score=[0, 1, 1])


def errors(root: Path) -> None:
    inspect(
        root / "m.json", "m", ["C"] * 4 + [failed()] * 4 + [failed(None, "CancelledError()")] * 2
    )
    inspect(root / "n.json", "n", shares(5))
    inspect(root / "o.json", "o", [failed("C")] * ITEMS)


HALF = {"m0": 0.5, "m1": 0.6}
CASES: dict[str, Case] = {
    "judge": Case(
        judges, None, says=("8 scores outside [0, 1] of judge, from 0 to 10: set scale=[0,10]",)
    ),
    "judge scaled": Case(judges, {"m": 0.7, "n": 0.05}, 4, {"scale": (0, 10)}),
    "scale too short": Case(
        judges, None, keys={"scale": (0, 5)}, says=("scale= does not hold them",)
    ),
    "percent": Case(
        percent, None, says=("4 scores outside [0, 1] of the table, from 0 to 85", "[0,100]")
    ),
    "percent scaled": Case(percent, {"m": 0.5, "n": 0.005}, 2, {"scale": (0, 100)}),
    "minus one": Case(
        lambda root: inspect(root / "m.json", "m", [-1, 0, 1]), {"m": 0.5}, 3, {"scale": (-1, 1)}
    ),
    "errors": Case(
        errors,
        {"m": 1.0, "n": 0.5},
        left={"samples that ended": 14, "samples that were c": 2},
        says=("no response counts of o",),
    ),
    "errors are wrong": Case(
        errors,
        {"m": 0.5, "n": 0.5, "o": 0.0},
        keys={"errors": "wrong"},
        left={"samples that were c": 2},
    ),
    "null leaf": Case(
        lambda root: inspect(
            root / "m.json", "m", [{"a": None, "b": 1}, {"a": 1, "b": 1}, float("nan")]
        ),
        {"m": 1.0},
        1,
        left={"samples without": 2},
        says=("choice.a was read", "choice.b"),
    ),
    "graders": Case(graders, {"m": 1.0}, 4, says=("qa was read of quiz; there is also qa1",)),
    "other grader": Case(graders, {"m": 0.0}, 4, {"scorer": "qa1"}, says=("qa1 was read of quiz",)),
    "mistyped grader": Case(
        graders, None, keys={"scorer": "q"}, says=("no scorer q, it has qa, qa1",)
    ),
    "reducers": Case(reducers, {"m": 0.5}, 1, says=("choice/mean was read", "choice/max")),
    "bare reducers": Case(
        lambda root: reducers(root, bare=True),
        None,
        says=("choice/max was read", "1 log without samples is"),
    ),
    "same stem": Case(same_stem, {"m": 1.0, "n": 1.0}, 4),
    "long texts": Case(long_texts, {"m": 0.5, "n": 0.5}),
    "no texts": Case(no_texts, {"m": 1.0}, 5, says=("do not hold the texts of the items of quiz",)),
    "shuffled": Case(
        shuffled,
        {"m": 1 / 3, "n": 1 / 3},
        3,
        left={"responses to another text": 3},
        says=("no response counts of o",),
    ),
    "shuffled by text": Case(shuffled, dict.fromkeys("mno", 1 / 3), 3, {"match": "text"}),
    "two seeds": Case(two_seeds, {"m0": 0.5, "m1": 0.6}, runs=2),
    "arguments": Case(arguments, {"m": 0.5, "n": 0.5}, 20, tasks=2),
    "efforts": Case(efforts, {"m (reasoning_effort=high)": 0.7, "m (reasoning_effort=low)": 0.3}),
    "two tasks": Case(two_tasks, {"m0": 0.75, "m1": 0.45}, 20, tasks=2),
    "directories are tasks": Case(
        lambda root: two_tasks(root, "below"), {"m0": 0.75, "m1": 0.45}, 20, tasks=2
    ),
    "retry": Case(attempts(("error", "success")), {"m": 0.7}, left={"samples of logs": 4}),
    "newest failed": Case(attempts(("success", "error")), {"m": 0.7}, left={"samples of logs": 4}),
    "two failed": Case(
        attempts(("error", "cancelled")), {"m": 0.0}, 4, left={"samples of logs": 4}
    ),
    "statuses": Case(
        statuses(below=False),
        dict.fromkeys(("org/m4c", "org/m4e", "org/m10s"), 0.5),
        says=("finished samples of 1 log with status cancelled and 1 log with status error",),
    ),
    "statuses in directories": Case(
        statuses(below=True), dict.fromkeys(("org/m4c", "org/m4e", "org/m10s"), 0.5)
    ),
    "crashed": Case(crashed, {"m": 0.75}, 4, says=("1 log with status started",)),
    "published": Case(
        lambda root: inspect(
            root / "m.json", "m", shares(4), metrics={"accuracy": {"value": 0.696}}
        ),
        {"m": 0.4},
        says=("m: the log publishes 0.696 for choice, its samples have 0.4",),
    ),
    "published, rounded": Case(
        lambda root: inspect(
            root / "m.json", "m", shares(2, 3), metrics={"accuracy": {"value": 0.67}}
        ),
        {"m": 2 / 3},
        3,
    ),
    "list scores": Case(
        lambda root: inspect(root / "m.json", "m", [[1, 0]] * 3),
        None,
        says=("3 scores that are not numbers",),
    ),
    "filters": Case(filters, {"m": 0.0}, 4, says=("acc of strict was read of arc", "acc of loose")),
    "other filter": Case(filters, {"m": 1.0}, 4, {"scorer": "loose"}),
    "mistyped filter": Case(
        filters, None, keys={"scorer": "no"}, says=("no filter no, it has strict, loose",)
    ),
    "arguments as lists": Case(
        lambda root: harness(root, "m", [{"acc": 1.0, "arguments": [["prompt", "A"]]}] * 2),
        {"m": 1.0},
        2,
    ),
    "documents as texts": Case(
        lambda root: harness(root, "m", [{"acc": 1.0, "doc": f"text {n}"} for n in range(2)]),
        {"m": 1.0},
        2,
    ),
    "two runs": Case(
        two_runs,
        {"org/m": 0.5},
        2,
        runs=2,
        says=("publishes 0.5 for acc, its samples have 0",),
    ),
    "kinds of metrics": Case(
        metric_kinds,
        {"m": 1.0},
        3,
        left={"scores that are not numbers": 6},
        says=("strict was read of follow",),
    ),
    "two metrics": Case(
        two_metrics, {"m": 0.0}, 3, says=("exact was read of quiz; there is also f1",)
    ),
    "other metric": Case(two_metrics, {"m": 1.0}, 3, {"metric": "f1"}),
    "mistyped metric": Case(
        two_metrics, None, keys={"metric": "f2"}, says=("no metric f2, it has exact, f1",)
    ),
    "helm": Case(helm, {"org/m": 0.5}, 4),
    "measurements": Case(measurements, {"m (high)": 0.0, "m (low)": 1.0, "n": 0.5}, 2),
    "repeated ids": Case(
        repeated_ids, {"m": 0.75}, 2, says=("1 response repeat an item in one file",)
    ),
    "other names": Case(
        other_names,
        None,
        says=("has Model, question_id and correct: say which is which with columns.item=",),
    ),
    "other names mapped": Case(
        other_names, {"m": 0.5}, 2, {"columns": {"item": "question_id", "score": "correct"}}
    ),
    "mistyped column": Case(
        other_names, None, keys={"columns": {"item": "id"}}, says=("no column id for columns.item",)
    ),
    "wide": Case(
        wide, {"gpt": 0.5, "claude": 1.0}, 2, says=("a column for each model: gpt and claude",)
    ),
    "foreign": Case(
        foreign,
        {"m": 1.0},
        1,
        left={
            "files (results of lm-evaluation-harness without": 1,
            "files (a table without": 1,
            "files (not a log or table": 1,
        },
    ),
}


def read(root: Path, keys: Mapping[str, Any]) -> TreeScores:
    config = QualityConfig(**keys)
    return read_trees([find_tree(str(root))], config, WorkersHere(config.cluster))[0]


@pytest.mark.parametrize("name", CASES)
def test_a_tree_is_read_as_its_owner_would(tmp_path: Path, name: str) -> None:
    case = CASES[name]
    case.write(tmp_path)
    result = read(tmp_path, case.keys)
    said = [*result.reading.sentences, str(result.responses)]
    for sentence in case.says:
        assert any(sentence in each for each in said), said
    if case.means is None:
        assert isinstance(result.responses, DataError)
        return
    assert isinstance(result.responses, Responses)
    matrix, rows = result.responses.matrix, result.responses.table
    means = dict(zip(matrix.models, matrix.means.tolist(), strict=True))
    assert means == pytest.approx(dict(case.means))
    assert (len(matrix.items), rows["run"].max()) == (case.items, case.runs)
    assert len(set(matrix.strata)) == case.tasks
    left = result.responses.left_out
    assert len(left) == len(case.left), left
    for beginning, count in case.left.items():
        assert sum(n for reason, n in left.items() if reason.startswith(beginning)) == count, left
    texts = result.responses.items["text"]
    assert texts.is_unique or name not in ("same stem", "long texts")


def two_seeds_as(form: str, root: Path, scores: Any) -> None:
    """Scores of (models, seeds, items) in a format."""
    rows = list[tuple[str, str, float]]()
    for model, seed in np.ndindex(scores.shape[:2]):
        name, values = f"m{model}", scores[model, seed].tolist()
        home, day = root / f"{model}-{seed}", DAY.format(seed + 1)
        if form == "inspect":
            inspect(home.with_suffix(".json"), name, values, day=day, task_id=f"{model}{seed}")
        elif form == "directories":
            inspect(root / name / f"{seed}.json", name, values, day=day, task_id=f"{model}{seed}")
        elif form == "harness":
            harness(root, name, [{"acc": value} for value in values], str(seed + 1), published=0.5)
        elif form == "ever":
            graded = [
                {"sample_id": f"{n}", "evaluation": {"score": v}} for n, v in enumerate(values)
            ]
            every_eval_ever_files(home, name, graded)
        rows += [(name, f"q{place}", value) for place, value in enumerate(values)]
    if form == "table":
        table(root, **pd.DataFrame(rows, columns=["model", "item", "score"]).to_dict("list"))


@pytest.mark.parametrize("form", ["inspect", "directories", "harness", "ever"])
def test_two_seeds_of_every_format_are_read_as_a_table_of_them(tmp_path: Path, form: str) -> None:
    chances = np.linspace(0.2, 0.9, 4)[:, None, None]
    scores = (np.random.default_rng(0).random((4, 2, 12)) < chances).astype(float)
    read_ones = list[Any]()
    for name in (form, "table"):
        (root := tmp_path / name).mkdir()
        two_seeds_as(name, root, scores)
        responses = read(root, {}).responses
        assert isinstance(responses, Responses)
        assert len(responses.table) == 4 * 2 * 12 and not responses.left_out
        order = np.argsort([int(item.strip("q")) for item in responses.matrix.items])
        read_ones.append(responses.matrix.scores[:, order])
    np.testing.assert_array_equal(read_ones[0], scores.mean(axis=1))
    np.testing.assert_array_equal(*read_ones)


def test_helm_and_choices_have_answers_and_keys(tmp_path: Path) -> None:
    helm(tmp_path)
    responses = read(tmp_path, {}).responses
    assert isinstance(responses, Responses)
    answers = responses.answers
    assert (answers.codes[0] == answers.keys).all() and answers.names[answers.keys[0]] == "yes"
    assert responses.items["text"].iloc[0] == "Q0\nno\nyes"


def test_clusters_are_columns_or_metadata_that_a_user_names(tmp_path: Path) -> None:
    values = [
        {"_": 0, "metadata": {"passage": n // 2, "topic": n}, "scores": {"choice": score(1)}}
        for n in range(4)
    ]
    inspect(tmp_path / "m.json", "m", values)
    table(tmp_path, model=["m"] * 2, item=["x", "y"], score=[1, 0], passage=["p", "p"])
    keys = {"clusters": "passage", "group": "topic"}
    for chosen, clusters, strata in ((keys, 3, 5), ({}, 6, 1)):
        responses = read(tmp_path, chosen).responses
        assert isinstance(responses, Responses)
        matrix = responses.matrix
        assert (len(set(matrix.clusters)), len(set(matrix.strata))) == (
            clusters,
            strata + (chosen == {}),
        )


# What is hostile


def test_a_key_that_no_sample_has_is_said(tmp_path: Path) -> None:
    inspect(tmp_path / "m.json", "m", shares(3))
    notes = read(tmp_path, {"clusters": "pasage"}).reading.notes
    assert notes == ("cluster=pasage: no sample or row that counts has it",)


def ladder(root: Path) -> None:
    """Directories whose links double the ways at each of 40 steps."""
    for step in range(40):
        (here := root / f"d{step}").mkdir()
        for name in "ab":
            (here / name).symlink_to(root / f"d{step + 1}")
    (root / "d40").mkdir()
    (root / "t.csv").write_text("")


def repeated_text(root: Path) -> None:
    """A small file of 400 MiB of texts."""
    texts = ["x" * (1 << 20) + str(n) for n in range(400)]
    table(root, "t.parquet", model=["m"] * 400, item=texts, score=[1] * 400)


def tiny_samples(root: Path) -> None:
    """A small zip of two million samples."""
    inspect(root / "x.json", "m", [], bare=True)
    log = (root / "x.json").read_text()
    (root / "x.json").unlink()
    with zipfile.ZipFile(root / "many.eval", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("header.json", log)
        archive.writestr("summaries.json", b"[" + b'{"id":1},' * 2_000_000 + b'{"id":1}]')


HOSTILE: dict[str, tuple[Callable[[Path], Any], str]] = {
    "repeated text": (repeated_text, "the table: more than 268,435,456 bytes without compression"),
    "tiny samples": (tiny_samples, "the log: more than 1,000,000 samples"),
    "ladder": (ladder, "more than 50 links lead to it"),
    "epoch": (
        lambda root: table(root, model=["m"], item=["a"], score=[1], epoch=["1" + "0" * 30]),
        "1 rows with a weight that is not above 0, or an epoch",
    ),
    "epoch of a log": (
        lambda root: inspect(root / "m.json", "m", [{"_": 0, "epoch": 10**30, "scores": {}}]),
        "1 samples without a score",
    ),
    "depth": (
        lambda root: (root / "m.json").write_text('{"eval": {}, "samples": ' + "[" * 100_000),
        "maximum recursion depth",
    ),
    "depth of a table": (
        lambda root: (root / "t.jsonl").write_text('{"model": ' + "[" * 100_000),
        "1 files (a line: not JSON)",
    ),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_file_is_one_sentence(tmp_path: Path, name: str) -> None:
    write, sentence = HOSTILE[name]
    write(tmp_path)
    responses = read(tmp_path, {}).responses
    assert isinstance(responses, DataError) and sentence in str(responses)
