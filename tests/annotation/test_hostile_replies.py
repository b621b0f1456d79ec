"""Replies made to hang or break their readers: each is read or refused, in time linear in its size.

No test measures time. Algorithms of quadratic or exponential time would need minutes or years for
these sizes, and end at the limit that pytest sets.
"""

import json
import random
from collections.abc import Callable

import pytest

from raylab.annotation.replies import (
    DEEPEST,
    LONGEST_REPLY,
    PASSES,
    UnreadableError,
    json_objects,
    read_reply,
    settle,
)
from raylab.codebook import Choice, Label
from raylab.errors import OptCodeError, RaylabError
from raylab.opt.answers import CODE_ANSWERS, CRITERIA, WORD_ANSWERS
from raylab.opt.code import parse
from tests.annotation.chats import coded, graded
from tests.fuzzing import try_all
from tests.memory import memory

SIZE = LONGEST_REPLY - 1000

SHOWN: dict[Choice, Label] = {"first": parse("OPT=Ctl"), "second": parse("OPT=Lrn")}
READERS: dict[str, Callable[[str], object]] = {
    "code": lambda text: read_reply(CODE_ANSWERS.label, text),
    "report": lambda text: read_reply(CODE_ANSWERS.report, text, criteria=CRITERIA),
    "choice": lambda text: settle(*read_reply(CODE_ANSWERS.choice, text), SHOWN),
    "word": lambda text: read_reply(WORD_ANSWERS.label, text),
    "grade": lambda text: read_reply(WORD_ANSWERS.report, text),
    "line": parse,
}


def filled(start: str, piece: str, end: str = "") -> str:
    """A text of `SIZE` characters, made of one piece."""
    return start + piece * ((SIZE - len(start) - len(end)) // len(piece)) + end


def report(score: str) -> str:
    return json.dumps({"summary": "", "issues": [], "score": score, "verdict": "PASS"})


def objects(depth: int) -> str:
    return f'{{"opt": {"[" * depth}{"]" * depth}, "rationale": ""}}'


ALIASES = "\n".join(f"l{n + 1}: &l{n + 1}\n" + f"- *l{n}\n" * 9 for n in range(8))
HOSTILE = {
    "digits": filled("", "9"),
    "numbers": filled("", "1."),
    "score of blanks": report(filled("5", " ", "x" * 100)),
    "score of slashes": report(filled("5 /", " ", "x" * 100)),
    "blanks": filled("OPT=Lrn;", " ", "="),
    "lines of blanks": filled("", "Lrn;" + " " * 2900 + "!\n"),
    "lines of marks": filled("", "Lrn;" + "|" * 2900 + "!\n"),
    "line breaks": filled("", "\n", "x"),
    "expression on many lines": filled("", "Lrn+\n"),
    "fields on many lines": filled("", "Lrn;\n" + "Rep=a;\n" * 700),
    "branches within branches": f"OPT={'Lrn{' * 15}{'Lrn,' * 900}Lrn{'}' * 15}",
    "explanations": filled("OPT=Lrn", " (Lrn)+Evo"),
    "braces": filled("", "{"),
    "brackets": filled("", "["),
    "open objects": filled("", '{"a":'),
    "thoughts": filled("", "<think>"),
    "open material": filled("", "<x id=0a1b2c3d>"),
    "markers": filled("", "OPT="),
    "verdicts": filled("", "verdict "),
    "words": filled("", "evolution "),
    "members": filled("{", '"a": 1, ', '"b": 2}'),
    "escapes": filled('{"rationale": "', "\\u0000", '", "opt": "OPT=Lrn"}'),
    "objects around a list": filled('{"a":' * 200 + "[", "1,"),
    "documents in lines": filled('{"opt": "Lrn"}' * 64, "\n"),
    "quoted material without end": "".join(f"<x id={n:08x}></x " for n in range(SIZE // 19)),
    "long word": "OPT=Sch/E" + "score" * 700,
    "long key": "OPT=Lrn; " + "key" * 1200 + "=a",
    "long key twice": "OPT=Lrn; " + ("Rep" * 600 + "=a; ") * 2,
    "aliases": f"```\nl0: &l0\n- x\n{ALIASES}\nroots:\n- *l8\nfields: {{}}\n```",
    "deep": objects(SIZE // 2 - 20),
    "two deep": objects(900) + objects(901),
    "headings": filled("", "issues: "),
    "issues": json.dumps({"verdict": "FAIL", "score": 1, "issues": ["x"] * (SIZE // 6)}),
}


def is_read_or_refused(reader: Callable[[str], object], text: str) -> None:
    try:
        assert reader(text) is not None
    except (UnreadableError, OptCodeError) as error:
        assert 0 < len(str(error)) < 1000


@pytest.mark.timeout(60)
@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_hostile_reply_is_read_or_refused(text: str) -> None:
    with memory():
        for reader in READERS.values():
            is_read_or_refused(reader, text)


class CountingDecoder(json.JSONDecoder):
    """Counts the characters that it reads."""

    count = 0

    def raw_decode(self, s: str, idx: int = 0) -> tuple[object, int]:
        try:
            found, end = super().raw_decode(s, idx)
        except json.JSONDecodeError as error:
            self.count += error.pos - idx
            raise
        self.count += end - idx
        return found, end


@pytest.mark.parametrize(
    "text",
    [
        HOSTILE["objects around a list"],
        '{"a":' * 100 + "[" + "1," * 5_000,
        '{"a": 1} ' * 500,
        '{"a": {"b": 1}} {"a" ' * 500,
    ],
    ids=lambda text: text[-12:],
)
def test_objects_are_found_in_a_few_passes(text: str) -> None:
    decoder = CountingDecoder()
    list(json_objects(text, decoder))
    # The try that uses up the passes may read all the rest.
    assert decoder.count <= (PASSES + 1) * len(text)


def test_an_object_is_found_behind_braces_that_begin_none() -> None:
    found = list(json_objects('{"a": 1 {"b"} {"c": 3} {', json.JSONDecoder()))
    assert found == [{"c": 3}]


@pytest.mark.parametrize(("depth", "count"), [(DEEPEST - 1, 1), (DEEPEST, 0)])
def test_depth_of_objects_is_limited(depth: int, count: int) -> None:
    assert len(list(json_objects(f"see {objects(depth)}", json.JSONDecoder()))) == count


GENUINE = (
    coded("Evo/Lrn", "a population"),
    graded("PASS", 92),
    "verdict: WEAK_PASS\nscore: 75/100\nissues: format, composition",
    "Final OPT-Code: `OPT=Lrn{Evo,Sym}+[Ctl→Swm]; Rep=param; Obj=loss`\n",
    "```yaml\nopt: Lrn\nfields:\n  Rep: a\n```\n> quoted\n<think>no</think>",
    "INTENT-OPT=Sch/Evo\nINTENT-GOAL=fast, safe\nINTENT-RISKS=a, b",
    "<description id=0a1b2c3d>OPT=Lrn</description id=0a1b2c3d> swarm",
)
PIECES = (
    *('"', "{", "}", "[", "]", "(", ")", "<", ">", ":", ";", ",", "=", "/", "+", "|", "\\", "#"),
    *(" ", "\n", "\t", "\r", "\0", "\ud800", "\u200b", "\uff1d", "-", "_", ".", "*", "`", "'", "9"),
    *("OPT=", "Lrn", "Evo{", "[Ctl→", "}+", "Rep=a;", "verdict", "score", "/100", "PASS", "opt:"),
    *("<think>", "</think>", "<x id=0a1b2c3d>", "</x id=0a1b2c3d>", '{"opt":', '"}', "```\n"),
    *("- ", "&a ", "*a ", "? ", "> ", "1. ", "issues:", '"""', "1e9", "INTENT-GOAL=", "-1", "null"),
)


def mutant(draw: random.Random) -> str:
    """A genuine reply, cut and with pieces put in, some of them a great many times."""
    text = draw.choice(GENUINE)
    for _ in range(draw.randint(1, 5)):
        place = draw.randint(0, len(text))
        piece = "".join(draw.choices(PIECES, k=draw.randint(1, 3)))
        count = draw.choice((1, 1, 2, 20, 300, 20_000))
        text = text[:place] + piece * count + text[place + draw.choice((0, 0, 1, 9)) :]
    return text[:SIZE]


def drawn_reader(draw: random.Random) -> tuple[str, str]:
    return draw.choice(list(READERS)), mutant(draw)


def test_mutants_are_read_or_refused() -> None:
    def read(given: tuple[str, str]) -> None:
        name, text = given
        is_read_or_refused(READERS[name], text)

    try_all(drawn_reader, read, RaylabError)
