"""The interface that a taxonomy offers to the annotation protocol.

A codebook defines the categories, reads answers as labels, compares labels and holds the prompts.
`raylab.opt` implements one.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cache
from typing import Annotated, Any, Literal, Protocol, TypeVar, cast, get_args, runtime_checkable

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationInfo,
    WithJsonSchema,
)
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from rapidfuzz.distance import Levenshtein

from raylab.config.base import Strict
from raylab.errors import LabelError
from raylab.llm.prompts import PromptFile, Schema

Categories = frozenset[str]
"""The categories of a label; empty where there is no label."""


@runtime_checkable
class Label(Protocol):
    """A classification of a case; hashable, and equal to those with the same canonical line.

    `str(label)` is the canonical line.
    """

    def __str__(self) -> str:
        """Returns the canonical line."""
        ...

    def __hash__(self) -> int:
        """Returns the hash of the canonical line."""
        ...

    @property
    def written(self) -> str:
        """The line as it was written, before it was brought to the canonical form."""
        ...

    @property
    def composition(self) -> str:
        """The part of the canonical line that decides whether two answers are the same."""
        ...

    @property
    def categories(self) -> Categories:
        """The set of categories in the label; at least one."""
        ...

    @property
    def primary(self) -> str:
        """The main category, for statistics that count one category per label."""
        ...

    @property
    def parts(self) -> Sequence[tuple[str, str]]:
        """Operator and category of each part; the first part has no operator."""
        ...

    @property
    def fields(self) -> Mapping[str, str]:
        """The attributes of the label, by key."""
        ...


L = TypeVar("L", bound=Label)


class SetDistance(Protocol):
    """A distance between two sets of categories."""

    @property
    def version(self) -> str:
        """The name of the distance, recorded with results."""
        ...

    def __call__(self, a: Categories, b: Categories, /) -> float:
        """Returns the distance of two non-empty sets, in [0, 1]; a metric."""
        ...


class Agreement(Strict):
    """The agreement of two labels, in the measures of the evaluation protocol.

    Attributes:
        exact: True if the compositions are identical; fields do not count.
        jaccard: Jaccard index of the sets of categories, in [0, 1].
        levenshtein: Edits between the lines as written, the string distance of the protocol.
        levenshtein_normalised: Edits divided by the length of the longer line, in [0, 1]; 0 means
            equal lines.
        weighted: 1 minus the distance of the sets, in [0, 1]; 1 only for equal sets.
        composition: 1 for the same composition, 0.5 for the same categories composed differently,
            else 0.
        distance: Version of the distance used for `weighted`.
    """

    exact: bool
    jaccard: float
    levenshtein: int
    levenshtein_normalised: float
    weighted: float
    composition: float
    distance: str


def compare(a: Label, b: Label, distance: SetDistance) -> Agreement:
    """Compares two labels; symmetric.

    Args:
        a: One label.
        b: The other.
        distance: Between sets of categories.
    """
    exact, same_categories = a.composition == b.composition, a.categories == b.categories
    return Agreement(
        exact=exact,
        jaccard=len(a.categories & b.categories) / len(a.categories | b.categories),
        levenshtein=Levenshtein.distance(a.written, b.written),
        levenshtein_normalised=Levenshtein.normalized_distance(a.written, b.written),
        weighted=1.0 - distance(a.categories, b.categories),
        composition=1.0 if exact else 0.5 if same_categories else 0.0,
        distance=distance.version,
    )


class Verdict(StrEnum):
    """An evaluator's judgement, the best first."""

    PASS = "PASS"
    WEAK_PASS = "WEAK_PASS"
    FAIL = "FAIL"


@dataclass(frozen=True)
class Criterion:
    """A criterion by which an evaluator judges a label.

    Attributes:
        name: Name in reports and archives.
        cap: Highest score of a label that does not meet it; None does not limit the score.
        synonyms: Other names that models use, in lower case.
        asked: True if the evaluator judges it; otherwise it is computed.
    """

    name: str
    cap: int | None = None
    synonyms: tuple[str, ...] = ()
    asked: bool = True


FORMAT = Criterion("format", asked=False)
"""The criterion met by labels that need no repair; every codebook includes it."""


# Replies


@dataclass(frozen=True)
class ReplyReading:
    """The context in which a reply is validated: what names an issue, and the repairs so far."""

    criteria: tuple[Criterion, ...] = (FORMAT,)
    repairs: list[str] = field(default_factory=list[str])

    @staticmethod
    def at(info: ValidationInfo) -> "ReplyReading":
        """Returns the reading that a validator takes part in."""
        return info.context or ReplyReading()


def clean(text: str) -> str:
    """Returns the text with U+FFFD for NUL and lone surrogates, which no database stores."""
    return LONE_OR_NUL.sub("\ufffd", text)


def quoted(value: object) -> str:
    """Returns a value in quotation marks, cut to 60 characters."""
    text = value if isinstance(value, str) else json.dumps(value, default=str)
    return repr(text if len(text) <= SHOWN else f"{text[:SHOWN]}...")


def _read_text(value: object, info: ValidationInfo) -> str:
    if not isinstance(value, str):
        ReplyReading.at(info).repairs.append(f"{info.field_name} is no text: left out")
        return ""
    return clean(value).strip()


def _read_name(value: object, info: ValidationInfo) -> object:
    """Reads a name of a short list in other letters, such as `weak pass`."""
    if not isinstance(value, str):
        return value
    name = re.sub(r"[\s-]+", "_", value.strip())
    name = name.upper() if info.field_name == "verdict" else name.lower()
    if name != value:
        ReplyReading.at(info).repairs.append(f"{info.field_name} {quoted(value)} read as {name}")
    return name


def _read_score(value: object, info: ValidationInfo) -> object:
    """Reads a whole number in another form; not clamped, because 850 may mean 8.5 or 85."""
    text = value.strip() if isinstance(value, str) else repr(value)
    number = SCORE.fullmatch(text) if isinstance(value, str | float) else None
    if number is None:
        return value
    ReplyReading.at(info).repairs.append(f"score {quoted(value)} read as {number[1]}")
    return int(number[1])


def read_issues(value: object, info: ValidationInfo) -> tuple[str, ...]:
    """Reads the criteria named, in the order of reports, without the computed ones."""
    reading = ReplyReading.at(info)
    if isinstance(value, str):
        reading.repairs.append("issues given as text")
        value = re.split(r"[,;|\n]", value)
    if not isinstance(value, list):
        reading.repairs.append("issues is no list: left out")
        return ()
    meant = {
        name: criterion
        for criterion in reading.criteria
        for name in (criterion.name, *criterion.synonyms)
    }
    unmet: set[Criterion] = set()
    for item in cast(list[object], value):
        name = item.strip(" \t\"'*").lower() if isinstance(item, str) else ""
        criterion = meant.get(name)
        if criterion is None or not criterion.asked:
            reading.repairs.append(f"issue {quoted(item)} is no criterion that is asked: ignored")
            continue
        unmet.add(criterion)
        if item != criterion.name:
            reading.repairs.append(f"issue {quoted(item)} read as {criterion.name}")
    return tuple(criterion.name for criterion in reading.criteria if criterion in unmet)


def label_reader(read: "Callable[[str, list[str]], L]") -> "Callable[[object, ValidationInfo], L]":
    """Returns the validator of a label's field.

    Args:
        read: Takes the text and a list for its repairs; raises LabelError.
    """

    def validate(value: object, info: ValidationInfo) -> L:
        if not isinstance(value, str):
            raise ValueError("should be text")
        try:
            return read(value, ReplyReading.at(info).repairs)
        except LabelError as error:
            raise ValueError(str(error)) from None

    return validate


def names_schema(*names: str) -> WithJsonSchema:
    """Returns the schema of a text that is one of some names."""
    return WithJsonSchema({"type": "string", "enum": [*map(str, names)]})


SHOWN = 60
LONE_OR_NUL = re.compile("[\ud800-\udfff\0]")
SCORE = re.compile(r"([0-9]{1,3})(?:\.0*+)?\s*+(?:/\s*+100|%)?")
Text = Annotated[str, BeforeValidator(_read_text)]
Choice = Literal["first", "second", "synthesis"]


class ReplyModel(BaseModel):
    """A reply: its JSON schema is asked for, and its validators read what comes, with repairs.

    A codebook gives the keys of its replies as aliases, and the schemas of its labels.
    """

    model_config = ConfigDict(frozen=True)

    @classmethod
    def schema_asked(cls) -> Schema:
        """Returns the JSON schema that the endpoint is asked for: every key, in this order."""
        generated = cls.model_json_schema(schema_generator=_Untitled)
        properties: dict[str, Schema] = {
            key: {name: value for name, value in schema.items() if name != "default"}
            for key, schema in generated["properties"].items()
        }
        return {
            "title": generated["title"],
            "type": "object",
            "properties": properties,
            "required": list(properties),
            "additionalProperties": False,
        }

    @classmethod
    @cache
    def keys_asked(cls) -> tuple[str, ...]:
        """Returns the keys of the reply, in order."""
        return tuple(cls.schema_asked()["properties"])

    @classmethod
    def key_of(cls, name: str) -> str:
        """Returns the key of a field in the reply."""
        return cls.model_fields[name].alias or name


class _Untitled(GenerateJsonSchema):
    """Schemas without titles of their properties, in the order in which they are declared."""

    def field_title_should_be_set(self, schema: object) -> bool:
        return False

    def sort(self, value: JsonSchemaValue, parent_key: str | None = None) -> JsonSchemaValue:
        return value


class LabelReply(ReplyModel):
    """An annotator's answer."""

    rationale: Text = ""
    label: Any


class ReportReply(ReplyModel):
    """An evaluator's answer: reasons, unmet criteria, score from 0 to 100, verdict."""

    summary: Text = ""
    issues: Annotated[tuple[str, ...], BeforeValidator(read_issues)] = ()
    score: Annotated[int, Field(ge=0, le=100, strict=True), BeforeValidator(_read_score)]
    verdict: Annotated[Verdict, BeforeValidator(_read_name), names_schema(*Verdict)]


class ChoiceReply(ReplyModel):
    """An adjudicator's answer: one of the two labels shown, or a label of its own."""

    rationale: Text = ""
    choice: Annotated[
        Choice | None, BeforeValidator(_read_name), names_schema(*get_args(Choice))
    ] = None
    label: Any = None


@dataclass(frozen=True)
class AnswerForm:
    """The form in which models answer, in one style of prompts.

    Attributes:
        label: An annotator's answer.
        report: An evaluator's answer.
        choice: An adjudicator's answer.
        read: Reads a label in a text, and adds its repairs to a list; raises LabelError.
        show: Returns a label as it is shown to models.
        failed_criterion: The criterion that FAIL implies; None if the evaluator lists the unmet
            criteria.
    """

    label: type[LabelReply]
    report: type[ReportReply]
    choice: type[ChoiceReply]
    read: Callable[[str, list[str]], Label]
    show: Callable[[Label], str] = str
    failed_criterion: str | None = None


@dataclass(frozen=True)
class PromptSet:
    """The prompts of one style.

    Attributes:
        classify: Prompt of the annotators.
        evaluate: Prompt of the evaluator, also used to confirm adjudicated and human labels.
        adjudicate: Prompt of the adjudicator.
        repair: Second turn after a reply that cannot be read.
        form: Form in which models answer.
        open_book: True if the prompts name the systems of the cases with `meta.open_book`, whose
            gold then measures no accuracy.
        warning: Limits on what such answers show; None if there are none.
    """

    classify: PromptFile
    evaluate: PromptFile
    adjudicate: PromptFile
    repair: PromptFile
    form: AnswerForm
    open_book: bool = False
    warning: str | None = None


@dataclass(frozen=True, eq=False)
class Codebook:
    """A taxonomy with its notation.

    Attributes:
        name: Name in data sets, such as `opt-code`.
        version: Version of the set of categories.
        label_name: Noun for a label in messages, with its article, such as `an OPT-Code`.
        case_sets: Locations of the packaged cases, by name; `gold` is one of them.
        categories: Readable name of each category, in the order of the taxonomy.
        criteria: Criteria in the order of reports; `FORMAT` is one of them.
        execution_criterion: Name of the criterion that fails when execution is mistaken for a
            mechanism.
        execution_bait: Categories that execution details suggest: the bait of a trap that names
            none.
        styles: Prompt styles that a configuration may choose.
        prompts: Returns the prompts of a style, one of `styles`.
        prompt_catalogue: Returns every prompt by its hash.
        distance: Distance between sets of categories.
        parse: Reads the label in a text, with repairs where necessary; raises LabelError.
        read: Reads a canonical line, as written by `str(label)`; raises LabelError.
        parse_own: Reads a label that a person wrote, without repairs; raises LabelError.
    """

    name: str
    version: str
    label_name: str
    case_sets: Mapping[str, str]
    categories: Mapping[str, str]
    criteria: tuple[Criterion, ...]
    execution_criterion: str
    execution_bait: Categories
    styles: tuple[str, ...]
    prompts: Callable[[str], PromptSet]
    prompt_catalogue: Callable[[], Mapping[str, PromptFile]]
    distance: SetDistance
    parse: Callable[[str], Label]
    read: Callable[[str], Label]
    parse_own: Callable[[str], Label]
