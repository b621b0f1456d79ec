"""The configuration of the annotation protocol."""

from itertools import combinations
from typing import Annotated, Literal

from pydantic import (
    Field,
    PositiveInt,
    model_validator,
)

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
            if first == second:
                raise ValueError(
                    f"annotators.{a} and annotators.{b} are the same call: give them two models or "
                    "two seeds"
                )
        return self


class CasesConfig(Strict):
    """The texts to classify."""

    path: Location | None = None
    """JSONL or Parquet file with id, description and, where known, gold, candidate and meta; null
    takes a set that comes with the codebook."""
    packaged: Text | None = None
    """That set; null takes the first. OPT-Code has systems+gold (the default), systems
    (published systems that no prompt names), gold (published codes, most of them named by the
    prompts), proposed (codes that nobody reviewed) and injections (orders to the models)."""
    take: PositiveInt | None = None
    """Keep at most this many."""


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
