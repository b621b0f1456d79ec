"""Rows that several processes read, joined: names, matching of items, and repetitions."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import cast

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from raylab.doctor.inspect_logs import FORM as INSPECT
from raylab.doctor.responses import COLUMNS, Item, Responses, make_responses
from raylab.doctor.rows import Answers, Origin, Rows

NAMELESS = "scores of logs that name no model"
OTHER_TEXT = (
    "responses to another text under the same id: rename the items, or set match_text=false"
)
REPEATED = "responses that were repeated: the newest counts (epochs and generations are told apart)"

Integers = NDArray[np.int64]


def join_rows(parts: Sequence[Rows], match_text: bool = True) -> Responses:
    """Returns the responses that the rows of several parts stand for.

    Where each directory of a tree holds logs of Inspect that name one model, the directory names
    it, as for the four figures. Items have their ids as names, with several tasks in a tree
    `task/id`; the task is then the group of items that have none.

    Args:
        parts: The rows; their order does not matter.
        match_text: Leave out responses to another text under the same id.

    Raises:
        DataError: There is no response.
    """
    rows = _concatenate(parts)
    origins = _resolve(rows.origins)
    table = _frame(rows, origins)
    table = _leave_out(table, table["model"] == "", NAMELESS, rows)
    if match_text:
        table = _leave_out(table, _has_other_text(table), OTHER_TEXT, rows)
    table = table.sort_values("rank", kind="stable")
    keys = ["model", "item", "generation", "epoch"]
    table = _leave_out(table, table.duplicated(keys, keep="last"), REPEATED, rows)
    items = _items(rows, origins, table)
    return make_responses(table[list(COLUMNS)], items, rows.left_out, rows.examples)


def _concatenate(parts: Sequence[Rows]) -> Rows:
    rows = Rows()
    for part in parts:
        first = len(rows.origins)
        rows.origins += part.origins
        numbers = np.array([rows.number(name) for name in part.names] + [-1], np.int64)
        columns = [np.asarray(column) for column in part.columns]
        columns[0], columns[1] = numbers[columns[0].astype(int)], numbers[columns[1].astype(int)]
        columns[2] = columns[2].astype(int) + first
        for column, values in zip(rows.columns, columns, strict=True):
            column.frombytes(np.ascontiguousarray(values, column.typecode).tobytes())
        for (task, name, text), kept in part.described.items():
            answers = {first + origin: answer for origin, answer in kept.answers.items()}
            key = task, int(numbers[name]), text
            whole = rows.described.setdefault(key, Answers(kept.text, kept.target))
            whole.answers |= answers
        rows.left_out.update(part.left_out)
        rows.examples = part.examples | rows.examples
    return rows


def _resolve(origins: Sequence[Origin]) -> list[Origin]:
    """Returns origins with the models, tasks and generations that the tree as a whole tells."""
    logs = [origin for origin in origins if origin.form == INSPECT]
    models: dict[str, set[str]] = defaultdict(set)
    for log in logs:
        models[log.source.directory].add(log.model)
    by_directory = "" not in models and all(len(named) == 1 for named in models.values())
    shared = _shared_paths(logs) if by_directory else frozenset[str]()
    return [
        _resolve_log(origin, by_directory, shared) if origin.form == INSPECT else origin
        for origin in origins
    ]


def _resolve_log(log: Origin, by_directory: bool, shared: frozenset[str]) -> Origin:
    source = log.source
    if not by_directory:
        task = log.task if log.sampled else log.task or source.path
        return replace(log, model=log.model or source.directory, task=task)
    task = source.path if source.path in shared or not log.sampled else log.task
    return replace(log, model=source.directory, generation=source.generation, task=task)


def _shared_paths(logs: Iterable[Origin]) -> frozenset[str]:
    """Returns paths that tell the logs of a unit apart, as their tasks do not.

    These are paths that several units have, where one has several logs of the same task.
    """
    logs = [log for log in logs if log.sampled]
    paths = Counter(log.source.path for log in logs)
    tasks = Counter((log.source.directory, log.source.generation, log.task) for log in logs)
    if max(tasks.values(), default=0) <= 1:
        return frozenset()
    return frozenset(path for path, count in paths.items() if count > 1)


def _frame(rows: Rows, origins: Sequence[Origin]) -> pd.DataFrame:
    """Returns a row for each score, with names as categories."""
    item, group, origin, text, epoch, score, weight = map(np.asarray, rows.columns)
    tasks = _several_tasks(origins)
    item, names = _name_items(rows, origins, tasks)
    task = np.array([tasks.index(log.task) if log.task in tasks else -1 for log in origins], int)
    # An item without a group is one.
    groups = [*tasks, *rows.names, *names]
    grouped = np.where(task[origin] >= 0, task[origin], len(tasks) + len(rows.names) + item)
    order = sorted(range(len(origins)), key=lambda number: _age(origins[number]))
    return pd.DataFrame(
        {
            "model": _categories([log.model for log in origins], origin),
            "item": _categories(names, item),
            "group": _categories(groups, np.where(group >= 0, group + len(tasks), grouped)),
            "generation": _categories([log.generation for log in origins], origin),
            "epoch": epoch,
            "score": score,
            "weight": weight,
            "text": text,
            "form": _categories([log.form for log in origins], origin),
            "rank": np.argsort(np.array(order, int))[origin],
        }
    )


def _age(origin: Origin) -> tuple[float, str]:
    return origin.time, str(origin.source.place)


def _several_tasks(origins: Iterable[Origin]) -> list[str]:
    """Returns the tasks of a tree, sorted; none where it has but one."""
    tasks = sorted({log.task for log in origins if log.sampled and log.task})
    return tasks if len(tasks) > 1 else []


def _name_items(
    rows: Rows, origins: Sequence[Origin], tasks: Sequence[str]
) -> tuple[Integers, list[str]]:
    """Returns (rows,) numbers of the items' names, and these names."""
    own = np.array([-1 if log.sampled else rows.number(log.task) for log in origins], int)
    ids, origin = np.asarray(rows.item), np.asarray(rows.origin)
    names, ids = list(rows.names), np.where(own[origin] >= 0, own[origin], ids)
    task = np.array([tasks.index(log.task) if log.task in tasks else -1 for log in origins], int)
    keys = (task[origin] + 1) * len(names) + ids
    keys, items = np.unique(keys, return_inverse=True)
    pairs = zip((keys // max(len(names), 1) - 1).tolist(), (keys % max(len(names), 1)).tolist(), strict=True)
    return items, [_item_name(tasks[n] if n >= 0 else "", names[name]) for n, name in pairs]


def _item_name(task: str, name: str) -> str:
    return f"{task}/{name}" if task else name


def _categories(names: Sequence[str], numbers: Integers) -> pd.Categorical:
    """Returns a column of names by their numbers; a name may have several."""
    codes, different = pd.factorize(np.array([*names, ""], object))
    return pd.Categorical.from_codes(codes[numbers], different)


def _leave_out(table: pd.DataFrame, wrong: pd.Series, reason: str, rows: Rows) -> pd.DataFrame:
    if count := int(wrong.sum()):
        first = table[wrong].iloc[0]
        rows.leave_out(reason, f"{first['model']} on {first['item']}", count)
        table = table[~wrong]
    return table


def _has_other_text(table: pd.DataFrame) -> pd.Series:
    """Returns True for responses to a text that fewer models have under the item's name.

    Hashes are compared within a format, because each has its own.
    """
    hashed = table.loc[table["text"] != 0, ["form", "item", "text", "model"]].drop_duplicates()
    models = hashed.groupby(["form", "item", "text"], observed=True).size().rename("models")
    texts = models.reset_index().sort_values(["models", "text"], ascending=[False, True])
    kept = texts.drop_duplicates(["form", "item"]).set_index(["form", "item"])["text"]
    if len(kept) == len(texts):
        return pd.Series(False, table.index)
    usual = kept.reindex(pd.MultiIndex.from_frame(table[["form", "item"]])).to_numpy()
    return (table["text"] != 0) & (table["text"] != usual)


def _items(rows: Rows, origins: Sequence[Origin], table: pd.DataFrame) -> dict[str, Item]:
    """Returns the items that say something, with the answers of models."""
    names, tasks = list(rows.names), frozenset(_several_tasks(origins))
    pairs = table[["item", "text"]].drop_duplicates()
    kept = set(zip(pairs["item"].astype(object), pairs["text"], strict=True))
    items = dict[str, Item]()
    for (_, number, text), said in rows.described.items():
        for origin, answer in said.answers.items():
            log = origins[origin]
            name = _item_name(log.task if log.task in tasks else "", names[number])
            if (name, text) in kept:
                item = items.setdefault(name, Item(said.text, said.target, {}))
                cast(dict[str, str], item.answers)[log.model] = answer
    return items
