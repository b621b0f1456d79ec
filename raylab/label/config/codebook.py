"""Codebooks in YAML files: labels or fields, with definitions, examples, distances and rules."""

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from importlib import resources
from itertools import pairwise
from typing import Annotated, Any, Literal, Self, TypeGuard, cast

from pydantic import AfterValidator, BeforeValidator, Field, ValidationError, model_validator
from pydantic_core import InitErrorDetails, PydanticCustomError

from raylab.core.config.base import Location, RunName, Strict
from raylab.core.config.schema import explain_errors
from raylab.core.config.yaml import read_yaml_file
from raylab.core.errors import ConfigError

EXAMPLES: Mapping[str, str] = {
    name: str(resources.files("raylab.label.codebooks") / f"examples/{name}.yaml")
    for name in ("sentiment", "topics", "entities")
}
"""The files of the packaged codebooks, by name."""
MARKUP = re.compile(r"\{[{%#]|</?[A-Za-z!][^<>]*>|<[|\uff5c]|\[/?INST\]|[\0-\x08\x0b-\x1f]")
"""Text that templates, browsers or chat servers would interpret."""
LABEL = re.compile(r"\w([\w .'+/&?!()%#@$=-]{0,58}[\w+?!)%#$=])?")
"""A name of a label."""
FIELD = re.compile(r"[a-z][a-z0-9_]{0,30}")
NO_LABELS = ("unclear", "undo")
"""Decisions of reviewers that would be read as labels of these names, in lower case."""
MAX_NUMBER = 1e300
MAX_SHOWN = 5
"""Most problems of a file that an error lists."""
SETS = ("jaccard", "masi")
DISTANCES = ("equal", "graded", *SETS)


def _without_markup(text: str) -> str:
    if markup := MARKUP.search(text):
        raise ValueError(f"holds the markup {markup[0][:40]!r}: write it in words")
    return text


def _check_field(name: str) -> str:
    if not FIELD.fullmatch(name):
        form = "begin with a letter and have at most 31 small letters, digits and _"
        raise ValueError(f"{name[:60]!r} is no name: it should {form}")
    return name


def _as_definition(value: object) -> object:
    if not isinstance(value, str | dict):
        raise ValueError("should be what the label means, in words")
    return {"definition": value} if isinstance(value, str) else value


def _check_labels(value: object) -> object:
    """Refuses labels that a reply in another case, or a truncated one, would confuse."""
    if not isinstance(value, dict):
        raise ValueError("should be labels with their meanings, as in {late: It came too late.}")
    names = sorted(cast("dict[str, Any]", value), key=str.casefold)
    if len(names) < 2:
        raise ValueError("needs two labels or more, each with its definition")

    def problems() -> Iterator[tuple[str, str]]:
        for name in names:
            if not LABEL.fullmatch(name):
                form = "begin and end with a letter or digit, and have at most 60 letters, digits, "
                form += "blanks and . ' + / & ? ! ( ) % # @ $ = - _"
                yield name, f"{name[:60]!r} is no name: it should {form}"
            if name.casefold() in NO_LABELS:
                yield name, f"{name} is what a reviewer says without a label: rename it"
        # All that begin with a label follow it in this order, so neighbours are enough.
        for name, longer in pairwise(names):
            if name.casefold() == longer.casefold():
                yield longer, f"{name} and {longer} are one label: rename or remove one"
            elif longer.casefold().startswith(name.casefold()):
                problem = f"begins with the label {name}, as which it may be read: rename it"
                yield longer, f"{longer} {problem}"

    errors = [
        InitErrorDetails(
            type=PydanticCustomError("value_error", "{problem}", {"problem": problem}),
            loc=(name,),
            input=name,
        )
        for name, problem in problems()
    ]
    if errors:
        raise ValidationError.from_exception_data("labels", errors)
    return cast(object, value)


def _check_range(value: object) -> object:
    ends = cast("list[object]", value) if isinstance(value, list | tuple) else []
    if not _are_numbers(ends) or len(ends) != 2 or not ends[0] < ends[1]:
        raise ValueError("should be the least and the greatest number, as in [0, 10]")
    return tuple(ends)


def _check_distance(value: object) -> object:
    if isinstance(value, str) and value in DISTANCES:
        return value
    rows = cast("list[object]", value) if isinstance(value, list | tuple) else []
    table = [tuple(cast("list[object]", row)) for row in rows if isinstance(row, list | tuple)]
    if not table or len(table) < len(rows) or not all(map(_are_numbers, table)):
        raise ValueError(f"should be {', '.join(DISTANCES)}, or a row of distances per label")
    return tuple(table)


def _are_numbers(values: Sequence[object]) -> TypeGuard[Sequence[float]]:
    return all(
        isinstance(each, int | float) and not isinstance(each, bool) and abs(each) < MAX_NUMBER
        for each in values
    )


Prose = Annotated[str, Field(min_length=1, max_length=4000), AfterValidator(_without_markup)]
FieldName = Annotated[str, AfterValidator(_check_field)]


class LabelText(Strict):
    """The meaning of a label; a text alone is its definition."""

    definition: Prose
    examples: list[Prose] = Field(default=[])
    """Texts that have the label."""
    counterexamples: list[Prose] = Field(default=[])
    """Texts that seem to have it, each with what it has instead."""


Labels = dict[str, Annotated[LabelText, BeforeValidator(_as_definition)]]
Range = tuple[int | float, int | float]
Table = tuple[tuple[float, ...], ...]


class FieldConfig(Strict):
    """A question about a text, answered by one label, several, a number or a text."""

    definition: Prose | None = None
    labels: Annotated[Labels, BeforeValidator(_check_labels)] | None = None
    """The labels, in their order."""
    several: bool = False
    """One label or more, instead of one."""
    number: Annotated[Range, BeforeValidator(_check_range)] | None = None
    """The least and the greatest number; whole numbers if both are."""
    text: Annotated[int, Field(ge=1, le=1000)] | None = None
    """Most characters of a text."""
    compare: Literal["none", "exact", "similar"] = "none"
    """Whether texts are compared: by nobody, as they are, or by the share of edits between them,
    which makes no two answers different."""
    optional: bool = False
    """An answer may leave the field empty."""
    distance: Annotated[str | Table, BeforeValidator(_check_distance)] = "equal"
    """`equal` is 0 or 1; `graded` the steps between labels in their order, or the difference of
    numbers, as shares of the most; `jaccard` and `masi` are of sets; or a row of distances per
    label."""

    @property
    def is_compared(self) -> bool:
        """True if other values make another answer."""
        return self.text is None or self.compare == "exact"

    @model_validator(mode="after")
    def _one_kind(self) -> Self:
        kinds = [name for name in ("labels", "number", "text") if getattr(self, name) is not None]
        if len(kinds) > 1:
            raise ValueError(f"has {' and '.join(kinds)}: keep one")
        if self.labels is None and (self.several or isinstance(self.distance, tuple)):
            raise ValueError("several and a table of distances need labels: remove them")
        if self.text is None and self.compare != "none":
            raise ValueError("compare is for texts: remove it, or give a distance")
        if self.text is not None and self.distance != "equal":
            raise ValueError("a text has no distance: give compare: exact or compare: similar")
        if self.distance in SETS and not self.several:
            raise ValueError(f"distance: {self.distance} is of sets: give several: true")
        return self


class Rule(Strict):
    """A criterion of the evaluator for an answer."""

    text: Prose
    cap: Annotated[int, Field(ge=0, le=100)] | None = None
    """Highest score of an answer that does not meet it."""


class CodebookConfig(FieldConfig):
    """A codebook: `labels`, or `fields` that make up an answer."""

    name: RunName
    task: Prose
    """What to look for in a text; it opens every prompt."""
    noun: Prose = "a code"
    """What an answer is called in messages, with its article."""
    fields: dict[FieldName, FieldConfig] = Field(default={})
    """The fields of an answer, in the order in which they are asked for."""
    cases: Location | None = None
    """File of cases that comes with it, beside its own."""
    rules: dict[FieldName, Rule] = Field(default={})
    """Further criteria by name: `labels` is always one."""

    @model_validator(mode="after")
    def _labels_or_fields(self) -> Self:
        if self.number or self.text or (self.labels is None) == (not self.fields):
            raise ValueError("give labels: with a definition each, or fields: that make an answer")
        for name, field in self.fields.items():
            if field.labels is None and field.number is None and field.text is None:
                raise ValueError(f"the field {name} needs labels, number or text")
        if self.optional:
            raise ValueError("optional is for fields: add a label for texts without one")
        if not any(field.is_compared for field in self.parts.values()):
            raise ValueError("no field is compared: one needs labels, number, or compare: exact")
        if clash := self.rules.keys() & {"format", "labels"}:
            raise ValueError(f"the rule {clash.pop()} is there already: rename it")
        return self

    @property
    def parts(self) -> Mapping[str, FieldConfig]:
        """The fields by name; a codebook of labels alone has one without a name."""
        return self.fields or {"": self}


def read_codebook(location: str) -> dict[str, Any]:
    """Reads the file of a codebook as the values of a `CodebookConfig`.

    Raises:
        ConfigError: The file cannot be used; the message names lines and the way out.
    """
    document = read_yaml_file(location)
    values = document.value
    if isinstance(values, dict) and isinstance(values.get("cases"), str):
        values["cases"] = os.path.join(os.path.dirname(location), values["cases"])
    try:
        # As JSON, because strict reading takes a list for a tuple there alone.
        CodebookConfig.model_validate_json(json.dumps(values), strict=True)
    except ValidationError as error:
        problems = list[tuple[int, str]]()
        for problem in explain_errors(CodebookConfig, error):
            path = problem.keys
            # A key that is missing has no line: that of what lacks it is told.
            while path and path not in document.lines:
                path = path[:-1]
            problems.append((document.lines.get(path, 1), str(problem)))
        lines = [f"line {line}: {problem}" for line, problem in sorted(problems)]
        lines[MAX_SHOWN:] = [f"and {len(lines) - MAX_SHOWN} more"] * (len(lines) > MAX_SHOWN)
        raise ConfigError("\n  ".join([f"codebook {location}, {lines[0]}", *lines[1:]])) from None
    return values
