"""Counts of free texts, such as repairs and paths, bounded in number."""

import re
from collections import Counter
from collections.abc import Iterable

LISTED = 100
"""Most distinct names that are counted separately; later ones are counted together."""
OTHERS = "others"
QUOTED = re.compile(r"(['\"]).*?\1")


class Texts:
    """Counts of texts; only the first `LISTED` distinct ones are told apart."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()

    def add(self, texts: Iterable[str]) -> None:
        """Counts each of the texts."""
        for text in texts:
            known = text in self._counts or len(self._counts) < LISTED
            self._counts[text if known else OTHERS] += 1

    def summary(self) -> dict[str, int]:
        """Returns the counts by text, the most frequent first."""
        return dict(sorted(self._counts.items(), key=lambda item: (-item[1], item[0])))


def repair_kind(repair: str) -> str:
    """Returns a repair without its quotations, so that repairs of one kind count together."""
    return re.sub(r"\d+", "n", QUOTED.sub("…", repair.partition(":")[0])).strip()
