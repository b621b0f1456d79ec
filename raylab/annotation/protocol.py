"""The decision of one case by two annotators, an evaluator, an adjudicator, or else a person.

The only side effects are calls to the given `Chat`. Equal cases and settings make equal calls in
the same order, so the journal can answer an interrupted run up to where it stopped. Every reply of
a model leads to a typed outcome.
"""

import asyncio
import math
from collections.abc import Coroutine, Iterator
from datetime import UTC, datetime
from enum import StrEnum
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
from raylab.annotation.stages import CaseEnded, Stages, label_of
from raylab.codebook import Agreement, Label, compare
from raylab.config.annotation import ProtocolConfig
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
    course = _Course(case, chat, settings, generation)
    try:
        return await course.run()
    except CaseEnded as ended:
        return course.outcome(ended.status, ended.step, reason=ended.reason)


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
        return await Stages(case, chat, settings).evaluate(CONFIRM, classification)
    except CaseEnded as ended:
        raise CallError(f"case {case.id}: {ended.reason}") from ended


# The decision table


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


def relation_of(a: Label, b: Label) -> Relation:
    """Returns the relation of two codes."""
    if a.composition == b.composition:
        return Relation.SAME
    return Relation.OPERATORS if a.categories == b.categories else Relation.ROOTS


def next_step(acceptable: tuple[bool, bool], relation: Relation, rules: ProtocolConfig) -> Step:
    """Returns the next step by the decision table of the protocol.

    Args:
        acceptable: True for each side, A and B, whose code is acceptable.
        relation: Relation of the codes.
        rules: The policy, and whether differing operators are accepted.
    """
    alike = relation is Relation.SAME or (
        relation is Relation.OPERATORS and rules.accept_operator_differences
    )
    if rules.policy == "published" and not alike:
        return Step.ADJUDICATE
    match acceptable:
        case (True, True):
            return Step.ACCEPT if alike else Step.ADJUDICATE
        case (False, False):
            return Step.HUMAN
        case _:
            return Step.ADJUDICATE if rules.policy == "lenient" else Step.HUMAN


# The course of a case


class _Course:
    """One case on its way through the protocol, with all results so far."""

    def __init__(self, case: Case, chat: Chat, settings: Settings, generation: str) -> None:
        self._case, self._settings, self._generation = case, settings, generation
        self._stages = Stages(case, chat, settings)
        self._started = datetime.now(UTC)
        self._classified: dict[Side, Classification] = {}
        self._evaluated: dict[Side, Evaluation] = {}
        self._agreement: Agreement | None = None
        self._adjudication: Adjudication | None = None

    async def run(self) -> Outcome:
        """Returns the outcome of a case that comes to its end.

        Raises:
            CaseEnded: The case ends early.
        """
        self._refuse_long_description()
        if self._settings.rules.stages == "evaluate":
            return await self._judge_candidate()
        await _both(self._classify("A"), self._classify("B"))
        await self._evaluate_both()
        return await self._decide()

    async def _judge_candidate(self) -> Outcome:
        """Has the evaluator judge the candidate of the row, and asks nobody else."""
        side = CANDIDATE_SIDE
        self._classified[side] = self._stages.read_candidate()
        await self._evaluate(side)
        if self._evaluated[side].acceptable:
            return self.outcome(Status.ACCEPTED, "accept", self._label_of(side))
        reason = f"the candidate is not acceptable: {_grade(self._evaluated[side])}"
        return self.outcome(Status.HUMAN, "human:candidate", reason=reason)

    def _refuse_long_description(self) -> None:
        prompt, length = self._settings.prompts.classify, len(self._case.description)
        if length > prompt.longest:
            raise CaseEnded(
                Status.FAILED,
                "failed:description",
                f"the description has {length:,} characters and the prompt {prompt.name} takes "
                f"{prompt.longest:,}: shorten it to what says how the system works"
                + (", or choose another llm.prompt" if self._settings.prompts.warning else ""),
            )

    async def _classify(self, side: Side) -> None:
        self._classified[side] = await self._stages.classify(side)

    async def _evaluate(self, side: Side) -> None:
        classification = self._classified[side]
        self._evaluated[side] = await self._stages.evaluate(evaluate_stage(side), classification)

    async def _evaluate_both(self) -> None:
        """Evaluates both at once; equal calls go in turn, so that the second costs nothing."""
        a, b = self._classified["A"], self._classified["B"]
        if (a.label, a.rationale) == (b.label, b.rationale):
            await self._evaluate("A")
            await self._evaluate("B")
        else:
            await _both(self._evaluate("A"), self._evaluate("B"))

    async def _decide(self) -> Outcome:
        for side, classification in self._classified.items():
            if classification.label is None:
                problem = f"no code of {side} could be read: {classification.problem}"
                raise CaseEnded(Status.HUMAN, "human:unparsable", problem)
        rules, labels = self._settings.rules, (self._label_of("A"), self._label_of("B"))
        self._agreement = compare(*labels, self._settings.codebook.distance)
        acceptable = self._evaluated["A"].acceptable, self._evaluated["B"].acceptable
        match next_step(acceptable, relation_of(*labels), rules):
            case Step.ACCEPT:
                return self.outcome(Status.ACCEPTED, "accept", labels[0])
            case Step.ADJUDICATE if rules.adjudicator == "model":
                return await self._settle()
            case Step.ADJUDICATE if relation_of(*labels) is not Relation.SAME:
                return self._leave_difference()
            case _:
                return self._leave_refused()

    async def _settle(self) -> Outcome:
        """Adjudicates and confirms the final code."""
        self._adjudication = await self._stages.adjudicate(self._classified, self._evaluated)
        final = self._adjudication.classification
        confirmation = await self._stages.evaluate(CONFIRM, final)
        self._adjudication = self._adjudication.model_copy(update={"confirmation": confirmation})
        if confirmation.acceptable:
            return self.outcome(Status.ADJUDICATED, "accept", final.label)
        reason = f"the adjudicated code is not acceptable: {_grade(confirmation)}"
        return self.outcome(Status.HUMAN, "human:unconfirmed", reason=reason)

    def _leave_difference(self) -> Outcome:
        """Leaves to a person what an adjudicator would settle."""
        codes = " and ".join(f"{side} {self._label_of(side).composition}" for side in SIDES)
        reason = f"the codes differ, {codes}: {self._grades()}"
        return self.outcome(Status.HUMAN, "human:disagreement", reason=reason)

    def _leave_refused(self) -> Outcome:
        """Leaves to a person what the evaluator refused."""
        acceptable = [side for side in SIDES if self._evaluated[side].acceptable]
        if not acceptable:
            reason = f"neither code is acceptable: {self._grades()}"
            return self.outcome(Status.HUMAN, "human:none-acceptable", reason=reason)
        reason = f"only {acceptable[0]} is acceptable: {self._grades()}"
        return self.outcome(Status.HUMAN, "human:one-acceptable", reason=reason)

    def _label_of(self, side: Side) -> Label:
        return label_of(self._classified[side])

    def _grades(self) -> str:
        return ", ".join(f"{side} {_grade(self._evaluated[side])}" for side in SIDES)

    def outcome(
        self, status: Status, step: str, label: Label | None = None, reason: str | None = None
    ) -> Outcome:
        """Returns the outcome with all that was got so far.

        Args:
            status: How the case ends.
            step: The last step.
            label: The final label, if there is one.
            reason: Why a person must decide, or why the case failed.
        """
        case, calls = self._case, self._stages.calls
        sent = [call.reply for call in calls if not call.reply.cached]
        priced = [reply.cost for reply in sent if reply.cost is not None]
        outcome = Outcome(
            case=case.id,
            description_hash=case.description_hash,
            generation=self._generation,
            gold=case.gold,
            gold_label=case.gold_label,
            candidate=case.candidate,
            trap=case.trap,
            meta=case.meta,
            status=status,
            reason=reason,
            path=(*self._steps(), step),
            label=label,
            answers={
                side: Answer(
                    classification=self._classified[side], evaluation=self._evaluated.get(side)
                )
                for side in SIDES
                if side in self._classified
            },
            agreement=self._agreement,
            adjudication=self._adjudication,
            prompt_tokens=sum(reply.prompt_tokens for reply in sent),
            completion_tokens=sum(reply.completion_tokens for reply in sent),
            cost=math.fsum(priced) if len(priced) == len(sent) else None,
            started=self._started,
            finished=datetime.now(UTC),
        )
        used = {call.reply.key for call in outcome.used_calls}
        unread = [call for call in calls if call.reply.key not in used]
        ordered = tuple(sorted(unread, key=lambda call: call.stage))
        return outcome.model_copy(update={"unread": ordered})

    def _steps(self) -> Iterator[str]:
        """Yields the steps taken, in the order of the protocol and not of the answers."""
        candidate = self._settings.rules.stages == "evaluate"
        for side, classification in sorted(self._classified.items()):
            yield f"{CANDIDATE if candidate else classify_stage(side)}:{classification.format}"
        for side, evaluation in sorted(self._evaluated.items()):
            yield f"{evaluate_stage(side)}:{evaluation.verdict}:{evaluation.score}"
        if self._agreement is not None:
            yield f"compare:{relation_of(self._label_of('A'), self._label_of('B'))}"
        if self._adjudication is not None:
            yield f"{ADJUDICATE}:{''.join(self._adjudication.order)}:{self._adjudication.choice}"
            if (confirmation := self._adjudication.confirmation) is not None:
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


def _grade(evaluation: Evaluation) -> str:
    return f"{evaluation.verdict} {evaluation.score}"
