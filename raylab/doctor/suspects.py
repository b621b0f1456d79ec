"""Items that a benchmark may be better without, each with the reasons, worst first."""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from enum import StrEnum

import numpy as np
import pandas as pd

from raylab.doctor.duplicates import Duplicate, find_duplicates
from raylab.doctor.responses import Item, Matrix
from raylab.doctor.wrong_keys import wrong_key_chances
from raylab.runs.records import Part

LIKELY = 0.4
"""Probability from which a key is suspected: a look at a right one costs less than a wrong one."""
FEWEST_MODELS = 3
"""Models that must agree before an item counts as always right or always wrong."""


class Fault(StrEnum):
    """A fault that an item may have, worst first."""

    WRONG_KEY = "wrong key"
    ALWAYS_WRONG = "always wrong"
    DUPLICATE = "duplicate"
    NEAR_DUPLICATE = "near-duplicate"
    ALWAYS_RIGHT = "always right"


class Reason(Part):
    """A reason to suspect an item."""

    kind: Fault
    figure: float
    """Of a wrong key its probability, of a duplicate its similarity, each at most 1; of an item
    that is always right or wrong the number of models."""
    sentence: str


class Suspect(Part):
    """An item that is suspected, with what the logs say of it."""

    item: str
    reasons: tuple[Reason, ...]
    """Worst first."""
    text: str
    """Empty, like the target, where no log has it."""
    target: str
    answers: Mapping[str, str]
    """By model; empty where no log has them."""


def find_suspects(
    matrix: Matrix, judged: pd.DataFrame, items: Mapping[str, Item]
) -> tuple[Suspect, ...]:
    """Returns the items that may spoil a benchmark, worst first.

    What is always right or wrong, and what stands twice, is seen; a wrong key is a guess. In 40
    simulated benchmarks of 500 items with four choices, 20 of them with a wrong key, the mean
    precision and recall of wrong keys alone were:

    | models | who does not know guesses | nobody guesses |
    | --- | --- | --- |
    | 6 | 0.71, 0.66 | 0.42, 0.30 |
    | 12 | 0.90, 0.85 | 0.77, 0.62 |
    | 50 | 0.97, 0.97 | 0.94, 0.90 |

    Mean scores were 0.69 and 0.59. Without wrong keys at most 4 of the 500 were suspected on
    average, also of equal models. Few models tell a wrong key from an item that is merely hard only
    where hard items are rare.

    Args:
        matrix: The scores.
        judged: The figures of its items, by `judge_items`.
        items: What is known of them; names that the matrix lacks do not count.
    """
    reasons: defaultdict[str, list[Reason]] = defaultdict(list)
    described = {name: items[name] for name in matrix.items if name in items}
    for name, reason in (*_wrong_keys(matrix, judged), *_unanimous(judged)):
        reasons[name].append(reason)
    for duplicate in find_duplicates(described):
        reasons[duplicate.item].append(_repeated(duplicate))
    suspects = [
        _suspect(name, against, described.get(name, Item())) for name, against in reasons.items()
    ]
    return tuple(
        sorted(suspects, key=lambda suspect: (*_badness(suspect.reasons[0]), suspect.item))
    )


def _suspect(name: str, reasons: list[Reason], item: Item) -> Suspect:
    worst_first = tuple(sorted(reasons, key=_badness))
    answers = dict(item.answers)
    return Suspect(
        item=name, reasons=worst_first, text=item.text, target=item.target, answers=answers
    )


def _badness(reason: Reason) -> tuple[int, float]:
    """Returns what sorts the worst first."""
    return list(Fault).index(reason.kind), -reason.figure


def _wrong_keys(matrix: Matrix, judged: pd.DataFrame) -> Iterator[tuple[str, Reason]]:
    chances = wrong_key_chances(matrix.scores)
    for place in np.flatnonzero(chances > LIKELY):
        figures = judged.iloc[place]
        models, difficulty, isotonic = figures[["models", "difficulty", "isotonic"]]
        weaker = f", and weaker models do better (signed isotonic R^2 {isotonic:.2f})"
        sentence = (
            f"The key may be wrong, with a probability of {chances[place]:.2f}: the mean score of "
            f"{models:.0f} models is {1 - difficulty:.2f}{weaker if isotonic < 0 else ''}."
        )
        figure = float(chances[place])
        yield matrix.items[place], Reason(kind=Fault.WRONG_KEY, figure=figure, sentence=sentence)


def _unanimous(judged: pd.DataFrame) -> Iterator[tuple[str, Reason]]:
    """Yields the items that tell no models apart."""
    says = {
        0.0: (Fault.ALWAYS_RIGHT, "All {} models are right: the item tells none of them apart."),
        1.0: (Fault.ALWAYS_WRONG, "None of {} models is right: it is too hard, or its key wrong."),
    }
    columns = judged["models"].to_numpy(), judged["difficulty"].to_numpy(float)
    for name, models, difficulty in zip(judged.index, *columns, strict=True):
        if models >= FEWEST_MODELS and difficulty in says:
            kind, sentence = says[difficulty]
            text = sentence.format(models)
            yield str(name), Reason(kind=kind, figure=float(models), sentence=text)


def _repeated(duplicate: Duplicate) -> Reason:
    other, target = duplicate.original, "" if duplicate.same_target else ", with another target"
    if duplicate.similarity == 1:
        kind, sentence = Fault.DUPLICATE, f"It has the text of {other}{target}."
    else:
        share = f"{duplicate.similarity:.0%}"
        kind, sentence = Fault.NEAR_DUPLICATE, f"Its text is that of {other} to {share}."
    return Reason(kind=kind, figure=duplicate.similarity, sentence=sentence)
