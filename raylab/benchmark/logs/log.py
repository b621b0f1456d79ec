"""What readers return: the logs in files, and a table of their samples.

A log is the evaluation of a model on a task. A file of Inspect is one log; a table is a log for
each model and task in it.
"""

import hashlib
import math
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, NamedTuple, cast

import numpy as np
import pandas as pd

from raylab.benchmark.logs.trees import Source
from raylab.core.bounded import over
from raylab.core.errors import DataError
from raylab.core.printable import printable

MAX_NAME = 200
MAX_TEXT = 20_000
MAX_ANSWER = 200
MAX_SAMPLES, MAX_ROWS = 1_000_000, 20_000_000
"""Most samples of a log, and rows of files that are read together, against files that expand."""
MAX_TEXTS = 1 << 28
"""Most characters of texts of files that are read together."""
MAX_EPOCH = 1 << 31

UNSCORED = "samples without a score"
ERRORED = "samples that ended in an error"
CANCELLED = "samples that were cancelled"
INVALIDATED = "samples that were invalidated: run them again"
NO_NUMBER = "scores that are not numbers: choose another scorer or metric"
UNNAMED = "responses without a model or an item"
WRONG_NUMBER = "rows with a weight that is not above 0, or an epoch that is not a whole number"
REASONS = (UNSCORED, ERRORED, CANCELLED, INVALIDATED, NO_NUMBER, UNNAMED, WRONG_NUMBER)
CODES: Mapping[str | None, int] = {None: -1} | {reason: n for n, reason in enumerate(REASONS)}

VALUES: dict[str, float | None] = {
    **dict.fromkeys(("C", "yes", "true"), 1.0),
    **dict.fromkeys(("I", "N", "no", "false"), 0.0),
    **dict.fromkeys(("", "nan", "na", "n/a", "null", "none")),
    "P": 0.5,
}
"""Scores of the letters that Inspect writes, and of words; None is a missing score."""
TYPES: dict[str, Any] = {
    "log": np.int32,
    "item": "category",
    "text": np.int64,
    "epoch": np.int64,
    "score": np.float64,
    "wrong": np.int8,
    "group": "category",
    "cluster": "category",
    "weight": np.float64,
    "answer": "category",
}
"""Columns of samples: the number of their log, the hash of the item's whole text (0 if there is
none), the score as written, and the number of the reason why it does not count, or -1."""


class Choice(NamedTuple):
    """What is read of files that hold several scores, and how."""

    metric: str | None = None
    """The metric of lm-evaluation-harness, Every Eval Ever, HELM, or a log without samples
    (`accuracy` by default); the key of Inspect's scores with several values."""
    scorer: str | None = None
    """Inspect's scorer, or the filter of lm-evaluation-harness; None reads the first."""
    scale: tuple[float, float] | None = None
    errors_are_wrong: bool = False
    by_text: bool = False
    group: str | None = None
    cluster: str | None = None
    columns: Mapping[str, str] = {}
    samples: bool = True
    """False reads the headers of logs alone."""
    units: bool = False
    """Whether a log without samples is an item."""


@dataclass
class Log:
    """What a file says about an evaluation, as far as it does.

    Attributes:
        source: The file.
        format: The name of the format.
        model: The model, or empty.
        task: The task, or empty.
        generation: A declared generation, or empty.
        condition: Settings of the model by name.
        arguments: Settings of the task by name.
        scorer: The score that was read.
        others: Other scores in the file.
        time: When it was made, in seconds since 1970.
        status: Inspect's status.
        identity: Inspect's ids of the evaluation and of the task.
        accuracy: The published mean of the score that was read; NaN if there is none.
        header: What the four figures take from the log: an accuracy, or why there is none.
        sampled: False for a log without samples.
        usage: `tokens`, `cost` and `seconds`.
        bare_task: The task as the file names it, without settings that join it to others.
    """

    source: Source
    format: str
    model: str = ""
    task: str = ""
    generation: str = ""
    condition: Mapping[str, str] = field(default_factory=dict[str, str])
    arguments: Mapping[str, str] = field(default_factory=dict[str, str])
    scorer: str = ""
    others: tuple[str, ...] = ()
    time: float = 0.0
    status: str = "success"
    identity: tuple[str, str] = ("", "")
    accuracy: float = math.nan
    header: float | str | None = None
    sampled: bool = True
    usage: Mapping[str, float] = field(default_factory=dict[str, float])

    def __post_init__(self) -> None:
        self.model, self.task, self.generation = map(
            as_name, (self.model, self.task, self.generation)
        )
        self.bare_task = self.task


class Description(NamedTuple):
    """What a log says about an item."""

    text: str = ""
    target: str = ""
    choices: float = math.nan


@dataclass
class Files:
    """What files say that are read together.

    Attributes:
        logs: The logs in them.
        tables: Samples, with the columns of `TYPES`.
        texts: What they say about items, by task, item and hash of the text.
        faults: Files that cannot be read, with the reasons.
        notes: Sentences about single files.
    """

    logs: list[Log] = field(default_factory=list[Log])
    tables: list[pd.DataFrame] = field(default_factory=list[pd.DataFrame])
    texts: dict[tuple[str, str, int], Description] = field(default_factory=dict[Any, Any])
    faults: list[tuple[Source, str]] = field(default_factory=list[Any])
    notes: list[str] = field(default_factory=list[str])
    _columns: tuple[list[Any], ...] = field(default_factory=lambda: tuple([] for _ in TYPES))
    _rows: int = 0
    _characters: int = 0

    def add(self, log: Log, samples: "Samples") -> None:
        """Adds a log with its samples."""
        self._count(len(samples), log)
        samples.columns[0][:] = [len(self.logs)] * len(samples)
        self.logs.append(log)
        for column, more in zip(self._columns, samples.columns, strict=True):
            column += more
        for name, text, description in samples.texts.values():
            self.describe(log.bare_task, name, text, description)

    def close(self) -> None:
        """Turns the samples that were added one at a time into a table."""
        if self._columns[0]:
            columns = zip(TYPES.items(), self._columns, strict=True)
            series = {name: pd.Series(cells, dtype=kind) for (name, kind), cells in columns}
            self.tables.append(pd.DataFrame(series))
            self._columns = tuple([] for _ in TYPES)

    def add_table(self, logs: list[Log], table: pd.DataFrame, where: Log) -> None:
        """Adds logs with the samples of all; `log` numbers these logs."""
        self._count(len(table), where)
        self.tables.append(table.assign(log=table["log"] + np.int32(len(self.logs))))
        self.logs += logs

    def describe(self, task: str, item: str, text: int, description: Description) -> None:
        """Keeps what the first log says about an item."""
        if (key := (task, item, text)) not in self.texts:
            longest = MAX_TEXT if self._characters < MAX_TEXTS else MAX_ANSWER
            whole = shorten(description.text, longest)
            self._characters += len(whole)
            self.texts[key] = description._replace(text=whole)

    def _count(self, rows: int, log: Log) -> None:
        if self._rows + rows > MAX_ROWS:
            raise over(str(log.source.place), "scores", MAX_ROWS)
        self._rows += rows


@dataclass
class Samples:
    """The samples of a log that is read one sample at a time."""

    choice: Choice
    columns: tuple[list[Any], ...] = field(default_factory=lambda: tuple([] for _ in TYPES))
    texts: dict[tuple[str, int], tuple[str, int, Description]] = field(
        default_factory=dict[Any, Any]
    )

    def add(
        self,
        item: object,
        value: object,
        *,
        epoch: int = 1,
        wrong: str | None = None,
        text: str = "",
        key: str = "",
        target: object = None,
        choices: float = math.nan,
        answer: object = None,
        metadata: object = None,
    ) -> None:
        """Adds a sample.

        Args:
            item: The item's id.
            value: Its score as written: a number, a letter or word for one, or None.
            epoch: Its epoch.
            wrong: The reason why it does not count.
            text: The item's whole text.
            key: What identifies the item's content, by default the text.
            target: The item's target.
            choices: The number of its choices.
            answer: The model's answer.
            metadata: Data of the item, with its group and cluster.
        """
        name, score = as_name(item), read_value(value)
        if wrong is None and isinstance(score, str):
            wrong = score
        if not 0 < epoch < MAX_EPOCH:
            epoch, wrong = 1, wrong or WRONG_NUMBER
        number = text_hash(key or text) if key or text else 0
        if name == "" or item is None:
            wrong = UNNAMED
        about = cast("dict[str, Any]", metadata) if isinstance(metadata, dict) else {}
        places = (
            as_name(about[key]) if key is not None and about.get(key) is not None else ""
            for key in (self.choice.group, self.choice.cluster)
        )
        shown = shorten(answer) if wrong is None or answer else ""
        score = math.nan if isinstance(score, str) else score
        values = (0, name, number, epoch, score, CODES[wrong], *places, 1.0, shown)
        for column, cell in zip(self.columns, values, strict=True):
            column.append(cell)
        if (name, number) not in self.texts:
            about_item = Description(text, shorten(target), choices)
            self.texts[name, number] = name, number, about_item
        if len(self) > MAX_SAMPLES:
            raise over("the log", "samples", MAX_SAMPLES)

    def __len__(self) -> int:
        return len(self.columns[0])


def read_value(value: object) -> float | str:
    """Returns the score of a value as written, or the reason why it has none."""
    if isinstance(value, str):
        word = value.strip()
        value = VALUES.get(word, VALUES.get(word.lower(), word))
        with suppress(ValueError):
            value = float(value) if isinstance(value, str) else value
    if value is None or value != value:
        return UNSCORED
    if not isinstance(value, int | float) or math.isinf(value):
        return NO_NUMBER
    with suppress(OverflowError):
        return float(value)
    return NO_NUMBER


def pick(wanted: str | None, there: Iterable[str], what: str) -> str:
    """Returns the wanted name, or the first that is there.

    Raises:
        DataError: The wanted name is not there.
    """
    names = list(dict.fromkeys(there))
    if wanted is None:
        return names[0] if names else ""
    if wanted not in names:
        raise DataError(f"no {what} {wanted}, it has {', '.join(names) or 'none'}")
    return wanted


def as_settings(*values: object) -> dict[str, str]:
    """Returns the settings of mappings by name, without empty ones."""
    settings = dict[str, str]()
    for value in values:
        if isinstance(value, dict):
            for key, setting in cast("dict[str, Any]", value).items():
                if setting not in (None, "", [], {}):
                    settings[key] = as_name(setting)
    return settings


def as_name(value: object) -> str:
    """Returns a value as a printable name; a long one is cut and ends with its hash."""
    text = str(value)
    if not text.isprintable():
        text = printable(text, breaks=False)
    if len(text) > MAX_NAME:
        text = f"{text[: MAX_NAME - 20]}...{text_hash(text) % 2**64:016x}"
    return text


def text_hash(text: str) -> int:
    """Returns a hash of a text as a signed integer of 8 bytes that is not 0."""
    digest = hashlib.blake2b(text.encode(errors="surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, signed=True) or 1


def shorten(text: object, longest: int = MAX_ANSWER) -> str:
    """Returns a printable text; of a long one, the beginning and the end."""
    if isinstance(text, list):
        text = "; ".join(map(str, cast("list[Any]", text)))
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
