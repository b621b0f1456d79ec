"""The decision of one case by two annotators, an evaluator, an adjudicator, or else a person.

The only side effects are calls to the given `Chat`. Equal cases and settings make equal calls in
the same order, so the journal can answer an interrupted run up to where it stopped. Every reply of
a model leads to a typed outcome.
"""

import asyncio
import hashlib
import math
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, Literal, TypeVar

from raylab.annotation.input.cases import Case
from raylab.annotation.judging import judge, judge_unparsable
from raylab.annotation.outcome import (
    Adjudication,
    Answer,
    Call,
    Classification,
    Evaluation,
    Outcome,
    Status,
)
from raylab.annotation.replies import Candidates, ChoiceReply, LabelReply, ReplyReader, ReportReply
from raylab.annotation.roles import (
    ADJUDICATE,
    CANDIDATE,
    CANDIDATE_SIDE,
    CONFIRM,
    SIDES,
    Side,
    classify_stage,
    evaluate_stage,
    repair_stage,
)
from raylab.annotation.settings import RoleModel, Settings
from raylab.codebook import Agreement, Label, compare
from raylab.config.base import AS_PUBLISHED
from raylab.errors import CallError, LabelError
from raylab.llm.chat import Chat, Message
from raylab.llm.json_replies import UnreadableError, clean
from raylab.llm.prompts import PromptFile, neutral, shortened

__all__ = ["Relation", "Settings", "Step", "annotate", "confirm", "draw_order", "next_step"]

R = TypeVar("R", LabelReply, ReportReply, ChoiceReply)


class Relation(StrEnum):
    """The relation of two codes; fields after the roots do not count."""

    SAME = "same"
    OPERATORS = "operators"
    """The same roots with other operators or in another order."""
    ROOTS = "roots"


class Step(StrEnum):
    """The next step once both codes are evaluated."""

    ACCEPT = "accept"
    ADJUDICATE = "adjudicate"
    HUMAN = "human"


def next_step(acceptable: tuple[bool, bool], relation: Relation, settings: Settings) -> Step:
    """Returns the next step by the decision table of the protocol.

    Args:
        acceptable: True for each side, A and B, whose code is acceptable.
        relation: Relation of the codes.
        settings: Settings, of which the policy and `accept_operator_differences` are used.
    """
    alike = relation is Relation.SAME or (
        relation is Relation.OPERATORS and settings.accept_operator_differences
    )
    if settings.policy == "published" and not alike:
        return Step.ADJUDICATE
    match acceptable:
        case (True, True):
            return Step.ACCEPT if alike else Step.ADJUDICATE
        case (False, False):
            return Step.HUMAN
        case _:
            return Step.ADJUDICATE if settings.policy == "lenient" else Step.HUMAN


def draw_order(seed: int, case: str) -> tuple[Side, Side]:
    """Returns the order in which A and B of a case are shown, drawn by seed and case id."""
    digest = hashlib.sha256(f"{seed}:{case}".encode(errors="surrogatepass")).digest()
    return ("A", "B") if digest[0] % 2 == 0 else ("B", "A")


async def annotate(
    case: Case, chat: Chat, settings: Settings, generation: str = AS_PUBLISHED
) -> Outcome:
    """Takes a case through the protocol.

    A refused call ends the case as `failed` and keeps all earlier answers. An answer that is still
    unreadable after one more turn leaves the case to a person.

    Args:
        case: The case to classify.
        chat: The chat that answers the calls.
        settings: Models, prompts and rules.
        generation: Generation of the score tree that the outcome belongs to.

    Raises:
        DeadlineError: A call got no answer in time; the case stays open.
        EndpointError: Every call would fail; the case stays open.
        BudgetError: The budget is used up; the case stays open.
        StoppedError: The run is stopping; the case stays open.
    """
    return await _Course(case, chat, settings, generation).run()


async def confirm(
    case: Case, classification: Classification, chat: Chat, settings: Settings
) -> Evaluation:
    """Evaluates a person's code.

    Raises:
        CallError: The call was refused, or its reply cannot be read after one more turn.
        DeadlineError: The call got no answer in time.
        EndpointError: Every call would fail.
        BudgetError: The budget is used up.
        StoppedError: The run is stopping.
    """
    try:
        return await _Course(case, chat, settings, AS_PUBLISHED).evaluate(CONFIRM, classification)
    except _Ended as ended:
        raise CallError(f"case {case.id}: {ended.reason}") from ended


class _Ended(Exception):
    """The early end of a case; never leaves this module."""

    def __init__(self, status: Status, step: str, reason: str) -> None:
        super().__init__(reason)
        self.status, self.step, self.reason = status, step, reason


class _Unread(Exception):
    """Two unreadable replies, with their calls."""

    def __init__(self, problem: str, calls: tuple[Call, ...]) -> None:
        super().__init__(problem)
        self.problem, self.calls = problem, calls


class _Course:
    """One case on its way through the protocol, with all results so far."""

    def __init__(self, case: Case, chat: Chat, settings: Settings, generation: str) -> None:
        self.case, self.chat, self.settings = case, chat, settings
        self.reader = ReplyReader(settings.prompts.form, settings.codebook.criteria)
        self.generation = generation
        self.started = datetime.now(UTC)
        self.calls: list[Call] = []
        self.classified: dict[Side, Classification] = {}
        self.evaluated: dict[Side, Evaluation] = {}
        self.agreement: Agreement | None = None
        self.adjudication: Adjudication | None = None

    async def run(self) -> Outcome:
        try:
            self.refuse_long_description()
            if self.settings.stages == "evaluate":
                return await self.judge_candidate()
            await _both(self.classify("A"), self.classify("B"))
            await self.evaluate_both()
            return await self.decide()
        except _Ended as ended:
            return self.outcome(ended.status, ended.step, reason=ended.reason)

    async def judge_candidate(self) -> Outcome:
        """Has the evaluator judge the candidate of the row, and nobody else asked."""
        side = CANDIDATE_SIDE
        self.classified[side] = self.candidate_given()
        await self.evaluate_side(side)
        if self.evaluated[side].acceptable:
            return self.outcome(Status.ACCEPTED, "accept", self.label_of(side))
        reason = f"the candidate is not acceptable: {_told(self.evaluated[side])}"
        return self.outcome(Status.HUMAN, "human:candidate", reason=reason)

    def candidate_given(self) -> Classification:
        """Returns the candidate of the row; it has no calls."""
        given = self.case.candidate
        if given is None:
            raise _Ended(Status.FAILED, f"failed:{CANDIDATE}", "the row has no candidate")
        repairs: list[str] = []
        try:
            label = self.settings.prompts.form.read(given.code, repairs)
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

    def refuse_long_description(self) -> None:
        prompt, length = self.settings.prompts.classify, len(self.case.description)
        if length > prompt.longest:
            raise _Ended(
                Status.FAILED,
                "failed:description",
                f"the description has {length:,} characters and the prompt {prompt.name} takes "
                f"{prompt.longest:,}: shorten it to what says how the system works"
                + (", or choose another llm.prompt" if self.settings.prompts.warning else ""),
            )

    # Stages

    async def classify(self, side: Side) -> None:
        settings = self.settings
        content = {"description": self.case.description}
        try:
            reply, calls = await self.ask(
                classify_stage(side),
                settings.annotators[side],
                settings.prompts.classify,
                content,
                self.reader.read_label,
            )
        except _Unread as unread:
            self.classified[side] = Classification(
                label=None,
                rationale="",
                format="unparsable",
                problem=unread.problem,
                calls=unread.calls,
            )
        else:
            self.classified[side] = _classification(reply, calls)

    async def evaluate_both(self) -> None:
        """Evaluates both at once; equal calls go in turn, so that the second costs nothing."""
        a, b = self.classified["A"], self.classified["B"]
        if (a.label, a.rationale) == (b.label, b.rationale):
            await self.evaluate_side("A")
            await self.evaluate_side("B")
        else:
            await _both(self.evaluate_side("A"), self.evaluate_side("B"))

    async def evaluate_side(self, side: Side) -> None:
        classification = self.classified[side]
        self.evaluated[side] = await self.evaluate(evaluate_stage(side), classification)

    async def evaluate(self, stage: str, classification: Classification) -> Evaluation:
        if classification.label is None:
            return judge_unparsable(classification.problem or "no reason given")
        prompts = self.settings.prompts
        prompt = prompts.evaluate
        content = {
            "description": self.case.description,
            "code": self.settings.prompts.form.show(classification.label),
            "rationale": shortened(classification.rationale, prompt.shown),
        }
        try:
            report, calls = await self.ask(
                stage, self.settings.evaluator, prompt, content, self.reader.read_report
            )
        except _Unread as unread:
            raise _unreadable(stage, unread) from unread
        return judge(
            report,
            classification.format,
            self.settings.threshold,
            self.settings.codebook.criteria,
            calls,
            self.settings.score_caps,
        )

    async def adjudicate(self) -> Adjudication:
        """Returns the adjudicator's choice, without confirmation.

        Candidates are shown in an order drawn by seed and case, and without their names.
        """
        prompts = self.settings.prompts
        order = draw_order(self.settings.seed, self.case.id)
        shown: Candidates = {
            "first": self.label_of(order[0]),
            "second": self.label_of(order[1]),
        }
        content = {
            "description": self.case.description,
            "candidates": [self.candidate(side) for side in order],
        }
        try:
            reply, calls = await self.ask(
                ADJUDICATE,
                self.settings.adjudicator,
                prompts.adjudicate,
                content,
                lambda text, finish_reason: self.reader.read_choice(text, shown, finish_reason),
            )
        except _Unread as unread:
            raise _unreadable(ADJUDICATE, unread) from unread
        return Adjudication(
            order=order,
            choice=_chosen(reply, order),
            classification=_classification(reply, calls),
        )

    def candidate(self, side: Side) -> dict[str, Any]:
        """Returns a side's answer as the adjudicator is shown it."""
        shown = self.settings.prompts.adjudicate.shown
        classification, evaluation = self.classified[side], self.evaluated[side]
        return {
            "code": self.settings.prompts.form.show(self.label_of(side)),
            "rationale": shortened(classification.rationale, shown),
            "verdict": evaluation.verdict.value,
            "score": evaluation.score,
            "issues": list(evaluation.issues),
            "summary": shortened(evaluation.summary, shown),
        }

    def label_of(self, side: Side) -> Label:
        """Returns the label of a side that gave one."""
        label = self.classified[side].label
        assert label is not None, f"{side} gave no label"
        return label

    # Decision

    async def decide(self) -> Outcome:
        for side, classification in self.classified.items():
            if classification.label is None:
                raise _Ended(
                    Status.HUMAN,
                    "human:unparsable",
                    f"no code of {side} could be read: {classification.problem}",
                )
        self.agreement = compare(
            self.label_of("A"), self.label_of("B"), self.settings.codebook.distance
        )
        a, b = self.evaluated["A"], self.evaluated["B"]
        match next_step((a.acceptable, b.acceptable), self.relation(), self.settings):
            case Step.ACCEPT:
                return self.outcome(Status.ACCEPTED, "accept", self.label_of("A"))
            case Step.ADJUDICATE if self.settings.human_adjudicator:
                return self.leave_difference()
            case Step.ADJUDICATE:
                return await self.settle()
            case Step.HUMAN:
                return self.refused()

    def relation(self) -> Relation:
        a, b = self.label_of("A"), self.label_of("B")
        if a.composition == b.composition:
            return Relation.SAME
        return Relation.OPERATORS if a.categories == b.categories else Relation.ROOTS

    async def settle(self) -> Outcome:
        """Adjudicates and confirms the final code."""
        self.adjudication = await self.adjudicate()
        final = self.adjudication.classification
        confirmation = await self.evaluate(CONFIRM, final)
        self.adjudication = self.adjudication.model_copy(update={"confirmation": confirmation})
        if confirmation.acceptable:
            return self.outcome(Status.ADJUDICATED, "accept", final.label)
        reason = f"the adjudicated code is not acceptable: {_told(confirmation)}"
        return self.outcome(Status.HUMAN, "human:unconfirmed", reason=reason)

    def leave_difference(self) -> Outcome:
        """Leaves to a person what an adjudicator would settle."""
        if self.relation() is Relation.SAME:
            return self.refused()
        codes = " and ".join(f"{side} {self.label_of(side).composition}" for side in SIDES)
        reason = f"the codes differ, {codes}: {self.scores()}"
        return self.outcome(Status.HUMAN, "human:disagreement", reason=reason)

    def scores(self) -> str:
        return ", ".join(f"{side} {_told(self.evaluated[side])}" for side in SIDES)

    def refused(self) -> Outcome:
        a, b = self.evaluated["A"], self.evaluated["B"]
        scores = self.scores()
        if not (a.acceptable or b.acceptable):
            reason = f"neither code is acceptable: {scores}"
            return self.outcome(Status.HUMAN, "human:none-acceptable", reason=reason)
        reason = f"only {'A' if a.acceptable else 'B'} is acceptable: {scores}"
        return self.outcome(Status.HUMAN, "human:one-acceptable", reason=reason)

    # Calls

    async def ask(
        self,
        stage: str,
        asked: RoleModel,
        prompt: PromptFile,
        content: dict[str, Any],
        read: Callable[[str, str], R],
    ) -> tuple[R, tuple[Call, ...]]:
        """Makes one call and, if its reply cannot be read, a second turn that says why.

        Raises:
            _Unread: The second reply cannot be read either.
            _Ended: The call failed.
        """
        messages = prompt.messages(**content)
        first = await self.call(stage, asked, prompt, messages, prompt)
        try:
            return read(first.reply.text, first.reply.finish_reason), (first,)
        except UnreadableError as error:
            problem = str(error)
        repair = self.settings.prompts.repair
        said = shortened(neutral(first.reply.text), prompt.shown) or "(no text)"
        request = repair.messages(problem=neutral(problem), keys=prompt.keys)
        turns = (*messages, Message("assistant", said), *request)
        second = await self.call(repair_stage(stage), asked, repair, turns, prompt)
        try:
            reply = read(second.reply.text, second.reply.finish_reason)
        except UnreadableError as error:
            raise _Unread(f"{problem}; asked again: {error}", (first, second)) from error
        return _with_repair(reply, f"asked again: {problem}"), (first, second)

    async def call(
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
        request = asked.request(messages, expected.schema, self.settings.salt)
        try:
            reply = await self.chat.complete(request, self.case.description_hash, stage)
        except CallError as error:
            raise _Ended(Status.FAILED, f"failed:{stage}", f"{stage}: {error}") from error
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

    # Record

    def outcome(
        self, status: Status, step: str, label: Label | None = None, reason: str | None = None
    ) -> Outcome:
        case, sent = self.case, [call.reply for call in self.calls if not call.reply.cached]
        priced = [reply.cost for reply in sent if reply.cost is not None]
        outcome = Outcome(
            case=case.id,
            description_hash=case.description_hash,
            generation=self.generation,
            gold=case.gold,
            gold_label=case.gold_label,
            candidate=case.candidate,
            trap=case.trap,
            meta=case.meta,
            status=status,
            reason=reason,
            path=(*self.steps(), step),
            label=label,
            answers={
                side: Answer(
                    classification=self.classified[side], evaluation=self.evaluated.get(side)
                )
                for side in SIDES
                if side in self.classified
            },
            agreement=self.agreement,
            adjudication=self.adjudication,
            prompt_tokens=sum(reply.prompt_tokens for reply in sent),
            completion_tokens=sum(reply.completion_tokens for reply in sent),
            cost=math.fsum(priced) if len(priced) == len(sent) else None,
            started=self.started,
            finished=datetime.now(UTC),
        )
        used = {call.reply.key for call in outcome.used_calls}
        unread = [call for call in self.calls if call.reply.key not in used]
        ordered = tuple(sorted(unread, key=lambda call: call.stage))
        return outcome.model_copy(update={"unread": ordered})

    def steps(self) -> Iterator[str]:
        """Yields the steps taken, in the order of the protocol and not of the answers."""
        for side, classification in sorted(self.classified.items()):
            given = self.settings.stages == "evaluate"
            yield f"{CANDIDATE if given else classify_stage(side)}:{classification.format}"
        for side, evaluation in sorted(self.evaluated.items()):
            yield f"{evaluate_stage(side)}:{evaluation.verdict}:{evaluation.score}"
        if self.agreement is not None:
            yield f"compare:{self.relation()}"
        if self.adjudication is not None:
            yield f"{ADJUDICATE}:{''.join(self.adjudication.order)}:{self.adjudication.choice}"
            if (confirmation := self.adjudication.confirmation) is not None:
                yield f"{CONFIRM}:{confirmation.verdict}:{confirmation.score}"


async def _both(a: Coroutine[Any, Any, None], b: Coroutine[Any, Any, None]) -> None:
    """Waits for both, so that a paid answer is kept if the other fails; raises the worst error."""
    results = await asyncio.gather(a, b, return_exceptions=True)
    errors = [result for result in results if result is not None]
    if errors:
        raise min(errors, key=_rank)


def _rank(error: BaseException) -> int:
    """Ranks errors: those that leave the case open, then failed calls, then unreadable replies."""
    if not isinstance(error, _Ended):
        return 0
    return 1 if error.status is Status.FAILED else 2


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


def _with_repair(reply: R, repair: str) -> R:
    return replace(reply, repairs=(repair, *reply.repairs))


def _unreadable(stage: str, unread: _Unread) -> _Ended:
    reason = f"{stage}: the reply could not be read: {unread.problem}"
    return _Ended(Status.HUMAN, f"human:{stage}-unreadable", reason)


def _told(evaluation: Evaluation) -> str:
    return f"{evaluation.verdict} {evaluation.score}"
