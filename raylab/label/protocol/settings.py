"""The settings of the protocol: its models, prompts and rules."""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from raylab.core.errors import ConfigError
from raylab.core.printable import join_names
from raylab.label.codebooks.codebook import Codebook, PromptSet
from raylab.label.config.jobs import MAX_ANNOTATORS, AnnotateConfig, ProtocolConfig
from raylab.label.protocol.outcome import (
    ADJUDICATOR,
    ANNOTATORS,
    CANDIDATE_ANNOTATOR,
    EVALUATOR,
    Annotator,
    name_annotators,
)
from raylab.llm.chat import ChatRequest, Message
from raylab.llm.config import ChatModel
from raylab.llm.prompts import Schema


class RoleModel(NamedTuple):
    """A model in a role, with the call to it that lacks its turns."""

    chat: ChatModel
    call: ChatRequest

    def request(self, messages: tuple[Message, ...], schema: Schema | None) -> ChatRequest:
        """Returns the call with these turns; equal turns make equal calls."""
        return replace(self.call, messages=messages, schema=schema)


@dataclass(frozen=True)
class Settings:
    """The settings of the protocol, the same for all cases of a run.

    Attributes:
        annotators: Models that classify, independently of each other; none are needed to
            evaluate candidates.
        evaluator: Model that judges each code alone.
        adjudicator: Model that settles differences; None where nobody asks it.
    """

    annotators: Mapping[Annotator, RoleModel]
    evaluator: RoleModel
    adjudicator: RoleModel | None
    prompts: PromptSet
    codebook: Codebook
    rules: ProtocolConfig

    @property
    def warnings(self) -> list[str]:
        """The weaknesses of the chosen models and prompts."""
        about_prompts = [self.prompts.warning] if self.prompts.warning else []
        if self.rules.stages == "evaluate":
            only = (
                f"protocol.stages=evaluate: the answers of {CANDIDATE_ANNOTATOR} are the rows' "
                "candidates; no annotator and no adjudicator was asked"
            )
            return [only, *about_prompts]
        sentences = list[str]()
        annotators = defaultdict[tuple[str, str], list[Annotator]](list)
        for name, model in self.annotators.items():
            annotators[model.call.model, model.call.base_url].append(name)
        for (model, _), names in annotators.items():
            # Without sampling, equal models give equal answers whatever their seeds.
            greedy = [name for name in names if self.annotators[name].chat.temperature == 0]
            if len(greedy) > 1:
                sentences.append(
                    f"annotators {join_names(greedy, MAX_ANNOTATORS)} are {model} at temperature "
                    "0, where a seed changes little: their agreement says little; use other "
                    "models, or a temperature above 0"
                )
        judges = {EVALUATOR: (self.evaluator, "it may be lenient with its own answers")}
        if self.adjudicator is not None and self.rules.adjudicator == "model":
            chair = {ADJUDICATOR: (self.adjudicator, "it may prefer its own answers")}
            judges = chair | judges
        for role, (model, consequence) in judges.items():
            if names := annotators.get((model.call.model, model.call.base_url)):
                noun = "annotator" if len(names) == 1 else "annotators"
                same = join_names(names, MAX_ANNOTATORS)
                sentences.append(f"the {role} is the model of {noun} {same}: {consequence}")
        return sentences + about_prompts

    @property
    def answerers(self) -> tuple[Annotator, ...]:
        """Those whose answers are judged, the candidates of the rows if no annotator is asked."""
        return name_annotators(len(self.annotators) if self.rules.stages == "all" else 0)


def protocol_settings(config: AnnotateConfig, run: str, codebook: Codebook) -> Settings:
    """Returns the settings of a run; a fresh run shares its calls with no other run."""
    llm, rules = config.llm, config.protocol
    if llm.prompt not in codebook.prompts:
        raise ConfigError(f"llm.prompt={llm.prompt} is none of {', '.join(codebook.prompts)}")
    prompts = codebook.prompts[llm.prompt]

    def role_model(chat: ChatModel) -> RoleModel:
        sampling: dict[str, Any] = {}
        if chat.temperature is not None:
            sampling["temperature"] = chat.temperature
        # OpenAI's reasoning models refuse the older key, others know no other.
        if chat.max_tokens is not None and "max_completion_tokens" not in chat.extra:
            sampling["max_tokens"] = chat.max_tokens
        call = ChatRequest(
            endpoint=chat.endpoint,
            base_url=llm.endpoints[chat.endpoint].base_url or "",
            model=chat.model,
            messages=(),
            parameters={**sampling, **chat.extra},
            seed=chat.seed,
            # Calls of another salt have another key, so that the archive answers none of them.
            salt=run if config.fresh else "",
            lane=llm.lane_of(chat),
        )
        return RoleModel(chat, call)

    return Settings(
        annotators=dict(zip(ANNOTATORS, map(role_model, llm.annotators), strict=False)),
        evaluator=role_model(llm.evaluator),
        adjudicator=llm.adjudicator and role_model(llm.adjudicator),
        prompts=prompts,
        codebook=codebook,
        rules=rules,
    )
