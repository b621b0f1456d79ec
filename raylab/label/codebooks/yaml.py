"""The codebook that a file describes: its answers, distances, forms and prompts.

An answer is a record of fields; a codebook of labels alone has one unnamed field. Categories are
labels, or `field: value` in a record of several fields.
"""

import hashlib
import json
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, partial
from importlib import resources
from typing import Annotated, Any, Literal, cast

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    create_model,
)
from rapidfuzz.distance import Levenshtein

from raylab.core.config.yaml import plain_value, read_yaml
from raylab.core.errors import DataError, LabelError
from raylab.label.codebooks.codebook import (
    FORMAT,
    SHORT_TEXT,
    AnswerForm,
    Categories,
    Codebook,
    Criterion,
    Label,
    PromptSet,
    clean,
    field_of,
    quote,
)
from raylab.label.codebooks.distances import Distance, check_metric, equal_sets
from raylab.label.config.codebook import LABEL, CodebookConfig, FieldConfig
from raylab.llm.prompts import Schema

FOLDER = resources.files("raylab.label.codebooks")
LABELS = Criterion("labels", 50, ("label", "value", "values", "field", "fields"))
"""The criterion that a label or value is right."""
KEYWORDS = {"type", "enum", "items", "maxItems", "minimum", "maximum", "properties", "required"}
"""Keywords in pydantic's schemas that OpenAI's strict mode and llama.cpp's grammars support."""
MAX_LINE = 4096
"""Most characters of the text of an answer."""
JOINT = ", "


def make_codebook(config: CodebookConfig) -> Codebook:
    """Returns the codebook that a file describes.

    Raises:
        DataError: A table of distances is no metric.
    """
    answers, parts = _Answers(config), config.parts
    version = _digest([answers.version, [[name, each.distance] for name, each in parts.items()]])
    distances = {name: _distance(name, field) for name, field in parts.items()}
    rules = (Criterion(name, rule.cap) for name, rule in config.rules.items())
    criteria = (LABELS, *rules)
    return Codebook(
        name=config.name,
        version=answers.version,
        label_name=config.noun,
        case_sets={"examples": (config.cases,)} if config.cases else {},
        categories=dict.fromkeys(answers.categories, ""),
        examples=(answers.example,),
        criteria=(FORMAT, *criteria),
        bait=frozenset(),
        prompts={
            style: _prompt_set(answers, criteria, style) for style in ("maximal", "minimal", "word")
        },
        distance=_RecordDistance(f"{config.name}-{version}", distances),
        parse=answers.read,
        read=answers.read,
        parse_own=answers.read,
        definitions=answers.categories,
    )


# Answers


def _spell(value: object, info: ValidationInfo, spelt: Mapping[str, str]) -> object:
    """Returns the label that a value spells in another case, or as a number or word of YAML."""
    text = value if isinstance(value, str) else json.dumps(value)
    return _note(value, spelt.get(" ".join(text.split()).casefold(), value), info)


def _squeeze(value: object, info: ValidationInfo) -> object:
    """Returns a text on one line, of printable characters."""
    if not isinstance(value, str):
        return value
    shown = "".join(c if c.isprintable() else " " for c in clean(value))
    return _note(value, " ".join(shown.split()), info)


def _note(written: object, read: object, info: ValidationInfo) -> object:
    """Notes a repair in the context, and returns what is read."""
    if written != read:
        cast(list[str], info.context).append(f"{quote(written)} read as {quote(read)}")
    return read


def _type_of(field: FieldConfig) -> Any:
    """Returns the type of a field's values, for a pydantic model."""
    if field.number:
        low, high = field.number
        return Annotated[_number_type(field), Field(ge=low, le=high, strict=True)]
    if field.text:
        text = Annotated[str, Field(min_length=1, max_length=field.text)]
        return Annotated[text, BeforeValidator(_squeeze)]
    names = [*(field.labels or ())]
    spell = BeforeValidator(partial(_spell, spelt={name.casefold(): name for name in names}))
    label: Any = Annotated[Literal[tuple(names)], spell]
    if not field.several:
        return label
    order = AfterValidator(lambda chosen: sorted({*chosen}, key=names.index))
    return Annotated[list[label], Field(min_length=1), order, Field(max_length=len(names))]


def _number_type(field: FieldConfig) -> Any:
    return int if all(isinstance(end, int) for end in field.number or ()) else float


@dataclass(frozen=True, eq=False)
class _Answers:
    """The answers that a codebook admits."""

    config: CodebookConfig

    @property
    def key(self) -> str:
        """The key of an answer in replies."""
        return "answer" if self.config.fields else "labels" if self.config.several else "label"

    @cached_property
    def model(self) -> type[BaseModel]:
        """The model of an answer: its schema, reader and validator."""
        fields = {name or self.key: _type_of(field) for name, field in self.config.parts.items()}
        return create_model("Answer", __config__=ConfigDict(extra="forbid"), **fields)

    @cached_property
    def schema(self) -> Schema:
        """The JSON schema of an answer."""
        whole = _strict(self.model.model_json_schema())
        return whole if self.config.fields else whole["properties"][self.key]

    @cached_property
    def categories(self) -> dict[str, str]:
        """The meaning of each label, in the order of the file."""
        return {
            f"{name}: {label}" if name else label: text.definition
            for name, field in self.config.parts.items()
            for label, text in (field.labels or {}).items()
        }

    @cached_property
    def version(self) -> str:
        """A digest of the fields and labels."""
        return _digest([[*self.categories], self.schema])

    @property
    def example(self) -> str:
        """An answer as a person may write it."""
        values: dict[str, Any] = {}
        for name, field in self.config.parts.items():
            value: Any = field.number[0] if field.number else next(iter(field.labels or ("text",)))
            values[name or self.key] = [value] if field.several else value
        return str(self._label(self.model.model_validate(values)))

    def read(self, value: object, repairs: list[str] | None = None) -> Label:
        """Reads a JSON value, or a text such as that of a label; adds the repairs to a list."""
        values = self._parse(value) if isinstance(value, str) else value
        values = values if self.config.fields else {self.key: values}
        try:
            answer = self.model.model_validate(values, context=[] if repairs is None else repairs)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            name = "".join(f"{field}: " for field in first["loc"][:1] if self.config.fields)
            raise LabelError(f"{name}{first['msg'][:300]}, found {quote(first['input'])}") from None
        return self._label(answer)

    def _parse(self, text: str) -> object:
        """Returns the value of a text: a word, or the inside of a list or a mapping in YAML."""
        ends = "{}" if self.config.fields else "[]" if self.config.several else ""
        text = text.strip()
        if not ends:
            return text.strip("\"'`*. ")
        if len(text) > MAX_LINE:
            raise LabelError(f"{len(text):,} characters are no answer: at most {MAX_LINE:,}")
        whole = text if text[:1] == ends[0] else f"{ends[0]}{text}{ends[1]}"
        with suppress(ValueError, RecursionError):
            return json.loads(whole)
        try:
            return read_yaml(whole).value
        except DataError as error:
            raise LabelError(f"{error}, found {quote(text)}") from None

    def _label(self, answer: BaseModel) -> Label:
        line, parts = list[str](), list[tuple[str, str]]()
        for name, field in self.config.parts.items():
            value, title = getattr(answer, name or self.key), f"{name}: " if name else ""
            items = cast(list[Any], value if field.several else [value])
            written = JOINT.join(map(_in_yaml if name or field.several else str, items))
            line.append(f"{title}[{written}]" if title and field.several else f"{title}{written}")
            texts = (v if field.labels else json.dumps(v, ensure_ascii=False) for v in items)
            parts += [(JOINT, f"{title}{text}") for text in texts]
        parts[0] = ("", parts[0][1])
        return Label(JOINT.join(line), JOINT.join(line), tuple(parts), {})


def _in_yaml(value: object) -> str:
    """Returns a value in YAML: a text without quotation marks if it reads as itself."""
    if isinstance(value, str) and LABEL.fullmatch(value) and plain_value(value) == value:
        return value
    return json.dumps(value, ensure_ascii=False)


def _strict(schema: Schema) -> Schema:
    """Returns a schema with only the keywords that all endpoints enforce."""
    kept = {key: value for key, value in schema.items() if key in KEYWORDS}
    if "items" in kept:
        kept["items"] = _strict(kept["items"])
    if "properties" in kept:
        kept["properties"] = {name: _strict(own) for name, own in kept["properties"].items()}
        kept["additionalProperties"] = False
    return kept


# Distances


SetDistance = Callable[[Categories, Categories], float]


@dataclass(frozen=True, eq=False)
class _RecordDistance:
    """The mean distance of the fields of two answers, each in [0, 1].

    Attributes:
        version: Name recorded with results.
        fields: The distance of each field, by its name.
    """

    version: str
    fields: Mapping[str, SetDistance]

    def __call__(self, a: Categories, b: Categories) -> float:
        """Returns the distance of two answers by their categories."""
        total = 0.0
        for name, distance in self.fields.items():
            ours, theirs = (frozenset(c for c in each if field_of(c) == name) for each in (a, b))
            total += distance(ours, theirs)
        return total / len(self.fields)


def _digest(content: object) -> str:
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:8]


def _distance(name: str, field: FieldConfig) -> SetDistance:
    """Returns the distance of one field, between sets of categories."""
    if field.labels is None or field.distance == "equal":
        if field.distance == "equal":
            return equal_sets
        return partial(_number_distance if field.number else _text_distance, field=field)
    names = tuple(f"{name}: {label}" if name else label for label in field.labels)
    if field.distance == "graded":
        steps, most = range(len(names)), len(names) - 1
        return Distance("", names, [[abs(i - j) / most for j in steps] for i in steps])
    check_metric(field.distance, names, f"distance of {name or 'the labels'}")
    return Distance("", names, field.distance)


def _value(categories: Categories) -> Any:
    return json.loads(next(iter(categories)).partition(": ")[2])


def _number_distance(a: Categories, b: Categories, field: FieldConfig) -> float:
    assert field.number
    return abs(_value(a) - _value(b)) / (field.number[1] - field.number[0])


def _text_distance(a: Categories, b: Categories, field: FieldConfig) -> float:
    return Levenshtein.normalized_distance(_value(a).casefold(), _value(b).casefold())


# Prompts


def _prompt_set(answers: _Answers, criteria: tuple[Criterion, ...], style: str) -> PromptSet:
    small = style == "word"
    schema = answers.schema
    if small and answers.config.fields:
        texts = (name for name, field in answers.config.fields.items() if field.text)
        schema = {**schema, "properties": schema["properties"] | dict.fromkeys(texts, SHORT_TEXT)}
    form = AnswerForm(
        name=re.sub(r"[^A-Za-z0-9]+", "_", answers.config.name),
        key=answers.key,
        label=schema,
        read=answers.read,
        criteria=criteria,
        failed_criterion=LABELS.name if small else None,
    )
    made = {"_codebook.j2": "".join(_describe(answers, full=style == "maximal"))}
    names = ("classify", "evaluate", "adjudicate")
    return PromptSet.read(FOLDER / "prompts", names, form, style == "maximal", made)


def _describe(answers: _Answers, full: bool) -> Iterator[str]:
    """Yields the codebook as text for a prompt, with examples if `full`."""
    config = answers.config
    yield f"{config.task}\n"
    if config.fields:
        yield f"\nThe {answers.key} is an object with the keys {', '.join(config.fields)}.\n"
    for name, field in config.parts.items():
        yield f"\n{_ask(name or answers.key, field)}\n"
        for label, text in (field.labels or {}).items():
            yield f"- {label}: {text.definition}\n"
            shown = {"Such as": text.examples, "Not": text.counterexamples} if full else {}
            for said, examples in shown.items():
                yield "".join(f"  {said}: {example}\n" for example in examples)
    if config.rules:
        yield "\nCriteria besides right labels:\n"
        yield "".join(f"- {name}: {rule.text}\n" for name, rule in config.rules.items())


def _ask(name: str, field: FieldConfig) -> str:
    """Describes the values of a field."""
    if field.number:
        whole = "whole number" if _number_type(field) is int else "number"
        kind = f"a {whole} from {field.number[0]} to {field.number[1]}"
    elif field.text:
        kind = f"a text of at most {field.text} characters"
    else:
        kind = f"{'one or more' if field.several else 'one'} of"
    said = f" ({field.definition})" if field.definition else ""
    return f"{name}{said}: {kind}{':' if field.labels else '.'}"
