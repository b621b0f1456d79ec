"""Roots, their composition, and the strict reading of a line in the published notations.

The canonical notation is that of 2026-02: roots joined by `+` and `/`, with equal precedence, from
left to right. The ensembles `A{B,C}` and pipelines `[A→B]` of v1.0 (2025-11) are also read.
"""

import functools
import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from itertools import chain
from typing import Any, Literal, cast

from lark import Lark, Token, Transformer
from lark.exceptions import UnexpectedCharacters, UnexpectedInput, UnexpectedToken
from lark.parsers.lalr_interactive_parser import InteractiveParser

from raylab.errors import OptCodeError

FIELDS = ("Rep", "Obj", "Data", "Time", "Human", "Locus")
"""The known keys in canonical order; the formal grammar has all except Locus."""
VALUE = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9+_.,-]*[A-Za-z0-9+_-])?")
"""A value: a compromise between the differing rules of both notations."""
LONGEST_LINE = 4096
"""Longest line in characters."""
DEEPEST = 16
"""Deepest nesting of brackets and braces."""
SHOWN = 60
"""Characters of the text that an error shows around its column."""
TERMINALS = {
    "ROOT": "a root (Lrn, Evo, Sym, Prb, Sch, Ctl or Swm)",
    "OPERATOR": "'+' or '/'",
    "KEY": "a key",
    "VALUE": "a value that begins with a letter or digit",
    "OPT": "'OPT='",
    "EQUAL": "'='",
    "SEMICOLON": "';'",
    "COMMA": "','",
    "LBRACE": "'{'",
    "RBRACE": "'}'",
    "LSQB": "'['",
    "RSQB": "']'",
    "$END": "the end",
}

Operator = Literal["+", "/"]


class Root(StrEnum):
    """The seven mechanisms of taxonomy v1.0, in their frozen order."""

    LRN = "Lrn"
    EVO = "Evo"
    SYM = "Sym"
    PRB = "Prb"
    SCH = "Sch"
    CTL = "Ctl"
    SWM = "Swm"

    @property
    def long_name(self) -> str:
        """The long name in the taxonomy, such as Learnon."""
        return LONG_NAMES[self]


LONG_NAMES = {
    Root.LRN: "Learnon",
    Root.EVO: "Evolon",
    Root.SYM: "Symbion",
    Root.PRB: "Probion",
    Root.SCH: "Scholon",
    Root.CTL: "Controlon",
    Root.SWM: "Swarmon",
}
ORDER = {root: place for place, root in enumerate(Root)}


@dataclass(frozen=True)
class Sum:
    """Mechanisms side by side, `A+B`; only the first operand may be composed without brackets."""

    operands: "tuple[Expression, ...]"

    def __str__(self) -> str:
        """Returns the v1.0 notation."""
        return "+".join(map(str, self.operands))


@dataclass(frozen=True)
class Nesting:
    """Mechanisms within or after one another, `A/B`; only the first operand may be composed."""

    levels: "tuple[Expression, ...]"

    def __str__(self) -> str:
        """Returns the v1.0 notation."""
        return "/".join(map(str, self.levels))


@dataclass(frozen=True)
class Ensemble:
    """A mechanism over parallel branches, `A{B,C}`."""

    root: Root
    branches: "tuple[Expression, ...]"

    def __str__(self) -> str:
        """Returns the v1.0 notation."""
        return f"{self.root}{{{','.join(map(str, self.branches))}}}"


@dataclass(frozen=True)
class Pipeline:
    """Mechanisms in sequence, `[A→B]`."""

    stages: "tuple[Expression, ...]"

    def __str__(self) -> str:
        """Returns the v1.0 notation."""
        return f"[{'→'.join(map(str, self.stages))}]"


Expression = Root | Sum | Nesting | Ensemble | Pipeline
Step = tuple[Operator, Root]
"""A root and the operator before it; for the first root this is `+`, which is not written."""


@dataclass(frozen=True)
class Line:
    """The content of a line, field by field as written.

    Attributes:
        expression: Expression of the roots.
        fields: Key, value and column of the key, counted from 1.
    """

    expression: Expression
    fields: tuple[tuple[str, str, int], ...]


def steps(expression: Expression) -> list[Step]:
    """Returns the expression without braces and brackets; roots may repeat.

    `[A→B]` becomes `A/B`, the sequential composition of the 2026 prompts, and `A{B,C}` becomes
    `A/B+C`: the outer mechanism, then its parallel branches. Since the canonical notation groups
    from the left only, composed operands of `+` are moved to its front and the others sorted.
    """
    match expression:
        case Root():
            return [("+", expression)]
        case Sum(operands):
            return _join_steps("+", map(steps, sorted(operands, key=_rank)))
        case Nesting(levels):
            return _join_steps("/", map(steps, levels))
        case Pipeline(stages):
            return _join_steps("/", map(steps, stages))
        case Ensemble(root, branches):
            parallel = _join_steps("+", sorted(map(steps, branches), key=_places))
            return [("+", root), *_lead_with("/", parallel)]


def canonical_steps(expression: Expression) -> list[Step]:
    """Returns each root at its first place, neighbouring operands of `+` in the order of `Root`."""
    return _in_order(steps(expression))


def _in_order(found: list[Step]) -> list[Step]:
    distinct: dict[Root, Operator] = {}
    for operator, root in found:
        distinct.setdefault(root, operator)
    ordered: list[Step] = []
    operands: list[Step] = []
    for root, operator in distinct.items():
        if operator == "/":
            ordered += sorted(operands, key=_place)
            ordered.append((operator, root))
            operands = []
        else:
            operands.append((operator, root))
    return ordered + sorted(operands, key=_place)


def read_line(text: str, form: Literal["line", "bare"] = "line") -> Line:
    """Reads one line of the published notations; nothing is repaired.

    Args:
        text: At most `LONGEST_LINE` characters, with brackets nested at most `DEEPEST` deep.
        form: `line` if the text begins with `OPT=`, `bare` if it begins with the expression.

    Raises:
        OptCodeError: The text is no such line.
    """
    _refuse_oversize(text)
    try:
        return _parse(text, form)
    except UnexpectedInput as error:
        raise syntax_error(text, *_reason(error, len(text))) from None


def line_or_none(text: str) -> Line | None:
    """Reads a line as `read_line` does; None if it is no such line."""
    try:
        _refuse_oversize(text)
        return _parse(text, "line")
    except (OptCodeError, UnexpectedInput):
        return None


def syntax_error(text: str, column: int, problem: str) -> OptCodeError:
    """Returns an error that points at a column of `text`.

    Args:
        text: The text that was read.
        column: Column of the problem, counted from 1.
        problem: The expected and the found text.
    """
    start = max(0, min(column - SHOWN // 2, len(text) - SHOWN))
    shown = printable(text[start : start + SHOWN])
    pointer = " " * len(printable(text[start : column - 1])) + "^"
    return OptCodeError(f"column {column}: {problem}\n  {shown}\n  {pointer}")


def printable(text: str) -> str:
    """Returns the text with unprintable characters, such as NUL, written as escapes."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def _parse(text: str, form: Literal["line", "bare"]) -> Line:
    return cast(Line, _grammar().parse(text, start=form))


def _rank(operand: Expression) -> int:
    return ORDER[operand] if isinstance(operand, Root) else -1


def _place(step: Step) -> int:
    return ORDER[step[1]]


def _places(part: list[Step]) -> list[int]:
    return [_place(step) for step in _in_order(part)]


def _join_steps(operator: Operator, parts: Iterable[list[Step]]) -> list[Step]:
    first, *others = parts
    return [*first, *chain.from_iterable(_lead_with(operator, part) for part in others)]


def _lead_with(operator: Operator, part: list[Step]) -> list[Step]:
    return [(operator, part[0][1]), *part[1:]]


def _refuse_oversize(text: str) -> None:
    if len(text) > LONGEST_LINE:
        raise OptCodeError(
            f"a line of {len(text):,} characters is no OPT-Code: at most {LONGEST_LINE:,} are read"
        )
    depth = 0
    for bracket in re.finditer(r"[\[\]{}]", text):
        depth += 1 if bracket[0] in "[{" else -1
        if depth > DEEPEST:
            problem = f"more than {DEEPEST} brackets within one another"
            raise syntax_error(text, bracket.end(), problem)


def _reason(error: UnexpectedInput, length: int) -> tuple[int, str]:
    """Returns the column and the text of lark's error."""
    accepted = cast(InteractiveParser, cast(Any, error).interactive_parser).accepts()
    expected = " or ".join(sorted(TERMINALS.get(name, "'→'") for name in accepted))
    if isinstance(error, UnexpectedToken):
        token = cast(Token, error.token)
        at_end = token.type == "$END"
        found = "the end" if at_end else f"'{printable(str(token)[:SHOWN])}'"
        return (length + 1 if at_end else token.column or 1), f"expected {expected}, found {found}"
    found = printable(str(cast(UnexpectedCharacters, error).char))
    return error.column, f"expected {expected}, found '{found}'"


@functools.cache
def _grammar() -> Lark:
    return Lark.open_from_package(
        "raylab.opt.notation",
        "opt_code.lark",
        parser="lalr",
        start=["line", "bare"],
        transformer=_Builder(),
        maybe_placeholders=False,
    )


class _Builder(Transformer[Token, Any]):
    """Builds the types of this module while lark parses."""

    def line(self, parts: list[Any]) -> Line:
        return Line(parts[0], tuple(parts[1:]))

    bare = line

    def expression(self, parts: list[Any]) -> Expression:
        whole: Expression = parts[0]
        for operator, item in zip(parts[1::2], parts[2::2], strict=True):
            whole = _fold(whole, operator, item)
        return whole

    def ensemble(self, parts: list[Any]) -> Ensemble:
        return Ensemble(parts[0], tuple(parts[1:]))

    def pipeline(self, parts: list[Any]) -> Pipeline:
        return Pipeline(tuple(parts))

    def field(self, parts: list[Token]) -> tuple[str, str, int]:
        key, value = parts
        return str(key), str(value), key.column or 1

    def ROOT(self, token: Token) -> Root:
        return Root(str(token))


def _fold(left: Expression, operator: str, item: Expression) -> Expression:
    match operator, left:
        case "+", Sum(operands):
            return Sum((*operands, item))
        case "+", _:
            return Sum((left, item))
        case _, Nesting(levels):
            return Nesting((*levels, item))
        case _:
            return Nesting((left, item))
