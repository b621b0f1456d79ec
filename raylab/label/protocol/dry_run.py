"""The calls that an annotation would make, and what they would cost; nothing is sent."""

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from raylab.label.codebooks.codebook import PLACES, Codebook
from raylab.label.config.jobs import AnnotateConfig, LlmConfig
from raylab.label.input.cases import select_cases
from raylab.label.protocol.outcome import ADJUDICATOR, EVALUATOR, STAGES, classify_stage
from raylab.label.protocol.settings import RoleModel, Settings, protocol_settings
from raylab.llm.config import ChatModel
from raylab.llm.prices import Prices, tokens_cost
from raylab.llm.prompts import PromptFile
from raylab.llm.wire import BYTES_PER_TOKEN, encode_request

MAX_BYTES_PER_TOKEN = 4
"""About that of English, for the lower end; the upper end takes `BYTES_PER_TOKEN`."""
SHORT_REPLY = 100
"""Tokens of a reply at the lower end; the upper end takes the longest reply."""
CODE = "x" * 200
"""A code, and the reason for a second turn, at the upper end."""
TURNS = 2
"""Calls for a question whose first reply cannot be read."""


@dataclass(frozen=True)
class Amounts:
    """Calls with their tokens and price; None where there is no limit, or no price."""

    calls: int
    prompt_tokens: int
    reply_tokens: int | None
    cost: float | None


@dataclass(frozen=True)
class RoleForecast:
    """The calls of a role.

    Attributes:
        least: without second turns and adjudication, with short replies.
        most: with all of them, and the longest replies.
    """

    role: str
    model: str
    least: Amounts
    most: Amounts


def forecast(
    config: AnnotateConfig, codebook: Codebook, notices: list[str] | None = None
) -> list[RoleForecast]:
    """Returns the calls of a run by role, as if nothing were archived or cached.

    Equal descriptions are classified once.

    Args:
        notices: Gets sentences on how the input was read.

    Raises:
        ConfigError: A budget in money lacks a price, or the prompts are none of the codebook's.
        DataError: Rows of the input cannot be used.
    """
    settings = protocol_settings(config, "", codebook)
    sizes, times = dict[str, int](), Counter[str]()
    for _, case in select_cases(config, codebook, notices):
        # Requests hold it as JSON, where a character may take several bytes.
        sizes[case.description_hash] = len(msgspec.json.encode(case.description)[1:-1])
        times[case.description_hash] += 1
    ask = _Forecaster(config.llm, settings, len(sizes), sum(sizes.values())).ask
    prompts, answers, adjudicator = settings.prompts, len(settings.answerers), settings.adjudicator
    rows = [
        ask(STAGES[classify_stage(name)], model, prompts.classify, {}, 1, 1)
        for name, model in settings.annotators.items()
    ]
    # Each case shows its answers to the adjudicator in an order of its own.
    orders, adjudications = math.factorial(answers), 0.0
    if adjudicator is not None and settings.rules.adjudicator == "model":
        adjudications = sum(min(count, orders) for count in times.values()) / max(len(sizes), 1)
    judged = {"code": CODE, "rationale": "x" * prompts.evaluate.shown}
    most = answers + adjudications
    rows.append(ask(EVALUATOR, settings.evaluator, prompts.evaluate, judged, answers, most))
    if adjudicator is not None and settings.rules.adjudicator == "model":
        said = "x" * prompts.adjudicate.shown
        issues = [criterion.name for criterion in settings.codebook.criteria]
        shown = {"code": CODE, "rationale": said, "verdict": "WEAK_PASS", "score": 100}
        shown |= {"issues": issues, "summary": said}
        candidates = {"candidates": [{"place": place, **shown} for place in PLACES[:answers]]}
        prompt = prompts.adjudicate
        rows.append(ask(ADJUDICATOR, adjudicator, prompt, candidates, 0, adjudications))
    return rows


class _Forecaster:
    """Forecasts questions about `count` descriptions that have `size` bytes together."""

    def __init__(self, llm: LlmConfig, settings: Settings, count: int, size: int) -> None:
        self._llm, self._prices, self._repair = llm, Prices(llm), settings.prompts.repair
        self._count, self._size = count, size

    def ask(
        self,
        role: str,
        model: RoleModel,
        prompt: PromptFile,
        content: Mapping[str, Any],
        least: int,
        most: float,
    ) -> RoleForecast:
        """Returns the calls of a question, asked from `least` to `most` times on average.

        Args:
            content: Variables of the prompt at the upper end, without the description.
        """
        chat = model.chat
        few = self._measure(model, prompt, dict.fromkeys(content, "")) / MAX_BYTES_PER_TOKEN
        second = msgspec.json.encode(self._repair.messages(problem=CODE, keys=prompt.keys))
        many = TURNS * self._measure(model, prompt, content)
        many = (many + (len(second) + prompt.shown) * self._count) / BYTES_PER_TOKEN
        cap = chat.longest_reply
        short = min(SHORT_REPLY, cap or SHORT_REPLY)
        return RoleForecast(
            role,
            chat.model,
            self._amounts(chat, least, least * math.ceil(few), short),
            self._amounts(chat, TURNS * most, round(most * math.ceil(many)), cap),
        )

    def _measure(self, model: RoleModel, prompt: PromptFile, content: Mapping[str, Any]) -> int:
        """Returns the bytes of a question about all descriptions."""
        messages = prompt.messages(description="", **content)
        reply_format = self._llm.endpoints[model.chat.endpoint].reply_format
        request = encode_request(model.request(messages, prompt.schema), reply_format)
        return len(request) * self._count + self._size

    def _amounts(self, chat: ChatModel, times: float, prompt: int, reply: int | None) -> Amounts:
        calls = round(times * self._count)
        if reply is None and calls:
            return Amounts(calls, prompt, None, None)
        replies, lane = calls * (reply or 0), self._llm.lane_of(chat)
        price = self._prices.find(chat.endpoint, chat.model, lane)
        return Amounts(calls, prompt, replies, tokens_cost(price, lane, prompt, replies))
