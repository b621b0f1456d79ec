"""Rows: what files of all formats say of responses, collected in columns."""

import hashlib
from array import array
from collections import Counter
from collections.abc import Callable, Iterable
from datetime import datetime
from typing import Any, NamedTuple, cast

import msgspec

from raylab.bounded import over
from raylab.files import Place
from raylab.printable import printable

LONGEST_NAME = 200
LONGEST_TEXT = 1000
LONGEST_ANSWER = 200
MOST_ANSWERS = 20
"""Models whose answer to an item is kept."""
MOST_SAID = 200_000
"""Answers that are kept of files that are read together."""
MOST_REASONS = 100
MOST_ROWS = 20_000_000
"""Rows of the files that are read together; a small file may stand for more."""

UNSCORED = "samples without a score"
ERRORED = "samples that ended in an error"
CANCELLED = "samples that were cancelled"
INVALIDATED = "samples that were invalidated: run them again"
NO_NUMBER = "scores that are no numbers: choose another scorer or metric"
OUTSIDE = "scores outside [0, 1]: scale them to it, or choose another scorer or metric"
UNNAMED = "responses without a model or an item"
OTHERS = "responses or files that cannot be used for other reasons"

LETTERS = {"C": 1.0, "P": 0.5, "I": 0.0, "N": 0.0}
"""Inspect's correct, partial, incorrect and no answer."""
WORDS = {"yes": 1.0, "true": 1.0, "no": 0.0, "false": 0.0}
MISSING = frozenset({"", "nan", "na", "n/a", "null", "none"})


class Choice(NamedTuple):
    """The scores to read of files that have several; None reads the first."""

    metric: str | None = None
    """The metric of lm-evaluation-harness, of Every Eval Ever, or of a log without samples
    (`accuracy` by default); of Inspect's scores with several values their key."""
    scorer: str | None = None
    """Inspect's scorer."""
    reducer: str | None = None
    """Inspect's reducer whose scores over epochs are read; None reads each epoch."""
    filter: str | None = None
    """The filter of lm-evaluation-harness."""


class Source(NamedTuple):
    """A file to read."""

    place: Place
    directory: str = ""
    """The tree's directory of a model that it lies in."""
    generation: str = ""
    """Likewise of a generation."""
    path: str = ""
    """Its path below these, without its last ending."""


class Origin(NamedTuple):
    """The source of scores, as far as their file names it; the rest is empty."""

    form: str
    """The name of the format."""
    model: str = ""
    task: str = ""
    time: float = 0.0
    """Time when the scores were made, in seconds since 1970."""
    generation: str = ""
    sampled: bool = True
    """False for a log without samples, whose only score is that of an item."""

    def printable(self) -> "Origin":
        """Returns it with names that may be shown."""
        names = {name: as_name(getattr(self, name)) for name in ("model", "task", "generation")}
        return self._replace(**names)


class Scored(msgspec.Struct, frozen=True):
    """A response as a file has it."""

    item: object
    value: object
    """The score as written: a number, a letter or word that stands for one, or none."""
    epoch: int = 1
    text: object = None
    """The item's text or its hash."""
    wrong: str | None = None
    """The reason why it does not count."""
    group: object = None
    weight: float = 1.0
    said: Callable[[], tuple[object, object, object]] | None = None
    """Returns the item's text, its target and the answer."""


def _integers() -> "array[int]":
    return array("q")


class Rows(msgspec.Struct):
    """The responses of files, as columns of equal length."""

    origins: list[tuple[Source, Origin]] = []
    origin: "array[int]" = msgspec.field(default_factory=_integers)
    """Number of the response's origin."""
    item: list[str] = []
    group: list[str] = []
    text: "array[int]" = msgspec.field(default_factory=_integers)
    """Hash of what tells the item's text; 0 without it."""
    epoch: "array[int]" = msgspec.field(default_factory=_integers)
    score: list[float] = []
    weight: list[float] = []
    said: dict[tuple[int, str, int], tuple[str, str, str]] = {}
    """Text, target and answer by origin, item and hash; a text is kept once."""
    answers: Counter[tuple[str, str, int]] = msgspec.field(
        default_factory=Counter[tuple[str, str, int]]
    )
    left_out: Counter[str] = msgspec.field(default_factory=Counter[str])
    examples: dict[str, str] = {}
    """The first place where each reason applies."""

    def take(self, source: Source, responses: Iterable[tuple[Origin, Scored]]) -> None:
        """Adds the responses of a file, or leaves them out with the reasons.

        Where the file turns out to be broken, nothing of it is added, and its error is raised.
        """
        length, counts, examples = len(self.score), self.left_out.copy(), self.examples.copy()
        numbers, names = dict[Origin, int](), dict[object, str]()
        try:
            for origin, response in responses:
                if (number := numbers.get(origin, -1)) < 0:
                    number = numbers[origin] = len(self.origins)
                    self.origins.append((source, origin.printable()))
                if (name := names.get(response.item)) is None:
                    name = names[response.item] = as_name(response.item)
                self._add(source, origin, number, name, response)
        except Exception:
            self.left_out, self.examples = counts, examples
            for column in (self.origin, self.item, self.group, self.text, self.epoch):
                del column[length:]
            del self.score[length:], self.weight[length:]
            raise

    def _add(
        self, source: Source, origin: Origin, number: int, name: str, response: Scored
    ) -> None:
        score = response.wrong or read_score_value(response.value)
        if isinstance(score, str):
            return self.leave_out(score, f"{source.place}: {name}")
        if len(self.score) >= MOST_ROWS:
            raise over(str(source.place), "scores", MOST_ROWS)
        text = 0 if response.text is None else text_hash(str(response.text))
        self.origin.append(number)
        self.item.append(name)
        self.group.append("" if response.group is None else as_name(response.group))
        self.text.append(text)
        self.epoch.append(response.epoch)
        self.score.append(score)
        self.weight.append(response.weight)
        count = self.answers.get(key := (origin.task, name, text), 0)
        is_kept = count < MOST_ANSWERS and len(self.said) < MOST_SAID
        if response.said is not None and is_kept and (number, name, text) not in self.said:
            self.answers[key] += 1
            *item, answer = response.said()
            whole, target = ("", "") if count else item
            said = shorten(whole, LONGEST_TEXT), shorten(target), shorten(answer)
            self.said[number, name, text] = said
        return None

    def leave_out(self, reason: str, where: str, count: int = 1) -> None:
        """Counts what does not count, with the place of an example."""
        if reason not in self.left_out:
            reason = printable(reason, breaks=False)
            reason = OTHERS if len(self.left_out) >= MOST_REASONS else reason
            self.examples.setdefault(reason, as_name(where))
        self.left_out[reason] += count


def read_score_value(value: object) -> float | str:
    """Returns the score in [0, 1] that a value stands for, or the reason why there is none."""
    if isinstance(value, str):
        value = _read_word(value.strip())
    if value is None or value != value:
        return UNSCORED
    if not isinstance(value, int | float):
        return NO_NUMBER
    return float(value) if 0 <= value <= 1 else OUTSIDE


def _read_word(word: str) -> object:
    lower = word.lower()
    if lower in MISSING:
        return None
    try:
        return LETTERS[word] if word in LETTERS else WORDS.get(lower) or float(lower)
    except ValueError:
        return WORDS.get(lower, word)


def as_name(value: object) -> str:
    """Returns a value as a name that may be shown; a long one is cut and ends with its hash."""
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
    """Returns a text as it may be shown, of a long one the beginning and the end."""
    if isinstance(text, list):
        text = "; ".join(map(str, cast(list[Any], text)))
    whole = "" if text is None else str(text)
    if len(whole) > longest:
        whole = f"{whole[: longest * 2 // 3]} [...] {whole[-longest // 3 :]}"
    return whole if whole.isprintable() else printable(whole)


def read_time(text: object) -> float:
    """Returns the seconds since 1970 of a time in ISO 8601, or of such a number; else 0."""
    try:
        return datetime.fromisoformat(str(text)).timestamp()
    except (ValueError, OverflowError):
        return float(text) if isinstance(text, str) and text.isdecimal() else 0.0
