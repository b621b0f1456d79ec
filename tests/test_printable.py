"""Foreign text made safe to print."""

import unicodedata

import pytest

from raylab.printable import printable


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[2J\x1b]0;title\x07", r"\x1b[2J\x1b]0;title\x07"),
        ("\x9b31mred", r"\x9b31mred"),
        ("a\rb\x00c\x7f\x85", r"a\rb\x00c\x7f\x85"),
        ("\u202etxt.exe\u202c \u2066x\u2069", r"\u202etxt.exe\u202c \u2066x\u2069"),
        ("ze\u200bro\ufeff\u2060\u200e\u061c\u2028", r"ze\u200bro\ufeff\u2060\u200e\u061c\u2028"),
        ("half \ud83d of \udc80", r"half \ud83d of \udc80"),
        ("tag \U000e0041", r"tag \U000e0041"),
    ],
)
def test_what_is_obeyed_becomes_visible(text: str, shown: str) -> None:
    assert printable(text) == shown


@pytest.mark.parametrize(
    "text",
    ["", "two\nlines\tand a tab", "Ünïcödé 漢字 עברית", "ख\u200cग", "👩\u200d🔬", r"\x1b"],
)
def test_other_text_stays(text: str) -> None:
    assert printable(text) == text


def test_a_text_of_one_line_shows_its_breaks() -> None:
    assert printable("a\nb\tc\x1b", breaks=False) == r"a\nb\tc\x1b"


def test_nothing_that_a_terminal_obeys_is_left() -> None:
    left = printable("".join(map(chr, range(0x110000))))
    assert {c for c in left if unicodedata.category(c) in ("Cc", "Cs", "Zl", "Zp")} == {"\n", "\t"}
    assert left.encode()
    assert not {c for c in left if unicodedata.bidirectional(c) in BIDI}


BIDI = {"LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"}
