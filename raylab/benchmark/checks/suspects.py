"""Items that may spoil a benchmark, with the reasons, worst first."""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import Any

import numpy as np
import pandas as pd

from raylab.benchmark.checks.duplicates import Duplicate, find_duplicates
from raylab.benchmark.checks.items import FEWEST
from raylab.benchmark.checks.wrong_keys import wrong_key_chances
from raylab.benchmark.responses import Matrix, Responses
from raylab.core.runs.records import Part

LIKELY = 0.4
"""Probability from which a key is suspect: checking a right key costs less than a wrong key."""


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
    """The probability of a wrong key, the similarity of a duplicate, or the number of models that
    are all right or all wrong."""
    sentence: str


class Suspect(Part):
    """A suspect item, with what the logs say about it."""

    item: str
    reasons: tuple[Reason, ...]
    """Worst first."""
    text: str
    """Empty, like the target, if no log has it."""
    target: str
    answers: Mapping[str, str]
    """By model; empty if no log has them."""


def find_suspects(responses: Responses, judged: pd.DataFrame) -> tuple[Suspect, ...]:
    """Returns the items that may spoil a benchmark, worst first.

    Duplicates and items that are always right or wrong are facts; a wrong key is a guess, with the
    precision and recall in `raylab.benchmark.checks.wrong_keys`. In simulations without wrong keys,
    at most 4 of 500 items were suspect on average, even with equal models.

    Args:
        responses: The responses to the items.
        judged: The figures of the items, by `judge_items`.
    """
    reasons: defaultdict[str, list[Reason]] = defaultdict(list)
    matrix, answers = responses.matrix, responses.answers
    described = responses.items.reindex(list(matrix.items)).fillna({"text": "", "target": ""})
    places = {name: place for place, name in enumerate(matrix.items)}
    for name, reason in (*_wrong_keys(matrix, judged), *_unanimous(judged)):
        reasons[name].append(reason)
    for duplicate in find_duplicates(described):
        reasons[duplicate.item].append(_explain(duplicate))
    suspects = [
        Suspect(
            item=name,
            reasons=tuple(sorted(against, key=_badness)),
            text=str(described.at[name, "text"]),
            target=str(described.at[name, "target"]),
            answers={
                model: answers.names[code]
                for model, code in zip(matrix.models, answers.codes[:, places[name]], strict=True)
                if code >= 0
            },
        )
        for name, against in reasons.items()
    ]
    return tuple(
        sorted(suspects, key=lambda suspect: (*_badness(suspect.reasons[0]), suspect.item))
    )


def _badness(reason: Reason) -> tuple[int, float]:
    """Returns a key that sorts the worst reason first."""
    return list(Fault).index(reason.kind), -reason.figure


def _wrong_keys(matrix: Matrix, judged: pd.DataFrame) -> Iterator[tuple[str, Reason]]:
    chances = wrong_key_chances(matrix.scores)
    for place in np.flatnonzero(chances > LIKELY):
        figures = judged.iloc[place]
        models, difficulty, isotonic = figures[["models", "difficulty", "isotonic"]]
        weaker = f", and weaker models do better (signed isotonic R^2 {isotonic:.2f})"
        sentence = (
            f"Its key is wrong with a probability of {chances[place]:.2f}: the mean score of "
            f"{models:.0f} models is {1 - difficulty:.2f}{weaker if isotonic < 0 else ''}."
        )
        figure = float(chances[place])
        yield matrix.items[place], Reason(kind=Fault.WRONG_KEY, figure=figure, sentence=sentence)


def _unanimous(judged: pd.DataFrame) -> Iterator[tuple[str, Reason]]:
    """Yields the items on which all models are right or all wrong."""
    says = {
        0.0: (Fault.ALWAYS_RIGHT, "All {} models are right: the item tells none of them apart."),
        1.0: (
            Fault.ALWAYS_WRONG,
            "None of {} models is right: it is too hard, or its key is wrong.",
        ),
    }
    alike: Any = judged[(judged["models"] >= FEWEST) & judged["difficulty"].isin(says)]
    for row in alike.itertuples():
        kind, sentence = says[row.difficulty]
        figure, text = float(row.models), sentence.format(row.models)
        yield str(row.Index), Reason(kind=kind, figure=figure, sentence=text)


def _explain(duplicate: Duplicate) -> Reason:
    other, target = duplicate.original, "" if duplicate.same_target else ", with another target"
    if duplicate.similarity == 1:
        kind, sentence = Fault.DUPLICATE, f"It has the text of {other}{target}."
    else:
        share = f"{duplicate.similarity:.0%}"
        kind, sentence = Fault.NEAR_DUPLICATE, f"Its text is that of {other} to {share}."
    return Reason(kind=kind, figure=duplicate.similarity, sentence=sentence)
