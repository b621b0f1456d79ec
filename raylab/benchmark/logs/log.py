"""What readers return of files: the logs in them, and one table of their samples.

A log is the evaluation of a model on a task. A file of Inspect is one log; a table is a log for
each model and task in it. Readers hand over values as they are written, in a frame; `Files` makes
names, numbers and descriptions of items from its columns, for all formats alike.
"""

import hashlib
import math
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, NamedTuple, cast

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from raylab.benchmark.logs.trees import Source
from raylab.core.bounded import over
from raylab.core.errors import DataError
from raylab.core.printable import printable
from raylab.core.stats import Array

MAX_NAME, MAX_ANSWER, MAX_TEXT = 200, 200, 20_000
MAX_SAMPLES, MAX_ROWS = 1_000_000, 20_000_000
"""Most samples of a log, and rows of files that are read together, against files that expand."""
MAX_TEXTS = 1 << 28
"""Most characters of texts of files that are read together."""
MAX_EPOCH = 1 << 31
CHUNK = 1 << 14
"""Samples that are turned into a table at once."""

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

DEFAULTS = {"epoch": 1, "weight": 1, "group": "", "cluster": "", "answer": ""}
"""Values of the columns that a frame may lack."""

Codes = NDArray[np.int64]
Column = Any
"""A column of a frame, whose types pandas declares too widely."""


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
        tokens: Those of all samples, NaN where the file does not say.
        cost: In dollars.
        seconds: From the first sample to the last, or the sum over samples.
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
    tokens: float = math.nan
    cost: float = math.nan
    seconds: float = math.nan

    def __post_init__(self) -> None:
        self.model, self.task, self.generation = map(
            as_name, (self.model, self.task, self.generation)
        )


class Sample(NamedTuple):
    """An answer of a model to an item, as a file has it."""

    item: object
    score: object
    wrong: str | None = None
    """The reason why it does not count."""
    epoch: object = 1
    text: str = ""
    """The item's whole text."""
    key: str = ""
    """What identifies the item's content, by default the text."""
    target: object = None
    choices: float = math.nan
    """The number of the item's choices."""
    answer: object = None
    metadata: object = None
    """Data of the item, with its group and cluster."""


class Description(NamedTuple):
    """What a log says about an item."""

    content: int = 0
    """A hash of what identifies its content, 0 if there is nothing."""
    text: str = ""
    target: str = ""
    choices: float = math.nan


@dataclass
class Files:
    """What files say that are read together.

    Attributes:
        choice: What is read of them.
        logs: The logs in them.
        tables: A row for each sample: the number of its log, its `item`, the number of the item's
            description, `epoch`, `score` as written, the number of the reason why it does not
            count or -1 (`wrong`), `group`, `cluster`, `weight` and `answer`.
        items: Descriptions of items; the first is that of items that none describes.
        faults: Files that cannot be read, with the reasons.
        notes: Sentences about single files.
    """

    choice: Choice
    logs: list[Log] = field(default_factory=list[Log])
    tables: list[pd.DataFrame] = field(default_factory=list[pd.DataFrame])
    items: list[Description] = field(default_factory=lambda: [Description()])
    faults: list[tuple[Source, str]] = field(default_factory=list[Any])
    notes: list[str] = field(default_factory=list[str])
    _numbers: dict[tuple[str, str, int], int] = field(default_factory=dict[Any, int])
    _samples: list[tuple[Any, ...]] = field(default_factory=list[Any])
    _rows: int = 0
    _characters: int = 0

    def add(self, log: Log, samples: Iterable[Sample] = ()) -> None:
        """Adds a log with its samples."""
        for sample in samples:
            places = (dig(sample.metadata, key) for key in (self.choice.group, self.choice.cluster))
            self._samples.append((len(self.logs), *sample[:-1], *places))
        self.logs.append(log)
        if len(self._samples) > CHUNK:
            self.close()

    def close(self) -> None:
        """Turns the samples that were added one at a time into a table."""
        if self._samples:
            names = ("log", *Sample._fields[:-1], "group", "cluster")
            self._add(pd.DataFrame(self._samples, columns=list(names), dtype=object))
            self._samples = []

    def add_table(self, logs: list[Log], frame: pd.DataFrame) -> None:
        """Adds logs with the samples of all, as columns; `log` numbers these logs."""
        frame["log"] += len(self.logs)
        self.logs += logs
        self._add(frame)

    def _add(self, frame: pd.DataFrame) -> None:
        """Adds a table from the columns of a frame as files have them."""
        self._rows += len(frame)
        if self._rows > MAX_ROWS:
            raise over(str(self.logs[-1].source.place), "scores", MAX_ROWS)
        for name, missing in DEFAULTS.items():
            if name not in frame:
                frame[name] = pd.Categorical.from_codes(np.zeros(len(frame), np.int8), [missing])
        item, log = as_names(frame["item"]), frame["log"].to_numpy(np.int32)
        score, wrong = as_numbers(frame["score"])
        if "wrong" in frame:
            reasons = np.array([CODES[reason] for reason in frame["wrong"]])
            wrong = np.where(reasons < 0, wrong, reasons)
        epoch, weight = (as_numbers(frame[name], 1.0)[0] for name in ("epoch", "weight"))
        usable = (epoch > 0) & (epoch < MAX_EPOCH) & (epoch % 1 == 0)
        usable &= (weight > 0) & (weight < math.inf)
        wrong = np.where((wrong < 0) & ~usable, CODES[WRONG_NUMBER], wrong)
        nameless = item.codes == item.categories.get_indexer([""])[0]
        columns = {
            "log": log,
            "item": item,
            "about": self._describe(frame, item, log),
            "epoch": np.where(usable, epoch, 1.0).astype(np.int64),
            "score": score,
            "wrong": np.where(nameless, CODES[UNNAMED], wrong).astype(np.int8),
            "group": as_names(frame["group"]),
            "cluster": as_names(frame["cluster"]),
            "weight": np.where(usable, weight, 1.0),
            "answer": as_names(frame["answer"], shorten),
        }
        self.tables.append(pd.DataFrame(columns, copy=False))

    def _describe(self, frame: Column, item: pd.Categorical, log: NDArray[np.int32]) -> Codes:
        """Keeps what rows say about their items; returns the numbers of these descriptions."""
        if not {"text", "target"} & {*frame}:
            return np.zeros(len(frame), np.int64)
        for name, missing in {"text": "", "target": None, "choices": math.nan}.items():
            if name not in frame:
                frame[name] = missing
        content = frame["text"]
        if "key" in frame:
            content = frame["key"].where(frame["key"] != "", content)
        codes, values = _coded(content)
        hashes = np.array([*map(text_hash, values), 0], np.int64)[codes]
        tasks, names = [own.task for own in self.logs], item.categories
        codes = combine(pd.factorize(np.array(tasks, object))[0][log], item.codes, hashes)
        firsts, numbers = np.flatnonzero(~pd.Series(codes).duplicated()), list[int]()
        rows = (frame[name].iloc[firsts].tolist() for name in ("text", "target", "choices"))
        for place, text, target, choices in zip(firsts, *rows, strict=True):
            key = tasks[log[place]], names[item.codes[place]], int(hashes[place])
            if key not in self._numbers:
                longest = MAX_TEXT if self._characters < MAX_TEXTS else MAX_ANSWER
                self._numbers[key], whole = len(self.items), shorten(text, longest)
                self._characters += len(whole)
                self.items.append(Description(key[2], whole, shorten(target), choices))
            numbers.append(self._numbers[key])
        return np.array(numbers, np.int64)[codes]


def as_names(column: Column, form: Callable[[object], str] | None = None) -> pd.Categorical:
    """Returns the names in a column as categories, in a form; that of a missing one is empty."""
    codes, values = _coded(column)
    names = [
        "" if value is None or value != value else (form or as_name)(value) for value in values
    ]
    numbers, different = pd.factorize(np.array([*names, ""], object))
    return pd.Categorical.from_codes(numbers[codes], list(different))


def as_numbers(column: Column, missing: float = math.nan) -> tuple[Array, Codes]:
    """Returns the numbers in a column, `missing` where there is none, and codes of reasons.

    The reason for what is no number is -1 where there is one.
    """
    if pd.api.types.is_bool_dtype(column.dtype) or pd.api.types.is_numeric_dtype(column.dtype):
        numbers = column.to_numpy(float, na_value=np.nan)
        reasons = np.where(np.isfinite(numbers), -1, CODES[UNSCORED])
        return np.where(np.isnan(numbers), missing, numbers), reasons
    codes, values = _coded(column)
    read = [*map(read_value, values), UNSCORED]
    ends = {UNSCORED: missing, NO_NUMBER: math.nan}
    numbers = np.array([ends[each] if isinstance(each, str) else each for each in read], float)
    reasons = np.array([CODES[each] if isinstance(each, str) else -1 for each in read])
    return numbers[codes], reasons[codes]


def _coded(column: Column) -> tuple[Codes, list[Any]]:
    """Returns numbers of the values of a column, -1 for a missing one, and these values."""
    if isinstance(column.dtype, pd.CategoricalDtype):
        return column.cat.codes.to_numpy(), column.cat.categories.tolist()
    if column.dtype == object:
        # Values of JSON, such as lists, may have no hash.
        return np.arange(len(column)), column.tolist()
    codes, values = pd.factorize(column)
    if pd.api.types.is_float_dtype(values.dtype) and (values % 1 == 0).all():
        values = values.astype("int64")
    return codes, values.tolist()


def combine(*columns: Column) -> Codes:
    """Returns a number for each different row of columns of whole numbers, from 0 on."""
    numbers = np.zeros(len(columns[0]), np.int64)
    for column in columns:
        codes, values = pd.factorize(column)
        numbers = pd.factorize(numbers * len(values) + codes)[0]
    return numbers


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


def dig(value: object, *path: str | int | None) -> Any:
    """Returns what is at a path of keys and places in a value of JSON, None if nothing is."""
    for step in path:
        try:
            value = cast(Any, value)[step] if isinstance(value, dict | list) else None
        except (LookupError, TypeError):
            return None
    return value


def entries(value: object, *path: str | int) -> list[Any]:
    """Returns the elements of a list, or values of an object, at a path; none if none is there."""
    value = dig(value, *path)
    return [
        *(value.values() if isinstance(value, dict) else value if isinstance(value, list) else ())
    ]


def total(values: Iterable[object]) -> float:
    """Returns the sum of the numbers among values, NaN if there is none."""
    numbers = [each for value in values if isinstance(each := read_value(value), float)]
    return sum(numbers) if numbers else math.nan


def pick(wanted: str | None, there: Iterable[str], what: str) -> str:
    """Returns the wanted name, or the first that is there.

    Raises:
        DataError: The wanted name is not there.
    """
    names = list(dict.fromkeys(there))
    if wanted is not None and wanted not in names:
        raise DataError(f"no {what} {wanted}, it has {', '.join(names) or 'none'}")
    return wanted or next(iter(names), "")


def as_settings(*values: object) -> dict[str, str]:
    """Returns the settings of mappings by name, without empty ones."""
    mappings = [cast("dict[str, Any]", value) for value in values if isinstance(value, dict)]
    pairs = (pair for mapping in mappings for pair in mapping.items())
    return {key: as_name(setting) for key, setting in pairs if setting not in (None, "", [], {})}


def as_name(value: object) -> str:
    """Returns a value as a printable name; a long one is cut and ends with its hash."""
    text = str(value)
    if not text.isprintable():
        text = printable(text, breaks=False)
    if len(text) > MAX_NAME:
        text = f"{text[: MAX_NAME - 20]}...{text_hash(text) % 2**64:016x}"
    return text


def text_hash(text: object) -> int:
    """Returns a hash of a text as a signed integer of 8 bytes, 0 only for an empty one."""
    content = str(text).encode(errors="surrogatepass")
    digest = hashlib.blake2b(content, digest_size=8).digest()
    return (content and (int.from_bytes(digest, signed=True) or 1)) or 0


def shorten(text: object, longest: int = MAX_ANSWER) -> str:
    """Returns a printable text; of a long one, the beginning and the end."""
    if isinstance(text, list):
        text = "; ".join(map(str, cast("list[Any]", text)))
    whole = "" if text is None or text != text else str(text)
    if len(whole) > longest:
        whole = f"{whole[: longest * 2 // 3]} [...] {whole[-longest // 3 :]}"
    return whole if whole.isprintable() else printable(whole)


def read_time(text: object) -> float:
    """Returns the seconds since 1970 of a time in ISO 8601 or in seconds; 0 for other texts."""
    try:
        return datetime.fromisoformat(str(text)).timestamp()
    except (ValueError, OverflowError):
        return float(text) if isinstance(text, str) and text.isdecimal() else 0.0
