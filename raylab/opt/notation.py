"""The published notations of OPT-Codes, read strictly or from a model's reply.

The formal grammar (2026-02) joins roots by `+` and `/`, with equal precedence, from left to right.
The ensembles `A{B,C}` and pipelines `[A→B]` of v1.0 (2025-11) are also read. A text that needs no
`Repair` is in a published notation.
"""

import re
import unicodedata
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal, NamedTuple

from raylab.errors import OptCodeError

FIELDS = ("Rep", "Obj", "Data", "Time", "Human", "Locus")
"""The known keys in canonical order; the formal grammar has all except Locus."""
ORDERS = (FIELDS, ("Rep", "Locus", "Obj", "Data", "Time", "Human"))
"""The orders of keys that need no repair: the canonical order and that of v1.0."""
KEY = re.compile(r"[A-Za-z][A-Za-z0-9_-]*")
VALUE = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9+_.,-]*[A-Za-z0-9+_-])?")
"""A value: a compromise between the differing rules of both notations."""
LONGEST_LINE = 4096
"""Longest line in characters."""
DEEPEST = 16
"""Deepest nesting of brackets and braces."""
SHOWN = 60
"""Characters of the text that an error shows around its column."""


class Root(StrEnum):
    """The seven mechanisms of taxonomy v1.0, in their frozen order."""

    LRN = "Lrn"
    EVO = "Evo"
    SYM = "Sym"
    PRB = "Prb"
    SCH = "Sch"
    CTL = "Ctl"
    SWM = "Swm"


LONG_NAMES = {
    Root.LRN: "Learnon",
    Root.EVO: "Evolon",
    Root.SYM: "Symbion",
    Root.PRB: "Probion",
    Root.SCH: "Scholon",
    Root.CTL: "Controlon",
    Root.SWM: "Swarmon",
}


@dataclass(frozen=True)
class Composed:
    """Composed mechanisms.

    Attributes:
        operator: `+` for mechanisms side by side, `/` within or after one another, `→` in a
            pipeline, `{}` in an ensemble.
        parts: What is composed; of an ensemble first the outer mechanism, which is a root, then its
            branches. Of `+` and `/` only the first part may be joined by the other of the two.
    """

    operator: Literal["+", "/", "→", "{}"]
    parts: "tuple[Expression, ...]"

    def __str__(self) -> str:
        """Returns the notation of v1.0."""
        first, *others = map(str, self.parts)
        match self.operator:
            case "{}":
                return f"{first}{{{','.join(others)}}}"
            case "→":
                return f"[{'→'.join([first, *others])}]"
            case sign:
                return sign.join([first, *others])


Expression = Root | Composed


class Repair(StrEnum):
    """A kind of replacement or omission that was needed to read a code."""

    CHARACTERS = "typographic or invisible characters"
    MARKUP = "markup, labels or line breaks"
    MARKER = "other form of OPT="
    NAMES = "other names of roots or keys"
    OPERATORS = "other operators or brackets, or repeated roots"
    FIELDS = "form or order of the fields"
    SEVERAL = "several codes, placeholders or quotations"
    AROUND = "text or JSON around the code"
    """No fault by itself if a rationale was asked for along with the code."""


@dataclass(frozen=True)
class Line:
    """The content of a line.

    Attributes:
        expression: Expression of the roots.
        fields: Value by key, as written.
        repairs: Kinds of repairs, in the order of `Repair`.
    """

    expression: Expression
    fields: Mapping[str, str] = field(default_factory=dict[str, str])
    repairs: tuple[Repair, ...] = ()


# Characters, names and marks

DASHES = "\u2010\u2011\u2012\u2013\u2014\u2015\u2212"
SPACES = "\u00a0\u1680\u202f\u205f\u3000\v\f" + "".join(map(chr, range(0x2000, 0x200B)))
LINE_ENDS = "\r\x1c\x1d\x1e\x85\u2028\u2029"
FORMATS = (range(0x200B, 0x2010), range(0x202A, 0x202F), range(0x2060, 0x2065), (0xAD, 0xFEFF))
PLAIN: dict[int, int | None] = {
    **dict.fromkeys([*range(9), *range(14, 32), *range(127, 160)]),
    **dict.fromkeys(code for codes in FORMATS for code in codes),
    **{code: code - 0xFEE0 for code in range(0xFF01, 0xFF5F)},
    ord("\u2044"): ord("/"),
    ord("\u2215"): ord("/"),
    ord("\u3001"): ord(","),
    **dict.fromkeys(map(ord, DASHES), ord("-")),
    **dict.fromkeys(map(ord, SPACES), ord(" ")),
    **dict.fromkeys(map(ord, LINE_ENDS), ord("\n")),
}
"""ASCII for typographic look-alikes; None drops an invisible character."""
CODES = {root.casefold(): root for root in Root}
NAMES = {name.casefold(): root for root, name in LONG_NAMES.items()} | {"symon": Root.SYM}
ENGLISH = {
    word: root
    for root, words in {
        Root.LRN: "learn learning learned learner",
        Root.EVO: "evolve evolution evolutionary",
        Root.SYM: "symbol symbols symbolic",
        Root.PRB: "probability probabilistic",
        Root.SCH: "search searching",
        Root.CTL: "control controller controlling",
        Root.SWM: "swarm swarms swarming",
    }.items()
    for word in words.split()
}
KEYS = {key.casefold(): key for key in FIELDS} | {"representation": "Rep", "objective": "Obj"}
MARKS = "*`\"'\u201c\u201d\u2018\u2019\u201e\u00ab\u00bb_~#|$\\"
"""Characters without a meaning around a code or a value."""
MARK = re.escape(MARKS)
"""The same within the brackets of a regular expression."""
CLOSERS = {"[": "]", "(": ")", "<": ">", "{": "}"}
TOKEN = re.compile(
    rf"[\s{MARK}]*(?:(?P<arrow>→|⟶|⟹|⇒|➔|➜|➝|-{{1,3}}>|={{1,2}}>)"
    r"|(?P<word>[A-Za-z][A-Za-z0-9]*(?:[_-]+[A-Za-z0-9]+)*)|(?P<sign>\S)|(?P<end>\Z))"
)
FIELD = re.compile(
    rf"[ \t]*;[ \t]*({KEY.pattern})[ \t]*=[ \t]*({VALUE.pattern})(?=[ \t]*(?:[;\n]|\Z))"
)
"""A field as published."""
FIELD_PARTS = (
    (re.compile(r"[ \t]*;[ \t]*"), "';' or the end"),
    (re.compile(rf"{KEY.pattern}[ \t]*"), "a key"),
    (re.compile(r"=[ \t]*"), "'='"),
    (re.compile(rf"{VALUE.pattern}[ \t]*"), "a value that begins with a letter or digit"),
)
LOOSE_KEY = re.compile(rf"(?<![A-Za-z0-9-])([A-Za-z][A-Za-z0-9_-]{{0,31}})[ \t{MARK}]{{0,8}}([=:])")
FIELD_LINE = re.compile(
    rf"[\s>•{MARK}{{-]{{0,40}}(?:{'|'.join(KEYS)})[ \t{MARK}]{{0,8}}[=:]", re.IGNORECASE
)
"""A line that goes on with the fields of a code."""
PLACEHOLDER = re.compile(rf"[\s{MARK}]*(?:<[^<>]*>|\.\.\.|…|{{[^{{}}]*}}|\[[^\[\]]*\])")
VALUE_END = re.compile(r"[;\n(|<\"“”\\}\]]| - |[.!?](?:\s|$)|\s[A-Z][A-Za-z]+:")
UNFIT = re.compile(r"[^A-Za-z0-9+_.,-]+")
HTML_TAG = re.compile(r"</?[A-Za-z]{1,10}>")


def means_other(key: str) -> bool:
    """Returns True if a key is another form of a known key."""
    return key not in FIELDS and key.casefold() in KEYS


def escaped(text: str) -> str:
    """Returns the first characters of a text, with unprintable ones such as NUL as escapes."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text[:SHOWN])


def syntax_error(text: str, column: int, problem: str) -> OptCodeError:
    """Returns an error that points at a column of `text`, counted from 1."""
    start = max(0, min(column - SHOWN // 2, len(text) - SHOWN))
    pointer = " " * len(escaped(text[start : column - 1])) + "^"
    return OptCodeError(f"column {column}: {problem}\n  {escaped(text[start:])}\n  {pointer}")


# The reader of one code


def read_line(text: str, marked: bool = True) -> Line:
    """Reads one line of the published notations; nothing is repaired.

    Args:
        text: The line, without blanks around it.
        marked: True if the line begins with `OPT=`, False if it begins with the expression.

    Raises:
        OptCodeError: The text is no such line; the message points at the column.
    """
    if len(text) > LONGEST_LINE:
        raise OptCodeError(
            f"a line of {len(text):,} characters is no OPT-Code: at most {LONGEST_LINE:,} are read"
        )
    start = re.match(r"OPT[ \t]*=" if marked else "", text)
    if start is None:
        raise syntax_error(text, 1, f"expected 'OPT=', found '{escaped(text)}'")
    return Reader(text, start.end(), strict=True).line()


class _Token(NamedTuple):
    """A word, sign or arrow, with its places in the text; at the end of the text it is empty."""

    kind: str
    text: str
    start: int
    end: int

    @property
    def name(self) -> str:
        """The token as an error names it."""
        return f"'{escaped(self.text)}'" if self.text else "the end"


Part = tuple[str, Expression]
"""The operator before a part, and the part."""


class Reader:
    """A reader of one code, from its expression to its last field.

    Attributes:
        rest: The text behind the code, once the line is read.
    """

    def __init__(
        self, text: str, position: int, strict: bool = False, english: bool = True
    ) -> None:
        self.rest = ""
        self._text, self._position, self._strict = text, position, strict
        self._roots = CODES | NAMES | (ENGLISH if english else {})
        self._repairs: set[Repair] = set()
        self._named: list[Root] = []

    def line(self) -> Line:
        """Reads the line.

        Raises:
            OptCodeError: It does not begin with an expression, continues unreadably or, if strict,
                needs a repair.
        """
        expression = _folded(self._expression("", 0))
        for root in set(self._named):
            if self._named.count(root) > 1:
                problem = f"expected distinct roots, found {root} more than once"
                self._note(Repair.OPERATORS, 0, problem)
        self._refuse_broken()
        return Line(expression, self._fields(), in_order(self._repairs))

    def _note(self, repair: Repair, position: int, problem: str) -> None:
        if self._strict:
            raise syntax_error(self._text, position + 1, problem)
        self._repairs.add(repair)

    def _unexpected(self, token: _Token, expected: str) -> OptCodeError:
        problem = f"expected {expected}, found {token.name}"
        return syntax_error(self._text, token.start + 1, problem)

    def _peek(self) -> _Token:
        match = TOKEN.match(self._text, self._position)
        assert match is not None and match.lastgroup is not None, "a token is always found"
        return _Token(match.lastgroup, match[match.lastgroup], *match.span(match.lastgroup))

    def _take(self, token: _Token) -> None:
        gap = self._text[self._position : token.start].strip(" \t")
        if gap:
            self._note(Repair.MARKUP, token.start - 1, f"expected blanks, found '{escaped(gap)}'")
        self._position = token.end

    def _expression(self, closer: str, depth: int) -> list[Part]:
        """Reads parts up to a closing sign; `,` closes a branch of an ensemble."""
        parts = self._operand(depth)
        while operator := self._operator(closer):
            (_, first), *others = self._operand(depth)
            parts += [(operator, first), *others]
        return parts

    def _operand(self, depth: int) -> list[Part]:
        token = self._peek()
        root = self._roots.get(token.text.casefold())
        if root is not None:
            self._take(token)
            self._named.append(root)
            if token.text != root:
                self._note(Repair.NAMES, token.start, f"expected {root}, found {token.name}")
            return [("+", self._ensemble(root, depth))]
        if token.text not in CLOSERS or (self._strict and token.text != "["):
            raise self._unexpected(token, f"a root ({', '.join(Root)}) or '['")
        return self._group(token, depth)

    def _ensemble(self, root: Root, depth: int) -> Expression:
        if (token := self._peek()).text != "{":
            return root
        self._enter(token, depth)
        parts: list[Expression] = [root, _folded(self._expression(",", depth + 1))]
        while (token := self._peek()).text == ",":
            self._take(token)
            parts.append(_folded(self._expression(",", depth + 1)))
        self._leave(token, "}")
        return Composed("{}", tuple(parts))

    def _group(self, opening: _Token, depth: int) -> list[Part]:
        """Reads a pipeline, or an expression in brackets without a meaning."""
        closer = CLOSERS[opening.text]
        self._enter(opening, depth)
        stages = [self._expression(closer, depth + 1)]
        while (token := self._peek()).kind == "arrow" and closer == "]":
            self._take(token)
            if token.text != "→":
                self._note(Repair.OPERATORS, token.start, f"expected '→', found {token.name}")
            stages.append(self._expression(closer, depth + 1))
        self._leave(token, closer)
        if len(stages) > 1:
            return [("+", Composed("→", tuple(map(_folded, stages))))]
        self._note(Repair.OPERATORS, opening.start, "expected '→' between the brackets")
        return stages[0]

    def _enter(self, token: _Token, depth: int) -> None:
        if depth == DEEPEST:
            problem = f"more than {DEEPEST} brackets within one another"
            raise syntax_error(self._text, token.end, problem)
        self._take(token)

    def _leave(self, token: _Token, closer: str) -> None:
        if token.text != closer:
            raise self._unexpected(token, f"',' or '{closer}'" if closer == "}" else f"'{closer}'")
        self._take(token)

    def _operator(self, closer: str) -> str | None:
        """Reads an operator; None if the expression ends here."""
        token = self._peek()
        word = token.text.casefold()
        arrow = token.kind == "arrow"
        ends = (arrow and closer == "]") or (word == "," and closer == ",")
        if ends or not (arrow or word in ("+", "/", "&", ",", "and")):
            return None
        if "\n" in self._text[self._position : token.start]:
            return None
        if word in (",", "and") and not begins_operand(self._text, token.end):
            return None
        self._take(token)
        if word in ("+", "/"):
            return word
        self._note(Repair.OPERATORS, token.start, f"expected '+' or '/', found {token.name}")
        return "/" if arrow else "+"

    def _refuse_broken(self) -> None:
        """Refuses an expression that is cut, or goes on in a form that cannot be read."""
        token = self._peek()
        gap = self._text[self._position : token.start]
        key = LOOSE_KEY.search(self._text, self._position)
        tail = self._text[self._position : key.start() if key else None].partition("\n")[0]
        words = (word.casefold() for word in re.findall("[A-Za-z]+", tail))
        others = {(CODES | NAMES).get(word) for word in words} - {None, *self._named}
        glued = not gap and token.kind != "end" and token.text not in ",.;:!?(<)>]}"
        goes_on = "\n" not in gap and (token.kind == "arrow" or token.text in (*"+/&{[",))
        if glued or goes_on or others or self._position >= LONGEST_LINE:
            raise self._unexpected(token, "'+', '/', ';' or the end")

    def _fields(self) -> dict[str, str]:
        pairs: list[tuple[str, str, int]] = []
        while match := FIELD.match(self._text, self._position):
            if means_other(match[1]) and not self._strict:
                break
            pairs.append((match[1], match[2], match.start(1)))
            self._position = match.end()
        if self._text[self._position :].strip(" \t"):
            if self._strict:
                raise self._field_error()
            pairs += self._loose_fields()
        self._note_irregular(pairs)
        values: dict[str, dict[str, None]] = {}
        for key, value, _ in pairs:
            values.setdefault(key, {})[value] = None
        return {key: "+".join(several) for key, several in values.items()}

    def _field_error(self) -> OptCodeError:
        place, parts = self._position, iter((*FIELD_PARTS, FIELD_PARTS[0]))
        pattern, expected = next(parts)
        while match := pattern.match(self._text, place):
            place = match.end()
            pattern, expected = next(parts)
        while self._text[place : place + 1] in (" ", "\t"):
            place += 1
        sign = self._text[place : place + 1]
        return self._unexpected(_Token("sign", sign, place, place + 1), expected)

    def _note_irregular(self, pairs: list[tuple[str, str, int]]) -> None:
        """Notes unknown, repeated and unordered keys."""
        keys: list[str] = []
        for key, _, place in pairs:
            if key not in FIELDS:
                problem = f"expected one of {', '.join(FIELDS)}, found '{escaped(key)}'"
                self._note(Repair.FIELDS, place, problem)
            elif key in keys:
                self._note(Repair.FIELDS, place, f"expected each key once, found {key} again")
            else:
                keys.append(key)
        if not any([key for key in order if key in keys] == keys for order in ORDERS):
            problem = f"expected the keys in the order {' '.join(FIELDS)}"
            self._note(Repair.FIELDS, pairs[0][2], problem)

    def _loose_fields(self) -> Iterator[tuple[str, str, int]]:
        """Yields the fields in any other form: on this line, and on lines that begin with a key."""
        body, *lines = self._text[self._position :].split("\n")
        while lines and (FIELD_LINE.match(lines[0]) or not lines[0].strip()):
            body += f"\n{lines.pop(0)}"
        self.rest = "\n".join(lines)
        keys = [key for key in LOOSE_KEY.finditer(body) if _is_field(body, key)]
        starts = [key.start() for key in keys] + [len(body)]
        self._repairs |= leftovers(body[: starts[0]])
        for key, end in zip(keys, starts[1:], strict=True):
            self._repairs.add(Repair.FIELDS)
            name = KEYS.get(key[1].casefold(), key[1])
            if name != key[1]:
                self._repairs.add(Repair.NAMES)
            if value := self._loose_value(body[key.end() : end]):
                yield name, value, 0

    def _loose_value(self, text: str) -> str:
        """Returns the value at the start of a text, of valid characters; empty if there is none."""
        if PLACEHOLDER.match(text):
            self._repairs.add(Repair.SEVERAL)
            return ""
        begun = text.lstrip(f"{MARKS} \t\n")
        end = VALUE_END.search(begun)
        body = begun[: end.start()] if end else begun
        self._repairs |= leftovers(begun[len(body) :])
        ascii_only = unicodedata.normalize("NFKD", body).encode("ascii", "ignore").decode()
        unmarked = ascii_only.strip(f"{MARKS}, \t\n")
        return UNFIT.sub("-", unmarked).lstrip("+_.,-").rstrip(".,-")


def in_order(repairs: set[Repair]) -> tuple[Repair, ...]:
    """Returns the repairs in the order of `Repair`."""
    return tuple(kind for kind in Repair if kind in repairs)


def leftovers(text: str) -> set[Repair]:
    """Returns the repairs that dropping a text around a code is."""
    left = HTML_TAG.sub("|", text.strip())
    if any(character.isalnum() for character in left):
        return {Repair.AROUND}
    return {Repair.MARKUP if left.strip(";") else Repair.FIELDS} if left else set()


def _folded(parts: list[Part]) -> Expression:
    (_, whole), *others = parts
    for operator, operand in others:
        same = isinstance(whole, Composed) and whole.operator == operator
        left = whole.parts if isinstance(whole, Composed) and same else (whole,)
        whole = Composed("+" if operator == "+" else "/", (*left, operand))
    return whole


def begins_operand(text: str, position: int = 0) -> bool:
    token = TOKEN.match(text, position)
    word, sign = (token["word"], token["sign"]) if token else (None, None)
    return sign in CLOSERS or (word or "").casefold() in CODES | NAMES | ENGLISH


def _is_field(body: str, key: re.Match[str]) -> bool:
    before = body[: key.start()].rstrip("*`\"' \t>•{-")[-1:]
    if key[1].casefold() in KEYS:
        return key[2] == "=" or before in (";", ",", "|", "\n")
    return key[2] == "=" and before in (";", "\n")
