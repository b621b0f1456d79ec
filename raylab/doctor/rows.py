"""Rows: what readers of all formats put the scores of their files in, as arrays."""

import hashlib
import math
from array import array
from collections import Counter
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, cast

from raylab.bounded import over
from raylab.files import Place
from raylab.printable import printable

LONGEST_NAME = 200
LONGEST_TEXT = 1000
"""Most characters of an item that are kept: those of its beginning and its end."""
LONGEST_ANSWER = 200
MOST_ANSWERS = 20
"""Models whose answer to an item is kept."""
MOST_REASONS = 100
MOST_ROWS = 20_000_000
"""Rows of the files that are read together; a small file may stand for more."""

UNSCORED = "samples without a score"
ERRORED = "samples that ended in an error"
CANCELLED = "samples that were cancelled"
INVALIDATED = "samples that were invalidated: run them again"
NO_NUMBER = "scores that are no numbers: choose another scorer or metric"
OUTSIDE = "scores outside [0, 1]: scale them to it, or choose another scorer or metric"
LOWER = "scores of which lower ones are better: choose another metric"
OTHERS = "files that cannot be used for other reasons"

WORDS = {"C": 1.0, "P": 0.5, "I": 0.0, "N": 0.0}
"""Inspect's correct, partial, incorrect and no answer."""
LOWER_WORDS = {"yes": 1.0, "true": 1.0, "no": 0.0, "false": 0.0}
MISSING = frozenset({"", "nan", "na", "n/a", "null", "none"})


@dataclass(frozen=True)
class Choice:
    """Which scores to read of files that have several; None reads the first.

    Attributes:
        metric: The metric of lm-evaluation-harness, of Every Eval Ever, or of a log without
            samples (`accuracy` by default); of Inspect's scores with several values their key.
        scorer: Inspect's scorer.
        reducer: Inspect's reducer whose scores over epochs are read; None reads each epoch.
        filter: The filter of lm-evaluation-harness.
    """

    metric: str | None = None
    scorer: str | None = None
    reducer: str | None = None
    filter: str | None = None


@dataclass(frozen=True)
class Source:
    """A file to read.

    Attributes:
        place: The file.
        directory: The tree's directory of a model that it lies in; empty if there is none.
        generation: Likewise of a generation.
        path: Its path below these, without its last ending.
    """

    place: Place
    directory: str
    generation: str
    path: str


@dataclass(frozen=True)
class Origin:
    """Where scores come from, as far as their file says.

    Attributes:
        source: The file.
        form: Name of its format.
        model: The model's name; empty if there is none.
        task: Likewise of the task.
        generation: Likewise of the generation.
        time: When it was made, in seconds since 1970; 0 if that is unknown.
        sampled: False for a log without samples, whose only score is that of an item.
    """

    source: Source
    form: str
    model: str = ""
    task: str = ""
    generation: str = ""
    time: float = 0.0
    sampled: bool = True


@dataclass
class Answers:
    """The text of an item, its target, and the answers by number of their origin."""

    text: str
    target: str
    answers: dict[int, str] = field(default_factory=dict[int, str])


def _integers() -> "array[int]":
    return array("q")


def _numbers() -> "array[float]":
    return array("d")


@dataclass
class Rows:
    """Scores as columns of equal length, and all else that was read with them.

    Attributes:
        origins: Where scores come from; `origin` has their numbers.
        names: Numbers of the names of items and groups.
        item: Numbers of names.
        group: Likewise; -1 without one.
        origin: Numbers of `origins`.
        text: Hashes of the items' texts; 0 without one.
        epoch: Epochs from 1.
        score: Scores in [0, 1].
        weight: Weights of the items.
        described: What items say, by task, number of name, and hash.
        left_out: Numbers of what does not count, by reason.
        examples: Where each reason applies first.
    """

    origins: list[Origin] = field(default_factory=list[Origin])
    names: dict[str, int] = field(default_factory=dict[str, int])
    item: "array[int]" = field(default_factory=_integers)
    group: "array[int]" = field(default_factory=_integers)
    origin: "array[int]" = field(default_factory=_integers)
    text: "array[int]" = field(default_factory=_integers)
    epoch: "array[int]" = field(default_factory=_integers)
    score: "array[float]" = field(default_factory=_numbers)
    weight: "array[float]" = field(default_factory=_numbers)
    described: dict[tuple[str, int, int], Answers] = field(
        default_factory=dict[tuple[str, int, int], Answers]
    )
    left_out: Counter[str] = field(default_factory=Counter[str])
    examples: dict[str, str] = field(default_factory=dict[str, str])

    @property
    def columns(self) -> "tuple[array[Any], ...]":
        """All columns, in the order of the attributes."""
        return (
            self.item,
            self.group,
            self.origin,
            self.text,
            self.epoch,
            self.score,
            self.weight,
        )

    def add_origin(self, origin: Origin) -> int:
        """Adds an origin and returns its number."""
        self.origins.append(origin)
        return len(self.origins) - 1

    def number(self, name: object) -> int:
        """Returns the number of a name, which is added unless it is there."""
        return self.names.setdefault(as_name(name), len(self.names))

    def add(
        self, origin: int, name: int, value: object, epoch: int = 1, text: int = 0, key: str = ""
    ) -> bool:
        """Adds the score that a log's value stands for; False leaves it out with the reason.

        Raises:
            LimitError: There are `MOST_ROWS`.

        Args:
            origin: Number of its origin.
            name: Number of the item's name.
            value: The value, as the log has it.
            epoch: The epoch, from 1.
            text: Hash of the item's text.
            key: Key of the number in a value that is an object; empty takes the first.
        """
        score = read_score_value(value, key)
        if isinstance(score, str):
            self.leave_out(score, str(self.origins[origin].source.place))
            return False
        if len(self.score) >= MOST_ROWS:
            raise over(str(self.origins[origin].source.place), "scores", MOST_ROWS)
        row = (name, -1, origin, text, epoch, score, 1.0)
        for column, cell in zip(self.columns, row, strict=True):
            column.append(cell)
        return True

    def describe(self, origin: int, name: int, text: int) -> Answers | None:
        """Returns what is kept of an item, to which the origin's answer may be added."""
        key = (self.origins[origin].task, name, text)
        kept = self.described.setdefault(key, Answers("", ""))
        return kept if len(kept.answers) < MOST_ANSWERS else None

    def leave_out(self, reason: str, where: str, count: int = 1) -> None:
        """Counts what does not count, with the place of an example."""
        reason = printable(reason, breaks=False)
        if reason not in self.left_out and len(self.left_out) >= MOST_REASONS:
            reason = OTHERS
        self.left_out[reason] += count
        self.examples.setdefault(reason, as_name(where))

    def mark(self) -> tuple[int, Counter[str], dict[str, str]]:
        """Returns the state to which `undo` returns."""
        return len(self.score), self.left_out.copy(), self.examples.copy()

    def undo(self, mark: tuple[int, Counter[str], dict[str, str]]) -> None:
        """Removes the scores that were added, and forgets what was left out, since a mark."""
        length, self.left_out, self.examples = mark
        for column in self.columns:
            del column[length:]


def read_score_value(value: object, key: str = "") -> float | str:
    """Returns the score in [0, 1] that a value stands for, or the reason why there is none.

    Args:
        value: A number, Inspect's letters, a word for yes or no, or an object that holds them.
        key: Key of the number in an object; empty takes the first.
    """
    if isinstance(value, dict):
        values = cast(dict[str, object], value)
        value = values.get(key) if key else next(iter(values.values()), None)
    if isinstance(value, str):
        value = _read_word(value)
    if value is None or value != value:
        return UNSCORED
    if not isinstance(value, int | float):
        return NO_NUMBER
    return float(value) if 0 <= value <= 1 else OUTSIDE


def _read_word(word: str) -> object:
    word = word.strip()
    if word in WORDS:
        return WORDS[word]
    lower = word.lower()
    if lower in MISSING:
        return None
    try:
        return LOWER_WORDS[lower] if lower in LOWER_WORDS else float(lower)
    except ValueError:
        return word


def as_name(value: object) -> str:
    """Returns a value as a name that can be shown, of at most `LONGEST_NAME` characters.

    A longer one is cut, and ends with its hash.
    """
    text = value if isinstance(value, str) else str(value)
    if not text.isprintable():
        text = printable(text, breaks=False)
    if len(text) > LONGEST_NAME:
        text = f"{text[: LONGEST_NAME - 20]}...{text_hash(text) & (2**64 - 1):016x}"
    return text


def text_hash(text: str) -> int:
    """Returns a hash of a text as a signed integer of 8 bytes that is not 0."""
    content = text.encode(errors="surrogatepass")
    digest = hashlib.blake2b(content, digest_size=8).digest()
    return int.from_bytes(digest, signed=True) or 1


def shorten(text: object, longest: int = LONGEST_TEXT) -> str:
    """Returns the beginning and the end of a text, where it is too long, as it may be shown."""
    whole = text if isinstance(text, str) else "" if text is None else str(text)
    if len(whole) > longest:
        whole = f"{whole[: longest * 2 // 3]} [...] {whole[-longest // 3 :]}"
    return printable(whole)


def read_time(text: object) -> float:
    """Returns the seconds since 1970 of a time in ISO 8601, or of such a number; else 0."""
    try:
        return datetime.fromisoformat(str(text)).timestamp()
    except (ValueError, OverflowError):
        pass
    try:
        time = float(str(text))
    except ValueError:
        return 0.0
    return time if math.isfinite(time) else 0.0
