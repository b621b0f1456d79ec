"""Questions to the models of the protocol: a call and, after an unreadable reply, a second turn."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

from raylab.annotation.input.cases import Case
from raylab.annotation.outcome import Call, Status
from raylab.annotation.replies import ChoiceReply, LabelReply, ReportReply
from raylab.annotation.roles import repair_stage
from raylab.annotation.settings import RoleModel, Settings
from raylab.errors import CallError
from raylab.llm.chat import Chat, Message
from raylab.llm.json_replies import UnreadableError, clean
from raylab.llm.prompts import PromptFile, neutral, shortened

R = TypeVar("R", LabelReply, ReportReply, ChoiceReply)


class CaseEnded(Exception):
    """The early end of a case; never leaves the protocol."""

    def __init__(self, status: Status, step: str, reason: str) -> None:
        super().__init__(reason)
        self.status, self.step, self.reason = status, step, reason


class UnreadReplies(Exception):
    """Two unreadable replies, with their calls."""

    def __init__(self, problem: str, calls: tuple[Call, ...]) -> None:
        super().__init__(problem)
        self.problem, self.calls = problem, calls


class Questions:
    """Questions about one case.

    Attributes:
        calls: All calls made so far, in the order of their replies.
    """

    def __init__(self, case: Case, chat: Chat, settings: Settings) -> None:
        self.calls: list[Call] = []
        self._case, self._chat, self._settings = case, chat, settings

    async def ask(
        self,
        stage: str,
        asked: RoleModel,
        prompt: PromptFile,
        content: dict[str, Any],
        read: Callable[[str, str], R],
    ) -> tuple[R, tuple[Call, ...]]:
        """Makes one call and, if its reply cannot be read, a second turn that says why.

        Args:
            stage: Role of the call.
            asked: The model to ask.
            prompt: The prompt of the first turn.
            content: What the prompt is filled with.
            read: Takes text and finish reason of a reply, returns what they say.

        Raises:
            UnreadReplies: The second reply cannot be read either.
            CaseEnded: The call failed.
        """
        messages = prompt.messages(**content)
        first = await self._call(stage, asked, prompt, messages, prompt)
        try:
            return read(first.reply.text, first.reply.finish_reason), (first,)
        except UnreadableError as error:
            problem = str(error)
        repair = self._settings.prompts.repair
        said = shortened(neutral(first.reply.text), prompt.shown) or "(no text)"
        request = repair.messages(problem=neutral(problem), keys=prompt.keys)
        turns = (*messages, Message("assistant", said), *request)
        second = await self._call(repair_stage(stage), asked, repair, turns, prompt)
        try:
            reply = read(second.reply.text, second.reply.finish_reason)
        except UnreadableError as error:
            raise UnreadReplies(f"{problem}; asked again: {error}", (first, second)) from error
        repaired = replace(reply, repairs=(f"asked again: {problem}", *reply.repairs))
        return repaired, (first, second)

    async def _call(
        self,
        stage: str,
        asked: RoleModel,
        prompt: PromptFile,
        messages: tuple[Message, ...],
        expected: PromptFile,
    ) -> Call:
        """Makes a call and returns it with its reply.

        Args:
            stage: Role of the call.
            asked: The model to ask.
            prompt: The prompt of the last turn.
            messages: The turns.
            expected: The prompt whose schema the reply should satisfy.
        """
        request = asked.request(messages, expected.schema, self._settings.salt)
        try:
            reply = await self._chat.complete(request, self._case.description_hash, stage)
        except CallError as error:
            raise CaseEnded(Status.FAILED, f"failed:{stage}", f"{stage}: {error}") from error
        call = Call(
            stage=stage,
            model=asked.chat.model,
            prompt=prompt.label,
            prompt_hash=prompt.hash,
            seed=asked.chat.seed,
            reply=replace(
                reply, response_model=clean(reply.response_model), text=clean(reply.text)
            ),
        )
        self.calls.append(call)
        return call
