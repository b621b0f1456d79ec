"""The two forms in which models give a code, its line or one plain word, and their criteria."""

import re
from typing import Annotated

from pydantic import BeforeValidator, ConfigDict, Field, PlainValidator, WithJsonSchema
from pydantic.json_schema import SkipJsonSchema

from raylab.codebook import (
    FORMAT,
    AnswerForm,
    Choice,
    ChoiceReply,
    Criterion,
    Label,
    LabelReply,
    ReportReply,
    Text,
    label_reader,
    names_schema,
    quoted,
    read_issues,
)
from raylab.errors import OptCodeError
from raylab.opt.code import ASKED_FIELDS, OptCode, Root, parse

MECHANISM = "mechanism"
EXECUTION = "parallelism/pipelines"
"""Parallelism or pipelines mistaken for a mechanism."""
CRITERIA = (
    FORMAT,
    Criterion(MECHANISM, 50, ("mechanisms", "root", "roots")),
    Criterion(EXECUTION, 60, ("parallelism", "pipeline", "pipelines", "execution")),
    Criterion("composition"),
    Criterion("attributes", synonyms=("attribute", "attribute plausibility")),
)
"""The criteria in the order of reports, with the caps on labels that do not meet them."""
WORDS = {
    "learning": Root.LRN,
    "evolution": Root.EVO,
    "rules": Root.SYM,
    "probability": Root.PRB,
    "search": Root.SCH,
    "control": Root.CTL,
    "swarm": Root.SWM,
}
"""Plain words for the roots, used with models too small to learn codes from a prompt."""
SHORT_WARNING = (
    "llm.prompt=word is for models too small to judge: no verdict, score or pass "
    "rate of such a run says anything about quality, and every code is a single root"
)
SHORT_TEXT = "^[A-Za-z0-9 ,.'-]{1,32}$"
VALUE = "[A-Za-z][A-Za-z0-9_+-]{0,31}"


def code_pattern() -> str:
    """Returns the pattern of a full canonical line; it also admits unordered or repeated roots."""
    roots = f"({'|'.join(root.value for root in Root)})"
    fields = "".join(f"; {key}={VALUE}" for key in ASKED_FIELDS[:-1])
    return f"^OPT={roots}([+/]{roots}){{0,6}}{fields}; Human=(none|low|med|high)$"


def read_code(text: str, repairs: list[str]) -> OptCode:
    """Reads the code in a text, and adds its repairs to a list.

    Raises:
        OptCodeError: The text holds no code.
    """
    try:
        code = parse(text)
    except OptCodeError as error:
        raise OptCodeError(str(error).splitlines()[0]) from None
    repairs += code.repairs
    if code.missing:
        repairs.append(f"fields not given: {', '.join(code.missing)}")
    return code


def read_word(text: str, repairs: list[str]) -> OptCode:
    """Reads the one word of `WORDS` in a text, or else the code in it, and adds its repairs.

    Raises:
        OptCodeError: The text holds none or several of the words, and no code.
    """
    if text in WORDS:
        return OptCode(WORDS[text])
    named = {word for word in WORDS if re.search(rf"\b{word}\b", text, re.IGNORECASE)}
    if len(named) == 1 and "OPT" not in text:
        code = OptCode(WORDS[named.pop()])
    else:
        try:
            code = read_code(text, repairs)
        except OptCodeError:
            words = ", ".join(WORDS)
            raise OptCodeError(f"it holds {len(named) or 'none'} of the words {words}") from None
    repairs.append(f"word {quoted(text)} read as {code.composition}")
    return code


def show_word(label: Label) -> str:
    """Returns the word for a code, or its line if it has none."""
    line = str(label)
    return next((word for word, root in WORDS.items() if line == f"OPT={root}"), line)


ISSUES = [criterion.name for criterion in CRITERIA if criterion.asked]
LINE = WithJsonSchema({"type": "string", "pattern": code_pattern()})
SHORT = WithJsonSchema({"type": "string", "pattern": SHORT_TEXT})
CODE_READER, WORD_READER = label_reader(read_code), label_reader(read_word)


class CodeReply(LabelReply):
    model_config = ConfigDict(title="opt_classification")
    label: Annotated[OptCode, PlainValidator(CODE_READER), LINE] = Field(alias="opt")


class CodeReport(ReportReply):
    model_config = ConfigDict(title="opt_evaluation")
    issues: Annotated[
        tuple[str, ...],
        BeforeValidator(read_issues),
        WithJsonSchema(
            {
                "type": "array",
                "items": {"type": "string", "enum": ISSUES},
                "maxItems": len(ISSUES),
            }
        ),
    ] = ()


class CodeChoice(ChoiceReply):
    model_config = ConfigDict(title="opt_adjudication")
    label: Annotated[OptCode | None, PlainValidator(CODE_READER), LINE] = Field(None, alias="opt")


class WordReply(LabelReply):
    model_config = ConfigDict(title="opt_classification")
    rationale: Annotated[Text, SHORT] = Field("", alias="reason")
    label: Annotated[OptCode, PlainValidator(WORD_READER), names_schema(*WORDS)] = Field(
        alias="word"
    )


class WordReport(ReportReply):
    model_config = ConfigDict(title="opt_evaluation")
    summary: Annotated[Text, SHORT] = ""
    issues: SkipJsonSchema[tuple[str, ...]] = ()


class WordChoice(ChoiceReply):
    model_config = ConfigDict(title="opt_adjudication")
    rationale: Annotated[Text, SHORT] = Field("", alias="reason")
    choice: SkipJsonSchema[Choice | None] = None
    label: Annotated[OptCode | None, PlainValidator(WORD_READER), names_schema(*WORDS)] = Field(
        None, alias="word"
    )


CODE_ANSWERS = AnswerForm(CodeReply, CodeReport, CodeChoice, read_code)
WORD_ANSWERS = AnswerForm(WordReply, WordReport, WordChoice, read_word, show_word, MECHANISM)
