"""A codebook of three words, which shares nothing with OPT-Codes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from raylab.codebook import FORMAT, Categories, Codebook, Criterion, PromptSet
from raylab.errors import LabelError
from raylab.llm.prompts import PromptFile

NAMES = {"berry": "a fruit without a stone", "stone": "a fruit with one", "nut": "a dry fruit"}
SIZE = Criterion("size", cap=50, synonyms=("bigness",))


@dataclass(frozen=True)
class Fruit:
    """A label of one word."""

    word: str
    repairs: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()

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


@dataclass(frozen=True)
class FruitAnswers:
    reason_key: str = "why"
    label_key: str = "fruit"
    expected: str | None = "a fruit"
    failed_criterion: str | None = None
    names_choice: bool = True

    def read(self, text: str, repairs: list[str]) -> Fruit:
        if text != text.lower():
            repairs.append("capitals")
        return read_fruit(text.lower())

    def read_prose(self, text: str, repairs: list[str]) -> Fruit:
        return self.read(text.split()[-1], repairs)

    def show(self, label: object) -> str:
        return f"the fruit {label}"


def prompt(name: str, user: str, *keys: str) -> PromptFile:
    schema = {"type": "object", "properties": {key: {"type": "string"} for key in keys}}
    source = f"{{#- version 1 -#}}\n{{% block user %}}{user}{{% endblock %}}"
    return PromptFile(name, "1", ((name, source),), schema if keys else {}, 1000, 100)


PROMPTS = PromptSet(
    classify=prompt("fruit_classify", "Which fruit? {{ description }}", "why", "fruit"),
    evaluate=prompt(
        "fruit_evaluate",
        "Is {{ description }} {{ code }}? {{ rationale }}",
        *("summary", "issues", "score", "verdict"),
    ),
    adjudicate=prompt(
        "fruit_adjudicate",
        "{{ description }}{% for one in candidates %} or {{ one.code }}{% endfor %}?",
        *("why", "choice", "fruit"),
    ),
    repair=prompt("fruit_repair", "{{ problem }}: answer with {{ keys | join(', ') }}"),
    form=FruitAnswers(),
)


class Fruits:
    """The codebook."""

    name, version, label_name = "fruits", "1", "a fruit"
    case_sets: Mapping[str, str] = {}
    categories: Mapping[str, str] = NAMES
    criteria = (FORMAT, SIZE)
    execution_criterion = "size"
    execution_bait: Categories = frozenset({"nut"})
    styles = ("maximal",)
    distance = EqualOrNot()

    def prompts(self, style: str) -> PromptSet:
        assert style == "maximal"
        return PROMPTS

    def prompt_catalogue(self) -> Mapping[str, PromptFile]:
        parts = (PROMPTS.classify, PROMPTS.evaluate, PROMPTS.adjudicate, PROMPTS.repair)
        return {part.hash: part for part in parts}

    def parse(self, text: str) -> Fruit:
        return read_fruit(text.strip().lower())

    def read(self, line: str) -> Fruit:
        return read_fruit(line)

    def parse_own(self, text: str) -> Fruit:
        return read_fruit(text)


FRUITS: Codebook = Fruits()
