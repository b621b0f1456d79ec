"""Items that occur twice in a benchmark, word for word or nearly.

Candidates for near-duplicates share the smallest hashes of their n-grams (MinHash: Broder 1997, "On
the resemblance and containment of documents"; banding: Leskovec, Rajaraman and Ullman, "Mining of
massive datasets", chapter 3), so time grows with the text and not with the number of pairs.
"""

import re
import unicodedata
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from rapidfuzz.distance.Levenshtein import editops
from rapidfuzz.fuzz import ratio

from raylab.core.runs.records import Part

LEAST, LEAST_WORD, MOST_ADDED = 0.92, 0.8, 2
"""Similarity of near-duplicates, and of their words; most words that only one of them has."""
CHARACTERS = 4
"""Length of the n-grams."""
BANDS, ROWS = 16, 3
"""A pair whose n-grams overlap by 0.6 (Jaccard) shares a band with a probability of 0.98."""
CHUNK = 256
"""Texts whose n-grams are hashed at once: few enough for the processor's cache."""
BASE = np.uint64(0x9E3779B97F4A7C15)

Hashes = NDArray[np.uint64]


class Duplicate(Part):
    """An item that repeats the text of another one."""

    item: str
    original: str
    """The first item with that text, or a similar one."""
    similarity: float
    """1 for the same text; otherwise twice the length of the longest common subsequence over the
    summed lengths of both texts, in [0.92, 1)."""
    same_target: bool
    contradicts: bool = False
    """True if the same question has another key. Letters and digits that name options of unknown
    texts show no contradiction, because the options may differ."""


def find_duplicates(items: pd.DataFrame) -> tuple[Duplicate, ...]:
    """Returns the items that repeat an earlier one of the frame; items without a text do not.

    Case, Unicode forms and white space are ignored. Similar texts with different targets, numbers or
    words are not near-duplicates, but different items of one template, or on one passage.
    """
    firsts, duplicates = dict[str, str](), list[Duplicate]()
    columns: list[list[Any]] = [items[name].tolist() for name in ("text", "target", "choices")]
    names = list(map(str, items.index))
    targets = dict(zip(names, map(_fold, columns[1]), strict=True))
    for name, whole, choices in zip(names, columns[0], columns[2], strict=True):
        text = _fold(whole)
        first = firsts.setdefault(text, name) if text else name
        if first != name:
            both = targets[first], targets[name]
            clear = choices > 0 or min(map(len, both)) > 1
            duplicates.append(
                Duplicate(
                    item=name,
                    original=first,
                    similarity=1,
                    same_target=both[0] == both[1],
                    contradicts=both[0] != both[1] and all(both) and clear,
                )
            )
    return (*duplicates, *_near_duplicates(firsts, targets))


def _fold(text: str) -> str:
    return " ".join(unicodedata.normalize("NFKC", text).casefold().split())


def _near_duplicates(firsts: Mapping[str, str], targets: Mapping[str, str]) -> Iterator[Duplicate]:
    """Yields the nearest earlier item of each item that has one, by different texts."""
    texts = [text for text in firsts if len(text) >= CHARACTERS]
    facts = [(re.findall(r"\d+", text), targets[firsts[text]]) for text in texts]
    nearest: dict[int, tuple[float, int]] = {}
    for earlier, later in _candidates(texts):
        if facts[earlier] == facts[later]:
            score = ratio(texts[earlier], texts[later], score_cutoff=100 * LEAST) / 100
            better = score > nearest.get(later, (0.0, 0))[0]
            if better and _same_words(*(re.findall(r"\w+", texts[at]) for at in (earlier, later))):
                nearest[later] = score, earlier
    for later, (score, earlier) in sorted(nearest.items()):
        item, original = firsts[texts[later]], firsts[texts[earlier]]
        yield Duplicate(item=item, original=original, similarity=score, same_target=True)


def _same_words(left: list[str], right: list[str]) -> bool:
    """Returns whether a few words are added, and all others differ by typing errors at most."""
    edits = editops(left, right)
    swaps = [(left[edit.src_pos], right[edit.dest_pos]) for edit in edits if edit.tag == "replace"]
    alike = all(ratio(one, other) >= 100 * LEAST_WORD for one, other in swaps)
    return alike and len(edits) - len(swaps) <= MOST_ADDED


def _candidates(texts: list[str]) -> set[tuple[int, int]]:
    """Returns pairs of numbers of texts that agree in a band.

    Each text is paired only with the first and the previous one that agree, so that many similar
    texts do not make many pairs.
    """
    pairs, numbers = set[tuple[int, int]](), np.arange(len(texts))
    for band in _bands(texts):
        alike = pd.Series(numbers).groupby(band)
        for earlier in map(np.asarray, (alike.shift(fill_value=-1), alike.transform("first"))):
            chosen = (earlier >= 0) & (earlier < numbers)
            pairs.update(zip(earlier[chosen].tolist(), numbers[chosen].tolist(), strict=True))
    return pairs


def _bands(texts: list[str]) -> Iterator[Hashes]:
    """Yields the (texts,) hashes of each band of the smallest hashes of n-grams."""
    draws = np.random.default_rng(0).integers(1 << 63, size=(2, BANDS * ROWS), dtype=np.uint64)
    least = np.empty((BANDS * ROWS, len(texts)), np.uint64)
    for start in range(0, len(texts), CHUNK):
        grams, starts = _grams(texts[start : start + CHUNK])
        # The smallest of the high bits is the first in a random order of the n-grams.
        for row, (key, factor) in zip(least, draws.T, strict=True):
            hashes = (grams ^ key) * (factor | np.uint64(1))
            row[start : start + CHUNK] = np.minimum.reduceat(hashes, starts)
    for first, second, third in least.reshape(BANDS, ROWS, -1):
        yield _mix(first * BASE ^ _mix(second * BASE ^ _mix(third)))


def _grams(texts: list[str]) -> tuple[Hashes, NDArray[np.int64]]:
    """Returns the hashes of the n-grams of all texts, and where each text begins."""
    codes = np.frombuffer("".join(texts).encode("utf-32-le", "surrogatepass"), np.uint32)
    hashes = np.convolve(
        codes.astype(np.uint64), BASE ** np.arange(CHARACTERS, dtype=np.uint64), "valid"
    )
    # N-grams that begin less than their length before the end reach into the next text.
    counts = np.array([len(text) for text in texts]) - CHARACTERS + 1
    between = np.repeat(np.arange(len(texts)), counts) * (CHARACTERS - 1)
    return _mix(hashes[np.arange(counts.sum()) + between]), np.cumsum(counts) - counts


def _mix(values: Hashes) -> Hashes:
    """Returns the values with every bit mixed into all others (the end of SplitMix64)."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    return values ^ (values >> np.uint64(27))
