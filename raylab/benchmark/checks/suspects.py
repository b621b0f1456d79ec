"""Items that somebody should look at, with the reasons, worst first."""

from collections import Counter, defaultdict
from collections.abc import Mapping
from enum import StrEnum
from typing import Any
from zlib import crc32

import pandas as pd

from raylab.benchmark.checks.agreement import count_effective
from raylab.benchmark.checks.duplicates import Duplicate, find_duplicates
from raylab.benchmark.checks.items import constant
from raylab.benchmark.responses import Responses
from raylab.core.runs.records import Figure, Part

LISTED = 1000
"""Most suspects in a record; the table of items has all."""
ANSWERS = 10
LOWEST = 10
"""Items that are listed where no key is suspect."""


class Fault(StrEnum):
    """A fault that an item may have, worst first."""

    CONTRADICTION = "contradicting duplicate"
    KEY = "wrong or ambiguous key"
    DUPLICATE = "duplicate"
    NEAR_DUPLICATE = "near-duplicate"


class Reason(Part):
    """A reason to look at an item."""

    kind: Fault
    figure: float
    """The share of items like this in which people found a fault, or the similarity of texts."""
    sentence: str


class Suspect(Part):
    """An item that somebody should look at, with what the logs say about it."""

    item: str
    reasons: tuple[Reason, ...]
    """Worst first."""
    text: str
    """Empty, like the target, if no log has it."""
    target: str
    answers: Mapping[str, int]
    """Numbers of models by answer, the ten commonest first; empty if no log has answers."""


class Suspects(Part):
    """The items that somebody should look at, and those that tell no models apart."""

    listed: tuple[Suspect, ...]
    """The worst first, at most 1,000."""
    items: int
    """Number of all suspects."""
    counts: Mapping[Fault, int]
    """Number of suspects by reason; a suspect may have several."""
    texts: int
    """Number of items whose text the logs hold; only these can be found to repeat."""
    all_right: int
    """Number of items that all models get right, which tell none apart."""
    all_wrong: int
    effective_models: Figure
    """Number of independent models that the models are worth (Kish)."""
    lowest: tuple[str, ...]
    """Items to look at first where no key is suspect: those on which most models agree on another
    answer or, without answers, fail. Nothing says how many have a fault."""


def find_suspects(responses: Responses, judged: pd.DataFrame) -> tuple[Suspects, pd.Series]:
    """Returns the suspects, and the reasons for each in one text, by item.

    Args:
        responses: The responses to the items.
        judged: The figures of the items, by `judge_items` and `judge_keys`.
    """
    matrix, answers = responses.matrix, responses.answers
    missing: Any = {"text": "", "target": ""}
    described = responses.items.reindex(list(matrix.items)).fillna(missing)
    places = {name: place for place, name in enumerate(matrix.items)}

    def count_answers(name: str) -> Counter[str]:
        codes = answers.codes[:, places[name]]
        return Counter(answers.names[code] for code in codes.tolist() if code >= 0)

    reasons: defaultdict[str, list[Reason]] = defaultdict(list)
    table: Any = judged
    for row in table[table["named"]].itertuples():
        name = str(row.Index)
        reasons[name].append(_doubt(row, count_answers(name), described.at[name, "target"]))
    for duplicate in find_duplicates(described):
        reasons[duplicate.item].append(_explain(duplicate))
    for against in reasons.values():
        against.sort(key=_badness)
    # Equal items differ in the last digits, by the order of sums. Names would sort them by topic,
    # so that the first would be of one.
    evidence = table["evidence"].fillna(-2.0).round(9).to_dict()
    keys = {name: (-evidence[name], crc32(name.encode())) for name in reasons}
    order = sorted(reasons, key=lambda name: (*_badness(reasons[name][0]), *keys[name]))
    listed = tuple(
        Suspect(
            item=name,
            reasons=tuple(reasons[name]),
            text=str(described.at[name, "text"]),
            target=str(described.at[name, "target"]),
            answers=dict(count_answers(name).most_common(ANSWERS)),
        )
        for name in order[:LISTED]
    )
    alike = constant(matrix.scores)
    equal = alike & (table["difficulty"] == table["difficulty"].iloc[0])
    lowest = () if table["named"].any() else table["evidence"].nlargest(LOWEST).index
    counts = Counter(reason.kind for against in reasons.values() for reason in against)
    suspects = Suspects(
        listed=listed,
        items=len(reasons),
        counts={kind: counts[kind] for kind in Fault if counts[kind]},
        texts=sum(text != "" for text in described["text"]),
        all_right=int((alike & (table["difficulty"] == 0)).sum()),
        all_wrong=int((alike & (table["difficulty"] == 1)).sum()),
        effective_models=count_effective(matrix.scores),
        # Nothing speaks against one of equal items.
        lowest=() if equal.all() else tuple(map(str, lowest)),
    )
    texts = {name: " ".join(reason.sentence for reason in reasons[name]) for name in order}
    return suspects, pd.Series([texts.get(name, "") for name in judged.index], judged.index)


def _badness(reason: Reason) -> tuple[int, float]:
    """Returns a key that sorts the worst reason first."""
    return list(Fault).index(reason.kind), -reason.figure


def _doubt(row: Any, counts: Counter[str], target: str) -> Reason:
    """Returns the reason to doubt a key, from a row of `judge_keys`."""
    right = round((1 - row.difficulty) * row.models) or "none"
    key = f"the key ({target})" if target else "the key"
    sentence = (
        f"{counts[row.other]} of {counts.total()} models answer {row.other}, and {right} {key}. "
        f"Of items like this, people found a fault in {10 * row.share:.0f} of 10."
    )
    return Reason(kind=Fault.KEY, figure=float(row.share), sentence=sentence)


def _explain(duplicate: Duplicate) -> Reason:
    other, target = duplicate.original, "" if duplicate.same_target else ", with another target"
    if duplicate.similarity == 1:
        kind = Fault.CONTRADICTION if duplicate.contradicts else Fault.DUPLICATE
        sentence = f"It has the text of {other}{target}."
    else:
        kind = Fault.NEAR_DUPLICATE
        sentence = f"Its text is nearly that of {other}."
    return Reason(kind=kind, figure=duplicate.similarity, sentence=sentence)
