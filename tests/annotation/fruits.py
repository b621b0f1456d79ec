"""A codebook of three words, which shares nothing with OPT-Codes."""

from raylab.codebook import (
    FORMAT,
    AnswerForm,
    Categories,
    ChoiceReply,
    Codebook,
    Criterion,
    Label,
    LabelReply,
    PromptSet,
    ReplyModel,
    ReportReply,
)
from raylab.errors import LabelError
from raylab.llm.prompts import PromptFile

NAMES = {"berry": "a fruit without a stone", "stone": "a fruit with one", "nut": "a dry fruit"}
SIZE = Criterion("size", cap=50, synonyms=("bigness",))


def read_fruit(text: str) -> Label:
    if text not in NAMES:
        raise LabelError(f"{text} is no fruit")
    return Label(text, text, (("", text),), {})


class EqualOrNot:
    """The distance 0 of equal sets, and 1 of others."""

    version = "equal-v1"

    def __call__(self, a: Categories, b: Categories, /) -> float:
        return float(a != b)


def read_answer(text: str, repairs: list[str]) -> Label:
    word = text.split()[-1]
    if word != word.lower():
        repairs.append("capitals")
    return read_fruit(word.lower())


FORM = AnswerForm(
    name="fruit",
    key="fruit",
    label={"type": "string"},
    read=read_answer,
    criteria=(SIZE,),
    reason="why",
    show="the fruit {}".format,
)


def prompt(name: str, user: str, kind: type[ReplyModel] | None = None) -> PromptFile:
    schema = FORM.schema(kind) if kind else {}
    source = f"{{#- version 1 -#}}\n{{% block user %}}{user}{{% endblock %}}"
    return PromptFile(name, "1", ((name, source),), schema, 1000, 100)


PROMPTS = PromptSet(
    classify=prompt("fruit_classify", "Which fruit? {{ description }}", LabelReply),
    evaluate=prompt(
        "fruit_evaluate",
        "Is {{ description }} {{ code }}? {{ rationale }}",
        ReportReply,
    ),
    adjudicate=prompt(
        "fruit_adjudicate",
        "{{ description }}{% for one in candidates %} or {{ one.code }}{% endfor %}?",
        ChoiceReply,
    ),
    repair=prompt("fruit_repair", "{{ problem }}: answer with {{ keys | join(', ') }}"),
    form=FORM,
)
FRUITS = Codebook(
    name="fruits",
    version="1",
    label_name="a fruit",
    case_sets={},
    categories=NAMES,
    examples=("stone",),
    criteria=(FORMAT, SIZE),
    bait=frozenset({"nut"}),
    prompts={"maximal": PROMPTS},
    distance=EqualOrNot(),
    parse=lambda text: read_fruit(text.strip().lower()),
    read=read_fruit,
    parse_own=read_fruit,
)
