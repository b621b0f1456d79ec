"""Rows that several processes read, joined: names, matching of items, and repetitions."""

from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import pandas as pd

from raylab.doctor.readers.inspect_logs import FORM as INSPECT
from raylab.doctor.readers.rows import MOST_ANSWERS, UNNAMED, Origin, Rows
from raylab.doctor.responses import COLUMNS, Item, Responses, make_responses

OTHER_TEXT = (
    "responses to another text under the same id: rename the items, or set match_text=false"
)
REPEATED = "responses that were repeated: the newest counts (epochs and generations are told apart)"

Table = Any
"""A DataFrame or a column of it, whose types pandas declares too widely."""


def join_rows(parts: Sequence[Rows], match_text: bool = True) -> Responses:
    """Returns the responses that the rows of several parts stand for.

    Where several directories of a tree, or generations in one, hold logs of Inspect that name one
    model each, the directories name the models, as for the four figures. Items have their ids as
    names, with several tasks in a tree `task/id`; the task is then the group of items without one.

    Args:
        parts: The rows; their order does not matter.
        match_text: Leave out responses to another text under the same id.

    Raises:
        DataError: There is no response.
    """
    rows = Rows()
    for part in parts:
        rows.left_out.update(part.left_out)
        rows.examples = part.examples | rows.examples
    parts = [part for part in parts if part.score] or [Rows()]
    firsts = np.cumsum([0, *(len(part.origins) for part in parts)])
    origins = _resolve(pd.concat([_origins(part) for part in parts], ignore_index=True))
    frames = [_frame(part, first) for part, first in zip(parts, firsts, strict=False)]
    table: Table = pd.concat(frames, ignore_index=True).join(origins, on="origin")
    table = _name_items(table)
    table = _leave_out(table, (table["model"] == "") | (table["item"] == ""), UNNAMED, rows)
    if match_text:
        table = _leave_out(table, _has_other_text(table), OTHER_TEXT, rows)
    table = table.sort_values("age", kind="stable")
    keys = ["model", "item", "generation", "epoch"]
    table = _leave_out(table, table.duplicated(keys, keep="last"), REPEATED, rows)
    items = dict[str, Item]()
    kept = set(table[["item", "text"]].drop_duplicates().itertuples(index=False, name=None))
    for part, first in zip(parts, firsts, strict=False):
        _describe(items, part, origins.iloc[first : first + len(part.origins)], kept)
    return make_responses(table[list(COLUMNS)], items, rows.left_out, rows.examples)


def _frame(rows: Rows, first: int) -> Table:
    columns = {name: getattr(rows, name) for name in ("item", "group", "score", "weight")}
    numbers = {name: np.asarray(getattr(rows, name)) for name in ("origin", "text", "epoch")}
    frame = pd.DataFrame(columns | numbers)
    return frame.assign(origin=frame["origin"] + first)


def _origins(rows: Rows) -> Table:
    columns = ["directory", "part", "path", *Origin._fields]
    values = [(s.directory, s.generation, s.path, *origin) for s, origin in rows.origins]
    return pd.DataFrame(values, columns=columns)


def _resolve(origins: Table) -> Table:
    """Returns origins with the models, tasks and generations that the tree as a whole tells."""
    table, logs = origins.copy(), origins["form"] == INSPECT
    named = origins[logs].groupby("directory")["model"].nunique()
    several = len(named) > 1 or (origins.loc[logs, "part"] != "").any()
    if several and "" not in named.index and named.max() == 1:
        by_path = _told_by_path(origins[logs])
        table.loc[logs, "model"] = table["directory"]
        table.loc[logs, "generation"] = table["part"]
        table.loc[logs & (table["path"].isin(by_path) | ~table["sampled"]), "task"] = table["path"]
    else:
        table.loc[logs & (table["model"] == ""), "model"] = table["directory"]
    is_task = table["sampled"] & (table["task"] != "")
    tasks = table["task"].where(is_task & (table.loc[is_task, "task"].nunique() > 1), "")
    order = np.lexsort((table["path"], table["time"]))
    table = table.assign(tasks=tasks, prefix=tasks + np.where(tasks == "", "", "/"))
    table["age"] = np.argsort(order)
    names = ["form", "model", "task", "generation", "tasks", "prefix"]
    return table[[*names, "sampled", "age"]].astype(dict.fromkeys(names, "category"))


def _name_items(table: Table) -> Table:
    """Returns rows with the whole names of items and groups."""
    items, groups = table["item"], table["group"]
    if not table["sampled"].all():
        items = items.where(table["sampled"], table["task"].astype(str))
    if (table["tasks"] != "").any():
        items = table["prefix"].astype(str) + items
        groups = groups.where(groups != "", table["tasks"].astype(str))
    return table.assign(item=items.astype("category"), group=groups.astype("category"))


def _told_by_path(logs: Table) -> list[str]:
    """Returns the paths that tell the logs of a directory apart, as their tasks do not.

    These are paths that several directories have, where one has several logs of the same task.
    """
    sampled = logs[logs["sampled"]]
    if not sampled.duplicated(["directory", "part", "task"]).any():
        return []
    return sampled.loc[sampled.duplicated("path"), "path"].tolist()


def _leave_out(table: Table, wrong: Table, reason: str, rows: Rows) -> Table:
    if count := int(wrong.sum()):
        first = table[wrong].iloc[0]
        rows.leave_out(reason, f"{first['model']} on {first['item']}", count)
        table = table[~wrong]
    return table


def _has_other_text(table: Table) -> Table:
    """Returns True for responses to a text that fewer models have under the item's name.

    Hashes are compared within a format, because each has its own.
    """
    hashed = table.loc[table["text"] != 0, ["form", "item", "text", "model"]].drop_duplicates()
    models = hashed.groupby(["form", "item", "text"]).size().rename("models").reset_index()
    texts = models.sort_values(["models", "text"], ascending=[False, True])
    kept = texts.drop_duplicates(["form", "item"]).set_index(["form", "item"])["text"]
    if len(kept) == len(texts):
        return pd.Series(False, table.index)
    usual = kept.reindex(pd.MultiIndex.from_frame(table[["form", "item"]])).to_numpy()
    return (table["text"] != 0) & (table["text"] != usual)


def _describe(
    items: dict[str, Item], rows: Rows, origins: Table, kept: set[tuple[str, int]]
) -> None:
    """Adds what rows say of items and texts that are kept, with the answers of models."""
    prefixes, models = origins["prefix"].tolist(), origins["model"].tolist()
    for (origin, name, text), (whole, target, answer) in rows.said.items():
        if ((full := prefixes[origin] + name), text) in kept:
            item = items.setdefault(full, Item(whole, target, {}))
            if len(item.answers) < MOST_ANSWERS:
                cast(dict[str, str], item.answers)[models[origin]] = answer
