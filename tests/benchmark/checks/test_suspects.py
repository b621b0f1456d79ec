"""Suspects: which items, in which order, with which reasons."""

import numpy as np
import pandas as pd

from raylab.benchmark.checks.diagnosis import diagnose
from raylab.benchmark.checks.suspects import LISTED, LOWEST, Fault, Suspects
from raylab.benchmark.responses import make_responses

ITEMS, MODELS = 60, 6


def suspect(
    answers: dict[int, str], texts: dict[int, str] | None = None, **columns: object
) -> Suspects:
    """Suspects among items with the key A, of which each model misses another fifth.

    Args:
        answers: All models' answers to an item, by its number: `BBBBBA`.
        texts: Texts of items, where logs have them.
        columns: Other columns of the table of responses.
    """
    rng = np.random.default_rng(0)
    rows = list[dict[str, object]]()
    for number in range(ITEMS):
        usual = "".join(rng.choice(list("AAAABCD"), MODELS))
        for model, answer in enumerate(answers.get(number, usual)):
            row = {"model": f"m{model}", "item": f"i{number:02}", "answer": answer}
            rows.append({**row, "score": float(answer == "A"), **columns})
    items = pd.DataFrame({"target": "A", "text": "", "choices": 4.0}, range(ITEMS))
    for number, text in (texts or {}).items():
        items.loc[number, ["text", "target"]] = text.partition("|")[::2]
    responses = make_responses(pd.DataFrame(rows), items.rename("i{:02}".format))
    return diagnose(responses).diagnosis.suspects


def test_the_worst_reason_comes_first_and_says_what_models_answer() -> None:
    texts = {1: "What is it?|A", 2: "what  is it?|A", 3: "What is it?|B"}
    texts |= {4: "Who was the first to see it?|A", 6: "Who was the first, to see it?|A"}
    suspects = suspect({0: "BBBBBB", 2: "CCCCCC", 5: "DDDBCA"}, texts)
    assert [s.item for s in suspects.listed[:1]] == ["i03"]
    assert {s.item for s in suspects.listed[1:3]} == {"i00", "i02"}
    assert [s.item for s in suspects.listed[3:]] == ["i06"]
    contradiction, *_ = suspects.listed
    assert contradiction.reasons[0].kind is Fault.CONTRADICTION
    assert contradiction.reasons[0].sentence == "It has the text of i01, with another target."
    both = next(s for s in suspects.listed if s.item == "i02")
    assert [reason.kind for reason in both.reasons] == [Fault.KEY, Fault.DUPLICATE]
    assert both.reasons[0].sentence == (
        "6 of 6 models answer C, and none the key (A). Of items like this, people found a fault "
        "in 4 of 10."
    )
    assert (both.text, both.target, both.answers) == ("what  is it?", "A", {"C": 6})
    single = dict.fromkeys((Fault.CONTRADICTION, Fault.DUPLICATE, Fault.NEAR_DUPLICATE), 1)
    assert suspects.counts == {**single, Fault.KEY: 2}
    assert suspects.items == 4


def test_items_that_tell_no_models_apart_are_counted_apart() -> None:
    suspects = suspect({0: "AAAAAA", 1: "AAAAAA", 2: "BCDBCD"})
    plain = suspect({})
    assert suspects.all_right == plain.all_right + 2 and suspects.all_wrong == plain.all_wrong + 1
    assert suspects.items == 0 and not suspects.listed and len(suspects.lowest) == LOWEST


def test_equal_suspects_are_in_no_alphabetical_order() -> None:
    names = [s.item for s in suspect(dict.fromkeys(range(0, 40, 4), "BBBBBB")).listed]
    assert len(names) == 10 and names != sorted(names)


def test_without_answers_items_are_ranked_and_none_is_named() -> None:
    suspects = suspect({7: "BBBBBB"}, answer="")
    assert not suspects.listed and len(suspects.lowest) == LOWEST
    assert "i07" in suspects.lowest


def test_a_record_has_the_worst_of_many() -> None:
    rows = pd.DataFrame({"model": ["m"], "score": [1.0]}).merge(
        pd.DataFrame({"item": [f"i{n:04}" for n in range(LISTED + 10)]}), how="cross"
    )
    items = pd.DataFrame({"text": "the same text"}, index=rows["item"])
    suspects = diagnose(make_responses(rows, items)).diagnosis.suspects
    assert len(suspects.listed) == LISTED and suspects.items == LISTED + 9
