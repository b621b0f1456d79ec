"""Duplicates of items by their texts."""

import numpy as np
import pandas as pd

from raylab.benchmark.checks.duplicates import Duplicate, find_duplicates

STORY = "A train leaves the old town at dawn and reaches the sea after {} hours; how far is the sea"
WORDS = "oak elm ash fir yew box bay fig nut pea rye oat hop ivy sea sky sun day dew fog".split()


def find(*texts: str, targets: str | list[str] = "", choices: float = 4) -> tuple[Duplicate, ...]:
    targets = targets or " " * len(texts)
    items = pd.DataFrame({"text": texts, "target": list(targets), "choices": choices})
    return find_duplicates(items.rename("i{}".format))


def test_the_same_text_is_a_duplicate_whatever_its_case_and_spaces() -> None:
    (duplicate,) = find("What is  Ǆ?", "What is not?", " what\nis DŽ? ", targets="ABC")
    assert (duplicate.item, duplicate.original, duplicate.similarity) == ("i2", "i0", 1)
    assert not duplicate.same_target and duplicate.contradicts


def test_letters_of_unknown_options_contradict_nothing() -> None:
    for targets, choices, contradicts in (
        ("AB", np.nan, False),
        (["12", "13"], np.nan, True),
        (["Paris", "paris "], np.nan, False),
        (["Paris", ""], np.nan, False),
        ("AB", 4, True),
    ):
        (duplicate,) = find("Where is it?", "Where is it?", targets=targets, choices=choices)
        assert duplicate.contradicts == contradicts


def test_nearly_the_same_text_is_a_near_duplicate() -> None:
    first, second = STORY.format(3) + "?", STORY.format(3) + " then?"
    (duplicate,) = find(first, "Something else altogether", second)
    # The second has five characters more, and all of the first.
    assert duplicate.similarity == 2 * len(first) / (2 * len(first) + 5)
    assert (duplicate.item, duplicate.original) == ("i2", "i0")


def test_items_of_one_template_are_none() -> None:
    assert not find(STORY.format(3), STORY.format(4))
    assert not find(STORY.format(3), STORY.format(3).replace("sea", "bay"), targets="AB")
    assert not find("", "", " ", "abc", "abd")


def test_questions_on_one_passage_are_none_but_for_their_own_near_duplicates() -> None:
    passage = "The story goes on and on about the harbor and its people. " * 40
    hint = " want? Answer with the letter only, and finish with your final answer."
    names = [first + second for second in "aei" for first in "ABCDEFGHIJKLMNOPQRST"]
    asked = [f"{passage}Question: what does person {name}{hint}" for name in names]
    assert not find(*asked, targets="ABCD" * 15)
    (duplicate,) = find(*asked, asked[-1].replace("letter", "leter"))
    assert (duplicate.item, duplicate.original) == ("i60", "i59")


def test_planted_duplicates_are_found_among_many() -> None:
    rng = np.random.default_rng(0)
    texts = [" ".join(rng.choice(WORDS, 40)) for _ in range(500)]
    near = [f"{text} tail" for text in texts[:50]]
    assert [d.original for d in find(*texts, *near)] == [f"i{number}" for number in range(50)]
