"""The calls that an annotation would make, and what they would cost; nothing is sent."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from raylab.annotation.input.cases import select_cases
from raylab.annotation.outcome import ADJUDICATOR, ANNOTATORS, EVALUATOR
from raylab.annotation.settings import RoleModel, Settings, protocol_settings
from raylab.codebook import Codebook
from raylab.config.jobs import AnnotateConfig
from raylab.llm.chat import TokenCounts
from raylab.llm.prices import Prices
from raylab.llm.prompts import PromptFile
from raylab.llm.wire import BYTES_PER_TOKEN, encode_request

MOST_BYTES_PER_TOKEN = 4
"""About that of English, for the lower end; `BYTES_PER_TOKEN` makes the upper one."""
SHORT_REPLY = 100
"""Tokens of a reply at the lower end; at the upper one it has all that it may have."""
CODE = 200
"""Characters of a code, and of the reason for a second turn, at the upper end."""
TURNS = 2
"""Calls of a question whose first reply cannot be read."""


_Counts = tuple[int, int, int | None]
"""Calls, tokens of requests and tokens of replies; None for replies without a limit."""


@dataclass(frozen=True)
class Amounts:
    """Calls with their tokens and price; None where there is no limit, or no price."""

    calls: int
    prompt_tokens: int
    reply_tokens: int | None
    cost: float | None


@dataclass(frozen=True)
class RoleForecast:
    """What the calls of a role come to.

    Attributes:
        role: name in the configuration.
        model: its model.
        least: without second turns and adjudication, with short replies.
        most: with all of them, and the longest replies.
    """

    role: str
    model: str
    least: Amounts
    most: Amounts


@dataclass(frozen=True)
class Input:
    """The distinct descriptions of a run: how many, and their bytes in requests."""

    count: int
    size: int


@dataclass(frozen=True)
class _Question:
    role: str
    asked: RoleModel
    prompt: PromptFile
    content: Mapping[str, Any]
    """What the prompt is filled with at the upper end, beside the description."""
    is_certain: bool = True


def forecast(config: AnnotateConfig, codebook: Codebook) -> list[RoleForecast]:
    """Returns what a run would come to by role, as if nothing were archived or cached.

    Raises:
        ConfigError: A budget in money lacks a price, or the prompts are none of the codebook's.
        DataError: A case cannot be used.
    """
    settings, prices = protocol_settings(config, "", codebook), Prices(config.llm)
    cases = read_input(config, codebook, settings)
    questions = list(_questions(settings))
    rows: list[RoleForecast] = []
    for role in dict.fromkeys(question.role for question in questions):
        own = [question for question in questions if question.role == role]
        least = [_least(config, question, cases) for question in own if question.is_certain]
        most = [_most(config, question, cases, settings) for question in own]
        asked = own[0].asked
        rows.append(
            RoleForecast(
                role,
                asked.chat.model,
                _amounts(config, asked, prices, least),
                _amounts(config, asked, prices, most),
            )
        )
    return rows


def read_input(config: AnnotateConfig, codebook: Codebook, settings: Settings) -> Input:
    """Reads all cases; equal descriptions are asked about once, and too long ones never.

    Raises:
        DataError: A case cannot be used.
    """
    sizes: dict[str, int] = {}
    for _, case in select_cases(config.cases, config.generations, codebook):
        if len(case.description) <= settings.prompts.classify.longest:
            sizes[case.description_hash] = len(msgspec.json.encode(case.description)[1:-1])
    return Input(len(sizes), sum(sizes.values()))


def _questions(settings: Settings) -> Iterator[_Question]:
    prompts = settings.prompts
    code, reason = "x" * CODE, "x" * prompts.evaluate.shown
    for side, asked in settings.annotators.items():
        yield _Question(ANNOTATORS[side], asked, prompts.classify, {})
    judged = {"code": code, "rationale": reason}
    judge = _Question(EVALUATOR, settings.evaluator, prompts.evaluate, judged)
    yield from [judge] * max(len(settings.annotators), 1)
    if settings.adjudicator is None or settings.rules.adjudicator == "human":
        return
    said = "x" * prompts.adjudicate.shown
    issues = [criterion.name for criterion in settings.codebook.criteria]
    shown = {"code": code, "rationale": said, "verdict": "WEAK_PASS", "score": 100}
    candidates = [{**shown, "issues": issues, "summary": said}] * 2
    content = {"candidates": candidates}
    yield _Question(ADJUDICATOR, settings.adjudicator, prompts.adjudicate, content, False)
    yield _Question(EVALUATOR, settings.evaluator, prompts.evaluate, judged, False)


def _least(config: AnnotateConfig, question: _Question, cases: Input) -> _Counts:
    """Returns what a question comes to at the lower end."""
    empty = {name: "" for name in question.content}
    size = _size(config, question, empty) * cases.count + cases.size
    cap = question.asked.chat.longest_reply or SHORT_REPLY
    tokens = math.ceil(size / MOST_BYTES_PER_TOKEN)
    return cases.count, tokens, cases.count * min(SHORT_REPLY, cap)


def _most(config: AnnotateConfig, question: _Question, cases: Input, settings: Settings) -> _Counts:
    """Returns what a question comes to at the upper end."""
    repair = settings.prompts.repair.messages(problem="x" * CODE, keys=question.prompt.keys)
    again = len(msgspec.json.encode(repair)) + question.prompt.shown
    size = TURNS * (_size(config, question, question.content) * cases.count + cases.size)
    tokens = math.ceil((size + again * cases.count) / BYTES_PER_TOKEN)
    calls, cap = TURNS * cases.count, question.asked.chat.longest_reply
    return calls, tokens, None if cap is None else calls * cap


def _size(config: AnnotateConfig, question: _Question, content: Mapping[str, Any]) -> int:
    """Returns the bytes of a question about an empty description."""
    asked = question.asked
    messages = question.prompt.messages(description="", **content)
    request = asked.request(messages, question.prompt.schema)
    return len(encode_request(request, config.llm.endpoints[asked.chat.endpoint].reply_format))


def _amounts(
    config: AnnotateConfig, asked: RoleModel, prices: Prices, questions: Sequence[_Counts]
) -> Amounts:
    calls = sum(calls for calls, _, _ in questions)
    prompt = sum(tokens for _, tokens, _ in questions)
    replies = [tokens for _, _, tokens in questions if tokens is not None]
    if len(replies) < len(questions):
        return Amounts(calls, prompt, None, None)
    tokens = TokenCounts(prompt, sum(replies))
    cost = prices.cost(asked.chat.endpoint, asked.chat.model, tokens, config.llm.lane)
    return Amounts(calls, prompt, tokens.completion, cost)
