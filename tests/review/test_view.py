import pytest

from raylab.annotation.reviews import kind_of
from raylab.opt.code import OptCode, bare, parse
from raylab.review.view import chips, differences, kind_in_words, shown_description
from tests.annotation.outcomes import CODEBOOK

LINES = {
    "a": "OPT=Evo/Lrn; Rep=param; Human=low",
    "fields": "OPT=Evo/Lrn; Rep=graph; Obj=loss; Human=low",
    "operators": "OPT=Evo+Lrn; Rep=param; Human=low",
    "roots": "OPT=Evo/Ctl; Rep=param; Human=low",
}


def code(name: str) -> OptCode:
    return parse(LINES[name])


@pytest.mark.parametrize(
    ("other", "said"),
    [
        ("a", ["Both give the same code."]),
        ("fields", ["Rep is param in A and graph in B.", "Obj is nothing in A and loss in B."]),
        ("operators", ["The same roots are joined otherwise: Evo/Lrn in A, Lrn+Evo in B."]),
        ("roots", ["Only A names Lrn.", "Only B names Ctl."]),
    ],
)
def test_differences_are_told_in_sentences(other: str, said: list[str]) -> None:
    assert sorted(differences(code("a"), code(other))) == sorted(said)


def test_an_answer_without_a_code_differs_in_nothing() -> None:
    assert list(differences(None, code("a"))) == []


def test_chips_stand_in_canonical_order_and_are_marked_where_the_other_lacks_them() -> None:
    found = chips(bare("Sym{Lrn,Prb}"), CODEBOOK, bare("Sym+Lrn"))
    assert [(chip.operator, chip.root, chip.only) for chip in found] == [
        ("", "Sym", False),
        ("/", "Lrn", False),
        ("+", "Prb", True),
    ]
    assert [chip.name for chip in found] == ["Symbion", "Learnon", "Probion"]
    assert not any(chip.only for chip in chips(bare("Sym"), CODEBOOK))


@pytest.mark.parametrize(
    ("step", "words"),
    [
        ("human:one-acceptable", "One answer acceptable"),
        ("human:evaluate-a-unreadable", "Reply unreadable"),
        ("human:confirm-unreadable", "Reply unreadable"),
        ("human:other", "other"),
    ],
)
def test_reasons_are_told_in_words(step: str, words: str) -> None:
    assert kind_in_words(kind_of(("classify-a:strict", step))) == words


def test_a_description_is_never_markup() -> None:
    assert shown_description("<b>&", False) == "&lt;b&gt;&amp;"
    coloured = shown_description("x = '<b>'\n", True)
    assert "<b>" not in coloured and '<span class="s1">' in coloured


@pytest.mark.parametrize("text", ["x = '" + "a" * 3000 + "'", "x = 1\n" * 40_000])
def test_source_code_of_unbearable_size_is_shown_plain(text: str) -> None:
    assert shown_description(text, True) == text.replace("'", "&#39;")
