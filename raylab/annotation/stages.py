"""The stages of the protocol: classify, evaluate and adjudicate, each a question to a model.

A question is a call and, if its reply cannot be read, a second turn that says why.
"""

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

from raylab.annotation.input.cases import Case
from raylab.annotation.judging import judge, judge_unparsable
from raylab.annotation.outcome import Adjudication, Call, Classification, Evaluation, Status
from raylab.annotation.replies import UnreadableError, read_reply, settle
from raylab.annotation.roles import ADJUDICATE, CANDIDATE, Side, classify_stage, repair_stage
from raylab.annotation.settings import RoleModel, Settings
from raylab.codebook import Choice, Label, ReportReply, Verdict, clean
from raylab.errors import CallError, LabelError
from raylab.llm.chat import Chat, Message
from raylab.llm.prompts import PromptFile, neutral, shortened

V = TypeVar("V")


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


@dataclass(frozen=True)
class Response(Generic[V]):
    """What a reply says, the repairs that were needed to read it, and the calls that led to it."""

    value: V
    repairs: tuple[str, ...]
    calls: tuple[Call, ...]

    def classification(self, label: Label, rationale: str) -> Classification:
        """Returns the label of this answer."""
        return Classification(
            label=label,
            rationale=rationale,
            format="repaired" if self.repairs else "strict",
            repairs=self.repairs,
            calls=self.calls,
        )


class Stages:
    """The stages of one case.

    Attributes:
        calls: All calls made so far, in the order of their replies.
    """

    def __init__(self, case: Case, chat: Chat, settings: Settings) -> None:
        self.calls: list[Call] = []
        self._case, self._chat, self._settings = case, chat, settings
        self._form, self._prompts = settings.prompts.form, settings.prompts

    def read_candidate(self) -> Classification:
        """Returns the candidate of the row; it has no calls.

        Raises:
            CaseEnded: The row has none.
        """
        candidate = self._case.candidate
        if candidate is None:
            raise CaseEnded(Status.FAILED, f"failed:{CANDIDATE}", "the row has no candidate")
        repairs: list[str] = []
        try:
            label = self._form.read(candidate.code, repairs)
        except LabelError as error:
            return _unparsable(candidate.rationale, str(error))
        return Response(None, tuple(repairs), ()).classification(label, candidate.rationale)

    async def classify(self, side: Side) -> Classification:
        """Returns the answer of an annotator, without a code if it cannot be read.

        Raises:
            CaseEnded: The call failed.
        """
        try:
            answer = await self._ask(
                classify_stage(side),
                self._settings.annotators[side],
                self._prompts.classify,
                {"description": self._case.description},
                lambda text, finish: read_reply(self._form.label, text, finish),
            )
        except UnreadReplies as unread:
            return _unparsable("", unread.problem, unread.calls)
        return answer.classification(answer.value.label, answer.value.rationale)

    async def evaluate(self, stage: str, classification: Classification) -> Evaluation:
        """Returns the evaluator's judgement of an answer; one without a code is not sent to it.

        Raises:
            CaseEnded: The call failed, or its replies cannot be read.
        """
        if classification.label is None:
            return judge_unparsable(classification.problem or "no reason given")
        settings, prompt = self._settings, self._prompts.evaluate
        content = {
            "description": self._case.description,
            "code": self._form.show(classification.label),
            "rationale": shortened(classification.rationale, prompt.shown),
        }
        try:
            answer = await self._ask(stage, settings.evaluator, prompt, content, self._read_report)
        except UnreadReplies as unread:
            raise _unreadable(stage, unread) from unread
        rules, criteria = settings.rules, settings.codebook.criteria
        evaluation = judge(
            answer.value, classification.format, rules.threshold, criteria, rules.score_caps
        )
        return evaluation.model_copy(update={"repairs": answer.repairs, "calls": answer.calls})

    async def adjudicate(
        self, classified: Mapping[Side, Classification], evaluated: Mapping[Side, Evaluation]
    ) -> Adjudication:
        """Returns the adjudicator's choice, without confirmation.

        Candidates are shown in an order drawn by seed and case, and without their names.

        Args:
            classified: Answers of both sides, with codes.
            evaluated: Their evaluations.

        Raises:
            CaseEnded: The call failed, or its replies cannot be read.
        """
        settings = self._settings
        assert settings.adjudicator is not None, "nobody is configured to adjudicate"
        order = draw_order(settings.rules.seed, self._case.id)
        sides: dict[Choice, Side] = {"first": order[0], "second": order[1]}
        shown: dict[Choice, Label] = {
            choice: label_of(classified[side]) for choice, side in sides.items()
        }
        content = {
            "description": self._case.description,
            "candidates": [self._shown(classified[side], evaluated[side]) for side in order],
        }
        try:
            answer = await self._ask(
                ADJUDICATE,
                settings.adjudicator,
                self._prompts.adjudicate,
                content,
                lambda text, finish: settle(*read_reply(self._form.choice, text, finish), shown),
            )
        except UnreadReplies as unread:
            raise _unreadable(ADJUDICATE, unread) from unread
        settled = answer.value
        return Adjudication(
            order=order,
            choice=sides.get(settled.choice, "synthesis"),
            classification=answer.classification(settled.label, settled.rationale),
        )

    def _read_report(self, text: str, finish_reason: str) -> tuple[ReportReply, list[str]]:
        criteria = self._settings.codebook.criteria
        report, repairs = read_reply(self._form.report, text, finish_reason, criteria)
        if self._form.failed_criterion and report.verdict is Verdict.FAIL:
            report = report.model_copy(update={"issues": (self._form.failed_criterion,)})
        return report, repairs

    def _shown(self, classification: Classification, evaluation: Evaluation) -> dict[str, Any]:
        """Returns an answer as the adjudicator is shown it."""
        length = self._prompts.adjudicate.shown
        return {
            "code": self._form.show(label_of(classification)),
            "rationale": shortened(classification.rationale, length),
            "verdict": evaluation.verdict.value,
            "score": evaluation.score,
            "issues": list(evaluation.issues),
            "summary": shortened(evaluation.summary, length),
        }

    async def _ask(
        self,
        stage: str,
        model: RoleModel,
        prompt: PromptFile,
        content: dict[str, Any],
        read: Callable[[str, str], tuple[V, list[str]]],
    ) -> Response[V]:
        """Asks a model and, if its reply cannot be read, once more with the reason.

        Args:
            stage: Stage of the first call.
            model: The model to ask.
            prompt: The prompt of the first turn, whose schema both replies should satisfy.
            content: The variables of the prompt.
            read: Takes text and finish reason of a reply; returns what it says, and its repairs.

        Raises:
            UnreadReplies: The second reply cannot be read either.
            CaseEnded: The call failed.
        """
        messages = prompt.messages(**content)
        first = await self._call(stage, model, prompt, messages, prompt.schema)
        try:
            value, repairs = read(first.reply.text, first.reply.finish_reason)
            return Response(value, tuple(repairs), (first,))
        except UnreadableError as error:
            problem = str(error)
        repair = self._prompts.repair
        said = shortened(neutral(first.reply.text), prompt.shown) or "(no text)"
        request = repair.messages(problem=neutral(problem), keys=prompt.keys)
        turns = (*messages, Message("assistant", said), *request)
        second = await self._call(repair_stage(stage), model, repair, turns, prompt.schema)
        try:
            value, repairs = read(second.reply.text, second.reply.finish_reason)
        except UnreadableError as error:
            raise UnreadReplies(f"{problem}; asked again: {error}", (first, second)) from error
        return Response(value, (f"asked again: {problem}", *repairs), (first, second))

    async def _call(
        self,
        stage: str,
        model: RoleModel,
        prompt: PromptFile,
        messages: tuple[Message, ...],
        schema: dict[str, Any],
    ) -> Call:
        request = model.request(messages, schema, self._settings.salt)
        try:
            reply = await self._chat.complete(request, self._case.description_hash, stage)
        except CallError as error:
            raise CaseEnded(Status.FAILED, f"failed:{stage}", f"{stage}: {error}") from error
        texts = {"response_model": clean(reply.response_model), "text": clean(reply.text)}
        call = Call(
            stage=stage,
            model=model.chat.model,
            prompt=prompt.label,
            prompt_hash=prompt.hash,
            seed=model.chat.seed,
            reply=replace(reply, **texts),
        )
        self.calls.append(call)
        return call


def draw_order(seed: int, case: str) -> tuple[Side, Side]:
    """Returns the order in which A and B of a case are shown, drawn by seed and case id."""
    digest = hashlib.sha256(f"{seed}:{case}".encode(errors="surrogatepass")).digest()
    return ("A", "B") if digest[0] % 2 == 0 else ("B", "A")


def label_of(classification: Classification) -> Label:
    """Returns the code of an answer that has one."""
    assert classification.label is not None, "the answer has no code"
    return classification.label


def _unparsable(rationale: str, problem: str, calls: tuple[Call, ...] = ()) -> Classification:
    return Classification(
        label=None, rationale=rationale, format="unparsable", problem=problem, calls=calls
    )


def _unreadable(stage: str, unread: UnreadReplies) -> CaseEnded:
    reason = f"{stage}: the reply could not be read: {unread.problem}"
    return CaseEnded(Status.HUMAN, f"human:{stage}-unreadable", reason)
