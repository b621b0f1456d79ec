"""The decision of one case by two annotators, an evaluator, an adjudicator, or else a person.

The only side effects are calls to the given `Chat`. Equal cases and settings make equal calls in
the same order, so the journal can answer an interrupted run up to where it stopped. Every reply of
a model leads to a typed outcome.
"""

import asyncio
import math
from collections.abc import Coroutine, Iterator
from datetime import UTC, datetime
from typing import Any

from raylab.annotation.input.cases import Case
from raylab.annotation.outcome import (
    Adjudication,
    Answer,
    Classification,
    Evaluation,
    Outcome,
    Status,
)
from raylab.annotation.protocol.decision_table import Relation, Step, next_step, relation_of
from raylab.annotation.protocol.questions import CaseEnded, Questions
from raylab.annotation.protocol.stages import Stages, label_of
from raylab.annotation.roles import (
    ADJUDICATE,
    CANDIDATE,
    CANDIDATE_SIDE,
    CONFIRM,
    SIDES,
    Side,
    classify_stage,
    evaluate_stage,
)
from raylab.annotation.settings import Settings
from raylab.codebook import Agreement, Label, compare
from raylab.config.base import AS_PUBLISHED
from raylab.errors import CallError
from raylab.llm.chat import Chat


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
        stages = Stages(case, settings, Questions(case, chat, settings))
        return await stages.evaluate(CONFIRM, classification)
    except CaseEnded as ended:
        raise CallError(f"case {case.id}: {ended.reason}") from ended


class _Course:
    """One case on its way through the protocol, with all results so far."""

    def __init__(self, case: Case, chat: Chat, settings: Settings, generation: str) -> None:
        self.case, self.settings, self.generation = case, settings, generation
        self.questions = Questions(case, chat, settings)
        self.stages = Stages(case, settings, self.questions)
        self.started = datetime.now(UTC)
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
        except CaseEnded as ended:
            return self.outcome(ended.status, ended.step, reason=ended.reason)

    async def judge_candidate(self) -> Outcome:
        """Has the evaluator judge the candidate of the row, and nobody else asked."""
        side = CANDIDATE_SIDE
        self.classified[side] = self.stages.read_candidate()
        await self.evaluate_side(side)
        if self.evaluated[side].acceptable:
            return self.outcome(Status.ACCEPTED, "accept", self.label_of(side))
        reason = f"the candidate is not acceptable: {_told(self.evaluated[side])}"
        return self.outcome(Status.HUMAN, "human:candidate", reason=reason)

    def refuse_long_description(self) -> None:
        prompt, length = self.settings.prompts.classify, len(self.case.description)
        if length > prompt.longest:
            raise CaseEnded(
                Status.FAILED,
                "failed:description",
                f"the description has {length:,} characters and the prompt {prompt.name} takes "
                f"{prompt.longest:,}: shorten it to what says how the system works"
                + (", or choose another llm.prompt" if self.settings.prompts.warning else ""),
            )

    # Stages

    async def classify(self, side: Side) -> None:
        self.classified[side] = await self.stages.classify(side)

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
        self.evaluated[side] = await self.stages.evaluate(evaluate_stage(side), classification)

    def label_of(self, side: Side) -> Label:
        return label_of(self.classified[side])

    # Decision

    async def decide(self) -> Outcome:
        for side, classification in self.classified.items():
            if classification.label is None:
                raise CaseEnded(
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
        return relation_of(self.label_of("A"), self.label_of("B"))

    async def settle(self) -> Outcome:
        """Adjudicates and confirms the final code."""
        self.adjudication = await self.stages.adjudicate(self.classified, self.evaluated)
        final = self.adjudication.classification
        confirmation = await self.stages.evaluate(CONFIRM, final)
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

    # Record

    def outcome(
        self, status: Status, step: str, label: Label | None = None, reason: str | None = None
    ) -> Outcome:
        case, calls = self.case, self.questions.calls
        sent = [call.reply for call in calls if not call.reply.cached]
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
        unread = [call for call in calls if call.reply.key not in used]
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
    if not isinstance(error, CaseEnded):
        return 0
    return 1 if error.status is Status.FAILED else 2


def _told(evaluation: Evaluation) -> str:
    return f"{evaluation.verdict} {evaluation.score}"
