"""OPT-Codes, read strictly or from a model's reply, and written in canonical form.

    code = parse("The answer is `opt: learning & Sch`, since ...")
    str(code)           # OPT=Lrn+Sch
    code.repairs        # the kinds of repairs

The canonical line follows the formal grammar (2026-02), with optional fields and Locus from v1.0
(2025-11): roots are distinct, operands of `+` in the order of `Root`, those of `/` as written.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache

from raylab.errors import OptCodeError
from raylab.opt.notation.grammar import (
    FIELDS,
    LONG_NAMES,
    SHOWN,
    VALUE,
    Ensemble,
    Expression,
    Line,
    Nesting,
    Pipeline,
    Root,
    Sum,
    canonical_steps,
    printable,
    read_line,
    steps,
    syntax_error,
)
from raylab.opt.notation.locate import locate
from raylab.opt.notation.repair import (
    Repair,
    exact_line,
    means_other,
    rewrite,
)

__all__ = [
    "FIELDS",
    "LONG_NAMES",
    "Ensemble",
    "Expression",
    "Nesting",
    "OptCode",
    "OptCodeError",
    "Pipeline",
    "Repair",
    "Root",
    "Sum",
    "bare",
    "parse",
    "read_canonical",
]

ASKED_FIELDS = ("Rep", "Obj", "Data", "Time", "Human")
"""The fields that the classifier is asked for."""
ORDERS = (FIELDS, ("Rep", "Locus", "Obj", "Data", "Time", "Human"))
"""The orders of keys that need no repair: the canonical order and that of v1.0."""
KEY = re.compile(r"[A-Za-z][A-Za-z0-9_-]*")


@dataclass(frozen=True, eq=False)
class OptCode:
    """A classification: roots, how they are composed, and attributes.

    Two codes are equal if their canonical lines are. The canonical notation has no braces and
    brackets: `[A→B]` is written `A/B`, the sequential composition of the 2026 prompts, and `A{B,C}`
    is written `A/B+C`, which keeps the outer mechanism first and its branches side by side.

    Attributes:
        expression: The roots as written, with the braces and brackets of v1.0.
        fields: Value by key: known keys in the order Rep Obj Data Time Human Locus, then unknown
            keys by name.
        repairs: Kinds of repairs that `parse` made, in the order of `Repair`.

    Raises:
        OptCodeError: A key or value has characters that the notation does not allow.
    """

    expression: Expression
    fields: Mapping[str, str] = field(default_factory=dict[str, str])
    repairs: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for key, value in self.fields.items():
            if not KEY.fullmatch(key) or not VALUE.fullmatch(value) or means_other(key):
                shown = printable(f"{key}={value}"[:SHOWN])
                raise OptCodeError(
                    f"field {shown!r} cannot be written: a key has letters, digits, - and _ and is "
                    f"no other form of {', '.join(FIELDS)}; a value has "
                    "letters, digits and + - _ . , of which a letter or digit comes first and "
                    "neither . nor , last"
                )
        unknown = sorted(self.fields.keys() - set(FIELDS))
        ordered = [*(key for key in FIELDS if key in self.fields), *unknown]
        object.__setattr__(self, "fields", {key: self.fields[key] for key in ordered})

    @property
    def composition(self) -> str:
        """The expression in canonical notation, such as `Evo/Lrn+Ctl`; equal for equal trees."""
        return self._composition

    @cached_property
    def _composition(self) -> str:
        return "".join(f"{operator}{root}" for operator, root in self.parts)

    @property
    def parts(self) -> list[tuple[str, Root]]:
        """The roots of the canonical line, each after its operator; the first has none."""
        (_, first), *others = canonical_steps(self.expression)
        return [("", first), *others]

    @property
    def roots(self) -> frozenset[Root]:
        """The set of roots, without their composition."""
        return frozenset(root for _, root in steps(self.expression))

    @property
    def categories(self) -> frozenset[Root]:
        """The roots, under the name of `raylab.codebook.Label`."""
        return self.roots

    @property
    def primary(self) -> Root:
        """The first root of the canonical line."""
        return canonical_steps(self.expression)[0][1]

    @property
    def missing(self) -> tuple[str, ...]:
        """The fields that the classifier is asked for and the code lacks.

        A missing field is no repair: v1.0 makes every field optional, and no value is made up.
        """
        return tuple(key for key in ASKED_FIELDS if key not in self.fields)

    @property
    def written(self) -> str:
        """The line with its roots as written, in any published notation; fields are in order."""
        return self._line(str(self.expression))

    def __str__(self) -> str:
        """Returns the canonical line."""
        return self._line(self.composition)

    def __eq__(self, other: object) -> bool:
        """Returns True if both have the same canonical line."""
        return str(self) == str(other) if isinstance(other, OptCode) else NotImplemented

    def __hash__(self) -> int:
        """Returns the hash of the canonical line."""
        return hash(str(self))

    def _line(self, expression: str) -> str:
        return f"OPT={expression}" + "".join(f"; {key}={self.fields[key]}" for key in self.fields)


def parse(text: str, strict: bool = False) -> OptCode:
    """Reads the OPT-Code in a text.

    Args:
        text: A line, a bare expression or a whole reply. To bound the time, a text may have
            200,000 characters, a line 4,096, and brackets may nest 16 deep.
        strict: Accept only one line of the published notations (with optional fields, Locus,
            braces, brackets), each known key at most once and in a published order, distinct roots,
            and no other text. These are exactly the texts that need no repair.

    Raises:
        OptCodeError: The text holds no such code; the message points at the column.
    """
    alone = text.strip(" \t\n")
    if strict:
        line = read_line(alone)
        _refuse_irregular(alone, line)
        return _code(line, set())
    if line := exact_line(alone):
        return _code(line, set())
    found = locate(text)
    repairs = set(found.repairs)
    line = read_line(rewrite(found.content, repairs, english=found.marked))
    return _code(line, repairs)


def read_canonical(line: str) -> OptCode:
    """Reads a canonical line, as written by `str` of a code, much faster than `parse`.

    Raises:
        OptCodeError: The text is no such line.
    """
    start, *fields = line.split("; ")
    return OptCode(_expression(start), dict(_split_field(field) for field in fields))


@lru_cache(maxsize=1 << 14)
def _expression(start: str) -> Expression:
    return read_line(start).expression


def _split_field(field: str) -> tuple[str, str]:
    key, _, value = field.partition("=")
    return key, value


def bare(text: str) -> OptCode:
    """Reads an expression without `OPT=`, as in tables of codes; nothing is repaired.

    Raises:
        OptCodeError: The text is no expression of the published notations.
    """
    text = text.strip(" \t\n")
    line = read_line(text, "bare")
    _refuse_irregular(text, line)
    return _code(line, set())


def _code(line: Line, repairs: set[Repair]) -> OptCode:
    repairs = repairs | {repair for repair, _, _ in _irregularities(line)}
    values: dict[str, list[str]] = {}
    for key, value, _ in line.fields:
        if value not in values.setdefault(key, []):
            values[key].append(value)
    fields = {key: "+".join(given) for key, given in values.items()}
    return OptCode(line.expression, fields, tuple(kind for kind in Repair if kind in repairs))


def _irregularities(line: Line) -> Iterable[tuple[Repair, int, str]]:
    """Yields what the grammar accepts and a code must not have: kind, column and problem."""
    roots = [root for _, root in steps(line.expression)]
    for root in Root:
        if roots.count(root) > 1:
            yield Repair.REPEATED_ROOT, 1, f"expected distinct roots, found {root} more than once"
    seen: list[str] = []
    for key, _, column in line.fields:
        if key not in FIELDS:
            expected = f"expected one of {', '.join(FIELDS)}, found {key[:SHOWN]!r}"
            yield Repair.UNKNOWN_FIELD, column, expected
        elif key in seen:
            yield (
                Repair.REPEATED_FIELD,
                column,
                f"expected each key once, found {key[:SHOWN]!r} again",
            )
        seen.append(key)
    known = [key for key in dict.fromkeys(seen) if key in FIELDS]
    if not any([key for key in order if key in known] == known for order in ORDERS):
        column = line.fields[0][2]
        yield Repair.FIELD_ORDER, column, f"expected the keys in the order {' '.join(FIELDS)}"


def _refuse_irregular(text: str, line: Line) -> None:
    for _, column, problem in _irregularities(line):
        raise syntax_error(text, column, problem)
