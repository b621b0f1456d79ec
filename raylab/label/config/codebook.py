"""Codebooks in YAML files: labels or fields, with definitions, examples, distances and rules."""

import json
import os
import re
from collections.abc import Mapping
from importlib import resources
from itertools import pairwise
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, ValidationError, model_validator

from raylab.core.config.base import Location, RunName, Strict
from raylab.core.config.schema import explain_errors
from raylab.core.config.yaml import Path, read_yaml_file
from raylab.core.errors import ConfigError

EXAMPLES: Mapping[str, str] = {
    name: str(resources.files("raylab.label.codebooks") / f"examples/{name}.yaml")
    for name in ("sentiment", "topics", "entities")
}
"""The files of the packaged codebooks, by name."""
MARKUP = re.compile(r"\{[{%#]|</?[A-Za-z!][^<>]*>|<[|\uff5c]|\[/?INST\]|[\0-\x08\x0b-\x1f]")
"""Text that templates, browsers or chat servers would interpret."""


class _LabelError(ValueError):
    """A problem of one label; `label` is its name."""

    def __init__(self, label: str, problem: str) -> None:
        super().__init__(problem)
        self.label = label


def _without_markup(text: str) -> str:
    if markup := MARKUP.search(text):
        raise ValueError(f"holds the markup {markup[0][:40]!r}: write it in words")
    return text


Prose = Annotated[str, Field(min_length=1, max_length=4000), AfterValidator(_without_markup)]
LABEL = re.compile(r"^\w([\w .'+-]{0,58}[\w+])?$")
"""A name of a label, which needs no quotation marks in YAML."""
LabelName = Annotated[str, Field(pattern=LABEL.pattern)]
NO_LABELS = ("unclear", "undo")
"""Decisions of reviewers that would be read as labels of these names, in lower case."""
FieldName = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{0,30}$")]
Row = tuple[float, ...]


class LabelText(Strict):
    """The meaning of a label; a text alone is its definition."""

    definition: Prose
    examples: list[Prose] = Field(default=[])
    """Texts that have the label."""
    counterexamples: list[Prose] = Field(default=[])
    """Texts that seem to have it, each with what it has instead."""


def _as_definition(value: object) -> object:
    return {"definition": value} if isinstance(value, str) else value


Labels = dict[LabelName, Annotated[LabelText, BeforeValidator(_as_definition)]]


def _distinct(labels: Labels) -> Labels:
    """Refuses labels that a reply in another case, or a truncated one, would confuse."""
    names = sorted(labels, key=str.casefold)
    if len(names) < 2:
        raise ValueError("needs two labels or more, each with its definition")
    for name in names:
        if name.casefold() in NO_LABELS:
            raise _LabelError(name, f"{name} is what a reviewer says without a label: rename it")
    for name, longer in pairwise(names):
        if name.casefold() == longer.casefold():
            raise _LabelError(longer, f"{name} and {longer} are one label: rename or remove one")
        if longer.casefold().startswith(name.casefold()):
            raise _LabelError(
                longer, f"{longer} begins with the label {name}, as which it may be read: rename it"
            )
    return labels


class FieldConfig(Strict):
    """A question about a text, answered by one label, several, a number or a text."""

    definition: Prose | None = None
    labels: Annotated[Labels, AfterValidator(_distinct)] | None = None
    """The labels, in their order."""
    several: bool = False
    """One label or more, instead of one."""
    number: tuple[int | float, int | float] | None = None
    """The least and the greatest number; whole numbers if both are."""
    text: Annotated[int, Field(ge=1, le=1000)] | None = None
    """Most characters of a text."""
    compare: Literal["none", "exact", "similar"] = "none"
    """Whether texts are compared: by nobody, as they are, or by the share of edits between them,
    which makes no two answers different."""
    optional: bool = False
    """An answer may leave the field empty."""
    distance: Literal["equal", "graded", "jaccard", "masi"] | tuple[Row, ...] = "equal"
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
        if self.distance in ("jaccard", "masi") and not self.several:
            raise ValueError(f"distance: {self.distance} is of sets: give several: true")
        if self.number and self.number[0] >= self.number[1]:
            raise ValueError("number is the least and the greatest, as in [0, 10]")
        return self


class Rule(Strict):
    """A criterion by which the evaluator judges an answer."""

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
        ConfigError: The file cannot be used; the message names the line and the way out.
    """
    document = read_yaml_file(location)
    values = document.value
    if isinstance(values, dict) and isinstance(values.get("cases"), str):
        values["cases"] = os.path.join(os.path.dirname(location), values["cases"])
    try:
        CodebookConfig.model_validate_json(json.dumps(values), strict=True)
    except ValidationError as error:
        first, lines = error.errors(include_url=False)[0], document.lines
        path: Path = tuple(key for key in first["loc"] if key != "[key]")
        label = getattr(first.get("ctx", {}).get("error"), "label", None)
        while label is None and path and path not in lines:
            path = path[:-1]
        line = lines.get((*path, label) if label else path, 1)
        if first["type"] == "string_pattern_mismatch":
            name = str(first["input"])[:60]
            problem = f"{name!r} is no name: a name has letters, digits, blanks and . ' + - _"
        else:
            problem = str(explain_errors(CodebookConfig, error)[0])
        raise ConfigError(f"codebook {location}, line {line}: {problem}") from None
    return values
