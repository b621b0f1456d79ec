"""OPT-Codes, read strictly or from a model's reply, and written in canonical form.

    code = parse("The answer is `opt: learning & Sch`, since ...")
    str(code)           # OPT=Lrn+Sch
    code.repairs        # the kinds of repairs

The canonical line follows the formal grammar (2026-02), with optional fields and Locus from v1.0
(2025-11): roots are distinct, operands of `+` in the order of `Root`, those of `/` as written.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from itertools import chain

from raylab.errors import OptCodeError
from raylab.opt.notation import (
    FIELDS,
    KEY,
    LONG_NAMES,
    VALUE,
    Composed,
    Expression,
    Line,
    Repair,
    Root,
    escaped,
    means_other,
    read_line,
)
from raylab.opt.search import find_line

__all__ = [
    "FIELDS",
    "LONG_NAMES",
    "Composed",
    "Expression",
    "OptCode",
    "OptCodeError",
    "Repair",
    "Root",
    "bare",
    "parse",
    "read_canonical",
]

ASKED_FIELDS = ("Rep", "Obj", "Data", "Time", "Human")
"""The fields that the classifier is asked for."""
ORDER = {root: place for place, root in enumerate(Root)}

Step = tuple[str, Root]
"""A root and the operator before it; for the first root this is `+`, which is not written."""


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
    repairs: tuple[Repair, ...] = ()

    def __post_init__(self) -> None:
        for key, value in self.fields.items():
            if not KEY.fullmatch(key) or not VALUE.fullmatch(value) or means_other(key):
                raise OptCodeError(
                    f"field '{escaped(f'{key}={value}')}' cannot be written: a key has letters, "
                    f"digits, - and _ and is no other form of {', '.join(FIELDS)}; a value has "
                    "letters, digits and + - _ . , of which a letter or digit comes first and "
                    "neither . nor , last"
                )
        unknown = sorted(self.fields.keys() - set(FIELDS))
        ordered = [*(key for key in FIELDS if key in self.fields), *unknown]
        object.__setattr__(self, "fields", {key: self.fields[key] for key in ordered})

    @property
    def parts(self) -> list[tuple[str, Root]]:
        """The roots of the canonical line, each after its operator; the first has none."""
        return self._parts

    @cached_property
    def _parts(self) -> list[tuple[str, Root]]:
        (_, first), *others = _canonical(_steps(self.expression))
        return [("", first), *others]

    @property
    def composition(self) -> str:
        """The expression in canonical notation, such as `Evo/Lrn+Ctl`; equal for equal trees."""
        return "".join(f"{operator}{root}" for operator, root in self.parts)

    @property
    def roots(self) -> frozenset[Root]:
        """The set of roots, without their composition."""
        return frozenset(root for _, root in self.parts)

    @property
    def categories(self) -> frozenset[Root]:
        """The roots, under the name of `raylab.codebook.Label`."""
        return self.roots

    @property
    def primary(self) -> Root:
        """The first root of the canonical line."""
        return self.parts[0][1]

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
    try:
        return _code(read_line(alone))
    except OptCodeError:
        if strict:
            raise
    return _code(find_line(text))


def bare(text: str) -> OptCode:
    """Reads an expression without `OPT=`, as in tables of codes; nothing is repaired.

    Raises:
        OptCodeError: The text is no expression of the published notations.
    """
    return _code(read_line(text.strip(" \t\n"), marked=False))


def read_canonical(line: str) -> OptCode:
    """Reads a canonical line, as written by `str` of a code, much faster than `parse`.

    Raises:
        OptCodeError: The text is no such line.
    """
    start, *fields = line.split("; ")
    pairs = (field.partition("=") for field in fields)
    return OptCode(_expression(start), {key: value for key, _, value in pairs})


@lru_cache(maxsize=1 << 14)
def _expression(start: str) -> Expression:
    return read_line(start).expression


def _code(line: Line) -> OptCode:
    return OptCode(line.expression, line.fields, line.repairs)


def _steps(expression: Expression) -> list[Step]:
    """Returns the expression without braces and brackets; roots may repeat.

    Since the canonical notation groups from the left only, composed operands of `+` are moved to
    its front and the others sorted.
    """
    if isinstance(expression, Root):
        return [("+", expression)]
    match expression.operator:
        case "+":
            return _join("+", map(_steps, sorted(expression.parts, key=_rank)))
        case "{}":
            outer, *branches = map(_steps, expression.parts)
            return [*outer, *_lead_with("/", _join("+", sorted(branches, key=_places)))]
        case _:
            return _join("/", map(_steps, expression.parts))


def _join(operator: str, operands: Iterable[list[Step]]) -> list[Step]:
    first, *others = operands
    return [*first, *chain.from_iterable(_lead_with(operator, steps) for steps in others)]


def _lead_with(operator: str, steps: list[Step]) -> list[Step]:
    return [(operator, steps[0][1]), *steps[1:]]


def _rank(operand: Expression) -> int:
    return ORDER[operand] if isinstance(operand, Root) else -1


def _places(steps: list[Step]) -> list[int]:
    return [ORDER[root] for _, root in _canonical(steps)]


def _canonical(steps: list[Step]) -> list[Step]:
    """Returns each root at its first place, neighbouring operands of `+` in the order of `Root`."""
    distinct: dict[Root, str] = {}
    for operator, root in steps:
        distinct.setdefault(root, operator)
    runs: list[list[Step]] = [[]]
    for root, operator in distinct.items():
        if operator == "/":
            runs += [[(operator, root)], []]
        else:
            runs[-1].append((operator, root))
    return [step for run in runs for step in sorted(run, key=lambda step: ORDER[step[1]])]
