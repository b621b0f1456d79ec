"""A codebook of three words, which shares nothing with OPT-Codes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

from pydantic import Field, PlainValidator, WithJsonSchema

from raylab.codebook import (
    FORMAT,
    AnswerForm,
    Categories,
    ChoiceReply,
    Codebook,
    Criterion,
    LabelReply,
    PromptSet,
    ReplyModel,
    ReportReply,
    Text,
    label_reader,
)
from raylab.errors import LabelError
from raylab.llm.prompts import PromptFile

NAMES = {"berry": "a fruit without a stone", "stone": "a fruit with one", "nut": "a dry fruit"}
SIZE = Criterion("size", cap=50, synonyms=("bigness",))


@dataclass(frozen=True)
class Fruit:
    """A label of one word."""

    word: str

    def __str__(self) -> str:
        return self.word

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Fruit) and self.word == other.word

    def __hash__(self) -> int:
        return hash(self.word)

    @property
    def written(self) -> str:
        return self.word

    @property
    def composition(self) -> str:
        return self.word

    @property
    def categories(self) -> Categories:
        return frozenset({self.word})

    @property
    def primary(self) -> str:
        return self.word

    @property
    def parts(self) -> Sequence[tuple[str, str]]:
        return [("", self.word)]

    @property
    def fields(self) -> Mapping[str, str]:
        return {}


def read_fruit(text: str) -> Fruit:
    if text not in NAMES:
        raise LabelError(f"{text} is no fruit")
    return Fruit(text)


class EqualOrNot:
    """The distance 0 of equal sets, and 1 of others."""

    version = "equal-v1"

    def __call__(self, a: Categories, b: Categories, /) -> float:
        return float(a != b)


def read_answer(text: str, repairs: list[str]) -> Fruit:
    word = text.split()[-1]
    if word != word.lower():
        repairs.append("capitals")
    return read_fruit(word.lower())


READER = label_reader(read_answer)
ANY = WithJsonSchema({"type": "string"})


class FruitReply(LabelReply):
    rationale: Text = Field("", alias="why")
    label: Annotated[Fruit, PlainValidator(READER), ANY] = Field(alias="fruit")


class FruitChoice(ChoiceReply):
    rationale: Text = Field("", alias="why")
    label: Annotated[Fruit | None, PlainValidator(READER), ANY] = Field(None, alias="fruit")


def prompt(name: str, user: str, reply: type[ReplyModel] | None = None) -> PromptFile:
    schema = reply.schema_asked() if reply else {}
    source = f"{{#- version 1 -#}}\n{{% block user %}}{user}{{% endblock %}}"
    return PromptFile(name, "1", ((name, source),), schema, 1000, 100)


PROMPTS = PromptSet(
    classify=prompt("fruit_classify", "Which fruit? {{ description }}", FruitReply),
    evaluate=prompt(
        "fruit_evaluate",
        "Is {{ description }} {{ code }}? {{ rationale }}",
        ReportReply,
    ),
    adjudicate=prompt(
        "fruit_adjudicate",
        "{{ description }}{% for one in candidates %} or {{ one.code }}{% endfor %}?",
        FruitChoice,
    ),
    repair=prompt("fruit_repair", "{{ problem }}: answer with {{ keys | join(', ') }}"),
    form=AnswerForm(FruitReply, ReportReply, FruitChoice, read_answer, "the fruit {}".format),
)


def prompts(style: str) -> PromptSet:
    assert style == "maximal"
    return PROMPTS


def prompt_catalogue() -> Mapping[str, PromptFile]:
    asked = (PROMPTS.classify, PROMPTS.evaluate, PROMPTS.adjudicate, PROMPTS.repair)
    return {prompt.hash: prompt for prompt in asked}


FRUITS = Codebook(
    name="fruits",
    version="1",
    label_name="a fruit",
    case_sets={},
    categories=NAMES,
    criteria=(FORMAT, SIZE),
    execution_criterion="size",
    execution_bait=frozenset({"nut"}),
    styles=("maximal",),
    prompts=prompts,
    prompt_catalogue=prompt_catalogue,
    distance=EqualOrNot(),
    parse=lambda text: read_fruit(text.strip().lower()),
    read=read_fruit,
    parse_own=read_fruit,
)
