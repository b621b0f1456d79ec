"""The settings of the protocol: its models, prompts and rules."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from raylab.annotation.outcome import ADJUDICATOR, ANNOTATORS, CANDIDATE_SIDE, EVALUATOR, Side
from raylab.codebook import Codebook, PromptSet
from raylab.config.annotation import ProtocolConfig
from raylab.config.jobs import AnnotateConfig
from raylab.config.llm import ChatModel
from raylab.errors import ConfigError
from raylab.llm.chat import ChatRequest, Message


@dataclass(frozen=True)
class RoleModel:
    """A model in a role, with the address of its endpoint.

    Attributes:
        chat: Model and sampling parameters.
        base_url: Address of its endpoint; empty for the embedded model.
    """

    chat: ChatModel
    base_url: str

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
        )

    def is_same_model(self, other: "RoleModel") -> bool:
        """Returns True if both are the same model; sampling does not count."""
        return (self.chat.model, self.base_url) == (other.chat.model, other.base_url)


@dataclass(frozen=True)
class Settings:
    """The settings of the protocol, the same for all cases of a run.

    Attributes:
        annotators: Models that classify, independently of each other; none are needed to
            evaluate candidates.
        evaluator: Model that judges each code alone.
        adjudicator: Model that settles differences; None where nobody asks it.
        prompts: Prompts of all roles.
        codebook: Codebook of the classification.
        rules: The rules of the protocol.
        salt: Distinguishes the calls from equal ones in the journal.
        warnings: Weaknesses of the chosen models and prompts.
    """

    annotators: Mapping[Side, RoleModel]
    evaluator: RoleModel
    adjudicator: RoleModel | None
    prompts: PromptSet
    codebook: Codebook
    rules: ProtocolConfig
    salt: str = ""
    warnings: tuple[str, ...] = field(default=(), compare=False)


def protocol_settings(config: AnnotateConfig, run: str, codebook: Codebook) -> Settings:
    """Returns the settings of a run; a fresh run shares its calls with no other run.

    Raises:
        ConfigError: The codebook has no prompts of the configured style.
    """
    llm, rules = config.llm, config.protocol
    if llm.prompt not in codebook.prompts:
        raise ConfigError(f"llm.prompt={llm.prompt} is none of {', '.join(codebook.prompts)}")
    prompts = codebook.prompts[llm.prompt]
    models = {
        role: RoleModel(chat, llm.endpoints[chat.endpoint].base_url or "")
        for role, chat in llm.roles.items()
    }
    return Settings(
        annotators={side: models[role] for side, role in ANNOTATORS.items() if role in models},
        evaluator=models[EVALUATOR],
        adjudicator=models.get(ADJUDICATOR),
        prompts=prompts,
        codebook=codebook,
        rules=rules,
        salt=run if config.fresh else "",
        warnings=tuple(filter(None, (*_warnings(models, rules), prompts.warning))),
    )


def _warnings(models: Mapping[str, RoleModel], rules: ProtocolConfig) -> Iterator[str]:
    if rules.stages == "evaluate":
        yield (
            f"protocol.stages=evaluate: the answers of {CANDIDATE_SIDE} are the rows' candidates; "
            "no annotator and no adjudicator was asked"
        )
        return
    a, b = (models[role] for role in ANNOTATORS.values())
    if a.is_same_model(b) and a.chat.temperature == b.chat.temperature == 0:
        yield (
            f"both annotators are {a.chat.model} at temperature 0, where a seed changes little: "
            "their agreement says little; use two models, or a temperature above 0"
        )
    consequences = {EVALUATOR: "it may be lenient with its own answers"}
    if rules.adjudicator == "model":
        consequences = {ADJUDICATOR: "it may prefer its own answers", **consequences}
    for role, consequence in consequences.items():
        same = [name for name in ANNOTATORS.values() if models[role].is_same_model(models[name])]
        if same:
            yield f"the {role} is the model of {' and '.join(same)}: {consequence}"
