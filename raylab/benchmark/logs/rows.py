"""Rows: responses from files of all formats, collected in columns and joined."""

import hashlib
import os
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, NamedTuple, cast

import numpy as np
import pandas as pd

from raylab.benchmark.logs.trees import Source
from raylab.benchmark.responses import COLUMNS, Responses, make_responses
from raylab.core.bounded import over
from raylab.core.printable import printable

LONGEST_NAME = 200
LONGEST_TEXT = 1000
LONGEST_ANSWER = 200
MOST_ANSWERS = 20
"""Most models whose answers to an item are kept."""
MOST_SAID = 200_000
"""Most answers that are kept from files that are read together."""
MOST_ROWS = 20_000_000
"""Most rows of files that are read together, against small files that expand."""

UNSCORED = "samples without a score"
ERRORED = "samples that ended in an error"
CANCELLED = "samples that were cancelled"
INVALIDATED = "samples that were invalidated: run them again"
NO_NUMBER = "scores that are not numbers: choose another scorer or metric"
OUTSIDE = "scores outside [0, 1]: scale them to it, or choose another scorer or metric"
UNNAMED = "responses without a model or an item"
OTHER_TEXT = "responses to another text under the same id: rename the items"
REPEATED = "responses that were repeated: the newest of an epoch and generation counts"

VALUES: dict[str, float | None] = {
    **dict.fromkeys(("C", "yes", "true"), 1.0),
    **dict.fromkeys(("I", "N", "no", "false"), 0.0),
    **dict.fromkeys(("", "nan", "na", "n/a", "null", "none")),
    "P": 0.5,
}
"""Scores of the letters that Inspect writes, and of words; None is a missing score."""
INSPECT = "Inspect"
"""The format for which directories may name models."""
FIELDS = ("origin", "item", "group", "text", "epoch", "score", "weight", "wrong", "answer")

Table = Any
"""A DataFrame or a column of it, whose types pandas declares too widely."""


class Choice(NamedTuple):
    """The scores to read from files that have several; None reads the first."""

    metric: str | None = None
    """The metric of lm-evaluation-harness, Every Eval Ever, or a log without samples (`accuracy` by
    default); the key of Inspect's scores with several values."""
    scorer: str | None = None
    """Inspect's scorer, or the filter of lm-evaluation-harness."""


class Origin(NamedTuple):
    """The origin of scores, as far as their file names it; the rest is empty."""

    form: str
    """The name of the format."""
    model: str = ""
    task: str = ""
    generation: str = ""
    time: float = 0.0
    """Time when the scores were made, in seconds since 1970."""
    sampled: bool = True
    """False for a log without samples, which is an item itself."""

    def printable(self) -> "Origin":
        """Returns the origin with printable names."""
        names = {name: as_name(getattr(self, name)) for name in ("model", "task", "generation")}
        return self._replace(**names)


class Row(NamedTuple):
    """A response as a file has it."""

    origin: Origin
    item: object
    value: object
    """The score as written: a number, a letter or word for one, or None."""
    epoch: int = 1
    text: object = None
    """The item's text or its hash."""
    wrong: str | None = None
    """The reason why it does not count."""
    group: object = None
    weight: float = 1.0
    said: tuple[object, object, object] | None = None
    """The item's text, its target and the answer."""


@dataclass
class Rows:
    """The responses of files that are read together.

    Attributes:
        origins: Where responses come from.
        columns: Lists of equal length, in the order of `FIELDS`.
        said: Number of the origin, item, hash of the text, text, target and answer.
        answers: Numbers of answers by task, item and hash.
        left_out: Numbers of files and, once joined, of responses that do not count, by reason.
        examples: The first place where each reason applies.
    """

    origins: list[tuple[Source, Origin]] = field(default_factory=list[tuple[Source, Origin]])
    columns: tuple[list[Any], ...] = field(default_factory=lambda: tuple([] for _ in FIELDS))
    said: list[tuple[int, str, int, str, str, str]] = field(default_factory=list[Any])
    answers: Counter[tuple[str, str, int]] = field(default_factory=Counter[Any])
    left_out: Counter[str] = field(default_factory=Counter[str])
    examples: dict[str, str] = field(default_factory=dict[str, str])

    def take(self, source: Source, rows: Iterable[Row]) -> None:
        """Adds the responses of a file.

        If the file turns out to be broken, none of its responses are added.
        """
        length, numbers = len(self.columns[0]), dict[Origin, int]()
        try:
            for row in rows:
                if (number := numbers.get(row.origin, -1)) < 0:
                    number = numbers[row.origin] = len(self.origins)
                    self.origins.append((source, row.origin.printable()))
                self._add(number, row)
                if len(self.columns[0]) > MOST_ROWS:
                    raise over(str(source.place), "scores", MOST_ROWS)
        except Exception:
            for column in self.columns:
                del column[length:]
            raise

    def _add(self, number: int, row: Row) -> None:
        name, score = as_name(row.item), row.wrong or read_score_value(row.value)
        wrong, score = (score, np.nan) if isinstance(score, str) else (None, score)
        text = 0 if row.text is None else text_hash(str(row.text))
        group = "" if row.group is None else as_name(row.group)
        answer = "" if wrong or row.said is None else shorten(row.said[2])
        values = number, name, group, text, row.epoch, score, row.weight, wrong, answer
        for column, value in zip(self.columns, values, strict=True):
            column.append(value)
        count = self.answers[key := (row.origin.task, name, text)]
        if wrong or row.said is None or count >= MOST_ANSWERS or len(self.said) >= MOST_SAID:
            return
        # The text of an item is kept once.
        whole, target, _ = row.said
        whole, target = ("", "") if count else (shorten(whole, LONGEST_TEXT), shorten(target))
        self.said.append((number, name, text, whole, target, answer))
        self.answers[key] += 1

    def leave_out(self, reason: str, where: str, count: int = 1) -> None:
        """Counts responses or files that do not count, with the place of an example."""
        if reason not in self.left_out:
            reason = printable(reason, breaks=False)
            self.examples.setdefault(reason, as_name(where))
        self.left_out[reason] += count


def join_rows(parts: Sequence[Rows]) -> Responses:
    """Joins the rows of several parts.

    If the directories of a tree hold Inspect logs that name one model each, the directories name
    the models, as for the four figures. Items are named by their ids, or by `task/id` if there are
    several tasks; the task is then the group of items without one.

    Args:
        parts: The rows; their order does not matter.

    Raises:
        DataError: There is no response.
    """
    rows, frames = Rows(), list[Table]()
    for more in parts:
        rows.left_out.update(more.left_out)
        rows.examples = more.examples | rows.examples
        if more.columns[0]:
            first = len(rows.origins)
            frame = pd.DataFrame(dict(zip(FIELDS, more.columns, strict=True)))
            frames.append(frame.assign(origin=frame["origin"] + first))
            rows.origins += more.origins
            rows.said += [(said[0] + first, *said[1:]) for said in more.said]
    if not frames:
        return make_responses(pd.DataFrame(), left_out=rows.left_out)
    origins = _resolve(rows.origins)
    table: Table = pd.concat(frames, ignore_index=True).join(origins, on="origin")
    table = _leave_out(_name_items(table), rows)
    items = _describe(table, rows.said, origins)
    table = table[[name for name in COLUMNS if name in table]]
    return make_responses(table, items, None, rows.left_out, rows.examples)


def _leave_out(table: Table, rows: Rows) -> Table:
    """Returns the responses that count, and counts the others by reason."""

    def mark(wrong: Callable[[Table], Table], reason: str) -> None:
        right = table[table["wrong"].isna()]
        table.loc[right.index[wrong(right)], "wrong"] = reason

    table = table.sort_values("age", kind="stable").astype({"wrong": object})
    keys = ["model", "item", "generation", "epoch"]
    mark(lambda right: (right["model"] == "") | (right["item"] == ""), UNNAMED)
    mark(_has_other_text, OTHER_TEXT)
    mark(lambda right: right.duplicated(keys, keep="last"), REPEATED)
    for reason, wrong in table[table["wrong"].notna()].groupby("wrong"):
        source, _ = rows.origins[wrong["origin"].iloc[0]]
        rows.leave_out(reason, f"{source.place}: {wrong['item'].iloc[0]}", len(wrong))
    return table[table["wrong"].isna()]


def _resolve(sources: Sequence[tuple[Source, Origin]]) -> Table:
    """Returns origins with the models, tasks and generations that follow from the whole tree."""
    columns = ["directory", "part", "path", *Origin._fields]
    table: Table = pd.DataFrame(
        [(*_names_of(source), *origin) for source, origin in sources], columns=columns
    )
    logs = table["form"] == INSPECT
    named = table[logs].groupby("directory")["model"].nunique()
    if len(named) and "" not in named.index and named.max() == 1:
        by_path = table["path"].isin(_paths_of_tasks(table[logs])) | ~table["sampled"]
        table.loc[logs, "model"] = table["directory"]
        table.loc[logs, "generation"] = table["part"]
        table.loc[logs & by_path, "task"] = table["path"]
    else:
        table.loc[logs & (table["model"] == ""), "model"] = table["directory"]
    sampled = table["sampled"] & (table["task"] != "")
    tasks = table["task"].where(sampled & (table.loc[sampled, "task"].nunique() > 1), "")
    table = table.assign(tasks=tasks, prefix=tasks + np.where(tasks == "", "", "/"))
    table["age"] = np.argsort(np.lexsort((table["path"], table["time"])))
    names = ["form", "model", "task", "generation", "tasks", "prefix"]
    return table[[*names, "sampled", "age"]].astype(dict.fromkeys(names, "category"))


def _names_of(source: Source) -> tuple[str, str, str]:
    """Returns the directories of a file's model and generation, and its path without ending."""
    stem = os.path.splitext(source.name)[0]
    return as_name(source.model), as_name(source.generation), as_name(stem)


def _paths_of_tasks(logs: Table) -> list[str]:
    """Returns the paths that separate the logs of a directory, if their tasks do not.

    These are paths in several directories, where one directory has several logs of the same task.
    """
    sampled = logs[logs["sampled"]]
    if not sampled.duplicated(["directory", "part", "task"]).any():
        return []
    return sampled.loc[sampled.duplicated("path"), "path"].tolist()


def _name_items(table: Table) -> Table:
    """Returns rows with the full names of items and groups."""
    items, groups = table["item"], table["group"]
    if not table["sampled"].all():
        items = items.where(table["sampled"], table["task"].astype(str))
    if (table["tasks"] != "").any():
        items = table["prefix"].astype(str) + items
        groups = groups.where(groups != "", table["tasks"].astype(str))
    return table.assign(item=items.astype("category"), group=groups.astype("category"))


def _has_other_text(table: Table) -> Table:
    """Returns True for responses to another text than most models have under the item's name.

    Each format has hashes of its own, so they are compared within it.
    """
    hashed = table.loc[table["text"] != 0, ["form", "item", "text", "model"]].drop_duplicates()
    models = hashed.groupby(["form", "item", "text"]).size()
    texts = models.sort_values(ascending=False, kind="stable").reset_index("text")
    usual = texts.groupby(["form", "item"])["text"].first()
    if len(usual) == len(texts):
        return np.zeros(len(table), bool)
    expected = usual.reindex(pd.MultiIndex.from_frame(table[["form", "item"]])).to_numpy()
    return (table["text"] != 0) & (table["text"] != expected)


def _describe(table: Table, said: Iterable[tuple[Any, ...]], origins: Table) -> pd.DataFrame:
    """Returns the items that count, with their texts and targets."""
    kept = set(table[["item", "text"]].drop_duplicates().itertuples(index=False, name=None))
    names, items = list(origins["prefix"]), dict[str, tuple[str, str]]()
    for origin, name, text, whole, target, _ in said:
        if (names[origin] + name, text) in kept:
            items.setdefault(names[origin] + name, (whole, target))
    return pd.DataFrame.from_dict(items, orient="index", columns=["text", "target"])


def read_score_value(value: object) -> float | str:
    """Returns the score in [0, 1] of a value, or the reason why it has none."""
    if isinstance(value, str):
        word = value.strip()
        value = VALUES.get(word, VALUES.get(word.lower(), word))
        with suppress(ValueError):
            value = float(value) if isinstance(value, str) else value
    if value is None or value != value:
        return UNSCORED
    if not isinstance(value, int | float):
        return NO_NUMBER
    return float(value) if 0 <= value <= 1 else OUTSIDE


def as_name(value: object) -> str:
    """Returns a value as a printable name; a long one is cut and ends with its hash."""
    text = str(value)
    if not text.isprintable():
        text = printable(text, breaks=False)
    if len(text) > LONGEST_NAME:
        text = f"{text[: LONGEST_NAME - 20]}...{text_hash(text) % 2**64:016x}"
    return text


def text_hash(text: str) -> int:
    """Returns a hash of a text as a signed integer of 8 bytes that is not 0."""
    digest = hashlib.blake2b(text.encode(errors="surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, signed=True) or 1


def shorten(text: object, longest: int = LONGEST_ANSWER) -> str:
    """Returns a printable text; of a long one, the beginning and the end."""
    if isinstance(text, list):
        text = "; ".join(map(str, cast(list[Any], text)))
    whole = "" if text is None else str(text)
    if len(whole) > longest:
        whole = f"{whole[: longest * 2 // 3]} [...] {whole[-longest // 3 :]}"
    return whole if whole.isprintable() else printable(whole)


def read_time(text: object) -> float:
    """Returns the seconds since 1970 of a time in ISO 8601 or in seconds; 0 for other texts."""
    try:
        return datetime.fromisoformat(str(text)).timestamp()
    except (ValueError, OverflowError):
        return float(text) if isinstance(text, str) and text.isdecimal() else 0.0
