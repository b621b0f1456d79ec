"""A chat that answers from a script, in place of the network, and replies to script it with."""

import asyncio
import json
from collections.abc import Mapping, Sequence
from typing import Any

from raylab.core.errors import CallError
from raylab.label.archive.records import CaseRow
from raylab.label.codebooks.choose import choose_codebook
from raylab.label.codebooks.codebook import Codebook
from raylab.label.config.jobs import AnnotateConfig, LlmConfig, ProtocolConfig
from raylab.label.input.cases import Case
from raylab.label.opt.code import parse
from raylab.label.protocol.protocol import annotate
from raylab.label.protocol.settings import Settings, protocol_settings
from raylab.label.protocol.worker import case_row
from raylab.llm.chat import ChatRequest, Reply
from raylab.llm.config import ChatModel

FIELDS = "; Rep=param; Obj=loss; Data=labelled; Time=iter; Human=none"
CASE = Case(
    "pid",
    "A valve follows the error, its integral and its rate of change.",
    gold="Ctl",
    gold_label=parse("Ctl"),
)

RULES = ProtocolConfig()
MODELS: dict[str, Any] = {
    "annotators": (ChatModel(model="alpha"), ChatModel(model="beta")),
    "evaluator": ChatModel(model="gamma"),
    "adjudicator": ChatModel(model="delta"),
}
LLM = LlmConfig(**MODELS)

Answer = str | Reply | BaseException
Script = Mapping[str, Answer | Sequence[Answer]]
"""Answers by role; a sequence is answered one after another, then its last again."""


def coded(roots: str, rationale: str = "because", **keys: Any) -> str:
    """A classifier's reply."""
    return json.dumps({"rationale": rationale, "opt": f"OPT={roots}{FIELDS}", **keys})


def graded(verdict: Any = "PASS", score: Any = 90, issues: Any = ()) -> str:
    """An evaluator's reply."""
    report = {"summary": "so it seems", "issues": issues, "score": score, "verdict": verdict}
    return json.dumps(report)


def settled(choice: str, roots: str, rationale: str = "by the rules") -> str:
    """An adjudicator's reply."""
    line = f"OPT={roots}{FIELDS}"
    return json.dumps({"rationale": rationale, "choice": choice, "opt": line})


GOOD = graded("PASS", 90)
BAD = graded("FAIL", 40, ["mechanism"])
AGREED: Script = {
    "classify-a": coded("Ctl", "it feeds back"),
    "classify-b": coded("Ctl", "it regulates"),
    "evaluate-a": GOOD,
    "evaluate-b": GOOD,
}
DISPUTED: Script = {
    "classify-a": coded("Ctl", "it feeds back"),
    "classify-b": coded("Lrn", "it adapts"),
    "evaluate-a": graded("PASS", 90),
    "evaluate-b": graded("WEAK_PASS", 75),
    "adjudicate": settled("synthesis", "Lrn+Ctl"),
    "confirm": GOOD,
}
STAGES = tuple(DISPUTED)
"""The stages of a case that takes them all, in order."""


class ScriptedChat:
    """Answers by role, and keeps what it was asked."""

    def __init__(self, script: Script, journal: dict[str, Reply] | None = None) -> None:
        self.script = script
        self.journal = journal
        self.requests: list[tuple[str, ChatRequest]] = []
        self.sent: list[str] = []
        """Roles of the calls that the journal did not answer."""

    async def complete(self, request: ChatRequest, description_hash: str, role: str) -> Reply:
        self.requests.append((role, request))
        if self.journal is not None and request.key in self.journal:
            return self.journal[request.key]
        self.sent.append(role)
        answer = self.script[role]
        if isinstance(answer, Sequence) and not isinstance(answer, str):
            answer = answer[min(self.sent.count(role), len(answer)) - 1]
        if isinstance(answer, BaseException):
            raise answer
        if isinstance(answer, str):
            answer = replied(answer, key=request.key)
        if self.journal is not None:
            self.journal[request.key] = replied(answer.text, key=request.key, cached=True)
        return answer

    @property
    def roles(self) -> list[str]:
        """What was asked for, in order."""
        return [role for role, _ in self.requests]

    def request(self, role: str) -> ChatRequest:
        """The only request of a role."""
        (only,) = [request for asked, request in self.requests if asked == role]
        return only

    def shown(self, role: str) -> str:
        """The last turn of the only request of a role."""
        return self.request(role).messages[-1].content


def replied(text: str, **changes: Any) -> Reply:
    """A reply of 100 tokens to 10, at a price of 0.25."""
    defaults: dict[str, Any] = {
        "key": "key",
        "response_model": "model-1",
        "finish_reason": "stop",
        "prompt_tokens": 100,
        "completion_tokens": 10,
        "cost": 0.25,
        "seconds": 2.0,
        "attempts": 1,
    }
    return Reply(text=text, **(defaults | changes))


def row_of(case: Case, script: Script) -> CaseRow:
    """The archived row of a case with these replies."""
    return case_row(case, asyncio.run(annotate(case, ScriptedChat(script), settings_of())))


def failed(case: Case) -> CaseRow:
    """The row of a case whose every call is refused."""
    return row_of(case, dict.fromkeys(STAGES, CallError("refused")))


def settings_of(prompt: str = "maximal", annotators: int = 2, **protocol: Any) -> Settings:
    """Settings of so many annotators, by the prompt and the keys of `ProtocolConfig`."""
    models = (*MODELS["annotators"], *(ChatModel(model=f"m{n}") for n in range(2, annotators)))
    llm = LlmConfig(**{**MODELS, "annotators": models}, prompt=prompt)
    return settings_by(llm, ProtocolConfig(**protocol))


def settings_by(
    llm: LlmConfig,
    rules: ProtocolConfig = RULES,
    codebook: Codebook | None = None,
    fresh_run: str = "",
) -> Settings:
    """Settings of these models, by these rules."""
    config = AnnotateConfig.model_construct(llm=llm, protocol=rules, fresh=bool(fresh_run))
    return protocol_settings(config, fresh_run, codebook or choose_codebook(config))
