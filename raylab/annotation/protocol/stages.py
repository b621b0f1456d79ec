"""The stages of the protocol: classify, evaluate and adjudicate, each one question to its model."""

from collections.abc import Mapping
from typing import Any, Literal

from raylab.annotation.input.cases import Case
from raylab.annotation.judging import judge, judge_unparsable
from raylab.annotation.outcome import Adjudication, Call, Classification, Evaluation, Status
from raylab.annotation.protocol.decision_table import draw_order
from raylab.annotation.protocol.questions import CaseEnded, Questions, UnreadReplies
from raylab.annotation.replies import Candidates, ChoiceReply, LabelReply, ReplyReader
from raylab.annotation.roles import ADJUDICATE, CANDIDATE, Side, classify_stage
from raylab.annotation.settings import Settings
from raylab.codebook import Label
from raylab.errors import LabelError
from raylab.llm.prompts import shortened


class Stages:
    """The stages of one case."""

    def __init__(self, case: Case, settings: Settings, questions: Questions) -> None:
        self._case, self._settings, self._questions = case, settings, questions
        self._reader = ReplyReader(settings.prompts.form, settings.codebook.criteria)

    def read_candidate(self) -> Classification:
        """Returns the candidate of the row; it has no calls.

        Raises:
            CaseEnded: The row has none.
        """
        given = self._case.candidate
        if given is None:
            raise CaseEnded(Status.FAILED, f"failed:{CANDIDATE}", "the row has no candidate")
        repairs: list[str] = []
        try:
            label = self._settings.prompts.form.read(given.code, repairs)
        except LabelError as error:
            return Classification(
                label=None, rationale=given.rationale, format="unparsable", problem=str(error)
            )
        return Classification(
            label=label,
            rationale=given.rationale,
            format="repaired" if repairs else "strict",
            repairs=tuple(repairs),
        )

    async def classify(self, side: Side) -> Classification:
        """Returns the answer of an annotator, without a code if it cannot be read.

        Raises:
            CaseEnded: The call failed.
        """
        settings = self._settings
        try:
            reply, calls = await self._questions.ask(
                classify_stage(side),
                settings.annotators[side],
                settings.prompts.classify,
                {"description": self._case.description},
                self._reader.read_label,
            )
        except UnreadReplies as unread:
            return Classification(
                label=None,
                rationale="",
                format="unparsable",
                problem=unread.problem,
                calls=unread.calls,
            )
        return _classification(reply, calls)

    async def evaluate(self, stage: str, classification: Classification) -> Evaluation:
        """Returns the evaluator's judgement of an answer; one without a code is not sent to it.

        Raises:
            CaseEnded: The call failed, or its replies cannot be read.
        """
        if classification.label is None:
            return judge_unparsable(classification.problem or "no reason given")
        settings = self._settings
        prompt = settings.prompts.evaluate
        content = {
            "description": self._case.description,
            "code": settings.prompts.form.show(classification.label),
            "rationale": shortened(classification.rationale, prompt.shown),
        }
        try:
            report, calls = await self._questions.ask(
                stage, settings.evaluator, prompt, content, self._reader.read_report
            )
        except UnreadReplies as unread:
            raise _unreadable(stage, unread) from unread
        return judge(
            report,
            classification.format,
            settings.threshold,
            settings.codebook.criteria,
            calls,
            settings.score_caps,
        )

    async def adjudicate(
        self,
        classified: Mapping[Side, Classification],
        evaluated: Mapping[Side, Evaluation],
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
        order = draw_order(settings.seed, self._case.id)
        shown: Candidates = {
            "first": label_of(classified[order[0]]),
            "second": label_of(classified[order[1]]),
        }
        content = {
            "description": self._case.description,
            "candidates": [self._shown(classified[side], evaluated[side]) for side in order],
        }
        try:
            reply, calls = await self._questions.ask(
                ADJUDICATE,
                settings.adjudicator,
                settings.prompts.adjudicate,
                content,
                lambda text, finish_reason: self._reader.read_choice(text, shown, finish_reason),
            )
        except UnreadReplies as unread:
            raise _unreadable(ADJUDICATE, unread) from unread
        return Adjudication(
            order=order,
            choice=_chosen(reply, order),
            classification=_classification(reply, calls),
        )

    def _shown(self, classification: Classification, evaluation: Evaluation) -> dict[str, Any]:
        """Returns an answer as the adjudicator is shown it."""
        prompts = self._settings.prompts
        length = prompts.adjudicate.shown
        return {
            "code": prompts.form.show(label_of(classification)),
            "rationale": shortened(classification.rationale, length),
            "verdict": evaluation.verdict.value,
            "score": evaluation.score,
            "issues": list(evaluation.issues),
            "summary": shortened(evaluation.summary, length),
        }


def label_of(classification: Classification) -> Label:
    """Returns the code of an answer that has one."""
    assert classification.label is not None, "the answer has no code"
    return classification.label


def _classification(reply: LabelReply | ChoiceReply, calls: tuple[Call, ...]) -> Classification:
    return Classification(
        label=reply.label,
        rationale=reply.rationale,
        format="repaired" if reply.repairs else "strict",
        repairs=reply.repairs,
        calls=calls,
    )


def _chosen(reply: ChoiceReply, order: tuple[Side, Side]) -> Literal["A", "B", "synthesis"]:
    if reply.choice == "synthesis":
        return "synthesis"
    return order[0] if reply.choice == "first" else order[1]


def _unreadable(stage: str, unread: UnreadReplies) -> CaseEnded:
    reason = f"{stage}: the reply could not be read: {unread.problem}"
    return CaseEnded(Status.HUMAN, f"human:{stage}-unreadable", reason)
