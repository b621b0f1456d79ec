"""Cases to annotate: texts, streamed from files or from the sets that come with a codebook.

A file has rows `{id, description, gold?, candidate?: {code, rationale}, meta?}`:

    {"id": "pid", "description": "I would buy it again.", "gold": "positive"}

`cases.id`, `cases.text` and `cases.gold` name other columns; those that are left go into meta. Rows
that cannot be used are told together when all are read, and end the run or, with
`cases.skip_unusable`, are left out. Memory holds one batch of rows, all ids and hashes of texts.
"""

import hashlib
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Annotated, Any, cast

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    JsonValue,
    PlainValidator,
    StrictBool,
    ValidationError,
    ValidationInfo,
)
from pydantic_core import ErrorDetails, PydanticCustomError

from raylab.core.bounded import parse_json
from raylab.core.config.base import AS_PUBLISHED, Strict
from raylab.core.config.schema import explain
from raylab.core.config.yaml import plain_value
from raylab.core.errors import ConfigError, DataError, LabelError
from raylab.core.files import Place
from raylab.core.printable import join_names, pluralize
from raylab.label.codebooks.codebook import AnswerError, Codebook, Label, quote
from raylab.label.config.jobs import AnnotateConfig, CasesConfig
from raylab.label.input.tables import (
    MAX_SHOWN,
    Columns,
    RowFault,
    is_missing,
    meta_key,
    read_rows,
)

KINDS = ("no text", "NUL")
"""Kinds of faults of a text, which need no name of a column."""
MAX_ID_BYTES = 255
"""Most bytes of an id with its generation."""


@dataclass(frozen=True)
class Case:
    """A text to classify.

    Attributes:
        id: Unique within a run.
        gold: Label by a person, as written; None if there is none.
        gold_label: The label that was read from gold; None if there is none.
        meta: Further JSON values. Four keys have a meaning: `trap` (true if the description
            suggests a wrong category), `bait` (list of the categories it suggests), `reviewed`
            (false if gold is one person's proposal) and `open_book` (true if prompts name it).
        candidate: A classification for the evaluator to judge; None if there is none.
    """

    id: str
    description: str
    gold: str | None = None
    gold_label: Label | None = None
    meta: dict[str, Any] = field(default_factory=dict[str, Any])
    candidate: "CandidateCode | None" = None

    @property
    def description_hash(self) -> str:
        """The SHA-256 of the description, in hexadecimal."""
        return hashlib.sha256(self.description.encode()).hexdigest()

    @property
    def trap(self) -> bool:
        """True if the description suggests a wrong category."""
        return bool(self.meta.get("trap"))


def select_cases(
    config: AnnotateConfig, codebook: Codebook, notices: list[str] | None = None
) -> Iterator[tuple[str, Case]]:
    """Yields every case of a run with its generation.

    The ids of further generations are prefixed with the generation's name.

    Args:
        notices: Gets sentences on how the input was read, and which rows were left out.

    Raises:
        ConfigError: Two generations would have the same name, or the codebook has no such cases or
            fields.
        DataError: A source cannot be used, or rows cannot; these are told when all are read.
    """
    generations, own, sets = generation_files(config.generations), config.cases, codebook.case_sets
    chosen = own.packaged or next(iter(sets), "")
    if own.path is None and chosen not in sets:
        way_out = f"cases.packaged= takes {', '.join(sets)}" if sets else "give cases.path=FILE"
        missing = f"case set {chosen}" if chosen else "cases of its own"
        raise ConfigError(f"the codebook {codebook.name} has no {missing}: {way_out}")
    if isinstance(own.gold, dict) and (wrong := [*own.gold.keys() - codebook.fields.keys()]):
        fields = ", ".join(codebook.fields) or "no fields: give cases.gold=COLUMN"
        raise ConfigError(f"cases.gold names {wrong[0]}, but {codebook.name} has {fields}")
    longest = codebook.prompts[config.llm.prompt].classify.longest
    files = {AS_PUBLISHED: sets[chosen] if own.path is None else [own.path]}
    files |= {name: [location] for name, location in generations.items()}
    sources, ids = list[_Source](), set[str]()
    for name, locations in files.items():
        take, prefix = (own.take, "") if name == AS_PUBLISHED else (None, f"{name}/")
        group = [_Source(each, own, codebook, prefix, longest) for each in locations]
        sources += group
        for case in islice((case for source in group for case in source.read(ids)), take):
            if config.protocol.stages == "evaluate" and case.candidate is None:
                raise DataError(
                    f"case {case.id} has no candidate, which protocol.stages=evaluate judges: add "
                    "candidate: {code, rationale} to its row, or let protocol.stages=all "
                    "classify it"
                )
            yield name, case
    read = _conclude(sources, own.skip_unusable)
    if notices is not None:
        notices += read


def generation_files(locations: Sequence[str]) -> dict[str, str]:
    """Returns the case files of further generations, by file name without extensions."""
    files = {Place.at(location).name.partition(".")[0]: location for location in locations}
    if len(files) < len(locations) or AS_PUBLISHED in files:
        raise ConfigError("generations: two are called the same, or one published: rename it")
    return files


def read_cases(
    location: str, codebook: Codebook, cases: CasesConfig | None = None
) -> Iterator[Case]:
    """Streams the cases of a file, whose path may be a URI that pyarrow's filesystems open.

    Args:
        cases: The names of its columns, and whether rows that cannot be used are left out.

    Raises:
        DataError: The file cannot be read, or rows cannot be used; these are told at its end.
    """
    cases = cases or CasesConfig()
    source = _Source(location, cases, codebook)
    yield from source.read(set())
    _conclude([source], cases.skip_unusable)


def _conclude(sources: Sequence["_Source"], skip: bool) -> list[str]:
    """Refuses rows that cannot be used, or returns sentences on how the files were read."""
    unusable = [source for source in sources if source.unusable]
    if refused := [s for s in unusable if not skip or s.unusable == s.rows]:
        problems = [line for s in refused for line in (f"cases {s}:", *s.shown)]
        way_out = "repair the rows, or leave them out with cases.skip_unusable=true"
        raise DataError("\n".join([*problems, way_out]))
    left_out = [f"Left out by cases.skip_unusable: {source}." for source in unusable]
    return left_out + [note for source in sources for note in source.notes()]


class _Source:
    """A file of cases, with those of its rows that cannot be used."""

    def __init__(
        self,
        location: str,
        config: CasesConfig,
        codebook: Codebook,
        prefix: str = "",
        longest: int | None = None,
    ) -> None:
        self.codebook, self.prefix, self.columns = codebook, prefix, Columns(location, config)
        self.rows, self.unusable, self.shown = 0, 0, list[str]()
        self._location, self._encoding, self._longest = location, config.encoding, longest
        self._places, self._texts = dict[str, list[str]](), set[int]()

    def __str__(self) -> str:
        kinds = "; ".join(
            f"{kind} in {len(places):,}: {join_names(places, MAX_SHOWN)}"
            for kind, places in self._places.items()
        )
        return f"{self._location}: {self.unusable:,} of {self.rows:,} rows are unusable ({kinds})"

    def read(self, ids: set[str]) -> Iterator[Case]:
        """Yields the cases that can be used, in order, and adds their ids to those of others."""
        for place, row in read_rows(self._location, self._encoding, self.columns):
            self.rows += 1
            case = row if isinstance(row, RowFault) else self._case(row, place, ids)
            if isinstance(case, Case):
                ids.add(case.id)
                self._texts.add(hash(case.description))
                yield case
                continue
            self.unusable += 1
            self._places.setdefault(case.kind, []).append(place.partition(" ")[2])
            if len(self.shown) < MAX_SHOWN:
                self.shown.append(f"  {place}: {case.problem}")
        if not self.rows:
            raise DataError(f"cases {self._location}: the file holds no case")
        if self.columns.seen:
            # Objects have no head, so only the last one shows that all lack a column.
            self.columns.require()

    def notes(self) -> Iterator[str]:
        """Yields sentences on what a reader may not expect."""
        yield from self.columns.notes()
        # A row for each person, or each label, of a text.
        if repeated := self.rows - self.unusable - len(self._texts):
            repeat = pluralize(repeated, "row repeats", "rows repeat")
            yield f"{self._location}: {repeat} the text of another, and each counts."

    def _case(self, row: object, place: str, ids: set[str]) -> Case | RowFault:
        if not isinstance(row, dict):
            return RowFault("no object", f"{quote(row)} is no JSON object")
        cells, wanted = cast("dict[str, Any]", row), self.columns.wanted
        names = self.columns.of_row([*cells])
        values = {own: cells[column] for own, column in names.items()}
        if fields := [own for own in names if own.startswith("gold ")]:
            values["gold"] = {own.removeprefix("gold "): values.pop(own) for own in fields}
        if not self.columns.has_ids:
            values.setdefault("id", f"row-{place.partition(' ')[2]}")
        # Parquet and spreadsheets have a cell for every column, most of them empty.
        rest = (column for column in cells if column not in names.values())
        if others := {meta_key(name): cells[name] for name in rest if _is_there(cells[name])}:
            # Values of Parquet, such as dates, as JSON has them.
            values["others"] = json.loads(json.dumps(others, default=str))
        try:
            read = _Row.model_validate(values, context=self)
        except ValidationError as error:
            errors = error.errors(include_url=False)
            kind, own = errors[0]["type"], str(errors[0]["loc"][0])
            column = wanted.get(own, own)
            problems = "; ".join(_problem(each, wanted) for each in errors)
            return RowFault(kind if kind in KINDS else f"wrong {column}", problems)
        length = len(read.description)
        if length > (longest := self._longest or length):
            problem = f"a text of {length:,} characters, where prompts take {longest:,}: shorten it"
            return RowFault("too long", problem)
        if read.id in ids:
            problem = f"{wanted['id']} is {quote(read.id)}, as in an earlier row: rename one"
            return RowFault("id twice", problem)
        meta = read.others | (read.meta.model_dump(exclude_unset=True) if read.meta else {})
        return Case(read.id, read.description, *read.gold, meta, read.candidate)


def _problem(error: ErrorDetails, columns: dict[str, str]) -> str:
    """Returns a problem of a row, with its column and value."""
    own, *keys = map(str, error["loc"])
    column = ".".join([columns.get(own, own), *keys])
    if error["type"] == "missing":
        return f"{column} is missing"
    if fields := error.get("ctx", {}).get("fields"):
        named = (
            (columns.get(f"gold {name}", f"gold.{name}"), each) for name, each in fields.items()
        )
        return "; ".join(f"{name} {problem}" for name, problem in named)
    return f"{column} is {quote(error['input'])}, {explain(error)}"


# The values of a row


def _source(info: ValidationInfo) -> _Source:
    return cast(_Source, info.context)


def _is_there(value: object) -> bool:
    """Returns False for what is empty: null, blanks, or NaN, which pandas writes for null."""
    return bool(value.strip()) if isinstance(value, str) else value is not None and value == value


def _check_text(text: str) -> str:
    if not text.strip():
        raise PydanticCustomError("no text", "should not be empty: write a text, or remove the row")
    if "\0" in text:
        raise PydanticCustomError("NUL", "should have no NUL: remove that character")
    return text


def _read_id(value: object, info: ValidationInfo) -> object:
    """Reads an id; one that a spreadsheet has written as 12.0 or ="12" is 12."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        value = str(value)
    if not isinstance(value, str):
        return value
    text = re.sub(r'^="(.*)"$|^(\d+)\.0$', r"\1\2", value.strip(" \t\r\n"))
    if not text:
        raise ValueError("should not be empty")
    if not text.isprintable() or text != text.strip():
        raise ValueError("should be text of visible characters, without outer blanks")
    whole = f"{_source(info).prefix}{text}"
    if len(whole.encode()) > MAX_ID_BYTES:
        raise ValueError(f"should have at most {MAX_ID_BYTES} bytes with its generation")
    return whole


def _read_object(value: object) -> object:
    """Reads an object, or JSON text of one; a Parquet struct has every key in every row."""
    if isinstance(value, str):
        try:
            value = parse_json(value, "its text") if value.strip() else None
        except DataError as error:
            raise ValueError(f"should be an object, or JSON text of one: {error}") from None
    if isinstance(value, dict):
        return {key: each for key, each in value.items() if each is not None} or None
    return value


def _as_text(value: object) -> object:
    """Returns the JSON text of a code that is given as a list or an object."""
    return json.dumps(value, ensure_ascii=False) if isinstance(value, list | dict) else value


def _read_gold(value: object, info: ValidationInfo) -> tuple[str | None, Label | None]:
    codebook = _source(info).codebook
    if isinstance(value, dict) and codebook.fields:
        value = _read_cells(codebook, cast("dict[str, object]", value))
    if not _is_there(value) or value == {}:
        return None, None
    try:
        label = codebook.parse_gold(_in_json(_readable(codebook, value)))
    except LabelError as error:
        if is_missing(value):
            return None, None
        problem = f"should be left out, or be text such as {quote(codebook.examples[0])}"
        if first := next(iter(codebook.fields), None):
            problem += f", or have a column for each field, as in cases.gold={{{first}: {first}}}"
        raise ValueError(f"{problem}; {error}") from None
    if not label.parts:
        raise ValueError("has no field that is compared: leave it out")
    return _in_json(value), label


def _read_cells(codebook: Codebook, cells: dict[str, object]) -> dict[str, object]:
    """Returns the values of fields as the codebook reads them."""
    read, problems = dict[str, object](), dict[str, str]()
    for name, value in cells.items():
        if not _is_there(value):
            continue
        try:
            read[name] = _readable(codebook, value, name)
        except LabelError as error:
            if not is_missing(value):
                problems[name] = str(error)
    if problems:
        raise PydanticCustomError("gold", "{fields}", {"fields": problems})
    return read


def _readable(codebook: Codebook, value: object, field: str = "") -> object:
    """Returns a value as it is, the only one of a list, a number or a list: what can be read.

    Raises:
        LabelError: Nothing can; the first reason, but not that a text is no list.
    """
    ways, reasons = [value], list[str]()
    if field in codebook.questions:
        ways += cast("list[object]", value) if isinstance(value, list) and len(value) == 1 else []
        if isinstance(value, str):
            ways.append(plain_value(value.strip()[:MAX_ID_BYTES].replace(",", ".")))
            split = (re.split(marks, value) for marks in (r"[,;|\n]", "#"))
            ways += [[own for each in parts if (own := each.strip())] for parts in split]
        ways += [int(way) for way in ways if isinstance(way, float) and way.is_integer()]
    for way in ways:
        try:
            codebook.parse_gold(_in_json({field: way} if field else way))
        except LabelError as error:
            own = error.problems.get(field) if isinstance(error, AnswerError) else None
            reasons.append(own or str(error).splitlines()[0])
        else:
            return way
    raise LabelError(next((each for each in reasons if "be a list" not in each), reasons[0]))


def _in_json(value: object) -> str:
    """Returns a text as it is, and another value in JSON."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def _check_bait(bait: list[str], info: ValidationInfo) -> list[str]:
    categories = _source(info).codebook.categories
    if not set(bait) <= categories.keys():
        raise ValueError(f"should be a list of {', '.join(categories)}")
    return bait


Text = Annotated[str, AfterValidator(_check_text)]


class CandidateCode(Strict):
    """A classification that came with a case, to be judged."""

    code: Annotated[Text, BeforeValidator(_as_text)]
    """As written; it need not be readable."""
    rationale: str = ""


class _Meta(Strict, extra="allow"):
    __pydantic_extra__: dict[str, JsonValue]  # pyright: ignore[reportIncompatibleVariableOverride]
    trap: StrictBool = False
    reviewed: StrictBool = True
    open_book: StrictBool = False
    bait: Annotated[list[str], AfterValidator(_check_bait)] = Field(default_factory=list[str])


class _Row(Strict):
    id: Annotated[str, BeforeValidator(_read_id)]
    description: Text
    gold: Annotated[tuple[str | None, Label | None], PlainValidator(_read_gold)] = (None, None)
    candidate: Annotated[CandidateCode | None, BeforeValidator(_read_object)] = None
    meta: Annotated[_Meta | None, BeforeValidator(_read_object)] = None
    others: dict[str, JsonValue] = Field(default_factory=dict[str, JsonValue])
    """The columns that are left."""
