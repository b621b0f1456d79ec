"""The codebook that a file describes: its answers, distances, forms and prompts.

An answer is a record of fields; a codebook of labels alone has one unnamed field. Categories are
labels, or `field: value` in a record, of the fields that are compared. A field that an answer
leaves empty has the category `field: -`, so that an empty value is an answer too.
"""

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import cached_property, partial
from importlib import resources
from typing import Annotated, Any, Literal, cast

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    TypeAdapter,
    ValidationError,
    ValidationInfo,
)

from raylab.core.config.schema import explain
from raylab.core.config.yaml import plain_value, read_yaml
from raylab.core.errors import DataError, LabelError
from raylab.label.codebooks.codebook import (
    FORMAT,
    SHORT_TEXT,
    AnswerError,
    AnswerField,
    AnswerForm,
    Codebook,
    Criterion,
    Label,
    PromptSet,
    clean,
    quote,
)
from raylab.label.codebooks.distances import NOTHING, RecordDistance, field_distance
from raylab.label.config.codebook import CodebookConfig, FieldConfig
from raylab.llm.prompts import Schema

FOLDER = resources.files("raylab.label.codebooks")
LABELS = Criterion("labels", 50, ("label", "value", "values", "field", "fields"))
"""The criterion that a label or value is right."""
KEYWORDS = {"type", "enum", "anyOf", "items", "maxItems", "minimum", "maximum"}
"""Keywords in pydantic's schemas that OpenAI's strict mode and llama.cpp's grammars support."""
MAX_LINE = 4096
"""Most characters of the text of an answer."""
JOINT = ", "
PLAIN = re.compile(r"\w([\w .'+-]*[\w+])?")
"""A text that needs no quotation marks in YAML."""


def make_codebook(config: CodebookConfig) -> Codebook:
    """Returns the codebook that a file describes.

    Raises:
        DataError: A table of distances is no metric.
    """
    answers, parts = _Answers(config), config.parts
    # Figures compare only at equal distances, so the version of the metric covers these too.
    questions = [[name, each.distance, each.compare] for name, each in parts.items()]
    version = _digest([answers.version, questions])
    compared = {
        name: each for name, each in parts.items() if each.is_compared or each.compare != "none"
    }
    metric = f"{config.name}-{version}"
    distances = {name: field_distance(name, field, metric) for name, field in compared.items()}
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
        distance=RecordDistance(metric, distances) if config.fields else distances[""],
        read=partial(answers.read, may_lack=True),
        parse_own=answers.read,
        parse_gold=partial(answers.read, may_lack=True),
        definitions=answers.categories,
        fields={
            name: AnswerField(distances.get(name), field.labels is not None and not field.several)
            for name, field in config.fields.items()
        },
        task=config.task,
        questions=parts,
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
    """Returns the type of a field's values, for a pydantic model; `_nothing` is an empty one."""
    least = 0 if field.optional else 1
    names = [*(field.labels or ())]
    if field.number:
        low, high = field.number
        kind: Any = Annotated[_number_type(field), Field(ge=low, le=high, strict=True)]
    elif field.text:
        text = Annotated[str, Field(min_length=least, max_length=field.text)]
        kind = Annotated[text, BeforeValidator(_squeeze)]
    else:
        spell = BeforeValidator(partial(_spell, spelt={name.casefold(): name for name in names}))
        kind = Annotated[Literal[tuple(names)], spell]
    if field.several:
        order = AfterValidator(lambda chosen: sorted({*chosen}, key=names.index))
        several = Annotated[list[kind], Field(min_length=least), order]
        kind = Annotated[several, Field(max_length=len(names))]
    if not field.optional:
        return kind
    nothing, words = _nothing(field), {"null", "none"} - {name.casefold() for name in names}

    def read(value: object) -> object:
        """Reads an empty value in any of the ways in which models write it."""
        is_word = not field.text and isinstance(value, str) and value.strip().casefold() in words
        return nothing if is_word or value in (None, "", []) else value

    return Annotated[kind | None if nothing is None else kind, BeforeValidator(read)]


def _nothing(field: FieldConfig) -> Any:
    return "" if field.text else [] if field.several else None


def _number_type(field: FieldConfig) -> Any:
    return int if all(isinstance(end, int) for end in field.number or ()) else float


class _Answers:
    """The answers that a codebook admits."""

    def __init__(self, config: CodebookConfig) -> None:
        self.config = config
        self._types = {
            name: TypeAdapter[Any](_type_of(field)) for name, field in config.parts.items()
        }

    @property
    def key(self) -> str:
        """The key of an answer in replies."""
        return "answer" if self.config.fields else "labels" if self.config.several else "label"

    @cached_property
    def schema(self) -> Schema:
        """The JSON schema of an answer."""
        kinds = {name: _strict(kind.json_schema()) for name, kind in self._types.items()}
        if not self.config.fields:
            return kinds[""]
        ends = {"type": "object", "additionalProperties": False}
        return {"properties": kinds, "required": [*kinds], **ends}

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
            values[name] = [value] if field.several else value
        return str(self.read(values if self.config.fields else values[""]))

    def read(
        self, value: object, repairs: list[str] | None = None, may_lack: bool = False
    ) -> Label:
        """Reads a JSON value, or a text such as that of a label; adds the repairs to a list.

        Args:
            may_lack: Whether the answer may lack fields, which then have no category.
        """
        parsed, parts = self._parse(value) if isinstance(value, str) else value, self.config.parts
        values = cast("dict[str, Any]", parsed if self.config.fields else {"": parsed})
        if not isinstance(parsed, dict) and self.config.fields:
            raise AnswerError(
                {"": f"should have the keys {', '.join(parts)}, found {quote(parsed)}"}
            )
        # Without any key of the codebook it is another thing, and no answer that lacks fields.
        lacks = may_lack and not parts.keys().isdisjoint(values)
        read, problems = dict[str, Any](), dict[str, str]()
        for name, kind in self._types.items():
            try:
                if name in values:
                    context = [] if repairs is None else repairs
                    read[name] = kind.validate_python(values[name], context=context)
                elif not lacks:
                    problems[name] = "is needed"
            except ValidationError as error:
                first = error.errors(include_url=False)[0]
                problems[name] = f"{explain(first)[:300]}, found {quote(first['input'])}"
        others = {str(name): own for name, own in values.items() if name not in parts}
        problems |= {name: f"is not asked for, found {quote(own)}" for name, own in others.items()}
        if problems:
            raise AnswerError(problems)
        return self._label(read)

    def _parse(self, text: str) -> object:
        """Returns the value of a text: a word, or the inside of a list or a mapping in YAML."""
        ends = "{}" if self.config.fields else "[]" if self.config.several else ""
        text = text.strip()
        if not ends:
            return text.strip("\"'`*. ")
        # People and models write the inside of a list or mapping without its brackets.
        whole = _within(text) if text[:1] == ends[0] else f"{ends[0]}{_within(text)}{ends[1]}"
        with suppress(ValueError, RecursionError):
            return json.loads(whole)
        try:
            return read_yaml(whole).value
        except DataError as error:
            raise LabelError(f"{error}, found {quote(text)}") from None

    def _label(self, values: Mapping[str, Any]) -> Label:
        line, parts = list[str](), list[tuple[str, str]]()
        attributes, texts, shown = dict[str, str](), set[str](), dict[str, tuple[str, ...]]()
        for name, value in values.items():
            field, title = self.config.parts[name], f"{name}: " if name else ""
            items = cast(list[Any], value if field.several else [value])
            written = JOINT.join(map(_in_yaml if name or field.several else str, items))
            line.append(f"{title}[{written}]" if title and field.several else f"{title}{written}")
            if name:
                shown[name] = tuple(str(item) for item in items if item not in (None, ""))
            if field.labels is None:
                items = [json.dumps(item, ensure_ascii=False) for item in items]
            own = [f"{title}{item}" for item in items]
            if value == _nothing(field):
                own = [f"{title}{NOTHING}"]
            if field.is_compared:
                parts += [(JOINT, category) for category in own]
            elif field.compare == "similar":
                texts.update(own)
            else:
                attributes[name] = str(value)
        parts[:1] = [("", parts[0][1])] if parts else []
        whole = _within(JOINT.join(line))
        return Label(whole, whole, tuple(parts), attributes, (), frozenset(texts), shown)


def _within(line: str) -> str:
    """Returns the line of an answer, which a later reading takes back."""
    if len(line) > MAX_LINE:
        raise LabelError(f"{len(line):,} characters are no answer: at most {MAX_LINE:,}")
    return line


def _in_yaml(value: object) -> str:
    """Returns a value in YAML: a text without quotation marks if it reads as itself."""
    if isinstance(value, str) and PLAIN.fullmatch(value) and plain_value(value) == value:
        return value
    return json.dumps(value, ensure_ascii=False)


def _strict(schema: Schema) -> Schema:
    """Returns a schema with only the keywords that all endpoints enforce."""
    kept = {key: value for key, value in schema.items() if key in KEYWORDS}
    if "items" in kept:
        kept["items"] = _strict(kept["items"])
    if "anyOf" in kept:
        kept["anyOf"] = [_strict(each) for each in kept["anyOf"]]
    return kept


def _digest(content: object) -> str:
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:8]


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
        if field.number:
            whole = "whole number" if _number_type(field) is int else "number"
            kind = f"a {whole} from {field.number[0]} to {field.number[1]}"
        elif field.text:
            kind = f"a text of at most {field.text} characters"
        else:
            kind = f"{'one or more' if field.several else 'one'} of"
        said = f" ({field.definition})" if field.definition else ""
        empty = f", or {json.dumps(_nothing(field))} if there is none" if field.optional else ""
        these, end = (" these" if empty else "", ":") if field.labels else ("", ".")
        yield f"\n{name or answers.key}{said}: {kind}{these}{empty}{end}\n"
        for label, text in (field.labels or {}).items():
            yield f"- {label}: {text.definition}\n"
            shown = {"Such as": text.examples, "Not": text.counterexamples} if full else {}
            for said, examples in shown.items():
                yield "".join(f"  {said}: {example}\n" for example in examples)
    if config.rules:
        yield "\nCriteria besides right labels:\n"
        yield "".join(f"- {name}: {rule.text}\n" for name, rule in config.rules.items())
