"""Repairs that rewrite a code into the published notation."""

import re
import unicodedata
from dataclasses import dataclass
from enum import StrEnum

from raylab.opt.notation.grammar import (
    DEEPEST,
    FIELDS,
    LONG_NAMES,
    LONGEST_LINE,
    Line,
    Root,
    line_or_none,
    read_line,
    syntax_error,
)


class Repair(StrEnum):
    """A kind of replacement or omission that was needed to read a code."""

    LINE_END = "line end other than LF"
    SPACE = "white space other than blanks"
    INVISIBLE = "invisible character"
    DASH = "typographic dash"
    FULL_WIDTH = "full-width character"
    ARROW = "other arrow"
    MARKUP = "markup, quotes or punctuation"
    LABEL = "label before the code"
    MARKER = "other form of OPT="
    UNDERSCORE = "_ for - in OPT-Code"
    NO_MARKER = "no OPT="
    CASE = "letter case"
    LONG_NAME = "long name of a root"
    ENGLISH = "English word for a root"
    OPERATOR = "other operator"
    BRACKETS = "brackets without a meaning"
    GLOSS = "explanation in brackets"
    REPEATED_ROOT = "repeated root"
    LINE_BREAK = "expression on several lines"
    SEPARATOR = "fields not separated by ;"
    TRAILING = "; without a field"
    ASSIGNMENT = ": for = in a field"
    KEY_NAME = "long name of a key"
    VALUE = "characters of a value"
    EMPTY = "field without a value"
    PLACEHOLDER = "placeholder of the prompt"
    REPEATED_FIELD = "repeated field"
    FIELD_ORDER = "order of the fields"
    UNKNOWN_FIELD = "unknown key"
    SEVERAL = "several codes"
    QUOTED = "code in quoted text"
    DOCUMENT = "JSON or YAML"
    PROSE = "text around the code"
    """No fault by itself if a rationale was asked for along with the code."""


DASHES = "\u2010\u2011\u2012\u2013\u2014\u2015\u2212"
SPACES = "\u00a0\u1680\u202f\u205f\u3000\v\f" + "".join(map(chr, range(0x2000, 0x200B)))
INVISIBLES = "".join(
    map(
        chr,
        (
            *(code for code in (*range(0x20), *range(0x7F, 0xA0)) if chr(code) not in "\t\n\v\f\r"),
            0xAD,
            *range(0x200B, 0x2010),
            *range(0x202A, 0x202F),
            *range(0x2060, 0x2065),
            0xFEFF,
        ),
    )
)
FULL_WIDTH = {code: code - 0xFEE0 for code in range(0xFF01, 0xFF5F)} | {
    ord("\u2044"): ord("/"),
    ord("\u2215"): ord("/"),
    ord("\u3001"): ord(","),
}
TABLE = (
    FULL_WIDTH
    | dict.fromkeys(map(ord, DASHES), ord("-"))
    | dict.fromkeys(map(ord, SPACES), ord(" "))
    | dict.fromkeys(map(ord, INVISIBLES))
)
CHARACTERS = {
    Repair.LINE_END: re.compile("[\r\x85\u2028\u2029]"),
    Repair.SPACE: re.compile(f"[{SPACES}]"),
    Repair.INVISIBLE: re.compile(f"[{re.escape(INVISIBLES)}]"),
    Repair.DASH: re.compile(f"[{DASHES}]"),
    Repair.FULL_WIDTH: re.compile(f"[{''.join(map(chr, FULL_WIDTH))}]"),
}

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
WORDS = CODES | NAMES | ENGLISH
KEYS = {key.casefold(): key for key in FIELDS}
KEY_NAMES = {"representation": "Rep", "objective": "Obj"}

MARKS = "*`\"'\u201c\u201d\u2018\u2019\u201e\u00ab\u00bb_~#|$\\"
"""Characters without a meaning around a code or a value."""
MARK_CLASS = re.escape(MARKS)
"""The same within the brackets of a regular expression."""
ARROWS = "→|⟶|⟹|⇒|➔|➜|➝|-{1,3}>|={1,2}>"
ROOT_NAMES = "|".join([*CODES, *NAMES])
CLOSERS = {"[": "]", "(": ")", "<": ">", "{": "}"}

TOKEN = re.compile(rf"[\s{MARK_CLASS}]*(?:(?P<arrow>{ARROWS})|(?P<word>[A-Za-z]+)|(?P<sign>\S))")
HEAD = re.compile(
    rf"(?P<separator>[;,|\s])[\s{MARK_CLASS}>•-]*+"
    rf"(?:(?P<key>[A-Za-z][A-Za-z0-9_-]{{0,31}}+)[ \t{MARK_CLASS}]*+(?P<sign>[=:]))?"
)
"""Start of a field, or without a key a gap in text, which is passed over as a whole."""
BROKEN = re.compile(
    rf"[^\s,.;:!?()<>\]}}{MARK_CLASS}]|_[A-Za-z0-9]"
    rf"|[\s{MARK_CLASS}]*(?:[+/&{{\[]|{ARROWS}|(?:{ROOT_NAMES})(?![A-Za-z]))",
    re.IGNORECASE,
)
"""Text after an expression that shows an unreadable continuation."""
PLACEHOLDER = re.compile(r"<[^<>]*>|\.\.\.|…|\{[^{}]*\}|\[[^\[\]]*\]")
VALUE_END = re.compile(r"[;\n(|<\"“”\\]| - |[.!?](?:\s|$)|\s[A-Z][A-Za-z]+:")
HTML_TAG = re.compile(r"</?[A-Za-z]{1,10}>")
UNFIT = re.compile(r"[^A-Za-z0-9+_.,-]+")


def plain(text: str) -> str:
    """Returns the text with ASCII for typographic look-alikes, without invisible characters."""
    return text.translate(TABLE)


def character_repairs(text: str) -> set[Repair]:
    """Returns the repairs that `plain` and splitting into lines make in a text."""
    return {repair for repair, characters in CHARACTERS.items() if characters.search(text)}


def is_placeholder(content: str) -> bool:
    """Returns True if the content begins with a placeholder such as `<roots>`."""
    match = PLACEHOLDER.match(content.lstrip(f"{MARKS} \t\n"))
    return match is not None and not any(
        word.casefold() in WORDS for word in re.findall("[A-Za-z]+", match[0])
    )


def begins_with_root(content: str) -> bool:
    """Returns True if the content begins with a root, in any of its forms, or a bracket."""
    match = TOKEN.match(content)
    return match is not None and _starts_operand(match)


def exact_line(text: str) -> Line | None:
    """Reads a line that needs no repair of its notation or keys; None for any other text."""
    line = line_or_none(text)
    return None if line is None or any(means_other(key) for key, _, _ in line.fields) else line


def means_other(key: str) -> bool:
    """Returns True if a key is another form of a known key."""
    return key not in FIELDS and key.casefold() in KEYS | KEY_NAMES


def rewrite(content: str, repairs: set[Repair], english: bool = True) -> str:
    """Rewrites a content as a line of the published notation.

    Args:
        content: The text after `OPT=`, on one or several lines, made `plain`.
        repairs: Receives the repairs.
        english: Accept English words for roots.

    Raises:
        OptCodeError: The content does not begin with an expression, or continues unreadably.
    """
    exact = f"OPT={content.strip(' ')}"
    if exact_line(exact):
        return exact
    content = content[:LONGEST_LINE]
    expression, end = expression_of(content, repairs, english)
    if "\n" in content[:end]:
        repairs.add(Repair.LINE_BREAK)
    fields = _fields(content[end:], repairs)
    return f"OPT={expression}" + "".join(f"; {key}={value}" for key, value in fields)


def expression_of(content: str, repairs: set[Repair], english: bool = True) -> tuple[str, int]:
    """Returns the expression at the start of a content, in the published notation, and its end.

    At most `LONGEST_LINE` characters are read.

    Raises:
        OptCodeError: There is no expression, or it continues unreadably.
    """
    content = content[:LONGEST_LINE]
    scanner = _Scanner(content, repairs, english)
    expression = scanner.read()
    tail = content[scanner.position :].partition("\n")[0]
    cut = scanner.position >= LONGEST_LINE
    if scanner.broken or cut or BROKEN.match(tail):
        read_line(f"OPT={expression}{tail}")
        raise syntax_error(content, scanner.position + 1, "the expression cannot be read from here")
    return expression, scanner.position


def _starts_operand(token: re.Match[str]) -> bool:
    word = token["word"]
    return word.casefold() in WORDS if word else token["sign"] in CLOSERS


@dataclass
class _Bracket:
    """An open bracket and its place in the output, where it may be dropped."""

    closer: str
    place: int
    ensemble: bool = False
    arrow: bool = False


class _Scanner:
    """A reader of alternating operands and operators, up to the first other text."""

    def __init__(self, content: str, repairs: set[Repair], english: bool) -> None:
        self.position = 0
        self.broken = False
        self._content = content
        self._repairs = repairs
        self._names = WORDS if english else CODES | NAMES
        self._out: list[str] = []
        self._open: list[_Bracket] = []
        self._expects_operand = True
        self._after_root = False

    def read(self) -> str:
        while token := TOKEN.match(self._content, self.position):
            taken = self._operand(token) if self._expects_operand else self._operator(token)
            if not taken:
                break
            gap = token[0][: -len(token[token.lastgroup or 0])].strip()
            if gap:
                self._repairs.add(Repair.MARKUP)
        self.broken = self.broken or self._expects_operand
        return "".join(self._out)

    def _operand(self, token: re.Match[str]) -> bool:
        word, sign = token["word"], token["sign"]
        root = self._names.get(word.casefold()) if word else None
        if root is not None:
            self._note_name(word, root)
            self._out.append(root)
            self._expects_operand, self._after_root = False, True
        elif sign in CLOSERS:
            self._enter(_Bracket(CLOSERS[sign], len(self._out)), token)
            self._out.append("[" if sign == "[" else "")
            if sign != "[":
                self._repairs.add(Repair.BRACKETS)
        else:
            return False
        self.position = token.end()
        return True

    def _operator(self, token: re.Match[str]) -> bool:
        after_root, self._after_root = self._after_root, False
        sign = token["sign"]
        if "\n" in token[0]:
            return False
        if sign == "(":
            return self._pass_gloss(token)
        if sign == "{" and after_root:
            self._enter(_Bracket("}", len(self._out), ensemble=True), token)
            self._out.append("{")
            self._expects_operand = True
        elif self._open and sign == self._open[-1].closer:
            self._close()
        elif not self._join(token):
            return False
        self.position = token.end()
        return True

    def _join(self, token: re.Match[str]) -> bool:
        text = token[token.lastgroup or 0].casefold()
        if text not in ("+", "/", "&", ",", "and") and not token["arrow"]:
            return False
        following = TOKEN.match(self._content, token.end())
        if following is None or not _starts_operand(following):
            self.broken = text not in (",", "and")
            return False
        self._out.append(self._symbol(text, bool(token["arrow"])))
        self._expects_operand = True
        return True

    def _symbol(self, text: str, arrow: bool) -> str:
        inner = self._open[-1] if self._open else _Bracket("", 0)
        if arrow:
            inner.arrow = inner.closer == "]"
            if not inner.arrow or text != "→":
                self._repairs.add(Repair.ARROW)
            return "→" if inner.arrow else "/"
        if text in "+/" or (text == "," and inner.ensemble):
            return text
        self._repairs.add(Repair.OPERATOR)
        return "+"

    def _enter(self, bracket: _Bracket, token: re.Match[str]) -> None:
        if len(self._open) == DEEPEST:
            problem = f"more than {DEEPEST} brackets within one another"
            raise syntax_error(self._content, token.end(), problem)
        self._open.append(bracket)

    def _close(self) -> None:
        bracket = self._open.pop()
        if bracket.ensemble or bracket.arrow:
            self._out.append(bracket.closer)
        elif self._out[bracket.place]:
            self._out[bracket.place] = ""
            self._repairs.add(Repair.BRACKETS)

    def _pass_gloss(self, token: re.Match[str]) -> bool:
        end = self._content.find(")", token.end())
        inner = self._content[token.end() : end]
        if end < 0 or "\n" in inner:
            return False
        words = [word.casefold() for word in re.findall("[A-Za-z]+", inner)]
        named = {(CODES | NAMES)[word] for word in words if word in CODES | NAMES}
        if not named <= set(self._out):
            self.broken = True
            return False
        self._repairs.add(Repair.GLOSS)
        self.position = end + 1
        return True

    def _note_name(self, word: str, root: Root) -> None:
        if word == root:
            return
        if word.casefold() in CODES:
            self._repairs.add(Repair.CASE)
        else:
            named = word.casefold() in NAMES
            self._repairs.add(Repair.LONG_NAME if named else Repair.ENGLISH)


def _fields(text: str, repairs: set[Repair]) -> list[tuple[str, str]]:
    """Returns the keys and values after an expression."""
    heads = [head for head in HEAD.finditer(text) if head["key"] and _is_field(head)]
    starts = [head.start() for head in heads] + [len(text)]
    _note_leftover(text[: starts[0]], repairs)
    fields: list[tuple[str, str]] = []
    for head, end in zip(heads, starts[1:], strict=True):
        _note_head(head, repairs)
        value = _value(text[head.end() : end], repairs)
        if value:
            key = head["key"]
            fields.append((_key(key), value))
    return fields


def _is_field(head: re.Match[str]) -> bool:
    known = head["key"].casefold() in KEYS | KEY_NAMES
    if head["sign"] == ":":
        return known and head["separator"] not in " \t"
    return known or head["separator"] in ";\n"


def _key(key: str) -> str:
    return KEYS.get(key.casefold()) or KEY_NAMES.get(key.casefold()) or key


def _note_head(head: re.Match[str], repairs: set[Repair]) -> None:
    gap = head[0].partition(head["key"])[0]
    key = head["key"].casefold()
    noted = {
        Repair.SEPARATOR: head["separator"] != ";" or "\n" in gap,
        Repair.MARKUP: bool(gap.strip(" \t\n;,")) or any(mark in head[0] for mark in "*`\"'"),
        Repair.ASSIGNMENT: head["sign"] == ":",
        Repair.CASE: key in KEYS and head["key"] != KEYS[key],
        Repair.KEY_NAME: key in KEY_NAMES,
    }
    repairs.update(repair for repair, holds in noted.items() if holds)


def _value(text: str, repairs: set[Repair]) -> str:
    """Returns the value at the start of a text, of valid characters; empty if there is none."""
    if PLACEHOLDER.fullmatch(text.strip(f"{MARKS};, \t\n.")) or text.strip(" \t\n;,") == "...":
        repairs.add(Repair.PLACEHOLDER)
        return ""
    begun = text.lstrip(f"{MARKS} \t\n")
    end = VALUE_END.search(begun)
    body = begun[: end.start()] if end else begun
    _note_leftover(begun[len(body) :], repairs)
    unmarked = body.strip(f"{MARKS}, \t\n")
    ascii_only = unicodedata.normalize("NFKD", unmarked).encode("ascii", "ignore").decode()
    value = UNFIT.sub("-", ascii_only).lstrip("+_.,-").rstrip(".,-")
    if value != unmarked:
        repairs.add(Repair.VALUE)
    if unmarked != text[: len(text) - len(begun) + len(body)].strip(" \t\n"):
        repairs.add(Repair.MARKUP)
    if not value:
        repairs.add(Repair.EMPTY)
    return value


def _note_leftover(text: str, repairs: set[Repair]) -> None:
    """Notes the text dropped between a code, its fields and the end."""
    left = HTML_TAG.sub("|", text.strip())
    if left.startswith("(") and left.endswith(")"):
        repairs.add(Repair.GLOSS)
    elif any(character.isalnum() for character in left):
        repairs.add(Repair.PROSE)
    elif left.strip(";"):
        repairs.add(Repair.MARKUP)
    elif left:
        repairs.add(Repair.TRAILING)
