"""Trees as people have them, one situation each, with what is right to read of them."""

import json
import zipfile
from collections.abc import Callable, Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pytest

from raylab.benchmark.checks.differences import compare_models
from raylab.benchmark.config import QualityConfig
from raylab.benchmark.logs import inspect_logs, tables
from raylab.benchmark.logs.join import TreeScores
from raylab.benchmark.logs.reading import read_trees
from raylab.benchmark.logs.trees import find_tree
from raylab.benchmark.responses import Responses
from raylab.core.errors import DataError
from tests.benchmark.trees import (
    Whole,
    ever,
    harness,
    helm,
    inspect,
    responses,
    score,
    table,
    write_json,
    write_lines,
)

Write = Callable[[Path], object]
ITEMS = 10
NAN = float("nan")


def failed(value: Any = None, message: str = "RateLimitError") -> Whole:
    scores = {} if value is None else {"choice": score(value)}
    return Whole(error={"message": message}, scores=scores)


def right(count: int, items: int = ITEMS) -> list[str]:
    return ["C"] * count + ["I"] * (items - count)


def logs(*each: dict[str, Any], **by_model: list[Any]) -> Write:
    """Logs of Inspect by hand, by their fields or by model."""
    every: list[dict[str, Any]] = [
        *each,
        *({"model": model, "values": own} for model, own in by_model.items()),
    ]

    def write(root: Path) -> None:
        for number, fields in enumerate(every):
            inspect(root / fields.get("file", f"{number}.json"), **fields)

    return write


def log(model: str = "m", values: list[Any] | None = None, **fields: Any) -> dict[str, Any]:
    return {"model": model, "values": values, **fields}


def csv(**columns: Any) -> Write:
    return lambda root: table(root / "t.csv", **columns)


def texts(**files: str) -> Write:
    """Files by the ending, `__` for a slash in their names."""

    def write(root: Path) -> None:
        for name, content in files.items():
            path = root / f"{name.replace('__', '/')}".replace("_", ".")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content)

    return write


def lines(*rows: dict[str, Any], **results: Any) -> Write:
    return lambda root: harness(root, "m", rows, **results)


def crashed(root: Path) -> None:
    inspect(root / "x.json", "m", right(3, 4))
    whole = json.loads((root / "x.json").read_text())
    (root / "x.json").unlink()
    with zipfile.ZipFile(root / "started.eval", "w") as archive:
        archive.writestr("_journal/start.json", json.dumps({"version": 2, "eval": whole["eval"]}))
        for each in whole["samples"]:
            archive.writestr(f"samples/{each['id']}_epoch_1.json", json.dumps(each))


def heads(*names: str, **fields: Any) -> list[dict[str, Any]]:
    return [{"name": name, "scorer": name.rstrip("1"), "metrics": {}, **fields} for name in names]


REDUCED = [
    *heads("choice", reducer="max", metrics={"accuracy": {"value": 0.9}}),
    *heads("choice", reducer="mean", metrics={"accuracy": {"value": 0.5}}),
]
EPOCHS = [Whole(id="a", epoch=n, input="?", scores={"choice": score(n - 1)}) for n in (1, 2)]
GRADED = log(
    values=[Whole(scores={"qa": score("C"), "qa1": score("I")})] * 4, heads=heads("qa", "qa1")
)
JUDGES = logs(log("m", [1, 8, 9, 10], scorer="judge"), log("n", [0, 1, 1, 0], scorer="judge"))
PERCENT = csv(model=["m", "m", "n", "n"], item=["a", "b"] * 2, score=[85.0, 15.0, 0.0, 1.0])
BY_SCORER = csv(
    model=["m"] * 4, item=["a", "a", "b", "b"], scorer=["em", "f1"] * 2, score=[1, 0.5, 0, 0.25]
)
OTHER_NAMES = csv(Model=["m", "m"], question_id=["a", "b"], correct=["C", "I"])
FAILED = logs(
    m=["C"] * 4 + [failed()] * 4 + [failed(None, "CancelledError()")] * 2,
    n=right(5),
    o=[failed("C")] * ITEMS,
)
SAME_STEM = [
    Whole(input="Which is right?", choices=[f"{n}", "x"], scores={"choice": score(1)})
    for n in range(4)
]
SHUFFLED = logs(
    **{
        model: [Whole(input=f"text {n}", scores={"choice": score(float(n == 0))}) for n in order]
        for model, order in {"m": (0, 1, 2), "n": (0, 1, 2), "o": (2, 0, 1)}.items()
    }
)


def attempts(*order: str) -> Write:
    values = {"success": right(7), "error": ["I"] * 4, "cancelled": ["I"] * 4}
    return logs(
        *(log("m", values[each], status=each, day=day) for day, each in enumerate(order, 1))
    )


def statuses(path: str) -> Write:
    return logs(
        *(
            log(f"org/m{n}{name[0]}", right(n // 2, n), status=name, file=path.format(name))
            for name, n in {"success": 10, "error": 4, "cancelled": 4}.items()
        )
    )


def two_tasks(path: str) -> Write:
    return logs(
        *(
            log(f"m{n}", right(8 - 3 * n - t), task=f"task{t}", file=path.format(t, n))
            for n, t in np.ndindex(2, 2)
        )
    )


ALL_RIGHT = {"accuracy": {"value": 1.0}}


def days(*files: tuple[str, str]) -> Write:
    """A log a day, by its directory and model, right on its one item."""
    return logs(
        *(
            log(model, ["C"], file=f"{directory}/{day}.json", day=day, metrics=ALL_RIGHT)
            for day, (directory, model) in enumerate(files, 1)
        )
    )


def helm_runs(root: Path) -> None:
    helm(root, "org/m", [[0, 1, 1, 0]])
    helm(root, "org/n", [[0, 1, 1, 1]])


def helm_and_inspect(root: Path) -> None:
    helm_runs(root)
    inspect(root / "mmlu:subject=law,model=org_m" / "o.json", "org/o", right(1, 2))


def unlisted_metrics(root: Path) -> None:
    """Samples of lm-evaluation-harness that do not list their metrics."""
    row = {"doc_id": 0, "doc": {}, "doc_hash": "0", "target_hash": "1", "acc": 0.5, "f1": 1}
    write_lines(root / "m" / "samples_arc_2026-11-01T10-00-00.jsonl", [row])


def indexed(root: Path) -> None:
    names = pd.MultiIndex.from_product([["m"], ["a", "b"]], names=["model", "item"])
    pd.DataFrame({"score": [Decimal("0.5"), Decimal(1)]}, names).to_parquet(root / "t.parquet")


def metric_kinds(root: Path) -> None:
    harness(root, "m", [{"metrics": ["bleu"], "bleu": ["a", "b"]}] * 3, task="translate")
    values = {"metrics": ["strict", "loose"], "strict": True, "loose": [True, False]}
    harness(root, "m", [values] * 3, task="follow")
    harness(root, "m", [{"metrics": ["ppl"], "ppl": [-3.5, 12]}] * 3, task="text")


def two_runs(root: Path) -> None:
    for n in range(2):
        harness(root, "org/m", [{"acc": float(n)}] * 2, n + 1, results={"arc": {"acc,none": 0.5}})


def other_content(root: Path) -> None:
    for model in "mno":
        harness(root, model, [{"acc": 1, "doc_hash": "x"}, {"acc": 0, "doc_hash": model < "n"}])


def measurements(root: Path) -> None:
    table(
        root / "response.parquet",
        subject_id=["m"] * 4 + ["n"] * 2,
        item_id=["a", "b"] * 3,
        benchmark_id=["quiz"] * 6,
        trial=[0, 0, 0, 0, 0, 1],
        response=[1, 1, 0, 0, 1, 0],
        test_condition=["low", "low", "high", "high", None, None],
    )


def foreign(root: Path) -> None:
    table(root / "t.csv", model=["m"], item=["a"], score=[1])
    results = {"results": {"arc": {"acc,none": 0.5}}, "model_name": "m", "n-shot": {"arc": 0}}
    write_json(root / "results_1.json", results)
    write_json(root / "list.json", [{"task_id": 1, "reward": 1.0}])
    write_json(root / "info.json", {"gpt": {"resolved": []}})


class Case(NamedTuple):
    write: Write
    means: Mapping[str, float]
    items: int = ITEMS
    keys: Mapping[str, Any] = {}
    left: Mapping[str, int] = {}
    """Beginnings of reasons."""
    says: tuple[str, ...] = ()
    """Parts of notes."""
    runs: int = 1
    tasks: int = 1


HALVES = dict.fromkeys(("org/m4c", "org/m4e", "org/m10s"), 0.5)
TASKS = {"m0": 0.75, "m1": 0.45}
CASES: dict[str, Case] = {
    "judge scaled": Case(JUDGES, {"m": 0.7, "n": 0.05}, 4, {"scale": (0, 10)}),
    "percent scaled": Case(PERCENT, {"m": 0.5, "n": 0.005}, 2, {"scale": (0, 100)}),
    "minus one": Case(logs(m=[-1, 0, 1]), {"m": 0.5}, 3, {"scale": (-1, 1)}),
    "errors": Case(
        FAILED,
        {"m": 1.0, "n": 0.5},
        left={"samples that ended": 14, "samples that were c": 2},
        says=("no response counts of o",),
    ),
    "errors are wrong": Case(
        FAILED,
        {"m": 0.5, "n": 0.5, "o": 0.0},
        keys={"errors": "wrong"},
        left={"samples that were c": 2},
    ),
    "errors are wrong on a scale": Case(
        logs(m=[-1, failed(), 1, 1]), {"m": 0.5}, 4, {"scale": (-1, 1), "errors": "wrong"}
    ),
    "errors of attempts are wrong": Case(
        logs(log(values=["C", failed()], status="error"), log(values=[failed()] * 2, day=2)),
        {"m": 0.5},
        2,
        {"errors": "wrong"},
        left={"samples of logs": 2},
        says=("1 log with status error",),
    ),
    "null leaf": Case(
        logs(m=[{"a": None, "b": 1}, {"a": 1, "b": 1}, NAN]),
        {"m": 1.0},
        1,
        left={"samples without": 2},
        says=("choice.a was read", "choice.b"),
    ),
    "graders": Case(logs(GRADED), {"m": 1.0}, 4, says=("qa was read of quiz; there is also qa1",)),
    "other grader": Case(logs(GRADED), {"m": 0.0}, 4, {"scorer": "qa1"}, says=("qa1 was read",)),
    "reducers": Case(
        logs(log(values=EPOCHS, heads=REDUCED)),
        {"m": 0.5},
        1,
        says=("choice/mean was read", "choice/max"),
    ),
    "same stem": Case(logs(m=SAME_STEM, n=SAME_STEM), {"m": 1.0, "n": 1.0}, 4),
    "no texts": Case(
        logs(m=[Whole(input="see the file", choices=None, scores={"choice": score("C")})] * 5),
        {"m": 1.0},
        5,
        says=("do not hold the texts of the items of quiz",),
    ),
    "shuffled": Case(
        SHUFFLED,
        {"m": 1 / 3, "n": 1 / 3},
        3,
        left={"responses to another text": 3},
        says=("no response counts of o",),
    ),
    "shuffled by text": Case(SHUFFLED, dict.fromkeys("mno", 1 / 3), 3, {"match": "text"}),
    "other content": Case(
        other_content, {"m": 1.0, "n": 0.5, "o": 0.5}, 2, left={"responses to another text": 1}
    ),
    "two seeds": Case(
        logs(*(log(f"m{n}", right(4 + n + 2 * k), day=k + 1) for n, k in np.ndindex(2, 2))),
        {"m0": 0.5, "m1": 0.6},
        runs=2,
    ),
    "arguments": Case(
        logs(
            *(
                log(model, right(count), args={"subset": name}, input=name)
                for model in "mn"
                for name, count in (("easy", 8), ("hard", 2))
            )
        ),
        {"m": 0.5, "n": 0.5},
        20,
        tasks=2,
    ),
    "efforts": Case(
        logs(
            *(
                log(values=right(count), config={"reasoning_effort": effort, "seed": count})
                for effort, count in (("low", 3), ("high", 7))
            )
        ),
        {"m (reasoning_effort=high)": 0.7, "m (reasoning_effort=low)": 0.3},
    ),
    "two tasks": Case(two_tasks("{1}-{0}.json"), TASKS, 20, tasks=2),
    "directories are tasks": Case(two_tasks("task{0}/{1}-{0}.json"), TASKS, 20, tasks=2),
    "retry": Case(attempts("error", "success"), {"m": 0.7}, left={"samples of logs": 4}),
    "newest failed": Case(attempts("success", "error"), {"m": 0.7}, left={"samples of logs": 4}),
    "two failed": Case(attempts("error", "cancelled"), {"m": 0.0}, 4, left={"samples of logs": 4}),
    "taken up again": Case(
        logs(log(values=["I", "C"], status="error"), log(values=["C"], day=2)),
        {"m": 1.0},
        2,
        left={"samples of logs": 1},
        says=("1 log with status error",),
    ),
    "statuses": Case(
        statuses("{}.json"),
        HALVES,
        says=("finished samples of 1 log with status cancelled and 1 log with status error",),
    ),
    "statuses in directories": Case(statuses("{}/log.json"), HALVES),
    "dates": Case(
        days(("2026-01-01", "org/m"), ("2026-01-02", "org/m")), {"org/m": 1.0}, 1, runs=2
    ),
    "a directory of the task": Case(
        days(("quiz", "org/m"), ("other", "org/m")), {"org/m": 1.0}, 1, runs=2
    ),
    "directories like models": Case(
        days(("m-1", "org/M_1"), ("m-2", "org/M_2")), {"m-1": 1.0, "m-2": 1.0}, 1
    ),
    "models in each directory": Case(
        days(*((f"day{day}", f"org/{model}") for day in (1, 2) for model in "mn")),
        {"org/m": 1.0, "org/n": 1.0},
        1,
        runs=2,
    ),
    "crashed": Case(crashed, {"m": 0.75}, 4, says=("1 log with status started",)),
    "published": Case(
        logs(log(values=right(4), metrics={"accuracy": {"value": 0.696}})),
        {"m": 0.4},
        says=("m: the log publishes 0.696 for choice, its samples have 0.4",),
    ),
    "published, rounded": Case(
        logs(log(values=right(2, 3), metrics={"accuracy": {"value": 0.67}})), {"m": 2 / 3}, 3
    ),
    "arguments as lists": Case(
        lines(*[{"acc": 1.0, "arguments": [["p", "A"]]}] * 2), {"m": 1.0}, 2
    ),
    "documents as texts": Case(
        lines(*({"acc": 1.0, "doc": f"text {n}"} for n in range(2))), {"m": 1.0}, 2
    ),
    "two runs": Case(
        two_runs, {"org/m": 0.5}, 2, runs=2, says=("publishes 0.5 for acc, its samples have 0",)
    ),
    "kinds of metrics": Case(
        metric_kinds,
        {"m": 1.0},
        3,
        left={"scores that are not numbers": 6},
        says=("strict was read of follow",),
    ),
    "measurements": Case(measurements, {"m (high)": 0.0, "m (low)": 1.0, "n": 0.5}, 2),
    "repeated ids": Case(
        csv(model=["m"] * 3, item=["a", "a", "b"], score=[0, 1, 1]),
        {"m": 0.75},
        2,
        says=("1 response repeat an item in one file",),
    ),
    "other names mapped": Case(
        OTHER_NAMES, {"m": 0.5}, 2, {"columns": {"item": "question_id", "score": "correct"}}
    ),
    "wide": Case(
        csv(item=["a", "b"], gpt=[1, 0], claude=[1, 1]),
        {"gpt": 0.5, "claude": 1.0},
        2,
        says=("a column for each model: gpt and claude",),
    ),
    "wide, of words and texts": Case(
        csv(item=["a", "b"], question=["A?", "B?"], gpt=[True, False], claude=["pass", "fail"]),
        {"gpt": 0.5, "claude": 0.5},
        2,
    ),
    "semicolons": Case(texts(t_csv="model; item; score\nm;a;0,5\nm;b;1\n"), {"m": 0.75}, 2),
    "tabs": Case(texts(t_tsv="model\titem\tscore\nm\ta\t85%\nm\tb\t1\n"), {"m": 0.925}, 2),
    "a blank line": Case(
        texts(t_jsonl='\n{"model": "m", "item": "a", "score": 1}\n'), {"m": 1.0}, 1
    ),
    "an index": Case(indexed, {"m": 0.75}, 2),
    "packed": Case(
        texts(t_csv_gz="", t_csv="model,item,score\nm,a,1\n"),
        {"m": 1.0},
        1,
        left={"files (compressed: unpack it)": 1},
    ),
    "files of models": Case(
        texts(gpt_csv="item,score\na,1\na,0\n", claude_csv="item,score\na,1\n"),
        {"gpt": 0.5, "claude": 1.0},
        1,
        says=("have the names of files: claude and gpt", "1 response repeat"),
    ),
    "directories of models": Case(
        texts(gpt__t_csv="item,score\na,0\n", claude__t_csv="item,score\na,1\n"),
        {"gpt": 0.0, "claude": 1.0},
        1,
    ),
    "named runs": Case(
        csv(model=["m"] * 2, item=["a"] * 2, score=[1, 0], run=["first", "second"]),
        {"m": 0.5},
        1,
        runs=2,
        says=("1 log is a further run of a model on a task, such as",),
    ),
    "scorers of a table": Case(
        BY_SCORER, {"m": 0.5}, 2, says=("em was read of the logs; there is also f1",)
    ),
    "a scorer of a table": Case(BY_SCORER, {"m": 0.375}, 2, {"scorer": "f1"}),
    "other scorers": Case(
        logs(log("m", right(4), scorer="match"), log("n", right(4), scorer="judge")),
        {"m": 0.4, "n": 0.4},
        says=("models on quiz have different scores, judge and match: choose",),
    ),
    "HELM and Inspect": Case(
        helm_and_inspect, {"org/m": 0.5, "org/n": 0.75, "org/o": 0.5}, 6, tasks=2
    ),
    "runs of HELM": Case(helm_runs, {"org/m": 0.5, "org/n": 0.75}, 4),
    "harness without a list of metrics": Case(
        unlisted_metrics, {"m": 0.5}, 1, says=("acc was read of arc; there is also f1",)
    ),
    "a row without a topic": Case(
        csv(model=["m"] * 2, item=["a", "b"], score=[1, 0], group=["g", None]),
        {"m": 0.5},
        2,
        tasks=2,
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


def read(root: Path, **keys: Any) -> TreeScores:
    return read_trees([find_tree(str(root))], QualityConfig(**keys))[0]


@pytest.mark.parametrize("name", CASES)
def test_a_tree_is_read_as_its_owner_would(tmp_path: Path, name: str) -> None:
    case = CASES[name]
    case.write(tmp_path)
    result = read(tmp_path, **case.keys)
    for part in case.says:
        assert any(part in said for said in result.reading.sentences), result.reading.sentences
    assert isinstance(result.responses, Responses)
    matrix, rows = result.responses.matrix, result.responses.table
    assert {*result.table["model"]} == {*matrix.models}
    means = dict(zip(matrix.models, matrix.means.tolist(), strict=True))
    assert means == pytest.approx(case.means)
    assert (len(matrix.items), rows["run"].max()) == (case.items, case.runs)
    assert len(set(matrix.strata)) == case.tasks
    # Items of several tasks are told apart.
    several = len({*rows["task"]}) > 1
    tasks = (f"{task}/" if several else "" for task in rows["task"])
    assert all(item.startswith(task) for item, task in zip(rows["item"], tasks, strict=True))
    left = result.responses.left_out
    assert len(left) == len(case.left), left
    for beginning, count in case.left.items():
        assert sum(n for reason, n in left.items() if reason.startswith(beginning)) == count, left
    assert name != "same stem" or result.responses.items["text"].is_unique


def write_seeds(form: str, root: Path, scores: Any) -> None:
    """Scores of (models, seeds, items) in a format."""
    rows = list[tuple[str, str, float]]()
    for model, seed in np.ndindex(scores.shape[:2]):
        name, values = f"m{model}", scores[model, seed].tolist()
        home, fields = root / f"{model}-{seed}", {"day": seed + 1, "task_id": f"{model}{seed}"}
        if form == "inspect":
            inspect(home.with_suffix(".json"), name, values, **fields)
        elif form == "directories":
            inspect(root / name / f"{seed}.json", name, values, **fields)
        elif form == "harness":
            harness(root, name, [{"acc": value} for value in values], seed + 1)
        elif form == "ever":
            ever(home, name, [{"evaluation": {"score": value}} for value in values])
        elif form == "helm" and seed == 0:
            helm(home, name, scores[model].tolist())
        rows += [(name, f"q{place}", value) for place, value in enumerate(values)]
    if form.startswith("t."):
        model, item, value = zip(*rows, strict=True)
        table(root / form, model=model, item=item, score=value)


@pytest.mark.parametrize(
    "form", ["inspect", "directories", "harness", "ever", "helm", "t.csv", "t.parquet", "t.jsonl"]
)
def test_two_seeds_of_every_format_tell_as_many_models_apart(tmp_path: Path, form: str) -> None:
    chances = np.linspace(0.1, 0.9, 9)[:, None, None]
    scores = (np.random.default_rng(0).random((9, 2, 84)) < chances).astype(float)
    write_seeds(form, tmp_path, scores)
    whole = responses(tmp_path)
    assert len(whole.table) == 9 * 2 * 84 and not whole.left_out
    order = np.argsort([int(item.lstrip("idq")) for item in whole.matrix.items])
    np.testing.assert_array_equal(whole.matrix.scores[:, order], scores.mean(axis=1))
    # So does Student's paired test with Holm's correction.
    differences = compare_models(whole.matrix)
    assert (differences.apart, differences.pairs) == (30, 36)


def test_helm_has_texts_answers_and_keys(tmp_path: Path) -> None:
    helm(tmp_path, "org/m", [[0, 1, 0, 1]])
    read = responses(tmp_path)
    answers = read.answers
    assert (answers.codes[0] == answers.keys).all() and answers.names[answers.keys[0]] == "yes"
    assert read.items["text"].iloc[0] == "Q0\nno\nyes"


STATS = {
    "started_at": "2026-11-01T10:00:00+00:00",
    "completed_at": "2026-11-01T10:01:30+00:00",
    "model_usage": {"a": {"total_tokens": 30, "total_cost": 0.25}, "b": {"total_tokens": 12}},
}
SIZES = {"n-samples": {"arc": {"effective": 5}, "other": {"effective": 15}}}
SAMPLE = {
    "evaluation": {"score": 1},
    "token_usage": {"total_tokens": 17},
    "performance": {"latency_ms": 250},
}


@pytest.mark.parametrize(
    ("write", "spent"),
    [
        (logs(log(values=right(2, 4), stats=STATS)), (42, 0.25, 90)),
        (logs(m=right(2, 4)), (NAN, NAN, NAN)),
        # The run took 80 s for 5 documents of this task and 15 of another.
        (lines({"acc": 1}, total_evaluation_time_seconds="80.0", **SIZES), (NAN, NAN, 20)),
        (lambda root: ever(root, "m", [SAMPLE] * 2), (34, NAN, 0.5)),
        (lambda root: helm(root, "m", [[0, 1, 1]]), (33, NAN, 1.5)),
    ],
    ids=["inspect", "inspect that does not say", "harness", "ever", "helm"],
)
def test_logs_say_the_tokens_cost_and_seconds_that_files_have(
    tmp_path: Path, write: Write, spent: tuple[float, float, float]
) -> None:
    write(tmp_path)
    (row,) = responses(tmp_path).logs[["tokens", "cost", "seconds"]].to_numpy(float)
    np.testing.assert_array_equal(row, spent)


def test_clusters_are_columns_or_metadata_that_a_user_names(tmp_path: Path) -> None:
    values = [
        Whole(metadata={"passage": n // 2, "topic": n}, scores={"choice": score(1)})
        for n in range(4)
    ]
    inspect(tmp_path / "m.json", "m", values)
    table(tmp_path / "t.csv", model=["m"] * 2, item=["x", "y"], score=[1, 0], passage=["p", "p"])
    named = responses(tmp_path, clusters="passage", group="topic").matrix
    assert (len(set(named.clusters)), len(set(named.strata))) == (3, 5)
    plain = responses(tmp_path).matrix
    assert (len(set(plain.clusters)), len(set(plain.strata))) == (6, 2)


def test_coverage_says_who_answered_what(tmp_path: Path) -> None:
    logs(m=["C", "I", failed()], n=["C"], o=[failed()])(tmp_path)
    inspect(tmp_path / "other.json", "n", ["C"] * 2, task="other")
    rows = responses(tmp_path).coverage.reset_index().to_numpy().tolist()
    assert rows == [
        ["m", "other", 0, 2, 0],
        ["m", "quiz", 2, 2, 1],
        ["n", "other", 2, 2, 0],
        ["n", "quiz", 1, 2, 0],
        ["o", "other", 0, 2, 0],
        ["o", "quiz", 0, 2, 1],
    ]


# What cannot be read, or is hostile


def ladder(root: Path) -> None:
    """Directories with links that double the ways at each of 12 steps."""
    for step in range(12):
        (here := root / f"d{step}").mkdir()
        for name in "ab":
            (here / name).symlink_to(root / f"d{step + 1}")
    (root / "d12").mkdir()
    (root / "t.csv").write_text("")


def tiny_samples(root: Path) -> None:
    """A small zip of many samples."""
    inspect(root / "x.json", "m", None)
    header = (root / "x.json").read_text()
    (root / "x.json").unlink()
    with zipfile.ZipFile(root / "many.eval", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("header.json", header)
        archive.writestr("summaries.json", b"[" + b'{"id":1},' * 1000 + b'{"id":1}]')


def repeated_text(root: Path) -> None:
    """A small file of 2 MiB of texts."""
    texts = ["x" * (1 << 16) + str(n) for n in range(32)]
    table(root / "t.parquet", model=["m"] * 32, item=texts, score=[1] * 32)


def tiny_rows(root: Path) -> None:
    (root / "t.json").write_bytes(b"[" + b"{}," * 5_000_000 + b"{}]")


OUTSIDE = "8 scores of judge, which are from 0 to 10 and not in [0, 1]: "
BARE = logs(log(heads=REDUCED))
GRADES = logs(log(values=right(4), metrics={"accuracy": {"value": 0.4}}))
REFUSED: dict[str, tuple[Write, str, dict[str, Any]]] = {
    "judge": (JUDGES, f"{OUTSIDE}set scale=[0,10]", {}),
    "two scales": (
        csv(
            model=[name for name in "mn" for _ in range(20)],
            item=[*range(20)] * 2,
            score=[*[0, 1] * 10, *[0, 100] * 10],
        ),
        "no score of m is above 1, others are up to 100",
        {},
    ),
    "scale too short": (JUDGES, f"{OUTSIDE}scale= does", {"scale": (0, 5)}),
    "percent": (
        PERCENT,
        "of the table, which are from 0 to 85 and not in [0, 1]: set scale=[0,100]",
        {},
    ),
    "list scores": (logs(m=[[1, 0]] * 3), "3 scores that are not numbers", {}),
    "number of 400 digits": (lines({"acc": 10**400}), "1 scores that are not numbers", {}),
    "mistyped grader": (logs(GRADED), "no scorer q, it has qa, qa1", {"scorer": "q"}),
    "mistyped leaf": (logs(m=[{"a": 1, "b": 1}]), "no metric c, it has a, b", {"metric": "c"}),
    "mistyped metric": (GRADES, "no metric mean, it has accuracy", {"metric": "mean"}),
    "mistyped scorer of HELM": (helm_runs, "no metric em, it has exact_match", {"scorer": "em"}),
    "mistyped scorer of a table": (BY_SCORER, "no scorer f2, it has em, f1", {"scorer": "f2"}),
    "mistyped scorer of another table": (PERCENT, "no scorer f2, it has score", {"scorer": "f2"}),
    "mistyped column": (OTHER_NAMES, "no column id for columns.item", {"columns": {"item": "id"}}),
    "other names": (
        OTHER_NAMES,
        "has Model, question_id and correct: say which is which with columns.item=",
        {},
    ),
    "models under another name": (
        csv(llm=["m", "n"], item=["a", "a"], score=[1, 0]),
        "a table without the columns model, which has llm,",
        {},
    ),
    "lists in Parquet": (
        lambda root: table(root / "t.parquet", model=["m"], item=["a"], score=[[1.0]]),
        "a table without the columns score, which has model and item",
        {},
    ),
    "a column twice": (texts(t_csv="model,item,score,score\n"), "several columns called score", {}),
    "other encoding": (texts(t_csv="model\0,item\n"), "is not UTF-8", {}),
    "bare reducers": (BARE, "choice/max was read", {}),
    "bare log": (BARE, "has samples, so there is no diagnosis", {}),
    "no samples": (
        logs(*(log("x", file=f"m{n}/g{g}/deep.json") for n, g in np.ndindex(2, 2))),
        "the logs have no samples",
        {},
    ),
    "epoch": (
        csv(model=["m"], item=["a"], score=[1], epoch=["1" + "0" * 30]),
        "1 rows with a weight that is not above 0, or an epoch",
        {},
    ),
    "epoch of a log": (logs(m=[Whole(epoch=10**30, scores={})]), "1 samples without a score", {}),
    # Small files that expand.
    "repeated text": (repeated_text, "the table: more than 1,048,576 bytes without compr", {}),
    "tiny samples": (tiny_samples, "the log: more than 1,000 samples", {}),
    "tiny rows": (tiny_rows, "a list of rows: more than 5,000,000 lists and objects", {}),
    "columns": (texts(t_csv=f"{'a,' * 20_000}b\n"), "the table: more than 20,000 columns", {}),
    "keys": (
        lambda root: write_lines(root / "t.jsonl", [{f"k{n}": 1} for n in range(10_001)]),
        "the table: more than 100,000,000 cells",
        {},
    ),
    "ladder": (ladder, "more than 50 links lead to it", {}),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_read_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(inspect_logs, "MAX_SAMPLES", 1000)
    monkeypatch.setattr(tables, "COLUMN_BYTES", 1 << 20)
    write, sentence, keys = REFUSED[name]
    write(tmp_path)
    result = read(tmp_path, **keys)
    assert isinstance(result.responses, DataError)
    assert any(sentence in said for said in (str(result.responses), *result.reading.sentences))
