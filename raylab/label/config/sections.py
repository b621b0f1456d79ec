"""The configuration of the annotation protocol."""

from itertools import combinations
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, PositiveInt, model_validator

from raylab.core.config.base import Location, Seed, Strict, Text
from raylab.llm.config import ChatModel, Service

MAX_ANNOTATORS = 7


class LlmConfig(Service):
    """The models of the protocol and where they are served."""

    annotators: Annotated[tuple[ChatModel, ...], Field(max_length=MAX_ANNOTATORS)] = ()
    """Two to seven, which reports name A, B, ...: different models, or one with different seeds;
    each has the keys of `llm.evaluator`."""
    evaluator: ChatModel
    adjudicator: ChatModel | None = None
    prompt: Text = "maximal"
    """Style of the prompts: minimal, maximal, or word (all roles answer with one plain word)."""

    @property
    def models(self) -> dict[str, ChatModel]:
        """The configured models by their key."""
        annotators = {f"annotators.{place}": chat for place, chat in enumerate(self.annotators)}
        settling = {} if self.adjudicator is None else {"adjudicator": self.adjudicator}
        return {**annotators, "evaluator": self.evaluator, **settling}

    @model_validator(mode="after")
    def _annotators_differ(self) -> "LlmConfig":
        if any(chat.model.casefold() == "final" for chat in self.annotators):
            raise ValueError("annotators: final names the logs of the final codes, not a model")
        if len(self.annotators) == 1:
            raise ValueError("annotators has one model, should have two to seven")
        for (a, first), (b, second) in combinations(enumerate(self.annotators), 2):
            if first.model_copy(update={"lane": second.lane}) == second:
                raise ValueError(
                    f"annotators.{a} and annotators.{b} are the same call: give them two models or "
                    "two seeds"
                )
        return self


def _known_encoding(name: str) -> str:
    try:
        "".encode(name)
    except (LookupError, ValueError):
        raise ValueError(
            f"{name} is no encoding of text that Python knows, such as windows-1252"
        ) from None
    return name


class CasesConfig(Strict):
    """The texts to classify."""

    path: Location | None = None
    """CSV, TSV, JSON, JSONL or Parquet file with the columns id, description and gold, or those
    that the next keys name; null takes a set that comes with the codebook."""
    id: Text | None = None
    """Column of the ids; null takes `id`, or without one the numbers of the rows, such as
    `row-12`."""
    text: Text | None = None
    """Column of the texts; null takes `description`."""
    gold: Text | dict[str, Text] | None = None
    """Column of the right labels, as far as people gave any; null takes `gold`. A record may have a
    column for each field, as in `{topics: Topic, severity: Urgency}`."""
    encoding: Annotated[Text, AfterValidator(_known_encoding)] | None = None
    """Encoding of a CSV or JSON file, such as windows-1252; null takes UTF-8, or UTF-16 with a byte
    order mark."""
    skip_unusable: bool = False
    """Leave out rows that cannot be used: without text, with a NUL, too long, with an id twice or
    with gold that is no answer. Log and report name them. By default nothing starts."""
    packaged: Text | None = None
    """That set; null takes the first. OPT-Code has systems+gold (the default), systems
    (published systems that no prompt names), gold (published codes, most of them named by the
    prompts), proposed (codes that nobody reviewed) and injections (orders to the models)."""
    take: PositiveInt | None = None
    """Keep at most this many."""

    @model_validator(mode="after")
    def _names_columns_of_a_file(self) -> "CasesConfig":
        if self.path is None and (self.id or self.text or self.gold):
            raise ValueError("id, text and gold name columns of a file: give cases.path")
        return self


def idle_roles(stages: object, adjudicator: object) -> tuple[str, ...]:
    """Returns the roles of `LlmConfig` that nobody asks, by two keys of `ProtocolConfig`."""
    if stages == "evaluate":
        return "annotators", "adjudicator"
    return ("adjudicator",) if adjudicator == "human" else ()


class ProtocolConfig(Strict):
    """The rules by which a case is decided."""

    stages: Literal["all", "evaluate"] = "all"
    """All stages, or the evaluator alone, on the `candidate` that each row carries."""
    acceptance: Literal["majority", "all"] = "majority"
    """Annotators who must give the same acceptable answer: more than half, or all."""
    policy: Literal["strict", "lenient", "published"] = "strict"
    """If too few answers are acceptable: strict asks a person, lenient the adjudicator first if any
    is. published asks the adjudicator whenever too few codes agree, acceptable or not."""
    adjudicator: Literal["model", "human"] = "model"
    """Settles differences: the model llm.adjudicator, or a person on the review page."""
    threshold: Annotated[int, Field(ge=0, le=100)] = 70
    """Lowest score of an acceptable answer."""
    score_caps: bool = True
    """Lower a score to the cap of an unmet criterion and to the band of its verdict; false takes
    the evaluator's verdict and score as they are."""
    seed: Seed = 307
    """Seed of the order in which the adjudicator sees the answers, and of the intervals."""


class PeopleConfig(Strict):
    """The review of the run by people."""

    people: Literal[1, 2] = 1
    """Who decides a case: one person, or two who judge it independently by the description alone,
    and a third where they differ."""
    epsilon: Annotated[float, Field(ge=0, le=1)] = 0.15
    """Advantage of a person that the lower cost of a model makes up for, in the alternative
    annotator test: 0.2 for experts, 0.15 for skilled people, 0.1 for crowd workers."""
