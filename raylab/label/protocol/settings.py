"""The settings of the protocol: its models, prompts and rules."""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from raylab.core.errors import ConfigError
from raylab.core.printable import join_names
from raylab.label.codebooks.codebook import Codebook, PromptSet
from raylab.label.config.jobs import AnnotateConfig
from raylab.label.config.sections import MAX_ANNOTATORS, ProtocolConfig
from raylab.label.protocol.outcome import (
    ADJUDICATOR,
    ANNOTATORS,
    CANDIDATE_ANNOTATOR,
    EVALUATOR,
    Annotator,
    name_annotators,
)
from raylab.llm.chat import ChatRequest, Message
from raylab.llm.config import ChatModel, Lane


@dataclass(frozen=True)
class RoleModel:
    """A model in a role, with the address of its endpoint.

    Attributes:
        base_url: Address of its endpoint; empty for the embedded model.
        lane: How its calls are served.
    """

    chat: ChatModel
    base_url: str
    lane: Lane = Lane.STANDARD

    def request(
        self, messages: tuple[Message, ...], schema: dict[str, Any] | None, salt: str = ""
    ) -> ChatRequest:
        """Returns the call with these turns; equal turns make equal calls."""
        chat = self.chat
        sampling: dict[str, Any] = (
            {} if chat.temperature is None else {"temperature": chat.temperature}
        )
        if chat.max_tokens is not None and "max_completion_tokens" not in chat.extra:
            sampling["max_tokens"] = chat.max_tokens
        return ChatRequest(
            endpoint=chat.endpoint,
            base_url=self.base_url,
            model=chat.model,
            messages=messages,
            parameters={**sampling, **chat.extra},
            seed=chat.seed,
            schema=schema,
            salt=salt,
            lane=self.lane,
        )

    @property
    def identity(self) -> tuple[str, str]:
        """Model and address, without its sampling."""
        return self.chat.model, self.base_url


@dataclass(frozen=True)
class Settings:
    """The settings of the protocol, the same for all cases of a run.

    Attributes:
        annotators: Models that classify, independently of each other; none are needed to
            evaluate candidates.
        evaluator: Model that judges each code alone.
        adjudicator: Model that settles differences; None where nobody asks it.
        salt: Distinguishes the calls from equal ones in the journal.
    """

    annotators: Mapping[Annotator, RoleModel]
    evaluator: RoleModel
    adjudicator: RoleModel | None
    prompts: PromptSet
    codebook: Codebook
    rules: ProtocolConfig
    salt: str = ""

    @property
    def warnings(self) -> tuple[str, ...]:
        """The weaknesses of the chosen models and prompts."""
        return (*_warnings(self), *filter(None, [self.prompts.warning]))

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
        return RoleModel(chat, llm.endpoints[chat.endpoint].base_url or "", llm.lane_of(chat))

    return Settings(
        annotators=dict(zip(ANNOTATORS, map(role_model, llm.annotators), strict=False)),
        evaluator=role_model(llm.evaluator),
        adjudicator=llm.adjudicator and role_model(llm.adjudicator),
        prompts=prompts,
        codebook=codebook,
        rules=rules,
        salt=run if config.fresh else "",
    )


def _warnings(settings: Settings) -> Iterator[str]:
    if settings.rules.stages == "evaluate":
        yield (
            f"protocol.stages=evaluate: the answers of {CANDIDATE_ANNOTATOR} are the rows' "
            "candidates; no annotator and no adjudicator was asked"
        )
        return
    annotators = defaultdict[tuple[str, str], list[Annotator]](list)
    for name, model in settings.annotators.items():
        annotators[model.identity].append(name)
    for (model, _), names in annotators.items():
        greedy = [name for name in names if settings.annotators[name].chat.temperature == 0]
        if len(greedy) > 1:
            yield (
                f"annotators {join_names(greedy, MAX_ANNOTATORS)} are {model} at temperature 0, "
                "where a seed changes little: their agreement says little; use other models, or a "
                "temperature above 0"
            )
    judges = {EVALUATOR: (settings.evaluator, "it may be lenient with its own answers")}
    if settings.adjudicator is not None and settings.rules.adjudicator == "model":
        chair = {ADJUDICATOR: (settings.adjudicator, "it may prefer its own answers")}
        judges = chair | judges
    for role, (model, consequence) in judges.items():
        if names := annotators.get(model.identity):
            noun = "annotator" if len(names) == 1 else "annotators"
            same = join_names(names, MAX_ANNOTATORS)
            yield f"the {role} is the model of {noun} {same}: {consequence}"
