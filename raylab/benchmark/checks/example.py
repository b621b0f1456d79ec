"""An example: simulated responses to a benchmark with planted faults."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from scipy.special import expit

MODELS, ITEMS, GENERATIONS = 12, 300, 2
TOPIC_ITEMS = 6
"""Items of a log: with a log per topic, the figures of quality have intervals."""
LETTERS = "ABCD"
WRONG_KEYS, DUPLICATES, ALWAYS_RIGHT, ALWAYS_WRONG = 12, 6, 9, 3
WEAKEST, STRONGEST = -1.0, 1.6
"""Abilities in logits."""
EASE, SPREAD = 0.8, 1.1
"""Mean and standard deviation of the items' easiness in logits."""
SHIFT = 0.1
"""Standard deviation of a model's ability between generations, in logits."""
WORDS = (
    "amber anchor basin beacon candle canyon cedar cobalt copper coral delta dune ember falcon "
    "fjord garnet glacier harbor hazel island ivory jasper kelp lagoon lantern maple marble meadow "
    "nectar oasis onyx orchard pebble prairie quartz quill raven reef saffron sierra"
).split()
QUESTION_WORDS = 9


@dataclass(frozen=True)
class Planted:
    """The names of the items with faults."""

    wrong_keys: tuple[str, ...]
    duplicates: Mapping[str, str]
    """Original item by the item that repeats it."""
    always_right: tuple[str, ...]
    always_wrong: tuple[str, ...]


class _Item(NamedTuple):
    name: str
    """`TOPIC/ID`, as readers name the item of a log."""
    question: str
    answer: int
    """The right choice."""
    target: int
    """The choice that the key names."""
    ease: float
    """Logit of the probability that an average model knows the answer."""


def write_example(directory: str | Path, seed: int = 0) -> Planted:
    """Writes simulated Inspect logs of 12 models on 300 items of four choices, in two generations.

    A model that does not know an answer guesses. Names and texts say that the data are simulated.

    Args:
        directory: Gets the logs, as `MODEL/GENERATION/topic-NN.json`.
        seed: The same seed gives the same logs.

    Raises:
        OSError: They cannot be written.
    """
    rng = np.random.default_rng(seed)
    items, planted = _draw_items(rng)
    for number, ability in enumerate(np.linspace(WEAKEST, STRONGEST, MODELS), 1):
        model = f"simulated-model-{number:02}"
        for generation in range(1, GENERATIONS + 1):
            answers = _answer(rng, items, ability + rng.normal(0, SHIFT))
            place = Path(directory) / model / f"generation-{generation}"
            place.mkdir(parents=True, exist_ok=True)
            for start in range(0, ITEMS, TOPIC_ITEMS):
                places = slice(start, start + TOPIC_ITEMS)
                log = _log(_topic(start), model, items[places], answers[places])
                (place / f"{_topic(start)}.json").write_text(json.dumps(log), "utf-8")
    return planted


def _topic(place: int) -> str:
    return f"topic-{place // TOPIC_ITEMS + 1:02}"


def _draw_items(rng: np.random.Generator) -> tuple[list[_Item], Planted]:
    """Returns the items and the planted faults."""
    names = np.array([f"{_topic(place)}/simulated-{place + 1:03}" for place in range(ITEMS)])
    counts = (WRONG_KEYS, DUPLICATES, DUPLICATES, ALWAYS_RIGHT, ALWAYS_WRONG)
    places = rng.permutation(ITEMS)[: sum(counts)]
    wrong, first, second, right, hopeless = np.split(places, np.cumsum(counts)[:-1])
    originals = dict(zip(np.maximum(first, second), np.minimum(first, second), strict=True))
    eases = rng.normal(EASE, SPREAD, ITEMS)
    eases[right], eases[hopeless] = np.inf, -np.inf
    items = list[_Item]()
    for place, name in enumerate(names.tolist()):
        answer, shift = (int(draw) for draw in rng.integers((0, 1), len(LETTERS)))
        words = ", ".join(rng.choice(WORDS, QUESTION_WORDS))
        question = f"Simulated question: what goes with {words}?"
        item = _Item(name, question, answer, answer, float(eases[place]))
        if place in originals:
            item = items[originals[place]]._replace(name=name)
        shifted = (item.answer + shift) % len(LETTERS) if place in wrong else item.answer
        items.append(item._replace(target=shifted))
    return items, Planted(
        wrong_keys=tuple(np.sort(names[wrong]).tolist()),
        duplicates={
            str(names[later]): str(names[original]) for later, original in originals.items()
        },
        always_right=tuple(np.sort(names[right]).tolist()),
        always_wrong=tuple(np.sort(names[hopeless]).tolist()),
    )


def _answer(rng: np.random.Generator, items: list[_Item], ability: float) -> list[int]:
    """Returns a model's choice for each item; never the right one of a hopeless item."""
    eases = np.array([item.ease for item in items])
    knows = rng.random(len(items)) < expit(ability + eases)
    shifts = rng.integers(0, len(LETTERS), len(items))
    shifts = np.where(eases == -np.inf, np.maximum(shifts, 1), np.where(knows, 0, shifts))
    answers = np.array([item.answer for item in items])
    return ((answers + shifts) % len(LETTERS)).tolist()


def _log(task: str, model: str, items: list[_Item], answers: list[int]) -> dict[str, object]:
    """Returns a log as Inspect writes it, reduced to what readers need."""
    right = [answer == item.target for item, answer in zip(items, answers, strict=True)]
    accuracy = {"name": "accuracy", "value": sum(right) / len(items)}
    score = {"name": "choice", "scorer": "choice", "metrics": {"accuracy": accuracy}}
    samples = [
        {
            "id": item.name.split("/")[1],
            "epoch": 1,
            "input": item.question,
            "target": LETTERS[item.target],
            "scores": {"choice": {"value": "C" if hit else "I", "answer": LETTERS[answer]}},
        }
        for item, answer, hit in zip(items, answers, right, strict=True)
    ]
    return {
        "version": 2,
        "status": "success",
        "eval": {"task": task, "model": model, "created": "2026-01-01T00:00:00+00:00"},
        "results": {"total_samples": len(items), "scores": [score]},
        "samples": samples,
    }
